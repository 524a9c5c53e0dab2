"""Converts `security.protocol`, `ssl.*` and `sasl.*` of a Java client into `tls` and `authentication`.

A pure function. Passwords, keys and certificates become names of Secrets, which the caller lists; their
values are not passed on. Settings that the named types can express use them. Anything else (cipher suites,
SASL over a client certificate, token options) makes the whole an `authentication` of type Custom with Java's
properties.
"""

import re
from collections.abc import Mapping
from typing import Any

from mirrorflow_cli.convert_java_flow import SECRETS_MOUNT, ConversionFindings
from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.jaas import LoginModule, parse_jaas
from mirrorflow_core.java.properties import has_reference, references
from mirrorflow_core.java.security_keys import verdict

_MECHANISMS = {"PLAIN": "Plain", "SCRAM-SHA-256": "ScramSha256", "SCRAM-SHA-512": "ScramSha512"}
_MODULES = {
    "Plain": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "ScramSha256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "ScramSha512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_KEYSTORE = ("ssl.keystore.", "ssl.key.password")
_TRUSTSTORE = "ssl.truststore."
_OAUTH = "sasl.oauthbearer."
_OAUTH_ENDPOINT = f"{_OAUTH}token.endpoint.url"
_OAUTH_ID = f"{_OAUTH}client.credentials.client.id"
_OAUTH_OF_CLIENT = f"{_OAUTH}client.credentials.client.secret"
_OAUTH_SCOPE = f"{_OAUTH}scope"
_OAUTH_HANDLER = "sasl.login.callback.handler.class"
# Expressed by `type`, `tls` and their fields; any other setting needs Custom.
_SAID = {
    "security.protocol",
    "ssl.endpoint.identification.algorithm",
    "sasl.mechanism",
    "sasl.jaas.config",
}
_OAUTH_SAID = {_OAUTH_ENDPOINT, _OAUTH_ID, _OAUTH_OF_CLIENT, _OAUTH_SCOPE, _OAUTH_HANDLER}
_SECRET_OPTIONS = {"password", "clientSecret"}


class ConvertedSecurity:
    """The security of one cluster of *flow*; `document()` returns its part of spec.source or spec.target."""

    def __init__(
        self, properties: Mapping[str, str], *, alias: str, flow: str, findings: ConversionFindings
    ) -> None:
        self._own = {key: value.strip() for key, value in properties.items()}
        self._alias = re.sub(r"[^a-z0-9.]+", "-", alias.lower()).strip("-.") or "cluster"
        self._label = f"{alias}."
        self._flow = flow
        self._findings = findings
        self._protocol = (self._own.get("security.protocol") or "PLAINTEXT").upper()

    def document(self) -> dict[str, Any]:
        """Returns `tls` and `authentication`, each if present."""
        out: dict[str, Any] = {}
        if self._protocol not in {"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"}:
            self._lose("security.protocol", f"{self._protocol} is no protocol", refused=True)
        if self._protocol.endswith("SSL"):
            out["tls"] = self._tls()
        authentication = self._authentication()
        if authentication:
            out["authentication"] = authentication
        return out

    def _tls(self) -> dict[str, Any]:
        tls: dict[str, Any] = {}
        where = self._own.get("ssl.truststore.location") or (
            "ssl.truststore.certificates" if self._own.get("ssl.truststore.certificates") else ""
        )
        if where:
            origin = f"the authorities of {self._label}{'' if where.startswith('ssl.') else 'ssl.truststore.location '}{where}, as PEM"
            tls["trustedCertificates"] = [self._findings.need(f"{self._alias}-ca", "ca.crt", origin)]
        algorithm = self._own.get("ssl.endpoint.identification.algorithm")
        if algorithm == "":
            tls["verifyHostname"] = False
        return tls

    def _authentication(self) -> dict[str, Any] | None:
        sasl, tls = self._protocol.startswith("SASL"), self._protocol.endswith("SSL")
        keystore = tls and any(key.startswith(_KEYSTORE) and self._own[key] for key in self._own)
        mechanism = self._own.get("sasl.mechanism") or "GSSAPI"
        more = self._more(sasl=sasl, tls=tls, oauth=mechanism == "OAUTHBEARER")
        if not sasl:
            if more:
                return self._custom(more, keystore=keystore, sasl=False)
            return self._client_certificate() if keystore else None
        if mechanism not in {*_MECHANISMS, "OAUTHBEARER"}:
            self._lose("sasl.mechanism", f"{mechanism} is not offered here", refused=True)
            return None
        module = self._module()
        simple = None
        if module is not None and not keystore and not more:
            simple = self._oauth(module) if mechanism == "OAUTHBEARER" else self._password(module, mechanism)
        return simple or self._custom(more, keystore=keystore, sasl=True, module=module)

    def _more(self, *, sasl: bool, tls: bool, oauth: bool) -> dict[str, str]:
        """Returns the settings that the named types cannot express; lists those that have no effect."""
        more: dict[str, str] = {}
        for key, value in self._own.items():
            if key in _SAID or key.startswith((_TRUSTSTORE, *_KEYSTORE)) or (oauth and key in _OAUTH_SAID):
                continue
            if (key.startswith("sasl.") and not sasl) or (key.startswith("ssl.") and not tls):
                self._lose(key, f"security.protocol is {self._protocol}, so it has no effect")
                continue
            word, why = verdict(key)
            if word == "refused" and value:
                self._lose(key, why, refused=True)
            elif word == "ignored":
                self._lose(key, why)
            elif value:
                more[key] = value
        return more

    def _client_certificate(self) -> dict[str, Any]:
        return {"type": "Tls", "certificateAndKey": {"secretName": self._keystore_secret()}}

    def _keystore_secret(self) -> str:
        name = f"{self._alias}-client"
        where = self._own.get("ssl.keystore.location", "")
        origin = f"{self._label}ssl.keystore.location {where}" if where else f"{self._label}ssl.keystore"
        self._findings.need(name, "tls.crt", f"the certificate chain of {origin}, as PEM")
        self._findings.need(name, "tls.key", f"the private key of {origin}, as PEM (PKCS #8, no password)")
        return name

    def _module(self) -> LoginModule | None:
        """Returns the login module, with each reference replaced by a placeholder word.

        Java parses the login configuration after resolving references. Returns None if the text cannot be
        parsed.
        """
        text = self._own.get("sasl.jaas.config", "")
        if not text:
            return LoginModule(class_name="", options={})
        for at, reference in enumerate(references(text)):
            text = text.replace(reference.text, _word(at))
        try:
            return parse_jaas(text)
        except InvalidSettingError:
            return None  # The whole text may be one reference, which Custom can hold.

    def _password(self, module: LoginModule, mechanism: str) -> dict[str, Any] | None:
        kind = _MECHANISMS[mechanism]
        if module.class_name != _MODULES[kind] or {"username", "password"} != set(module.options):
            return None
        return {
            "type": kind,
            "username": self._text(module.options["username"], "username"),
            "password": self._secret(module.options["password"], "password"),
        }

    def _oauth(self, module: LoginModule) -> dict[str, Any] | None:
        options = {
            "clientId": self._own.get(_OAUTH_ID) or module.options.get("clientId"),
            "clientSecret": self._own.get(_OAUTH_OF_CLIENT) or module.options.get("clientSecret"),
        }
        endpoint = self._own.get(_OAUTH_ENDPOINT, "")
        if None in options.values() or not re.match(r"https?://\S+$", endpoint):
            return None
        if set(module.options) - {"clientId", "clientSecret", "scope"}:
            return None
        out = {
            "type": "OAuthBearer",
            "clientId": self._text(str(options["clientId"]), "client-id"),
            "clientSecret": self._secret(str(options["clientSecret"]), "client-secret"),
            "tokenEndpoint": endpoint,
        }
        scope = self._own.get(_OAUTH_SCOPE) or module.options.get("scope")
        return {**out, "scope": scope} if scope else out

    def _custom(
        self,
        more: Mapping[str, str],
        *,
        keystore: bool,
        sasl: bool,
        module: LoginModule | None = None,
    ) -> dict[str, Any]:
        config = dict(more)
        if sasl:
            for key in ("sasl.mechanism", *sorted(_OAUTH_SAID)):
                if self._own.get(key):
                    config[key] = self._own[key]
            if self._own.get("sasl.jaas.config"):
                config["sasl.jaas.config"] = self._jaas(module)
        for key in config:
            if key.endswith((".secret", ".password", ".passphrase")):
                config[key] = self._reference(f"{self._alias}-mirror", key, f"{self._label}{key}")
        if keystore:
            name = self._keystore_secret()
            config["ssl.keystore.type"] = "PEM"
            config["ssl.keystore.certificate.chain"] = f"${{dir:{SECRETS_MOUNT}/{name}:tls.crt}}"
            config["ssl.keystore.key"] = f"${{dir:{SECRETS_MOUNT}/{name}:tls.key}}"
        return {"type": "Custom", "sasl": sasl, "config": config}

    def _jaas(self, module: LoginModule | None) -> str:
        """Returns the login configuration with a reference for each secret option.

        If it cannot be parsed, the whole configuration becomes one reference.
        """
        secret = f"{self._alias}-mirror"
        if module is None or not module.class_name:
            return self._reference(secret, "sasl.jaas.config", f"{self._label}sasl.jaas.config")
        written = []
        for name, value in module.options.items():
            if name in _SECRET_OPTIONS or self._referenced(value):
                shown = self._reference(secret, name, self._origin(value, name))
            else:
                shown = value.replace("\\", "\\\\").replace('"', '\\"')
            written.append(f'{name}="{shown}"')
        return f"{module.class_name} required " + " ".join(written) + ";"

    def _text(self, value: str, key: str) -> dict[str, str]:
        if not self._referenced(value):
            return {"value": value}
        return self._findings.need(f"{self._alias}-mirror", key, self._origin(value, key))

    def _secret(self, value: str, key: str) -> dict[str, str]:
        return self._findings.need(f"{self._alias}-mirror", key, self._origin(value, key))

    def _reference(self, secret: str, key: str, origin: str) -> str:
        self._findings.need(secret, key, origin)
        return f"${{dir:{SECRETS_MOUNT}/{secret}:{key}}}"

    def _referenced(self, value: str) -> bool:
        return has_reference(value) or _WORD.search(value) is not None

    def _origin(self, value: str, option: str) -> str:
        """Returns where a secret is stored now: the original reference, or the property."""
        found = _WORD.fullmatch(value)
        if found:
            return references(self._own["sasl.jaas.config"])[int(found.group(1))].text
        if has_reference(value):
            return value
        return f"option {option} of {self._label}sasl.jaas.config"

    def _lose(self, key: str, why: str, *, refused: bool = False) -> None:
        self._findings.lose(self._flow, f"{self._label}{key}", why, refused=refused)


_WORD = re.compile(r"mirrorflowReference(\d+)x")


def _word(at: int) -> str:
    return f"mirrorflowReference{at}x"
