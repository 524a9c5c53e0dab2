"""Reads Java's OAUTHBEARER settings: the source of tokens, the refresh window and the SASL extensions (KIP-342).

Kafka's own handlers and retrievers are known by name, and so are those of clouds; any other is a Java class and is refused.
"""

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError
from mirrorflow_core.java.cloud_logins import (
    AWS_CLIENT_HANDLERS,
    AWS_HANDLER,
    AZURE_HANDLER,
    CLIENT_HANDLER_KEY,
    GCP_HANDLER,
    LOGIN_HANDLER_KEY,
    SCOPE_KEY,
    STRIMZI_HANDLER,
    is_aws_iam,
    strimzi_login,
)
from mirrorflow_core.java.jaas import KEY as JAAS
from mirrorflow_core.java.security_keys import SECURITY_KEYS
from mirrorflow_kafka.security.assertions import AssertionGrant, assertion_of
from mirrorflow_kafka.security.identity_requests import RequestLimits
from mirrorflow_kafka.security.oauth import (
    ClientCredentials,
    RefreshWindow,
    TokenFile,
    TokenSource,
    UnsecuredToken,
)
from mirrorflow_kafka.security.tls import build_context

# As OAuthBearerClientInitialResponse: names and values that cannot break out of the message.
_EXTENSION_NAME, _EXTENSION_VALUE = re.compile(r"[A-Za-z]+"), re.compile(r"[\x21-\x7e \t\r\n]+")
_CLAIM_KINDS = ("String", "Number", "List")
PACKAGE = "org.apache.kafka.common.security."
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
_LOGIN_HANDLERS = _OAUTH_HANDLERS | {
    _UNSECURED_HANDLER,
    AWS_HANDLER,
    GCP_HANDLER,
    AZURE_HANDLER,
    STRIMZI_HANDLER,
}
_JWT_BEARER = f"{PACKAGE}oauthbearer.JwtBearerJwtRetriever"
_RETRIEVERS = {_JWT_BEARER} | {
    f"{PACKAGE}oauthbearer.{name}"
    for name in ("DefaultJwtRetriever", "ClientCredentialsJwtRetriever", "FileJwtRetriever")
}
# Clouds answer within milliseconds. Without a route there, a client with three addresses knows the reason within `REACH_TIMEOUT_S`.
CLOUD_CONNECT_S = 3.0
CLOUD_RETRY_TOTAL_S = 6.0
_ASSERTION_FILE = "sasl.oauthbearer.assertion.file"


def unsecured_token(options: Mapping[str, str]) -> UnsecuredToken:
    """Returns the token source for the options of Java's OAuthBearerUnsecuredLoginCallbackHandler.

    The option name gives the kind of a claim; the first character of a List is its separator. Raises
    InvalidSettingError.
    """
    claims: dict[str, object] = {}
    lifetime_s = 3600.0
    try:
        for name, value in options.items():
            for kind in _CLAIM_KINDS:
                claim = name.removeprefix(f"unsecuredLogin{kind}Claim_")
                if claim != name and claim not in {"iat", "exp"}:
                    items: list[str] = value[1:].split(value[0]) if kind == "List" and value else []
                    claims[claim] = float(value) if kind == "Number" else items if kind == "List" else value
        lifetime_s = float(options.get("unsecuredLoginLifetimeSeconds", lifetime_s))
    except ValueError:
        raise InvalidSettingError(
            key=JAAS, problem="an unsecuredLogin option that must be a number is not one"
        ) from None
    principal = options.get("unsecuredLoginPrincipalClaimName", "sub")
    if not claims.get(principal):
        raise InvalidSettingError(
            key=JAAS,
            problem="the claim for the principal is missing",
            action="set the option unsecuredLoginStringClaim_sub",
        )
    return UnsecuredToken(claims=claims, lifetime_s=lifetime_s)


def sasl_extensions(options: Mapping[str, str], source: object) -> Mapping[str, str]:
    """Returns the SASL extensions to send with a token of *source*, by name.

    Raises InvalidSettingError for names or values that could break out of the message.
    """
    prefix = "unsecuredLoginExtension_" if isinstance(source, UnsecuredToken) else "extension_"
    extensions = {
        name.removeprefix(prefix): value for name, value in options.items() if name.startswith(prefix)
    }
    for number, (name, value) in enumerate(extensions.items(), 1):
        if not _EXTENSION_NAME.fullmatch(name) or name == "auth" or not _EXTENSION_VALUE.fullmatch(value):
            problem = f"SASL extension {number} is not allowed; names are letters only and not auth, values printable ASCII"
            raise InvalidSettingError(key=JAAS, problem=problem)
    return extensions


