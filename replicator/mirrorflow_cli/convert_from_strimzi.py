"""Converts Strimzi's KafkaMirrorMaker2 (v1beta2 and v1) into the Java flows that its operator would run.

Follows Strimzi's KafkaMirrorMaker2Connectors and KafkaMirrorMaker2Configuration: connectors are named
`A->B.MirrorSourceConnector`; all share one Connect cluster on the target, with its own topic names; the
connection of each cluster becomes a document here. v1 has one target, and each mirror has its source; v1beta2
lists clusters, and each mirror names two of them.

Both formats name Secrets, so none has to be created. Strimzi's OAuth (v1beta2) uses Strimzi's own callback
handler: client credentials have a counterpart, other fields are listed. Its `custom` type holds Java
properties, like the type Custom here.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mirrorflow_cli.errors import UsageError
from mirrorflow_cli.java_flow import (
    CLASS_NAMES,
    CLIENT_KINDS,
    HEARTBEAT,
    SECRETS_MOUNT,
    SOURCE,
    ConversionFindings,
    JavaCluster,
    JavaFlow,
)
from mirrorflow_core.java.patterns import compile_patterns
from mirrorflow_core.java.properties import PropertyReader, read_list
from mirrorflow_replicator.config import clients

KIND = "KafkaMirrorMaker2"
# Defaults of v1beta2 in KafkaMirrorMaker2Configuration; v1 requires the names.
_WORKER_DEFAULTS = {
    "group.id": "mirrormaker2-cluster",
    "offset.storage.topic": "mirrormaker2-cluster-offsets",
}
_WORKER_FIELDS = {"groupId": "group.id", "offsetStorageTopic": "offset.storage.topic"}
_PATTERNS = {
    "topicsPattern": "topics",
    "topicsExcludePattern": "topics.exclude",
    "topicsBlacklistPattern": "topics.exclude",
    "groupsPattern": "groups",
    "groupsExcludePattern": "groups.exclude",
    "groupsBlacklistPattern": "groups.exclude",
}
_STATES = {"running": "Running", "paused": "Paused", "stopped": "Stopped"}
_CONNECTOR_FIELDS = {"tasksMax", "config", "state", "pause"}
_READ = {"clusters", "mirrors", "target", "connectCluster"}
_WHY = {
    "replicas": "set it for each connector (connectors.*.replicas)",
    "resources": "set it for each connector (connectors.*.resources)",
    "template": "set it for each connector, with other fields (connectors.*.template)",
    "rack": "write client.rack into spec.source.config",
    "metricsConfig": "metrics are always served, with the names of Strimzi's exporter rules",
    "logging": "set it for each connector (connectors.*.template.logging)",
    "jvmOptions": "there is no JVM",
    "jmxOptions": "there is no JVM",
    "tracing": "interceptors are Java classes",
    "version": "the replicator has versions of its own (spec.version)",
    "image": "the replicator's image is the operator's",
    "externalConfiguration": "secrets are named where they are used",
}
_NO_COUNTERPART = "the resource has no such field"


def java_flows(found: Mapping[str, Any], findings: ConversionFindings) -> list[JavaFlow]:
    """Returns the flows of the resource *found*, in order.

    Raises UsageError for a resource that Strimzi would refuse too.
    """
    spec = _mapping(found.get("spec"), "spec")
    for field in sorted(set(spec) - _READ):
        findings.add_loss("", f"spec.{field}", _WHY.get(field, _NO_COUNTERPART))
    flows = [_flow(mirror, source, target, findings) for mirror, source, target in _mirrors(spec)]
    if not flows:
        raise UsageError("spec.mirrors: no mirror has a sourceConnector, so nothing is copied.")
    return flows


def _mirrors(
    spec: Mapping[str, Any],
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]]:
    """Yields each mirror that copies, with its source and its target."""
    clusters = {one.get("alias"): one for one in _items(spec, "clusters")}
    for at, mirror in enumerate(_items(spec, "mirrors")):
        here = f"spec.mirrors[{at}]"
        if "target" in spec:
            source = _mapping(mirror.get("source"), f"{here}.source")
            target = _mapping(spec["target"], "spec.target")
        else:
            source, target = (
                _mapping(clusters.get(mirror.get(name)), f"{here}.{name}, which spec.clusters does not list")
                for name in ("sourceCluster", "targetCluster")
            )
        if mirror.get("sourceConnector") is not None:
            yield mirror, source, target


def _flow(
    mirror: Mapping[str, Any],
    source: Mapping[str, Any],
    target: Mapping[str, Any],
    findings: ConversionFindings,
) -> JavaFlow:
    """Returns the flow of one mirror. Raises InvalidSettingError for a pattern that Java would refuse."""
    name = f"{source.get('alias')}->{target.get('alias')}"
    written = {field: str(mirror[field]) for field in _PATTERNS if mirror.get(field) is not None}
    for field in written:
        compile_patterns(field, PropertyReader(written).names(field, ()))
    patterns = {_PATTERNS[field]: text for field, text in written.items()}
    connectors: dict[str, Mapping[str, str]] = {}
    state = "Running"
    for kind in CLASS_NAMES:
        spec = mirror.get(f"{kind}Connector")
        if spec is None:
            continue
        connectors[kind] = _connector(name, kind, spec, patterns, findings)
        if kind == SOURCE:
            state = "Paused" if spec.get("pause") is True else _STATES.get(str(spec.get("state")), "Running")
    return JavaFlow(
        source=_cluster(source, name, findings, is_target=False),
        target=_cluster(target, name, findings, is_target=True),
        worker=_worker(target),
        connectors=connectors,
        emit_to=["Target"] if HEARTBEAT in connectors else [],
        state=state,
    )


def _connector(
    flow: str, kind: str, spec: Mapping[str, Any], patterns: Mapping[str, str], findings: ConversionFindings
) -> dict[str, str]:
    for field in sorted(set(spec) - _CONNECTOR_FIELDS):
        why = "processes are always restarted" if field == "autoRestart" else _NO_COUNTERPART
        findings.add_loss(flow, f"{kind}Connector.{field}", why)
    return {
        **_texts(spec.get("config") or {}),
        **patterns,
        "name": f"{flow}.{CLASS_NAMES[kind]}",
        **({"tasks.max": str(spec["tasksMax"])} if "tasksMax" in spec else {}),
    }


def _cluster(
    cluster: Mapping[str, Any], flow: str, findings: ConversionFindings, *, is_target: bool
) -> JavaCluster:
    """Returns one side of a flow.

    In Strimzi a cluster's `config` reaches the connectors' clients by shared keys only; the target's `config`
    also configures the worker.
    """
    config = _texts(cluster.get("config") or {})
    alias = str(cluster.get("alias"))
    own = {}
    for key, value in config.items():
        if clients.is_shared(key):
            findings.add_loss(flow, f"{alias}: config.{key}", "connections are set by tls and authentication")
        elif is_target and key.startswith(CLIENT_KINDS):
            own[key] = value
        elif not is_target:
            findings.add_loss(flow, f"{alias}: config.{key}", "it has no effect on a source, as in Strimzi")
    return JavaCluster(
        document={
            "alias": alias,
            "bootstrapServers": read_list(str(cluster.get("bootstrapServers", ""))),
            **security(cluster, flow=flow, findings=findings),
        },
        clients=own,
    )


def _worker(target: Mapping[str, Any]) -> dict[str, str]:
    config = _texts(target.get("config") or {})
    named = {key: str(target[field]) for field, key in _WORKER_FIELDS.items() if field in target}
    own = {key: value for key, value in config.items() if not clients.is_shared(key)}
    return {**_WORKER_DEFAULTS, **own, **named}


def _texts(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns the values as Strimzi writes them into properties: `true`, not `True`."""
    return {
        str(key): str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in config.items()
    }


def _items(spec: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    return [_mapping(one, f"spec.{name}[{at}]") for at, one in enumerate(spec.get(name) or [])]


def _mapping(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{path}: it is missing or not an object; see Strimzi's KafkaMirrorMaker2.")
    return value


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
        findings.add_loss(
            flow,
            f"{alias}: tls.trustedCertificates[{one.get('secretName')}].pattern {pattern}",
            "a MirrorFlow names each key; ca.crt was written, add other keys yourself",
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
            findings.add_loss(
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
    findings.add_loss(
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
