"""Chooses the source of OAUTHBEARER tokens from Java's settings.

Nothing is fetched here; `oauth` fetches from the result of `token_source`. Kafka's own handlers and
retrievers are known by name; any other is a Java class and is refused. `oauth_options` reads the options of
`sasl.jaas.config`, and `login_times` the timeouts.
"""

from collections.abc import Mapping
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError
from mirrorflow_core.java.jaas import KEY as JAAS
from mirrorflow_core.java.security_keys import SECURITY_KEYS
from mirrorflow_kafka.security.login import HANDLER, PACKAGE
from mirrorflow_kafka.security.login_times import number
from mirrorflow_kafka.security.oauth_options import unsecured_token
from mirrorflow_kafka.security.tls import build_context
from mirrorflow_kafka.security.token_endpoint import ClientCredentials
from mirrorflow_kafka.security.token_sources import TokenFile, UnsecuredToken

_RETRIEVER = "sasl.oauthbearer.jwt.retriever.class"
_URL = "sasl.oauthbearer.token.endpoint.url"
# Java's default handler makes unsecured tokens; Kafka 3.x and 4.x use different names for the other handler.
_UNSECURED_HANDLER = f"{PACKAGE}oauthbearer.internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler"
_OAUTH_HANDLERS = frozenset(
    {
        f"{PACKAGE}oauthbearer.OAuthBearerLoginCallbackHandler",
        f"{PACKAGE}oauthbearer.secured.OAuthBearerLoginCallbackHandler",
    }
)
_RETRIEVERS = frozenset(
    f"{PACKAGE}oauthbearer.{name}"
    for name in ("DefaultJwtRetriever", "ClientCredentialsJwtRetriever", "FileJwtRetriever")
)


def token_source(
    properties: Mapping[str, str], options: Mapping[str, str]
) -> tuple[ClientCredentials | TokenFile | UnsecuredToken, tuple[str, ...]]:
    """Return the token source and warnings. Raises SettingError."""
    handler, retriever = properties.get(HANDLER, ""), properties.get(_RETRIEVER, "")
    for key, value, known in (
        (HANDLER, handler, _OAUTH_HANDLERS | {_UNSECURED_HANDLER}),
        (_RETRIEVER, retriever, _RETRIEVERS),
    ):
        if value and value not in known:
            why = f"it loads a Java class; use {_URL} with clientId and clientSecret, or a file: URL"
            raise RefusedSettingError(key=key, why=why)
    # Kafka 4 uses the endpoint without a handler class; an unsecuredLogin option selects Java's default
    # handler.
    unsecured = any(name.startswith("unsecuredLogin") for name in options) and handler not in _OAUTH_HANDLERS
    if handler == _UNSECURED_HANDLER or unsecured:
        warning = f"{JAAS}: unsecured tokens prove nothing; use them for development only"
        return unsecured_token(options), (warning,)
    url = properties.get(_URL, "").strip()
    scheme = urlsplit(url).scheme.lower() if url.isprintable() and url.isascii() else ""
    if not url:
        raise InvalidSettingError(key=_URL, problem="it is missing; OAUTHBEARER needs it")
    if scheme == "file":
        path = unquote(urlsplit(url).path)
        if not PurePosixPath(path).is_absolute():
            raise InvalidSettingError(
                key=_URL, problem="its path is not absolute", action="write file:///path/to/token"
            )
        return TokenFile(path=path), ()
    if scheme not in {"http", "https"} or not _has_host(url):
        raise InvalidSettingError(key=_URL, problem="it is no https:, http: or file: URL")
    return _credentials(properties, options, url)


def _has_host(url: str) -> bool:
    try:
        return bool(urlsplit(url).hostname) and urlsplit(url).port != 0
    except ValueError:
        return False


def _credentials(
    properties: Mapping[str, str], options: Mapping[str, str], url: str
) -> tuple[ClientCredentials, tuple[str, ...]]:
    prefix = "sasl.oauthbearer.client.credentials.client."
    client_id = properties.get(f"{prefix}id") or options.get("clientId", "")
    client_secret = properties.get(f"{prefix}secret") or options.get("clientSecret", "")
    for value, option in ((client_id, "clientId"), (client_secret, "clientSecret")):
        if not value:
            raise InvalidSettingError(
                key=JAAS, problem=f"the option {option} is missing; the token endpoint needs it"
            )
    context = None
    warnings: tuple[str, ...] = ()
    if url.lower().startswith("https:"):
        # Java reads ssl.* for this peer from the JAAS options; without any, the brokers' trust store is used.
        own = {key: value for key, value in options.items() if key.startswith("ssl.")}
        chosen = {key: value for key, value in (own or properties).items() if key in SECURITY_KEYS}
        # Disabling the host name check applies to brokers only: a false token endpoint would receive the
        # secret itself.
        context, _ = build_context({**chosen, "ssl.endpoint.identification.algorithm": "https"})
    else:
        warnings = (f"{_URL}: http: sends the client's secret readable over the network",)
    source = ClientCredentials(
        url=url,
        client_id=client_id,
        client_secret=client_secret,
        scope=properties.get("sasl.oauthbearer.scope") or options.get("scope", ""),
        header_urlencode=properties.get("sasl.oauthbearer.header.urlencode", "").strip().lower() == "true",
        context=context,
        connect_timeout_s=number(properties, "sasl.login.connect.timeout.ms", 10_000, least=1) / 1000,
        read_timeout_s=number(properties, "sasl.login.read.timeout.ms", 30_000, least=1) / 1000,
        retry_s=number(properties, "sasl.login.retry.backoff.ms", 100, least=1) / 1000,
        retry_total_s=number(properties, "sasl.login.retry.backoff.max.ms", 10_000, least=0) / 1000,
    )
    return source, warnings
