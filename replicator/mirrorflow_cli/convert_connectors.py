"""Properties of a flow's connectors and worker -> `connectors.*` of a MirrorFlow, with what has no place there.

A key goes to the `config` of the connectors that read it. What the tables of `mirrorflow_replicator.connect` call without
effect, served otherwise or unknown is listed with the table's reason; what they refuse is listed as refused.
"""

from collections.abc import Mapping
from typing import Any

from mirrorflow_cli.convert_keys import (
    CLIENT_KINDS,
    FIELDS,
    OVERRIDES,
    REPLICATION_FACTORS,
    is_client_key,
    readers,
)
from mirrorflow_cli.convert_parts import CHECKPOINT, HEARTBEAT, SOURCE, Findings, JavaFlow
from mirrorflow_operator.api.reserved_keys import field_of
from mirrorflow_replicator.connect import clients, keys
from mirrorflow_replicator.connect.checkpoint import why_not
from mirrorflow_replicator.connect.key_rows import Scope, Verdict
from mirrorflow_replicator.connect.providers import PROVIDERS_KEY, Resolver
from mirrorflow_replicator.connect.transforms import read_transforms
from mirrorflow_replicator.connect.values import PropertyReader
from mirrorflow_replicator.errors import InvalidSettingError, RefusedSettingError

_OFFSET_SYNCS = "emit.offset-syncs.enabled"
_OFFSETS_RF = "offset.storage.replication.factor"
_CLASS_NAMES = {
    SOURCE: "MirrorSourceConnector",
    CHECKPOINT: "MirrorCheckpointConnector",
    HEARTBEAT: "MirrorHeartbeatConnector",
}
# Of the worker, and in the resource part of connectors.source.config.
_WORKER_IN_SOURCE = ("offset.flush.interval.ms", "metrics.level", "task.shutdown.graceful.timeout.ms")


def connectors(flow: JavaFlow, findings: Findings, *, replication_factor: int) -> dict[str, Any]:
    """`spec.connectors`, without what it says by default."""
    out: dict[str, Any] = {}
    for kind in (SOURCE, CHECKPOINT, HEARTBEAT):
        own = flow.connectors.get(kind)
        if own is None:
            # Heartbeats are switched by spec.heartbeats, and there is no flow without a source connector.
            if kind == CHECKPOINT:
                out[kind] = {"config": {"enabled": "false"}}
            continue
        if kind == CHECKPOINT and (problem := why_not(PropertyReader(own, Resolver({})))):
            # Java does not run it either, and the process of a MirrorFlow's connector would not start.
            findings.lose(flow.name, problem[0], f"false, and {problem[1]}: it is switched off")
            out[kind] = {"config": {"enabled": "false"}}
            continue
        config = _config(flow, kind, own, findings)
        config |= _replication_factors(kind, own, replication_factor)
        if kind == SOURCE:
            _check_transforms(flow, own, findings)
            config = _worker(flow, findings, replication_factor) | config
            if flow.claim:
                config = {"mirrorflow.flow": flow.claim, **config}
        if own.get("name", _CLASS_NAMES[kind]) != _CLASS_NAMES[kind]:
            config = {"name": own["name"], **config}
        part: dict[str, Any] = {}
        tasks = own.get("tasks.max", "1").strip()
        if kind != HEARTBEAT and tasks != "1":
            part["tasks"] = int(tasks) if tasks.isdecimal() else tasks
        if config:
            part["config"] = config
        if part:
            out[kind] = part
    return out


def _config(flow: JavaFlow, kind: str, own: Mapping[str, str], findings: Findings) -> dict[str, str]:
    config: dict[str, str] = {}
    for key, value in own.items():
        if key in FIELDS or key.startswith(PROVIDERS_KEY):
            continue
        if is_client_key(key):
            if kind == SOURCE or not key.startswith(OVERRIDES):
                _client_key(flow, kind, key, value, config, findings)
        elif readers(key):
            row = keys.find(key, keys.CONNECTOR_SCOPES)
            if row is not None and row.verdict is Verdict.REFUSED and not row.accepts(value):
                findings.lose(flow.name, key, row.note, refused=True)
            elif kind in readers(key) and not _is_default_class(key, value):
                config[key] = value
        elif kind == SOURCE:
            _other(flow, key, value, config, findings, keys.CONNECTOR_SCOPES)
    return config


