"""Plans the properties of a cluster's clients: addresses, encryption and login; and those of a schema registry's client.

Every secret is a reference, also inside `sasl.jaas.config`. All certificates are PEM (KIP-651), so a Secret of cert-manager,
Strimzi or `kubectl create secret tls` works unchanged.
"""

from collections.abc import Mapping

from mirrorflow_core.java.cloud_logins import AWS_HANDLER, AZURE_HANDLER, GCP_HANDLER, OAUTH_MODULE, SCOPE_KEY
from mirrorflow_core.java.jaas import escape_option, format_jaas
from mirrorflow_core.settings import REGISTRY_PREFIX
from mirrorflow_operator.api.authentication import (
    Authentication,
    AuthenticationType,
    SecretKey,
    TextSource,
    TrustedCertificate,
)
from mirrorflow_operator.api.spec import ClusterSpec, SchemaRegistry
from mirrorflow_operator.plan.secret_layout import SecretLayout

CLIENT_ROLES = ("consumer", "producer", "admin")
_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_OAUTH_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_MECHANISMS: Mapping[AuthenticationType, tuple[str, str]] = {
    AuthenticationType.PLAIN: ("PLAIN", _PLAIN_MODULE),
    AuthenticationType.SCRAM_SHA_256: ("SCRAM-SHA-256", _SCRAM_MODULE),
    AuthenticationType.SCRAM_SHA_512: ("SCRAM-SHA-512", _SCRAM_MODULE),
}


def cluster_properties(side: str, cluster: ClusterSpec, layout: SecretLayout) -> dict[str, str]:
    """Returns the connection properties of one cluster; *side* is source or target."""
    connection = {
        "bootstrap.servers": ",".join(cluster.bootstrap_servers),
        **security_properties(cluster, layout),
    }
    return {
        f"{side}.cluster.alias": cluster.alias,
        **{f"{side}.cluster.{key}": value for key, value in connection.items()},
        **client_config(cluster, f"{side}."),
    }


def client_config(cluster: ClusterSpec, prefix: str) -> dict[str, str]:
    """Returns the cluster's `config`; MM2 accepts such keys only with a client role as their prefix."""
    roles = tuple(f"{role}." for role in CLIENT_ROLES)
    return {
        prefix + role + key: value
        for key, value in cluster.config.items()
        for role in (("",) if key.startswith(roles) else roles)
    }


def security_properties(cluster: ClusterSpec, layout: SecretLayout) -> dict[str, str]:
    """Returns `security.protocol` and what it needs; empty for plain text without authentication."""
    encrypted = cluster.tls is not None
    sasl = _is_sasl(cluster.authentication)
    if not encrypted and cluster.authentication is None:
        return {}
    protocol = ("SASL_" if sasl else "") + ("SSL" if encrypted else "PLAINTEXT")
    properties = {"security.protocol": protocol}
    if cluster.tls is not None:
        properties |= _trust(cluster.tls.trusted_certificates, layout)
        if not cluster.tls.verify_hostname:
            properties["ssl.endpoint.identification.algorithm"] = ""
    if cluster.authentication is not None:
        properties |= _authentication_properties(cluster.authentication, layout)
    return properties


def _is_sasl(authentication: Authentication | None) -> bool:
    if authentication is None or authentication.type is AuthenticationType.TLS:
        return False
    return authentication.type is not AuthenticationType.CUSTOM or authentication.sasl


def _trust(certificates: tuple[TrustedCertificate, ...], layout: SecretLayout) -> dict[str, str]:
    if not certificates:
        return {}
    if len(certificates) == 1:
        return {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": _trusted_path(certificates[0], layout),
        }
    # A truststore is one file or one text, so several files become one text, separated by line breaks.
    texts = [_trusted_reference(certificate, layout) for certificate in certificates]
    return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": "\n".join(texts)}


def _trusted_path(certificate: TrustedCertificate, layout: SecretLayout) -> str:
    if certificate.secret_name is not None:
        return layout.secret_path(certificate.secret_name, certificate.key)
    return layout.config_map_path(certificate.config_map_name or "", certificate.key)


