"""Converts Strimzi's KafkaMirrorMaker2 (v1beta2 and v1) into the Java flows that its operator would run.

Follows Strimzi's KafkaMirrorMaker2Connectors and KafkaMirrorMaker2Configuration: connectors are named
`A->B.MirrorSourceConnector`; all share one Connect cluster on the target, with its own topic names; the
connection of each cluster becomes a document here. v1 has one target, and each mirror has its source; v1beta2
lists clusters, and each mirror names two of them.

Every field is used, or named as without effect. An empty value (null) is an absent one, as on the API server.

Both formats name Secrets, so none has to be created. Strimzi's OAuth (v1beta2) uses Strimzi's own callback
handler: client credentials have a counterpart, other fields are listed. Its `custom` type holds Java
properties, like the type Custom here.
"""

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

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
from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.cloud_logins import cloud_authentication
from mirrorflow_core.java.jaas import parse_jaas
from mirrorflow_core.java.patterns import compile_patterns
from mirrorflow_core.java.properties import PropertyReader, read_list
from mirrorflow_core.java.security_keys import verdict
from mirrorflow_operator.api.spec import ClusterSpec
from mirrorflow_operator.plan.client_properties import security_properties
from mirrorflow_operator.plan.secret_layout import POD_LAYOUT
from mirrorflow_replicator.config import clients
from mirrorflow_replicator.config.connector_properties import require_source_alias

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
_NO_TOPIC = "a flow's connectors come from files; nothing is written to such a topic"
_PROBES = "the pods of connectors have probes of their own"
_OF_SOURCE = "the flow has the state of its source connector"
# Each object with the fields that are used, and those of Strimzi that are not, with the reason.
_RESOURCE = {"apiVersion": "", "kind": "", "metadata": "", "spec": "", "status": ""}
_METADATA = {
    "labels": "labels are not carried over; add those that the MirrorFlow needs",
    "annotations": "annotations are not carried over; add those that the MirrorFlow needs",
}
_SPEC = {
    **dict.fromkeys(("clusters", "mirrors", "target", "connectCluster", "replicas", "resources"), ""),
    "template": "set it for each connector, with other fields (connectors.*.template)",
    "rack": "write client.rack into spec.source.config",
    "clientRackInitImage": "nodes are not asked for their rack; write client.rack into spec.source.config",
    "metricsConfig": "metrics are always served, with the names of Strimzi's exporter rules",
    "logging": "set it for each connector (connectors.*.template.logging)",
    "livenessProbe": _PROBES,
    "readinessProbe": _PROBES,
    "jvmOptions": "there is no JVM",
    "jmxOptions": "there is no JVM",
    "tracing": "interceptors are Java classes",
    "version": "the replicator has versions of its own (spec.version)",
    "image": "the replicator's image is the operator's",
    "externalConfiguration": "secrets are named where they are used",
}
_CONNECTORS = tuple(f"{kind}Connector" for kind in CLASS_NAMES)
_MIRROR = dict.fromkeys(("source", "sourceCluster", "targetCluster", *_CONNECTORS, *_PATTERNS), "")
_CLUSTER = {
    **dict.fromkeys(("alias", "bootstrapServers", "tls", "authentication", "config", *_WORKER_FIELDS), ""),
    "configStorageTopic": _NO_TOPIC,
    "statusStorageTopic": _NO_TOPIC,
}
_NO_COUNTERPART = "the resource has no such field"
_CONNECTOR = {
    **dict.fromkeys(("tasksMax", "config", "state", "pause"), ""),
    "autoRestart": "processes are always restarted",
    "version": "the replicator has versions of its own (spec.version)",
    "listOffsets": _NO_COUNTERPART,
    "alterOffsets": _NO_COUNTERPART,
}
_PLACES = {"spec": _SPEC, "a mirror": _MIRROR, "a cluster": _CLUSTER}
_COMPUTE = ("cpu", "memory")
# Strimzi takes no other ssl. settings in the `config` of a cluster.
_TLS_SETTINGS = ("ssl.cipher.suites", "ssl.enabled.protocols", "ssl.protocol")
_HOST_NAMES = "ssl.endpoint.identification.algorithm"
# Strimzi sets these itself, whatever `config` has.
_SET_BY_FIELDS = {
    "tasks.max": "Strimzi takes it from tasksMax only",
    "name": "Strimzi names its connectors itself",
    "connector.class": "Strimzi sets it itself",
}
_ALIASES = {"source.cluster.alias", "target.cluster.alias"}
_PASSWORD_TYPES = {"plain": "Plain", "scram-sha-256": "ScramSha256", "scram-sha-512": "ScramSha512"}
_OAUTH_READ = {"type", "clientId", "clientSecret", "clientAssertionLocation", "tokenEndpointUri", "scope"}
_READ_BY_TYPE = {
    "tls": ("type", "certificateAndKey"),
    **dict.fromkeys(_PASSWORD_TYPES, ("type", "username", "passwordSecret")),
    "custom": ("type", "sasl", "config"),
}
# KubernetesSecretConfigProvider references, by Strimzi's or the usual name: namespace/secret:key.
_SECRET_REFERENCE = re.compile(r"\$\{(?:strimzisecrets|secrets):[^/}]*/([^:}]+):([^}]+)\}")
_ALL_CERTIFICATES = "*.crt"


