"""Rules of how a cluster is told who we are: each type has fields of its own (see `validate_cluster`)."""

from collections.abc import Iterable, Mapping

from mirrorflow_operator.api.cluster import Authentication, AuthenticationType, Cluster, TextSource
from mirrorflow_operator.errors import FieldError

_REQUIRED: Mapping[AuthenticationType, tuple[str, ...]] = {
    AuthenticationType.TLS: ("certificateAndKey",),
    AuthenticationType.PLAIN: ("username", "password"),
    AuthenticationType.SCRAM_SHA_256: ("username", "password"),
    AuthenticationType.SCRAM_SHA_512: ("username", "password"),
    AuthenticationType.OAUTH_BEARER: ("clientId", "clientSecret", "tokenEndpoint"),
    AuthenticationType.CUSTOM: ("config",),
}
_OPTIONAL: Mapping[AuthenticationType, tuple[str, ...]] = {AuthenticationType.OAUTH_BEARER: ("scope",)}


def texts_are_somewhere(path: str, cluster: Cluster) -> Iterable[FieldError]:
    """Written here, or in a Secret."""
    authentication = cluster.authentication
    if authentication is None:
        return
    for name, text in (("username", authentication.username), ("clientId", authentication.client_id)):
        if text is not None and not _is_somewhere(text):
            yield FieldError(
                path=f"{path}.authentication.{name}",
                message="it needs either value, or secretName and key",
                action="write {value: ...} or {secretName: ..., key: ...}",
            )


def authentication_fits_its_type(path: str, cluster: Cluster) -> Iterable[FieldError]:
    """Each type has fields of its own; one of another type would be passed over."""
    authentication = cluster.authentication
    if authentication is None:
        return
    required = _REQUIRED[authentication.type]
    allowed = (*required, *_OPTIONAL.get(authentication.type, ()))
    given = _given(authentication)
    kind = authentication.type.value
    for name in required:
        if name not in given:
            yield FieldError(
                path=f"{path}.authentication.{name}",
                message="it is missing",
                action=f"type {kind} needs {', '.join(required)}",
            )
    for name in given:
        if name not in allowed:
            yield FieldError(
                path=f"{path}.authentication.{name}",
                message=f"it has no meaning with type {kind}",
                action=f"remove it; {kind} knows {', '.join(allowed)}",
            )


def client_certificates_need_tls(path: str, cluster: Cluster) -> Iterable[FieldError]:
    """A certificate is shown in a TLS handshake."""
    if (
        cluster.tls is None
        and cluster.authentication is not None
        and cluster.authentication.type is AuthenticationType.TLS
    ):
        yield FieldError(
            path=f"{path}.tls",
            message="it is missing, and authentication type Tls needs it",
            action="write tls: {} at least",
        )


def custom_authentication_is_authentication(path: str, cluster: Cluster) -> Iterable[FieldError]:
    """Only sasl.* and ssl.keystore.* style keys belong there; secrets in it are references."""
    authentication = cluster.authentication
    if authentication is None or authentication.type is not AuthenticationType.CUSTOM:
        return
    for key, value in authentication.config.items():
        here = f"{path}.authentication.config[{key}]"
        if not key.startswith(("sasl.", "ssl.")):
            yield FieldError(
                path=here, message="it is no sasl. or ssl. property", action=f"move it to {path}.config"
            )
        if _may_hold_secret(key) and "${" not in value:
            yield FieldError(
                path=here,
                message="it holds a secret in plain text",
                action="write a reference such as ${dir:/path:key}",
            )


def _is_somewhere(text: TextSource) -> bool:
    if text.value is not None:
        return text.secret_name is None and text.key is None
    return text.secret_name is not None and text.key is not None


def _given(authentication: Authentication) -> list[str]:
    names = {
        name: field.alias or name
        for name, field in type(authentication).model_fields.items()
        if name not in {"type", "sasl"}
    }
    return [alias for name, alias in names.items() if getattr(authentication, name)]


def _may_hold_secret(key: str) -> bool:
    return key.endswith((".password", ".secret", ".passphrase", "keystore.key", "sasl.jaas.config"))


RULES = (
    texts_are_somewhere,
    authentication_fits_its_type,
    client_certificates_need_tls,
    custom_authentication_is_authentication,
)
