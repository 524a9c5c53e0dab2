"""Builds the Kafka client properties of a cluster: addresses, encryption, authentication, further `config`.

Every secret is a reference, also inside `sasl.jaas.config`. All certificates are PEM (KIP-651), so a Secret of
cert-manager, Strimzi or `kubectl create secret tls` works unchanged.
"""

from collections.abc import Mapping

from mirrorflow_core.java.jaas import escape_option, format_jaas
from mirrorflow_operator.api.cluster import (
    Authentication,
    AuthenticationType,
    Cluster,
    SecretKey,
    TextSource,
    TrustedCertificate,
)
from mirrorflow_operator.plan.layout import SecretLayout

CLIENT_ROLES = ("consumer", "producer", "admin")
_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_OAUTH_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_MECHANISMS: Mapping[AuthenticationType, tuple[str, str]] = {
    AuthenticationType.PLAIN: ("PLAIN", _PLAIN_MODULE),
    AuthenticationType.SCRAM_SHA_256: ("SCRAM-SHA-256", _SCRAM_MODULE),
    AuthenticationType.SCRAM_SHA_512: ("SCRAM-SHA-512", _SCRAM_MODULE),
}


def cluster_properties(side: str, cluster: Cluster, layout: SecretLayout) -> dict[str, str]:
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


def client_config(cluster: Cluster, prefix: str) -> dict[str, str]:
    """Returns the cluster's `config`; MM2 accepts such keys only with a client role as their prefix."""
    properties: dict[str, str] = {}
    for key, value in cluster.config.items():
        names = [key] if key.startswith(tuple(f"{role}." for role in CLIENT_ROLES)) else _all_roles(key)
        properties |= {prefix + name: value for name in names}
    return properties


def _all_roles(key: str) -> list[str]:
    return [f"{role}.{key}" for role in CLIENT_ROLES]


def security_properties(cluster: Cluster, layout: SecretLayout) -> dict[str, str]:
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
    options = {
        "clientId": _text(authentication.client_id, layout),
        "clientSecret": _secret(authentication.client_secret, layout),
    }
    if authentication.scope is not None:
        options["scope"] = escape_option(authentication.scope)
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": _OAUTH_HANDLER,
        "sasl.oauthbearer.token.endpoint.url": authentication.token_endpoint or "",
        "sasl.jaas.config": format_jaas(_OAUTH_MODULE, options),
    }


def _text(source: TextSource | None, layout: SecretLayout) -> str:
    if source is None:
        return ""
    if source.value is not None:
        return escape_option(source.value)
    return layout.secret_reference(source.secret_name or "", source.key or "")


def _secret(secret: SecretKey | None, layout: SecretLayout) -> str:
    return "" if secret is None else layout.secret_reference(secret.secret_name, secret.key)