def java_flows(manifest: Mapping[str, Any], findings: ConversionFindings) -> list[JavaFlow]:
    """Returns the flows of the resource *manifest*, in order.

    Raises UsageError for a resource that Strimzi would refuse too.
    """
    manifest = _without_empty(manifest)
    _note_unused(manifest, "", _RESOURCE, findings)
    metadata = _mapping(manifest.get("metadata", {}), "metadata")
    for field in sorted(_METADATA.keys() & metadata.keys()):
        findings.add_loss("", f"metadata.{field}", _METADATA[field])
    spec = _mapping(manifest.get("spec"), "spec")
    _note_unused(spec, "spec", _SPEC, findings)
    workload = _workload(spec, findings)
    flows = [
        _flow(mirror, path, (source, target), workload, findings)
        for mirror, path, source, target in _mirrors(spec, findings)
    ]
    if not flows:
        raise UsageError("spec.mirrors: no mirror has a sourceConnector, so nothing is copied.")
    # The Secrets that a flow names are in its own namespace.
    return [replace(flow, namespace=str(metadata.get("namespace") or "") or None) for flow in flows]


def _without_empty(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_empty(entry) for entry in value]
    if isinstance(value, Mapping):
        return {str(key): _without_empty(entry) for key, entry in value.items() if entry is not None}
    return value


def _note_unused(
    members: Mapping[str, Any], path: str, fields: Mapping[str, str], findings: ConversionFindings
) -> None:
    """Lists what of the object at *path* is not used: *fields* with a reason, and all that are unknown there."""
    for name in sorted(name for name in members if fields.get(name, "unknown")):
        findings.add_loss("", f"{path}.{name}" if path else name, fields.get(name) or _unknown(name, fields))


def _unknown(name: str, fields: Collection[str]) -> str:
    sentence = "Strimzi has no such field here, so it has no effect"
    places = [place for place, known in _PLACES.items() if name in known]
    near = difflib.get_close_matches(name, fields, n=1, cutoff=0.6)
    if places:
        return f"{sentence}; it belongs to {places[0]}"
    return f"{sentence}; did you mean {near[0]}?" if near else sentence


def _workload(spec: Mapping[str, Any], findings: ConversionFindings) -> dict[str, Any]:
    """Returns `replicas` and `resources` of the source connector, which does the work of Strimzi's Connect cluster."""
    workload: dict[str, Any] = {"replicas": spec["replicas"]} if spec.get("replicas", 1) != 1 else {}
    resources = _mapping(spec.get("resources", {}), "spec.resources")
    _note_unused(resources, "spec.resources", dict.fromkeys(("requests", "limits"), ""), findings)
    carried = {}
    for part in ("requests", "limits"):
        amounts = _mapping(resources.get(part, {}), f"spec.resources.{part}")
        for name in sorted(amounts.keys() - set(_COMPUTE)):
            findings.add_loss("", f"spec.resources.{part}.{name}", _NO_COUNTERPART)
        if kept := {name: amounts[name] for name in _COMPUTE if name in amounts}:
            carried[part] = kept
    if carried:
        workload["resources"] = carried
    if workload:
        findings.add_warning(
            f"spec.{' and spec.'.join(workload)}: written for the source connector of each flow; its other connectors keep "
            "their defaults."
        )
    return workload


