"""Converts the properties of a flow's connectors and worker into `connectors.*` of a MirrorFlow.

A key goes to the `config` of each connector that reads it. Keys that the tables of
`mirrorflow_replicator.config` mark as without effect, provided in another way, or unknown are listed with the
table's reason; keys that the tables refuse are listed as refused.
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
from mirrorflow_cli.convert_parts import CHECKPOINT, HEARTBEAT, SOURCE, ConversionFindings, JavaFlow
from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError
from mirrorflow_core.java.property_reader import PropertyReader
from mirrorflow_core.naming.transform_keys import read_transforms
from mirrorflow_operator.api.reserved_keys import field_of
from mirrorflow_replicator.config import clients, keys
from mirrorflow_replicator.config.checkpoint import why_not
from mirrorflow_replicator.config.key_rows import Scope, Verdict
from mirrorflow_replicator.config.providers import PROVIDERS_KEY, Resolver

_OFFSET_SYNCS = "emit.offset-syncs.enabled"
_OFFSETS_RF = "offset.storage.replication.factor"
_CLASS_NAMES = {
    SOURCE: "MirrorSourceConnector",
    CHECKPOINT: "MirrorCheckpointConnector",
    HEARTBEAT: "MirrorHeartbeatConnector",
}
# Worker settings that a MirrorFlow has in connectors.source.config.
_WORKER_IN_SOURCE = ("offset.flush.interval.ms", "metrics.level", "task.shutdown.graceful.timeout.ms")


def connectors(flow: JavaFlow, findings: ConversionFindings, *, replication_factor: int) -> dict[str, Any]:
    """Returns `spec.connectors` without default values."""
    out: dict[str, Any] = {}
    for kind in (SOURCE, CHECKPOINT, HEARTBEAT):
        own = flow.connectors.get(kind)
        if own is None:
            # spec.heartbeats switches heartbeats, and every flow has a source connector.
            if kind == CHECKPOINT:
                out[kind] = {"config": {"enabled": "false"}}
            continue
        if kind == CHECKPOINT and (problem := why_not(PropertyReader(own, Resolver({})))):
            # Java does not run this connector either, and a MirrorFlow's connector would not start.
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


def _config(
    flow: JavaFlow, kind: str, own: Mapping[str, str], findings: ConversionFindings
) -> dict[str, str]:
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
    flow: JavaFlow, kind: str, key: str, value: str, config: dict[str, str], findings: ConversionFindings
) -> None:
    row = keys.find(key, keys.CONNECTOR_SCOPES)
    field = field_of(key)
    if row is not None and row.verdict is Verdict.REFUSED and not row.accepts(value):
        findings.lose(flow.name, key, row.note, refused=True)
    elif field is not None:
        findings.lose(flow.name, key, f"one client cannot connect in another way than its cluster's; {field}")
    elif kind != HEARTBEAT:
        config[key] = value


def _check_transforms(flow: JavaFlow, own: Mapping[str, str], findings: ConversionFindings) -> None:
    """Refuses transformations that are not built in: without them the copy would differ."""
    try:
        read_transforms(PropertyReader(own, Resolver({})))
    except (InvalidSettingError, RefusedSettingError) as error:
        findings.lose(flow.name, error.key, str(error).removeprefix(f"{error.key}: "), refused=True)


def _is_default_class(key: str, value: str) -> bool:
    """Returns whether *value* is Kafka's default class, which needs no setting."""
    return key.endswith(".class") and value.rpartition(".")[2].startswith("Default")


def _other(
    flow: JavaFlow,
    key: str,
    value: str,
    config: dict[str, str],
    findings: ConversionFindings,
    scopes: tuple[Scope, ...],
) -> None:
    """Handles a key that is not MM2's own: keeps it, drops it if it changes nothing, or lists it."""
    row = keys.find(key, scopes)
    if row is None:
        findings.lose(flow.name, key, "unknown to Kafka's MirrorMaker 2 and to MirrorFlow")
    elif row.accepts(value):
        return  # It asks for the behaviour that the flow has anyway.
    elif row.verdict is Verdict.REFUSED:
        findings.lose(flow.name, key, row.note, refused=True)
    elif row.scope is Scope.CLIENT:
        if not clients.is_shared(key):
            findings.lose(flow.name, key, "a client's key counts only behind consumer., producer. or admin.")
        # Addresses and security at the top level are already part of each cluster.
    elif row.verdict is Verdict.HONOURED and not row.needs:
        config[key] = value
    elif row.warns:  # Other rows concern nodes of a Connect cluster; a flow's connector is one process.
        findings.lose(flow.name, key, row.note)


def _replication_factors(kind: str, own: Mapping[str, str], replication_factor: int) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, reader, default in REPLICATION_FACTORS:
        value = own.get(key, default).strip()
        if key.startswith("offset-syncs.") and own.get(_OFFSET_SYNCS, "true").strip().lower() == "false":
            continue  # Java refuses settings of offset syncs that are not written.
        if reader == kind and value != str(replication_factor):
            found[key] = value
    return found


def _worker(flow: JavaFlow, findings: ConversionFindings, replication_factor: int) -> dict[str, str]:
    """Returns the worker's offset storage settings for connectors.source.config; lists the others."""
    config: dict[str, str] = {}
    said = {
        "offset.storage.topic": f"mm2-offsets.{flow.source.alias}.internal",
        "offset.storage.store": "kafka",
        "group.id": f"{flow.source.alias}-mm2",
        "client.id": flow.name,
        # Connect's own topic names, which MM2's dedicated mode sets.
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