def _client_key(
    flow: JavaFlow, kind: str, key: str, value: str, config: dict[str, str], findings: Findings
) -> None:
    row = keys.find(key, keys.CONNECTOR_SCOPES)
    field = field_of(key)
    if row is not None and row.verdict is Verdict.REFUSED and not row.accepts(value):
        findings.lose(flow.name, key, row.note, refused=True)
    elif field is not None:
        findings.lose(flow.name, key, f"one client cannot connect in another way than its cluster's; {field}")
    elif kind != HEARTBEAT:
        config[key] = value


def _check_transforms(flow: JavaFlow, own: Mapping[str, str], findings: Findings) -> None:
    """A transformation that is not built in would be missed in the copy."""
    try:
        read_transforms(PropertyReader(own, Resolver({})))
    except (InvalidSettingError, RefusedSettingError) as error:
        findings.lose(flow.name, error.key, str(error).removeprefix(f"{error.key}: "), refused=True)


def _is_default_class(key: str, value: str) -> bool:
    """Kafka's own class, which is there without being named."""
    return key.endswith(".class") and value.rpartition(".")[2].startswith("Default")


def _other(
    flow: JavaFlow,
    key: str,
    value: str,
    config: dict[str, str],
    findings: Findings,
    scopes: tuple[Scope, ...],
) -> None:
    """A key that is not MM2's own: kept, dropped because it asks for nothing, or listed."""
    row = keys.find(key, scopes)
    if row is None:
        findings.lose(flow.name, key, "unknown to Kafka's MirrorMaker 2 and to MirrorFlow")
    elif row.verdict is Verdict.REFUSED:
        if not row.accepts(value):
            findings.lose(flow.name, key, row.note, refused=True)
    elif row.scope is Scope.CLIENT:
        if not clients.is_shared(key):
            findings.lose(flow.name, key, "a client's key counts only behind consumer., producer. or admin.")
        # Addresses and security at the top level are part of each cluster already.
    elif row.verdict is Verdict.HONOURED and not row.needs:
        config[key] = value
    elif row.warns:  # or what is said of the nodes of a worker: a flow's connector is one process
        findings.lose(flow.name, key, row.note)


def _replication_factors(kind: str, own: Mapping[str, str], replication_factor: int) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, reader, default in REPLICATION_FACTORS:
        value = own.get(key, default).strip()
        if key.startswith("offset-syncs.") and own.get(_OFFSET_SYNCS, "true").strip().lower() == "false":
            continue  # Java refuses what is said of syncs that are not written
        if reader == kind and value != str(replication_factor):
            found[key] = value
    return found


def _worker(flow: JavaFlow, findings: Findings, replication_factor: int) -> dict[str, str]:
    """What the worker says of positions, for connectors.source.config; the rest is listed."""
    config: dict[str, str] = {}
    said = {
        "offset.storage.topic": f"mm2-offsets.{flow.source.alias}.internal",
        "offset.storage.store": "kafka",
        "group.id": f"{flow.source.alias}-mm2",
        "client.id": flow.name,
        # Connect's own names, which MM2's dedicated form sets and nobody chooses.
        "config.storage.topic": f"mm2-configs.{flow.source.alias}.internal",
        "status.storage.topic": f"mm2-status.{flow.source.alias}.internal",
        _OFFSETS_RF: str(replication_factor),
    }
    for key, value in ({_OFFSETS_RF: "-1"} | dict(flow.worker)).items():
        if said.get(key) == value.strip() or key.startswith((*CLIENT_KINDS, PROVIDERS_KEY)):
            continue
        if key == "client.id":
            findings.lose(flow.name, key, "the worker's own clients are named by the aliases of the flow")
        elif key.startswith("offset.storage."):
            plain = key.removeprefix("offset.storage.").removeprefix("kafka.")
            if clients.is_shared(plain):
                findings.lose(flow.name, key, "positions are reached by the connection of spec.target")
            else:
                config[key] = value
        elif key.startswith(("config.storage.", "status.storage.")):
            findings.lose(
                flow.name, key, "a flow's connectors come from files; nothing is written to such a topic"
            )
        elif key == "group.id" or key in _WORKER_IN_SOURCE:
            config[key] = value
        elif not clients.is_shared(key) and not key.startswith("replication.policy."):
            _other(flow, key, value, {}, findings, keys.WORKER_SCOPES)
    return config