def _mirrors(
    spec: Mapping[str, Any], findings: ConversionFindings
) -> Iterator[tuple[Mapping[str, Any], str, Mapping[str, Any], Mapping[str, Any]]]:
    """Yields each mirror that copies, with its path, its source and its target."""
    clusters = {}
    for index, cluster in enumerate(_items(spec, "clusters")):
        _note_unused(cluster, f"spec.clusters[{index}]", _CLUSTER, findings)
        clusters[cluster.get("alias")] = cluster
    if "target" in spec:
        _note_unused(_mapping(spec["target"], "spec.target"), "spec.target", _CLUSTER, findings)
    for index, mirror in enumerate(_items(spec, "mirrors")):
        here = f"spec.mirrors[{index}]"
        _note_unused(mirror, here, _MIRROR, findings)
        if "target" in spec:
            source = _mapping(mirror.get("source"), f"{here}.source")
            _note_unused(source, f"{here}.source", _CLUSTER, findings)
            target = spec["target"]
        else:
            source, target = (
                _mapping(clusters.get(mirror.get(name)), f"{here}.{name}, which spec.clusters does not list")
                for name in ("sourceCluster", "targetCluster")
            )
        for side, cluster in (("source", source), ("target", target)):
            if "alias" not in cluster:
                raise UsageError(f"{here}: its {side} has no alias; name the cluster.")
        if "sourceConnector" in mirror:
            yield mirror, here, source, target
        else:
            findings.add_loss("", here, "it has no sourceConnector, so it copies nothing")


def _flow(
    mirror: Mapping[str, Any],
    path: str,
    sides: tuple[Mapping[str, Any], Mapping[str, Any]],
    workload: Mapping[str, Any],
    findings: ConversionFindings,
) -> JavaFlow:
    """Returns the flow of the mirror at *path*. Raises InvalidSettingError for a pattern that Java would refuse."""
    source, target = sides
    name = f"{source['alias']}->{target['alias']}"
    written = {field: str(mirror[field]) for field in _PATTERNS if field in mirror}
    for field in written:
        compile_patterns(field, PropertyReader(written).names(field, ()))
    patterns = {_PATTERNS[field]: text for field, text in written.items()}
    connectors: dict[str, Mapping[str, str]] = {}
    states = {}
    for kind in CLASS_NAMES:
        if f"{kind}Connector" not in mirror:
            continue
        here = f"{path}.{kind}Connector"
        spec = _mapping(mirror[f"{kind}Connector"], here)
        connector = _connector(f"{name}.{CLASS_NAMES[kind]}", here, spec, patterns, findings)
        if connector.get("enabled", "true").strip().lower() == "false":
            if kind == SOURCE:
                raise UsageError(
                    f"{here}.config.enabled: it is false, so nothing is copied; leave the mirror out."
                )
            continue  # A connector that does nothing is one that does not exist.
        connectors[kind] = connector
        states[kind] = _state(spec, here)
        if states[kind] != states[SOURCE]:
            findings.add_loss("", f"{here}.state", _OF_SOURCE)
    # The aliases of a connector override those of its clusters, as in Strimzi.
    own = connectors[SOURCE]
    require_source_alias(PropertyReader({"source.cluster.alias": str(source["alias"]), **own}))
    aliases = [
        own.get(f"{side}.cluster.alias", str(cluster["alias"])).strip()
        for side, cluster in (("source", source), ("target", target))
    ]
    return JavaFlow(
        source=_cluster(source, aliases[0], name, findings, is_target=False),
        target=_cluster(target, aliases[1], name, findings, is_target=True),
        worker=_worker(target),
        connectors=connectors,
        emit_to=["Target"] if _emits(connectors.get(HEARTBEAT, {"emit.heartbeats.enabled": "false"})) else [],
        state=states[SOURCE],
        workload=workload,
    )


def _emits(heartbeat: Mapping[str, str]) -> bool:
    return heartbeat.get("emit.heartbeats.enabled", "true").strip().lower() != "false"


def _state(spec: Mapping[str, Any], path: str) -> str:
    if spec.get("pause") is True:
        return "Paused"
    state = str(spec.get("state", "running"))
    if state not in _STATES:
        raise UsageError(f"{path}.state: {state!r} is not known; write {', '.join(_STATES)}.")
    return _STATES[state]