def refresh_window(properties: Mapping[str, str]) -> RefreshWindow:
    """Returns the refresh window from `sasl.login.refresh.*`, within Java's limits. Raises InvalidSettingError."""
    prefix = "sasl.login.refresh."
    return RefreshWindow(
        factor=number(properties, f"{prefix}window.factor", 0.8, least=0.5, most=1.0),
        jitter=number(properties, f"{prefix}window.jitter", 0.05, least=0.0, most=0.25),
        min_period_s=number(properties, f"{prefix}min.period.seconds", 60, least=0, most=900),
        buffer_s=number(properties, f"{prefix}buffer.seconds", 300, least=0, most=3600),
    )


def number(
    properties: Mapping[str, str], key: str, default: float, *, least: float, most: float = 2**31
) -> float:
    """Returns the number set for *key*, or *default*. Raises InvalidSettingError outside *least* to *most*."""
    text = properties.get(key, "").strip()
    try:
        value = float(text) if text else default
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise InvalidSettingError(key=key, problem=f"must be a number from {least:g} to {most:g}")
    return value


def check_classes(properties: Mapping[str, str]) -> None:
    """Raises RefusedSettingError for a Java class of *properties* without a counterpart here."""
    for key, known in (
        (LOGIN_HANDLER_KEY, _LOGIN_HANDLERS),
        (CLIENT_HANDLER_KEY, AWS_CLIENT_HANDLERS),
        (_RETRIEVER, _RETRIEVERS),
    ):
        value = properties.get(key, "")
        if value and value not in known:
            why = f"it loads a Java class; use {_URL} with clientId and clientSecret, or a file: URL"
            raise RefusedSettingError(key=key, why=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSettings:
    """The source of tokens; `refusal_hint` says what may be missing if a broker refuses one; None: nothing is known."""

    source: TokenSource = field(repr=False)
    warnings: tuple[str, ...] = ()
    refusal_hint: str | None = None


def token_settings(
    properties: Mapping[str, str], options: Mapping[str, str], environment: Mapping[str, str]
) -> TokenSettings:
    """Returns the token source of *properties* and the login module's *options*. Raises SettingError."""
    check_classes(properties)
    cloud_limits = request_limits(properties, connect_s=CLOUD_CONNECT_S, retry_total_s=CLOUD_RETRY_TOTAL_S)
    if properties.get(LOGIN_HANDLER_KEY, "") == STRIMZI_HANDLER:
        properties, options = strimzi_login(properties, options)
    if is_aws_iam(properties):
        # Only for this kind of identity.
        from mirrorflow_kafka.security.aws_iam import aws_iam_token  # noqa: PLC0415

        aws, warnings = aws_iam_token(properties, options, environment, cloud_limits)
        return TokenSettings(source=aws, warnings=warnings, refusal_hint=aws.refusal_hint)
    handler = properties.get(LOGIN_HANDLER_KEY, "")
    if handler == GCP_HANDLER:
        from mirrorflow_kafka.security import gcp_identity  # noqa: PLC0415

        return TokenSettings(
            source=gcp_identity.gcp_token(environment, cloud_limits), refusal_hint=gcp_identity.REFUSAL_HINT
        )
    if handler == AZURE_HANDLER:
        from mirrorflow_kafka.security import azure_identity  # noqa: PLC0415

        azure = azure_identity.azure_token(properties, options, environment, cloud_limits)
        return TokenSettings(source=azure, refusal_hint=azure_identity.REFUSAL_HINT)
    source, warnings = _oauth_source(properties, options, handler)
    return TokenSettings(source=source, warnings=warnings)


def request_limits(
    properties: Mapping[str, str], *, connect_s: float = 10.0, retry_total_s: float = 10.0
) -> RequestLimits:
    """Returns the limits of requests for tokens from `sasl.login.*`, with defaults. Raises InvalidSettingError."""
    return RequestLimits(
        connect_timeout_s=number(properties, "sasl.login.connect.timeout.ms", connect_s * 1000, least=1)
        / 1000,
        read_timeout_s=number(properties, "sasl.login.read.timeout.ms", 30_000, least=1) / 1000,
        retry_s=number(properties, "sasl.login.retry.backoff.ms", 100, least=1) / 1000,
        retry_total_s=number(properties, "sasl.login.retry.backoff.max.ms", retry_total_s * 1000, least=0)
        / 1000,
    )


def _oauth_source(
    properties: Mapping[str, str], options: Mapping[str, str], handler: str
) -> tuple[TokenSource, tuple[str, ...]]:
    # Kafka 4 uses the endpoint without a handler class; an unsecuredLogin option selects Java's default
    # handler.
    unsecured = any(name.startswith("unsecuredLogin") for name in options) and handler not in _OAUTH_HANDLERS
    if handler == _UNSECURED_HANDLER or unsecured:
        warning = f"{JAAS}: unsecured tokens are not signed; use them for development only"
        return unsecured_token(options), (warning,)
    url = properties.get(_URL, "").strip()
    scheme = urlsplit(url).scheme.lower() if url.isprintable() and url.isascii() else ""
    if not url:
        raise InvalidSettingError(key=_URL, problem="is missing; OAUTHBEARER needs it")
    if scheme == "file":
        path = unquote(urlsplit(url).path)
        if not PurePosixPath(path).is_absolute():
            raise InvalidSettingError(
                key=_URL, problem="its path must be absolute", action="write file:///path/to/token"
            )
        return TokenFile(path=path), ()
    if scheme not in {"http", "https"} or not _has_host(url):
        raise InvalidSettingError(key=_URL, problem="must be an https:, http: or file: URL")
    return _credentials(properties, options, url)


def _has_host(url: str) -> bool:
    try:
        return bool(urlsplit(url).hostname) and urlsplit(url).port != 0
    except ValueError:
        return False


def _credentials(
    properties: Mapping[str, str], options: Mapping[str, str], url: str
) -> tuple[ClientCredentials | AssertionGrant, tuple[str, ...]]:
    """Returns the exchange at the endpoint *url*: by an assertion if the settings have one, else by the client's secret."""
    prefix = "sasl.oauthbearer.client.credentials.client."
    client_id = properties.get(f"{prefix}id") or options.get("clientId", "")
    client_secret = properties.get(f"{prefix}secret") or options.get("clientSecret", "")
    is_bearer = properties.get(_RETRIEVER, "") == _JWT_BEARER
    assertion = assertion_of(properties, number)
    if is_bearer and assertion is None:
        raise InvalidSettingError(
            key=_ASSERTION_FILE,
            problem="is missing; the JWT bearer grant needs an assertion",
            action="set it, or sasl.oauthbearer.assertion.private.key.file",
        )
    required = ((client_id, "clientId"), (client_secret, "clientSecret")) if assertion is None else ()
    for value, option in required:
        if not value:
            raise InvalidSettingError(
                key=JAAS, problem=f"the option {option} is missing; the token endpoint needs it"
            )
    context, warnings = _endpoint_context(properties, options, url)
    scope = properties.get(SCOPE_KEY) or options.get("scope") or None
    limits = request_limits(properties)
    if assertion is not None:
        grant = AssertionGrant(
            url=url,
            assertion=assertion,
            client_id=client_id,
            scope=scope,
            is_bearer=is_bearer,
            context=context,
            limits=limits,
        )
        return grant, warnings
    source = ClientCredentials(
        url=url,
        client_id=client_id,
        client_secret=client_secret,
        scope=scope,
        header_urlencode=properties.get("sasl.oauthbearer.header.urlencode", "").strip().lower() == "true",
        context=context,
        limits=limits,
    )
    return source, warnings


def _endpoint_context(
    properties: Mapping[str, str], options: Mapping[str, str], url: str
) -> tuple[ssl.SSLContext | None, tuple[str, ...]]:
    if not url.lower().startswith("https:"):
        return None, (f"{_URL}: an http: URL sends the client's credentials unencrypted",)
    # Java reads ssl.* for this peer from the JAAS options; without any, the brokers' trust store is used.
    own = {key: value for key, value in options.items() if key.startswith("ssl.")}
    chosen = {key: value for key, value in (own or properties).items() if key in SECURITY_KEYS}
    # Disabling the host name check applies to brokers only: a false token endpoint would receive the
    # secret itself.
    return build_context({**chosen, "ssl.endpoint.identification.algorithm": "https"})[0], ()
