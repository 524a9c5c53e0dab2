"""Who the flow is on a cluster, in Java's property names: SASL mechanisms with their JAAS options, or a client key.

Secrets are references, within `sasl.jaas.config` too.
"""

from collections.abc import Mapping

from mirrorflow_operator.api.cluster import (
    Authentication,
    AuthenticationType,
    SecretKey,
    TextSource,
)
from mirrorflow_operator.plan.layout import SecretLayout

_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_OAUTH_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_MECHANISMS: Mapping[AuthenticationType, tuple[str, str]] = {
    AuthenticationType.PLAIN: ("PLAIN", _PLAIN_MODULE),
    AuthenticationType.SCRAM_SHA_256: ("SCRAM-SHA-256", _SCRAM_MODULE),
    AuthenticationType.SCRAM_SHA_512: ("SCRAM-SHA-512", _SCRAM_MODULE),
}


def identity_properties(authentication: Authentication, layout: SecretLayout) -> dict[str, str]:
    """`sasl.*` or `ssl.keystore.*`, whichever the type of authentication asks for."""
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
            return {"sasl.mechanism": mechanism, "sasl.jaas.config": _jaas(module, options)}


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
        options["scope"] = _quoted(authentication.scope)
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": _OAUTH_HANDLER,
        "sasl.oauthbearer.token.endpoint.url": authentication.token_endpoint or "",
        "sasl.jaas.config": _jaas(_OAUTH_MODULE, options),
    }


def _jaas(module: str, options: Mapping[str, str]) -> str:
    return f"{module} required " + " ".join(f'{name}="{value}"' for name, value in options.items()) + ";"


def _text(source: TextSource | None, layout: SecretLayout) -> str:
    if source is None:
        return ""
    if source.value is not None:
        return _quoted(source.value)
    return layout.secret_reference(source.secret_name or "", source.key or "")


def _secret(secret: SecretKey | None, layout: SecretLayout) -> str:
    return "" if secret is None else layout.secret_reference(secret.secret_name, secret.key)


def _quoted(text: str) -> str:
    """*text* as it stands between the double quotes of a JAAS option."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
