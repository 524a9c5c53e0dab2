"""Converts `tls` and `authentication` of a Strimzi cluster into those of a MirrorFlow; a pure function.

Both formats name Secrets, so none has to be created. Strimzi's OAuth (v1beta2) uses Strimzi's own callback
handler: client credentials have a counterpart, other fields are listed. Its `custom` type holds Java
properties, like the type Custom here.
"""

import re
from collections.abc import Mapping
from typing import Any

from mirrorflow_cli.convert_parts import SECRETS_MOUNT, ConversionFindings

_PASSWORD_TYPES = {"plain": "Plain", "scram-sha-256": "ScramSha256", "scram-sha-512": "ScramSha512"}
_OAUTH_READ = {"type", "clientId", "clientSecret", "tokenEndpointUri", "scope"}
# KubernetesSecretConfigProvider references, by Strimzi's or the usual name: namespace/secret:key.
_SECRET_REFERENCE = re.compile(r"\$\{(?:strimzisecrets|secrets):[^/}]*/([^:}]+):([^}]+)\}")
_ALL_CERTIFICATES = "*.crt"


def security(cluster: Mapping[str, Any], *, flow: str, findings: ConversionFindings) -> dict[str, Any]:
    """Returns `tls` and `authentication` of *cluster*, each if present."""
    alias = str(cluster.get("alias"))
    out: dict[str, Any] = {}
    tls = cluster.get("tls")
    if tls is not None:
        trusted = [_trusted(one, alias, flow, findings) for one in tls.get("trustedCertificates") or ()]
        out["tls"] = {"trustedCertificates": trusted} if trusted else {}
    authentication = cluster.get("authentication")
    if authentication:
        own = _authentication(authentication, alias, flow, findings)
        if own:
            out["authentication"] = own
    return out


def _trusted(one: Mapping[str, Any], alias: str, flow: str, findings: ConversionFindings) -> dict[str, Any]:
    key = one.get("certificate")
    if key is None:
        pattern = one.get("pattern", _ALL_CERTIFICATES)
        findings.lose(
            flow,
            f"{alias}: tls.trustedCertificates[{one.get('secretName')}].pattern {pattern}",
            "a MirrorFlow names each key; ca.crt is written, list others yourself",
        )
        key = "ca.crt"
    return {"secretName": one.get("secretName"), "key": key}


def _authentication(
    found: Mapping[str, Any], alias: str, flow: str, findings: ConversionFindings
) -> dict[str, Any] | None:
    kind = str(found.get("type"))
    if kind == "tls":
        pair = found.get("certificateAndKey") or {}
        names = {
            "secretName": pair.get("secretName"),
            "certificate": pair.get("certificate"),
            "key": pair.get("key"),
        }
        return {"type": "Tls", "certificateAndKey": {name: value for name, value in names.items() if value}}
    if kind in _PASSWORD_TYPES:
        return {
            "type": _PASSWORD_TYPES[kind],
            "username": {"value": str(found.get("username", ""))},
            "password": _secret(found.get("passwordSecret"), "password"),
        }
    if kind == "oauth" and found.get("clientSecret") and found.get("tokenEndpointUri"):
        for field in sorted(set(found) - _OAUTH_READ):
            findings.lose(
                flow, f"{alias}: authentication.{field}", "the resource has no such field for OAuthBearer"
            )
        own = {
            "type": "OAuthBearer",
            "clientId": {"value": str(found.get("clientId", ""))},
            "clientSecret": _secret(found["clientSecret"], "key"),
            "tokenEndpoint": found["tokenEndpointUri"],
        }
        return {**own, "scope": found["scope"]} if found.get("scope") else own
    if kind == "custom":
        config = {str(key): _referenced(str(value)) for key, value in (found.get("config") or {}).items()}
        return {"type": "Custom", "sasl": bool(found.get("sasl")), "config": config}
    findings.lose(
        flow,
        f"{alias}: authentication.type {kind}",
        "only tls, plain, scram-sha-256, scram-sha-512, custom and oauth with a client secret have a counterpart",
        refused=True,
    )
    return None


def _secret(found: Any, key: str) -> dict[str, Any]:
    reference = found if isinstance(found, Mapping) else {}
    return {"secretName": reference.get("secretName"), "key": reference.get(key)}


def _referenced(value: str) -> str:
    """Returns *value* with Strimzi's references replaced: here a Secret is a folder of files."""
    return _SECRET_REFERENCE.sub(lambda found: f"${{dir:{SECRETS_MOUNT}/{found[1]}:{found[2]}}}", value)