def _connector(
    name: str, path: str, spec: Mapping[str, Any], patterns: Mapping[str, str], findings: ConversionFindings
) -> dict[str, str]:
    _note_unused(spec, path, _CONNECTOR, findings)
    config = _texts(spec, path)
    for key in [key for key in config if key in _SET_BY_FIELDS]:
        findings.add_loss("", f"{path}.config.{key}", _SET_BY_FIELDS[key])
        del config[key]
    for key in [key for key in config if key.startswith(("source.cluster.", "target.cluster."))]:
        if key not in _ALIASES:
            findings.add_loss("", f"{path}.config.{key}", "connections are set by the fields of clusters")
            del config[key]
    for key in sorted(config.keys() & patterns.keys()):
        findings.add_loss("", f"{path}.config.{key}", "the pattern of the mirror overrides it, as in Strimzi")
    return {
        **config,
        **patterns,
        "name": name,
        **({"tasks.max": str(spec["tasksMax"])} if "tasksMax" in spec else {}),
    }


def _cluster(
    cluster: Mapping[str, Any], alias: str, flow: str, findings: ConversionFindings, *, is_target: bool
) -> JavaCluster:
    """Returns one side of a flow.

    In Strimzi a cluster's `config` reaches the connectors' clients by shared keys only; the target's `config`
    also configures the worker.
    """
    config = _texts(cluster, alias)
    own = {}
    for key, value in config.items():
        if key in {_HOST_NAMES, *_TLS_SETTINGS}:
            continue
        if clients.is_shared(key):
            findings.add_loss(flow, f"{alias}: config.{key}", "connections are set by tls and authentication")
        elif is_target and key.startswith(CLIENT_KINDS):
            own[key] = value
        elif not is_target:
            findings.add_loss(flow, f"{alias}: config.{key}", "it has no effect on a source, as in Strimzi")
    addresses = cluster.get("bootstrapServers", "")
    connection = {
        "alias": alias,
        "bootstrapServers": read_list(
            ",".join(map(str, addresses)) if isinstance(addresses, list) else str(addresses)
        ),
        **security(cluster, flow=flow, findings=findings),
    }
    return JavaCluster(document=_with_tls_settings(connection, config, flow, findings), clients=own)


def _with_tls_settings(
    connection: dict[str, Any], config: Mapping[str, str], flow: str, findings: ConversionFindings
) -> dict[str, Any]:
    """Returns *connection* with the cipher suites and so on of *config*, which only type Custom can hold."""
    settings = {}
    for key in (_HOST_NAMES, *_TLS_SETTINGS):
        if key not in config:
            continue
        treatment, why = verdict(key)
        if "tls" not in connection:
            why = "the cluster has no tls, so it has no effect"
        elif key == _HOST_NAMES:
            if not config[key].strip():
                connection["tls"]["verifyHostname"] = False
            continue
        elif treatment != "ignored":
            settings[key] = config[key]
            continue
        findings.add_loss(flow, f"{connection['alias']}: config.{key}", why)
    if not settings:
        return connection
    try:
        properties = security_properties(ClusterSpec.model_validate(connection), POD_LAYOUT)
    except ValidationError:
        return connection  # The validation of the whole flow names what is wrong.
    kept = {key: value for key, value in properties.items() if key.startswith(("sasl.", "ssl.keystore."))}
    given = connection.get("authentication", {}).get("config", {})
    is_sasl = properties["security.protocol"].startswith("SASL")
    custom = {"type": "Custom", "sasl": is_sasl, "config": {**kept, **given, **settings}}
    return {**connection, "authentication": custom}


def _worker(target: Mapping[str, Any]) -> dict[str, str]:
    config = _texts(target, "target")
    named = {key: str(target[field]) for field, key in _WORKER_FIELDS.items() if field in target}
    own = {key: value for key, value in config.items() if not clients.is_shared(key)}
    return {**_WORKER_DEFAULTS, **own, **named}


