"""Converts the settings of schema registries in an mm2.properties into spec.schemas.

Java's MM2 and Strimzi's KafkaMirrorMaker2 have no such settings: they are MirrorFlow's own, with the names of Confluent's clients.
Passwords and tokens become names of Secrets, as those of clusters do; their values are not passed on.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from mirrorflow_cli.java_flow import ConversionFindings
from mirrorflow_core.java.properties import PropertyReader, has_reference, references
from mirrorflow_core.schemas.subject_mapping import CONTEXTS_KEY, PREFIX_KEY, SUBJECTS_KEY, read_contexts
from mirrorflow_core.settings import REGISTRY_PREFIX, SCHEMA_WAIT_MAX, SCHEMA_WAIT_TOPICS
from mirrorflow_replicator.config import clients

_USER: Final = "basic.auth.user.info"
_TOKEN: Final = "bearer.auth.token"  # noqa: S105  the name of a setting
_HOSTNAMES: Final = "ssl.endpoint.identification.algorithm"
_AUTHORITIES: Final = ("ssl.truststore.location", "ssl.truststore.certificates")
_KEYS: Final = (SUBJECTS_KEY, CONTEXTS_KEY, PREFIX_KEY, SCHEMA_WAIT_TOPICS, SCHEMA_WAIT_MAX)


def converted_schemas(
    properties: Mapping[str, str], source: str, target: str, findings: ConversionFindings
) -> dict[str, Any]:
    """Returns spec.schemas of the flow of two aliases, from the derived *properties* of its schema connector.

    It is empty unless both clusters have a registry, as in an mm2.properties. Raises InvalidSettingError.
    """
    flow = f"{source}->{target}"
    registries = {
        (side, alias): clients.with_prefix(properties, f"{side}.cluster.{REGISTRY_PREFIX}")
        for side, alias in (("source", source), ("target", target))
    }
    if not all(registry.get("url", "").strip() for registry in registries.values()):
        keys = [f"{alias}.{REGISTRY_PREFIX}{key}" for (_, alias), own in registries.items() for key in own]
        for key in (*keys, *(key for key in _KEYS if key in properties)):
            findings.add_loss(flow, key, "schemas are copied only if both clusters have a registry")
        return {}
    read = PropertyReader(properties)
    contexts = read_contexts(read.names(CONTEXTS_KEY)) if CONTEXTS_KEY in properties else {}
    parts: dict[str, Any] = {
        **{
            side: _ConvertedRegistry(own, alias=alias, flow=flow, findings=findings).document()
            for (side, alias), own in registries.items()
        },
        "subjects": [*read.names(SUBJECTS_KEY)],
        "contexts": [{"source": name, "target": copy} for name, copy in contexts.items()],
        "subjectPrefix": read.text(PREFIX_KEY),
        "waitingTopics": [*read.names(SCHEMA_WAIT_TOPICS)],
        # The field has whole seconds.
        "maxWaitSeconds": -(-read.whole(SCHEMA_WAIT_MAX, minimum=0) // 1000),
    }
    # Keep an empty list of subjects: validation refuses it, but leaving it out would copy all.
    return {
        key: value
        for key, value in parts.items()
        if value or (key == "subjects" and SUBJECTS_KEY in properties)
    }


def secret_prefix(alias: str) -> str:
    """Returns *alias* as the beginning of a Secret's name."""
    return re.sub(r"[^a-z0-9.]+", "-", alias.lower()).strip("-.") or "cluster"


class _ConvertedRegistry:
    """One registry, from its properties without their prefix."""

    def __init__(
        self, properties: Mapping[str, str], *, alias: str, flow: str, findings: ConversionFindings
    ) -> None:
        self._own = {key: value.strip() for key, value in properties.items() if value.strip()}
        self._own |= {key: "" for key in properties if key == _HOSTNAMES and not properties[key].strip()}
        self._secret = f"{secret_prefix(alias)}-registry"
        self._label = f"{alias}.{REGISTRY_PREFIX}"
        self._flow = flow
        self._findings = findings

    def document(self) -> dict[str, Any]:
        url = self._own.pop("url")
        if "@" in url:
            self._add_loss("url", f"write the user into {self._label}{_USER}", refused=True)
        parts = {"url": url, "tls": self._tls(), "authentication": self._authentication()}
        for key in self._own:
            self._add_loss(key, "spec.schemas has no such field")
        return {key: value for key, value in parts.items() if value}

    def _tls(self) -> dict[str, Any]:
        tls: dict[str, Any] = {}
        for key in _AUTHORITIES:
            if where := self._own.pop(key, ""):
                path = f" {where}" if key.endswith("location") else ""
                origin = f"the authorities of {self._label}{key}{path}, as PEM"
                tls["trustedCertificates"] = [
                    self._findings.add_secret(f"{self._secret}-ca", "ca.crt", origin)
                ]
        for key in ("ssl.truststore.type", "ssl.truststore.password"):
            self._own.pop(key, None)  # of the file, which becomes a Secret
        if self._own.pop(_HOSTNAMES, None) == "":
            tls["verifyHostname"] = False
        return tls

    def _authentication(self) -> dict[str, Any]:
        user, token = self._own.pop(_USER, ""), self._own.pop(_TOKEN, "")
        if user and token:
            self._add_loss(_TOKEN, f"it contradicts {self._label}{_USER}", refused=True)
        if user:
            return {"type": "Basic", **self._user(user)}
        if token:
            origin = token if has_reference(token) else f"{self._label}{_TOKEN}"
            return {"type": "Bearer", "token": self._findings.add_secret(self._secret, "token", origin)}
        return {}

    def _user(self, text: str) -> dict[str, Any]:
        """Returns the fields of `user:password`, where a reference may stand for both."""
        masked = text
        for reference in references(text):
            masked = masked.replace(reference.text, "x" * len(reference.text))
        length = masked.find(":")
        setting = text if has_reference(text) else f"{self._label}{_USER}"
        if length < 0:
            if not has_reference(text):
                self._add_loss(_USER, "it has no colon", refused=True)
            return {
                "username": self._findings.add_secret(self._secret, "username", f"the user in {setting}"),
                "password": self._findings.add_secret(self._secret, "password", f"the password in {setting}"),
            }
        name, password = text[:length], text[length + 1 :]
        origin = password if has_reference(password) else f"the password in {self._label}{_USER}"
        return {
            "username": self._findings.add_secret(self._secret, "username", name)
            if has_reference(name)
            else {"value": name},
            "password": self._findings.add_secret(self._secret, "password", origin),
        }

    def _add_loss(self, key: str, why: str, *, refused: bool = False) -> None:
        self._findings.add_loss(self._flow, f"{self._label}{key}", why, refused=refused)
