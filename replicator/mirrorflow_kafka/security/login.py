"""Chooses the SASL mechanism and checks that `sasl.jaas.config` fits it.

`java.jaas` parses `sasl.jaas.config`; `oauth_settings` reads OAUTHBEARER's options.
"""

from collections.abc import Mapping

from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError
from mirrorflow_core.java.jaas import KEY as JAAS
from mirrorflow_core.java.jaas import LoginModule, parse_jaas
from mirrorflow_kafka.security.sasl import (
    SCRAM_MECHANISMS,
    Login,
)

MECHANISMS = frozenset({"PLAIN", "OAUTHBEARER"}) | SCRAM_MECHANISMS
PACKAGE = "org.apache.kafka.common.security."
_LOGIN_MODULES = frozenset({f"{PACKAGE}plain.PlainLoginModule", f"{PACKAGE}scram.ScramLoginModule"})
_OAUTH_MODULE = f"{PACKAGE}oauthbearer.OAuthBearerLoginModule"
HANDLER = "sasl.login.callback.handler.class"


def chosen_mechanism(properties: Mapping[str, str]) -> str:
    """Return `sasl.mechanism`. Raises RefusedSettingError if it is unsupported or not set."""
    mechanism = properties.get("sasl.mechanism", "").strip()
    offered = ", ".join(sorted(MECHANISMS))
    if not mechanism:
        why = f"it is not set, and Java's default, GSSAPI (Kerberos), is not offered; set one of {offered}"
        raise RefusedSettingError(key="sasl.mechanism", why=why)
    if mechanism not in MECHANISMS:
        raise RefusedSettingError(
            key="sasl.mechanism", why=f"only {offered} are offered; brokers can have several"
        )
    return mechanism


def login_module(properties: Mapping[str, str], mechanism: str) -> LoginModule:
    """Return the login module of `sasl.jaas.config`, which must fit *mechanism*. Raises SettingError."""
    text = properties.get(JAAS, "")
    if not text.strip():
        raise InvalidSettingError(key=JAAS, problem=f"it is missing; {mechanism} needs it")
    module = parse_jaas(text)
    fitting = {_OAUTH_MODULE} if mechanism == "OAUTHBEARER" else _LOGIN_MODULES
    if module.class_name not in fitting:
        if module.class_name in _LOGIN_MODULES | {_OAUTH_MODULE}:
            raise InvalidSettingError(
                key=JAAS, problem=f"its login module is not for sasl.mechanism={mechanism}"
            )
        raise RefusedSettingError(
            key=JAAS, why="its login module is none of Kafka's own: " + ", ".join(sorted(fitting))
        )
    handler = properties.get(HANDLER, "")
    if handler and mechanism != "OAUTHBEARER":
        raise RefusedSettingError(
            key=HANDLER, why="it loads a Java class; put the credentials into sasl.jaas.config"
        )
    return module


def password_login(module: LoginModule, mechanism: str) -> Login:
    """Return the user and password for PLAIN or SCRAM. Raises InvalidSettingError."""
    for option in ("username", "password"):
        if option not in module.options:
            raise InvalidSettingError(key=JAAS, problem=f"{mechanism} needs the option {option}")
    if not module.options["username"]:
        raise InvalidSettingError(key=JAAS, problem="the option username is empty")
    token_auth = mechanism in SCRAM_MECHANISMS and module.options.get("tokenauth", "").lower() == "true"
    return Login(
        username=module.options["username"], password=module.options["password"], token_auth=token_auth
    )