def _trusted_reference(certificate: TrustedCertificate, layout: SecretLayout) -> str:
    if certificate.secret_name is not None:
        return layout.secret_reference(certificate.secret_name, certificate.key)
    return layout.config_map_reference(certificate.config_map_name or "", certificate.key)


def _authentication_properties(authentication: Authentication, layout: SecretLayout) -> dict[str, str]:
    """Returns the `sasl.*` or `ssl.keystore.*` properties of this type of authentication."""
    match authentication.type:
        case AuthenticationType.TLS:
            return _keystore(authentication, layout)
        case AuthenticationType.CUSTOM:
            return dict(authentication.config)
        case AuthenticationType.OAUTH_BEARER:
            return _oauth(authentication, layout)
        case AuthenticationType.AWS_IAM:
            return _aws_iam(authentication)
        case AuthenticationType.GCP_WORKLOAD_IDENTITY:
            return _login_by(GCP_HANDLER, {})
        case AuthenticationType.AZURE_WORKLOAD_IDENTITY:
            scope = authentication.scope
            return _login_by(AZURE_HANDLER, {}) | ({} if scope is None else {SCOPE_KEY: scope})
        case _:
            mechanism, module = _MECHANISMS[authentication.type]
            options = {
                "username": _text(authentication.username, layout),
                "password": _secret(authentication.password, layout),
            }
            return {"sasl.mechanism": mechanism, "sasl.jaas.config": format_jaas(module, options)}


def _keystore(authentication: Authentication, layout: SecretLayout) -> dict[str, str]:
    pair = authentication.certificate_and_key
    if pair is None:
        return {}
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": layout.secret_reference(pair.secret_name, pair.certificate),
        "ssl.keystore.key": layout.secret_reference(pair.secret_name, pair.key),
    }


def _oauth(authentication: Authentication, layout: SecretLayout) -> dict[str, str]:
    options = {"clientId": _text(authentication.client_id, layout)}
    assertion = authentication.client_assertion
    if assertion is None:
        options["clientSecret"] = _secret(authentication.client_secret, layout)
    if authentication.scope is not None:
        options["scope"] = escape_option(authentication.scope)
    return {
        **_login_by(_OAUTH_HANDLER, options),
        "sasl.oauthbearer.token.endpoint.url": authentication.token_endpoint or "",
        **({} if assertion is None else {"sasl.oauthbearer.assertion.file": assertion.file}),
    }


def _login_by(handler: str, options: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties of OAUTHBEARER with Java's class *handler*."""
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": handler,
        "sasl.jaas.config": format_jaas(OAUTH_MODULE, options),
    }


def _aws_iam(authentication: Authentication) -> dict[str, str]:
    """Returns the properties of aws-msk-iam-auth; `awsRegion` is MirrorFlow's own option."""
    options = {"awsRegion": authentication.region, "awsRoleArn": authentication.role_arn}
    return _login_by(AWS_HANDLER, {name: value for name, value in options.items() if value is not None})


def _text(source: TextSource | None, layout: SecretLayout) -> str:
    if source is None:
        return ""
    if source.value is not None:
        return escape_option(source.value)
    return layout.secret_reference(source.secret_name or "", source.key or "")


def _secret(secret: SecretKey | None, layout: SecretLayout) -> str:
    return "" if secret is None else layout.secret_reference(secret.secret_name, secret.key)


def registry_properties(side: str, registry: SchemaRegistry, layout: SecretLayout) -> dict[str, str]:
    """Returns the properties of the schema registry of one cluster; *side* is source or target."""
    properties = {"url": registry.url}
    if registry.tls is not None:
        properties |= _trust(registry.tls.trusted_certificates, layout)
        if not registry.tls.verify_hostname:
            properties["ssl.endpoint.identification.algorithm"] = ""
    authentication = registry.authentication
    if authentication is not None and authentication.username is not None:
        user = authentication.username
        # Unlike in a JAAS text, nothing is escaped.
        name = _text(user, layout) if user.value is None else user.value
        properties["basic.auth.user.info"] = f"{name}:{_secret(authentication.password, layout)}"
    if authentication is not None and authentication.token is not None:
        properties["bearer.auth.token"] = _secret(authentication.token, layout)
    return {f"{side}.cluster.{REGISTRY_PREFIX}{key}": value for key, value in properties.items()}