def _texts(members: Mapping[str, Any], path: str) -> dict[str, str]:
    """Returns the values of `config` as Strimzi writes them into properties: `true`, not `True`."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in _mapping(members.get("config", {}), f"{path}.config").items()
    }


def _items(spec: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    return [_mapping(member, f"spec.{name}[{index}]") for index, member in enumerate(spec.get(name) or [])]


def _mapping(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{path}: it is missing or not an object; see Strimzi's KafkaMirrorMaker2.")
    return value


def security(cluster: Mapping[str, Any], *, flow: str, findings: ConversionFindings) -> dict[str, Any]:
    """Returns `tls` and `authentication` of *cluster*, each if present."""
    alias = str(cluster["alias"])
    out: dict[str, Any] = {}
    if "tls" in cluster:
        tls = _mapping(cluster["tls"], f"{alias}: tls")
        _note_unused(tls, f"{alias}: tls", {"trustedCertificates": ""}, findings)
        trusted = [_trusted(secret, alias, flow, findings) for secret in tls.get("trustedCertificates") or ()]
        out["tls"] = {"trustedCertificates": trusted} if trusted else {}
    if "authentication" in cluster:
        authentication = _mapping(cluster["authentication"], f"{alias}: authentication")
        own = _authentication(authentication, alias, flow, findings)
        if own:
            out["authentication"] = own
    return out


def _trusted(
    secret: Mapping[str, Any], alias: str, flow: str, findings: ConversionFindings
) -> dict[str, Any]:
    path = f"{alias}: tls.trustedCertificates[{secret.get('secretName')}]"
    _note_unused(secret, path, dict.fromkeys(("secretName", "certificate", "pattern"), ""), findings)
    key = secret.get("certificate")
    if key is None:
        pattern = secret.get("pattern", _ALL_CERTIFICATES)
        findings.add_loss(
            flow,
            f"{path}.pattern {pattern}",
            "a MirrorFlow names each key; ca.crt was written, add other keys yourself",
        )
        key = "ca.crt"
    return {"secretName": secret.get("secretName"), "key": key}


def _authentication(
    authentication: Mapping[str, Any], alias: str, flow: str, findings: ConversionFindings
) -> dict[str, Any] | None:
    kind = str(authentication.get("type"))
    path = f"{alias}: authentication"
    if kind in _READ_BY_TYPE:
        _note_unused(authentication, path, dict.fromkeys(_READ_BY_TYPE[kind], ""), findings)
    if kind == "tls":
        pair = authentication.get("certificateAndKey") or {}
        names = {
            "secretName": pair.get("secretName"),
            "certificate": pair.get("certificate"),
            "key": pair.get("key"),
        }
        return {"type": "Tls", "certificateAndKey": {name: value for name, value in names.items() if value}}
    if kind in _PASSWORD_TYPES:
        return {
            "type": _PASSWORD_TYPES[kind],
            "username": {"value": str(authentication.get("username", ""))},
            "password": _secret(authentication.get("passwordSecret"), "password"),
        }
    assertion = authentication.get("clientAssertionLocation")
    if (
        kind == "oauth"
        and (authentication.get("clientSecret") or assertion)
        and authentication.get("tokenEndpointUri")
    ):
        for field in sorted(set(authentication) - _OAUTH_READ):
            findings.add_loss(flow, f"{path}.{field}", "the resource has no such field for OAuthBearer")
        own = {
            "type": "OAuthBearer",
            "clientId": {"value": str(authentication.get("clientId", ""))},
            **(
                {"clientAssertion": {"file": str(assertion)}}
                if assertion
                else {"clientSecret": _secret(authentication["clientSecret"], "key")}
            ),
            "tokenEndpoint": authentication["tokenEndpointUri"],
        }
        return {**own, "scope": authentication["scope"]} if authentication.get("scope") else own
    if kind == "custom":
        config = {
            str(key): _referenced(str(value)) for key, value in (authentication.get("config") or {}).items()
        }
        if identity := _cloud_identity(config):
            return identity
        return {"type": "Custom", "sasl": bool(authentication.get("sasl")), "config": config}
    findings.add_loss(
        flow,
        f"{path}.type {kind}",
        "only tls, plain, scram-sha-256, scram-sha-512, custom and oauth with a client secret or an assertion have a counterpart",
        refused=True,
    )
    return None


def _cloud_identity(config: Mapping[str, str]) -> dict[str, str] | None:
    """Returns the authentication of a cloud's identity if *config* is a login by one, and nothing else."""
    try:
        options = parse_jaas(config.get("sasl.jaas.config", "")).options
    except InvalidSettingError:
        return None
    return cloud_authentication(config, options)


def _secret(value: Any, key: str) -> dict[str, Any]:
    reference = value if isinstance(value, Mapping) else {}
    return {"secretName": reference.get("secretName"), "key": reference.get(key)}


def _referenced(value: str) -> str:
    """Returns *value* with Strimzi's references replaced: here a Secret is a folder of files."""
    return _SECRET_REFERENCE.sub(lambda match: f"${{dir:{SECRETS_MOUNT}/{match[1]}:{match[2]}}}", value)
