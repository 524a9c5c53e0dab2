"""Reads OAUTHBEARER options of `sasl.jaas.config`: unsecured claims, and SASL extensions (KIP-342)."""

import re
from collections.abc import Mapping

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.jaas import KEY as JAAS
from mirrorflow_kafka.security.token_sources import UnsecuredToken

# As OAuthBearerClientInitialResponse: names and values that cannot break out of the message.
_EXTENSION_NAME, _EXTENSION_VALUE = re.compile(r"[A-Za-z]+"), re.compile(r"[\x21-\x7e \t\r\n]+")
_CLAIM_KINDS = ("String", "Number", "List")


def unsecured_token(options: Mapping[str, str]) -> UnsecuredToken:
    """Return the token source for the options of Java's OAuthBearerUnsecuredLoginCallbackHandler.

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
            key=JAAS, problem="a number among the unsecuredLogin options is no number"
        ) from None
    principal = options.get("unsecuredLoginPrincipalClaimName", "sub")
    if not claims.get(principal):
        raise InvalidSettingError(
            key=JAAS,
            problem="the principal's claim is missing",
            action="set the option unsecuredLoginStringClaim_sub",
        )
    return UnsecuredToken(claims=claims, lifetime_s=lifetime_s)


def sasl_extensions(options: Mapping[str, str], source: object) -> Mapping[str, str]:
    """Return the SASL extensions to send with a token of *source*, by name.

    Raises InvalidSettingError for names or values that could break out of the message.
    """
    prefix = "unsecuredLoginExtension_" if isinstance(source, UnsecuredToken) else "extension_"
    found = {name.removeprefix(prefix): value for name, value in options.items() if name.startswith(prefix)}
    for number, (name, value) in enumerate(found.items(), 1):
        if not _EXTENSION_NAME.fullmatch(name) or name == "auth" or not _EXTENSION_VALUE.fullmatch(value):
            problem = f"SASL extension {number} is not allowed; names are letters only and not auth, values printable ASCII"
            raise InvalidSettingError(key=JAAS, problem=problem)
    return found
