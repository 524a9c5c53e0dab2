"""Converts a Java flow into the MirrorFlow that continues where it stopped; a pure function.

Everything that offsets and names depend on is kept: aliases, connector names, offsets topic, policy,
separator. Fields are written only where they differ from the resource's defaults, some of which differ from
MM2's.

A key goes to the `config` of each connector that reads it. Keys that the tables of
`mirrorflow_replicator.config` mark as without effect, provided in another way, or unknown are listed with the
table's reason; keys that the tables refuse are listed as refused.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mirrorflow_cli.java_flow import (
    CHECKPOINT,
    CLASS_NAMES,
    CLIENT_KINDS,
    FIELDS,
    HEARTBEAT,
    MM2_DEFAULTS,
    OVERRIDES,
    REPLICATION_FACTORS,
    SOURCE,
    ConversionFindings,
    JavaCluster,
    JavaFlow,
    is_client_key,
    readers,
)
from mirrorflow_cli.output import rfc3339
from mirrorflow_core import setting_table
from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError
from mirrorflow_core.java.properties import PropertyReader, parse_instant_ms, read_list
from mirrorflow_core.setting_table import Scope, Verdict
from mirrorflow_core.settings import CONFIG_EXCLUDE, GROUPS_EXCLUDE, TOPICS_EXCLUDE
from mirrorflow_core.transforms import read_transforms
from mirrorflow_operator.api.spec import API_VERSION, KIND, NAME_MAX
from mirrorflow_operator.api.workloads import field_of
from mirrorflow_replicator.config import clients
from mirrorflow_replicator.config.checkpoint_properties import checkpoint_refusal
from mirrorflow_replicator.config.plugins import config_exceptions
from mirrorflow_replicator.config.providers import PROVIDERS_KEY, Resolver

_POLICIES = {
    # Strimzi's class is older than Kafka's and names topics in the same way.
    "io.strimzi.kafka.connect.mirror.IdentityReplicationPolicy": "Identity",
    "org.apache.kafka.connect.mirror.IdentityReplicationPolicy": "Identity",
    "IdentityReplicationPolicy": "Identity",
    "org.apache.kafka.connect.mirror.DefaultReplicationPolicy": "Prefix",
    "DefaultReplicationPolicy": "Prefix",
}
_EMPTY_SEPARATOR = (
    "with IdentityReplicationPolicy an empty separator changes only the names of MM2's internal topics; the MirrorFlow names them "
    "mm2-offset-syncs.B.internal and A.checkpoints.internal, and translates groups for records that it copies"
)
_NO_FIELD = "the resource has no field for a custom class"
_DEFAULTS = {
    "state": "Running",
    "isolationLevel": "ReadUncommitted",
    "offsetSyncs": {"location": "Target"},
    "heartbeats": {"emitTo": ["Target", "Source"]},
}
_OFFSET_SYNCS = "emit.offset-syncs.enabled"
_OFFSETS_RF = "offset.storage.replication.factor"
# Java's worker gets it because of its prefix; the connectors use it.
_TASKS = "tasks.max"
# Worker settings that a MirrorFlow has in connectors.source.config.
_WORKER_IN_SOURCE = ("offset.flush.interval.ms", "metrics.level", "task.shutdown.graceful.timeout.ms")
# Read from the connector named here; all other fields from the source connector.
_READ_FROM = {
    **dict.fromkeys(("groups", "groups.exclude", "sync.group.offsets.enabled"), CHECKPOINT),
    "emit.heartbeats.enabled": HEARTBEAT,
    **{key: reader for key, reader, _ in REPLICATION_FACTORS},
}
_OF_EACH_CONNECTOR = {
    "name", "connector.class", "enabled", "tasks.max", "source.cluster.alias", "target.cluster.alias",
}  # fmt: skip


def document(flow: JavaFlow, findings: ConversionFindings) -> dict[str, Any]:
    """Returns the MirrorFlow of *flow*, not yet validated by the resource's own rules."""
    properties = dict(flow.connectors[SOURCE])
    checkpoint = dict(flow.connectors.get(CHECKPOINT, properties))
    topics, factor = _topics(flow, properties, findings)
    spec: dict[str, Any] = {
        "state": "Paused"
        if properties.get("mirrorflow.state", "").strip().lower() == "paused"
        else flow.state,
        "source": _cluster(flow, flow.source, findings, own=("isolation.level", "auto.offset.reset")),
        "target": _cluster(flow, flow.target, findings),
        "topics": topics,
        "groups": _groups(flow, checkpoint, findings),
        "schemas": dict(flow.schemas),
        "takeOverFrom": _list(properties.get("mirrorflow.takeover.from", "")),
        "isolationLevel": _isolation(flow, properties),
        "offsetSyncs": {
            "location": properties.get("offset-syncs.topic.location", "source").strip().capitalize()
        },
        "heartbeats": {"emitTo": list(flow.emit_to)},
        "limits": _limits(properties),
        "connectors": connectors(flow, findings, replication_factor=factor),
    }
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": flow_name(flow.name)}
        | ({} if flow.namespace is None else {"namespace": flow.namespace}),
        "spec": {key: value for key, value in spec.items() if value and value != _DEFAULTS.get(key)},
    }


def flow_name(text: str) -> str:
    """Returns *text* as a Kubernetes name: `us-west->B` becomes us-west-to-b."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.replace("->", "-to-").lower()).strip("-")
    return plain[:NAME_MAX].strip("-") or "flow"


def _cluster(
    flow: JavaFlow, cluster: JavaCluster, findings: ConversionFindings, *, own: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Returns *cluster* with the settings of its clients, without those of its consumer that fields set (*own*)."""
    config = {}
    named = {loss.setting for loss in findings.losses}  # by the reader of an mm2.properties
    for key, value in cluster.clients.items():
        if setting_table.find(key, (Scope.CLIENT,)) is None:
            setting = f"{cluster.document['alias']}.{key}"
            if setting not in named:
                findings.add_loss(flow.name, setting, _unknown(key, (Scope.CLIENT,)))
        elif key.removeprefix("consumer.") not in own:
            config[key] = value
    return {**cluster.document, **({"config": config} if config else {})}


def _unknown(key: str, scopes: tuple[Scope, ...]) -> str:
    return f"unknown to Kafka's MirrorMaker 2 and to MirrorFlow{setting_table.suggestion(key, scopes)}"


def _topics(
    flow: JavaFlow, properties: Mapping[str, str], findings: ConversionFindings
) -> tuple[dict[str, Any], int]:
    written = properties.get("replication.factor", "2").strip()
    factor = int(written) if re.fullmatch(r"-?\d+", written) else -2
    policy = properties.get("replication.policy.class", "DefaultReplicationPolicy").strip()
    if policy not in _POLICIES:
        findings.add_loss(flow.name, "replication.policy.class", f"{policy}: {_NO_FIELD}", refused=True)
    naming = {
        "policy": _POLICIES.get(policy, "Prefix"),
        "separator": properties.get("replication.policy.separator", ".").strip(),
    }
    if naming["policy"] == "Identity" and not naming["separator"]:
        naming["separator"] = "."
        findings.add_loss(flow.name, "replication.policy.separator", _EMPTY_SEPARATOR)
    parts: dict[str, Any] = {
        "include": _list(properties.get("topics", ".*")),
        "exclude": _beyond_defaults(flow, "topics.exclude", properties, TOPICS_EXCLUDE, findings),
        "naming": {key: value for key, value in naming.items() if value not in {"Prefix", "."}},
        "startFrom": _start(flow, properties, findings),
        "onSourceLoss": properties.get("mirrorflow.source.loss.policy", "fail").strip().capitalize(),
        "replicationFactor": factor if factor != -2 else written,
        "configs": _configs(flow, properties, findings),
        "acls": {key: value for key, value in {"sync": _sync(properties, "acls")}.items() if value != "Off"},
    }
    plain = {"onSourceLoss": "Fail", "include": [".*"], "replicationFactor": -1}
    # Keep an empty `include`: validation refuses it, but leaving it out would copy every topic.
    kept = {
        key: value
        for key, value in parts.items()
        if (value or key == "include") and value != plain.get(key, {})
    }
    return kept, factor


def _configs(flow: JavaFlow, properties: Mapping[str, str], findings: ConversionFindings) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "sync": _sync(properties, "configs"),
        "exclude": _beyond_defaults(flow, "config.properties.exclude", properties, CONFIG_EXCLUDE, findings),
        "exceptions": [
            {"topics": [topics], "exclude": [settings]}
            for topics, settings in config_exceptions(PropertyReader(properties))
        ],
    }
    return {key: value for key, value in parts.items() if value and value != "Apply"}


def _sync(properties: Mapping[str, str], what: str) -> str:
    if not _flag(properties, f"sync.topic.{what}.enabled", default=True):
        return "Off"
    return (
        "Report" if _flag(properties, f"mirrorflow.sync.topic.{what}.report.only", default=False) else "Apply"
    )


def _groups(flow: JavaFlow, properties: Mapping[str, str], findings: ConversionFindings) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "include": _list(properties.get("groups", ".*")),
        "exclude": _beyond_defaults(flow, "groups.exclude", properties, GROUPS_EXCLUDE, findings),
        "syncOffsets": _flag(properties, "sync.group.offsets.enabled", default=False),
    }
    plain = {"include": [".*"], "exclude": [], "syncOffsets": True}
    return {key: value for key, value in parts.items() if value != plain[key]}


def _start(flow: JavaFlow, properties: Mapping[str, str], findings: ConversionFindings) -> dict[str, str]:
    key = "mirrorflow.start.from"
    reset = "auto.offset.reset"
    written = properties.get(key) or flow.source.clients.get(f"consumer.{reset}") or "earliest"
    position = written.strip().lower()
    if position.startswith("timestamp:"):
        try:
            # Kafka's timestamps have millisecond precision.
            timestamp = rfc3339(parse_instant_ms(written.partition(":")[2]))
        except ValueError as error:
            findings.add_loss(flow.name, key, str(error), refused=True)
            return {}
        return {"position": "Timestamp", "timestamp": timestamp}
    if position in {"earliest", "latest"}:
        return {"position": "Latest"} if position == "latest" else {}
    findings.add_loss(
        flow.name,
        key if key in properties else f"source.consumer.{reset}",
        f"{position} is relative to each start, and startFrom has fixed timestamps only; set spec.topics.startFrom, or"
        " topics that were never copied are copied from their beginning",
    )
    return {}


def _isolation(flow: JavaFlow, properties: Mapping[str, str]) -> str:
    key = "isolation.level"
    written = flow.source.clients.get(f"consumer.{key}") or properties.get(
        f"consumer.{key}", "read_uncommitted"
    )
    return "ReadCommitted" if written.strip().lower() == "read_committed" else "ReadUncommitted"


def _limits(properties: Mapping[str, str]) -> dict[str, str]:
    rate = properties.get("mirrorflow.bytes.per.second", "").strip().removesuffix("B")
    return {"bytesPerSecond": rate.replace(" ", "")} if rate else {}


def _beyond_defaults(
    flow: JavaFlow,
    key: str,
    properties: Mapping[str, str],
    defaults: tuple[str, ...],
    findings: ConversionFindings,
) -> list[str]:
    """Returns the exclusions beyond MM2's default list, which the resource always adds."""
    if key not in properties:
        return []
    written = _list(properties[key])
    missing = [pattern for pattern in defaults if pattern not in written]
    if missing:
        findings.add_loss(
            flow.name,
            key,
            f"it replaces MM2's own list, which the resource always adds: {', '.join(missing)} stay left out",
        )
    return [pattern for pattern in written if pattern not in defaults]


def _list(text: str) -> list[str]:
    return list(dict.fromkeys(read_list(text)))


def _flag(properties: Mapping[str, str], key: str, *, default: bool) -> bool:
    return properties.get(key, str(default)).strip().lower() == "true"


def connectors(flow: JavaFlow, findings: ConversionFindings, *, replication_factor: int) -> dict[str, Any]:
    """Returns `spec.connectors` without default values."""
    out: dict[str, Any] = {}
    for kind in (SOURCE, CHECKPOINT, HEARTBEAT):
        properties = flow.connectors.get(kind)
        if properties is None:
            # spec.heartbeats switches heartbeats, and every flow has a source connector.
            if kind == CHECKPOINT:
                out[kind] = {"config": {"enabled": "false"}}
            continue
        if kind == CHECKPOINT and (
            problem := checkpoint_refusal(PropertyReader(properties, Resolver({}), setting_table.DEFAULTS))
        ):
            # Java does not run this connector either, and a MirrorFlow's connector would not start.
            findings.add_loss(flow.name, problem[0], f"false, and {problem[1]}: it is switched off")
            out[kind] = {"config": {"enabled": "false"}}
            continue
        config = _config(flow, kind, properties, findings)
        config |= _replication_factors(kind, properties, replication_factor)
        if kind == SOURCE:
            _check_transforms(flow, properties, findings)
            config = _worker(flow, findings, replication_factor) | config
            if flow.claim is not None:
                config = {"mirrorflow.flow": flow.claim, **config}
        if properties.get("name", CLASS_NAMES[kind]) != CLASS_NAMES[kind]:
            config = {"name": properties["name"], **config}
        part: dict[str, Any] = dict(flow.workload) if kind == SOURCE else {}
        tasks = properties.get("tasks.max", "1").strip()
        if kind != HEARTBEAT and tasks != "1":
            part["tasks"] = int(tasks) if tasks.isdecimal() else tasks
        if config:
            part["config"] = config
        if part:
            out[kind] = part
    return out


@dataclass(slots=True, kw_only=True)
class _Config:
    """The `config` of one connector, and what cannot be in it."""

    flow: str
    findings: ConversionFindings
    values: dict[str, str] = field(default_factory=dict)

    def add_client_key(self, kind: str, key: str, value: str) -> None:
        row = setting_table.find(key, setting_table.CONNECTOR_SCOPES)
        by_field = field_of(key)
        if row is not None and row.verdict is Verdict.REFUSED and not row.accepts(value):
            self.findings.add_loss(self.flow, key, row.note, refused=True)
        elif by_field is not None:
            why = f"a single client cannot use another connection than its cluster's; {by_field}"
            self.findings.add_loss(self.flow, key, why)
        elif row is None:
            self.add_loss_of_unknown(key, setting_table.CONNECTOR_SCOPES)
        elif kind != HEARTBEAT:
            self.values[key] = value

    def add_loss_of_unknown(self, key: str, scopes: tuple[Scope, ...]) -> None:
        self.findings.add_loss(self.flow, key, _unknown(key, scopes))

    def add_other(self, key: str, value: str, scopes: tuple[Scope, ...]) -> None:
        """Handles a key that is not MM2's own: keeps it, drops it if it changes nothing, or lists it."""
        row = setting_table.find(key, scopes)
        if row is None:
            self.add_loss_of_unknown(key, scopes)
        elif row.accepts(value):
            return  # It requests the behaviour that the flow has anyway.
        elif row.verdict is Verdict.REFUSED:
            self.findings.add_loss(self.flow, key, row.note, refused=True)
        elif row.scope is Scope.CLIENT:
            # The reader of an mm2.properties names it with its prefix, such as A->B.
            named = any(loss.setting.endswith(f".{key}") for loss in self.findings.losses)
            if not clients.is_shared(key) and not named:
                why = "a client's key applies only with the prefix consumer., producer. or admin."
                self.findings.add_loss(self.flow, key, why)
            # Addresses and security at the top level are already part of each cluster.
        elif row.verdict is Verdict.HONOURED and not row.needs:
            self.values[key] = value
        elif row.warns:  # Other rows concern nodes of a Connect cluster; a flow's connector is one process.
            self.findings.add_loss(self.flow, key, row.note)


def _config(
    flow: JavaFlow, kind: str, properties: Mapping[str, str], findings: ConversionFindings
) -> dict[str, str]:
    config = _Config(flow=flow.name, findings=findings)
    for key, value in properties.items():
        if key.startswith(PROVIDERS_KEY):
            continue
        if key in FIELDS:
            _note_unread(flow, kind, key, value, findings)
        elif is_client_key(key):
            if kind == SOURCE or not key.startswith(OVERRIDES):
                config.add_client_key(kind, key, value)
            if kind == HEARTBEAT or (kind != SOURCE and key.startswith(OVERRIDES)):
                _note_unread(flow, kind, key, value, findings)
        elif readers(key):
            row = setting_table.find(key, setting_table.CONNECTOR_SCOPES)
            # Kafka's default classes need no setting.
            is_default = key.endswith(".class") and value.rpartition(".")[2].startswith("Default")
            if row is not None and row.verdict is Verdict.REFUSED and not row.accepts(value):
                findings.add_loss(flow.name, key, row.note, refused=True)
            elif kind not in readers(key):
                _note_unread(flow, kind, key, value, findings)
            elif not is_default:
                config.values[key] = value
        elif kind == SOURCE or setting_table.find(key, setting_table.CONNECTOR_SCOPES) is None:
            config.add_other(key, value, setting_table.CONNECTOR_SCOPES)
        else:
            _note_unread(flow, kind, key, value, findings)
    return config.values


def _note_unread(flow: JavaFlow, kind: str, key: str, value: str, findings: ConversionFindings) -> None:
    """Lists a key of connector *kind* that is read from another one, unless both have it, as in an mm2.properties."""
    reader = _READ_FROM.get(key) or next(iter(readers(key)), SOURCE)
    if kind == reader or key in _OF_EACH_CONNECTOR:
        return
    if flow.connectors.get(reader, {}).get(key, MM2_DEFAULTS.get(key, "")).strip() != value.strip():
        findings.add_loss(flow.name, key, f"only that of the {reader} connector is used")


def _check_transforms(flow: JavaFlow, properties: Mapping[str, str], findings: ConversionFindings) -> None:
    """Refuses transformations that are not built in: without them the copy would differ."""
    try:
        read_transforms(PropertyReader(properties, Resolver({})))
    except (InvalidSettingError, RefusedSettingError) as error:
        findings.add_loss(flow.name, error.key, str(error).removeprefix(f"{error.key}: "), refused=True)


def _replication_factors(kind: str, properties: Mapping[str, str], replication_factor: int) -> dict[str, str]:
    factors: dict[str, str] = {}
    for key, reader, default in REPLICATION_FACTORS:
        value = properties.get(key, default).strip()
        if (
            key.startswith("offset-syncs.")
            and properties.get(_OFFSET_SYNCS, "true").strip().lower() == "false"
        ):
            continue  # Java refuses settings of offset syncs that are not written.
        if reader == kind and value != str(replication_factor):
            factors[key] = value
    return factors


def _worker(flow: JavaFlow, findings: ConversionFindings, replication_factor: int) -> dict[str, str]:
    """Returns the worker's offset storage settings for connectors.source.config; lists the others."""
    config: dict[str, str] = {}
    defaults = {
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
        if defaults.get(key) == value.strip() or key.startswith((*CLIENT_KINDS, PROVIDERS_KEY)):
            continue
        if key == "client.id":
            findings.add_loss(
                flow.name, key, "the worker's own clients are named after the aliases of the flow"
            )
        elif key.startswith("offset.storage."):
            plain = key.removeprefix("offset.storage.").removeprefix("kafka.")
            if clients.is_shared(plain):
                findings.add_loss(flow.name, key, "positions are stored over the connection of spec.target")
            else:
                config[key] = value
        elif key.startswith(("config.storage.", "status.storage.")):
            findings.add_loss(
                flow.name, key, "a flow's connectors come from files; nothing is written to such a topic"
            )
        elif key == "group.id" or key in _WORKER_IN_SOURCE:
            config[key] = value
        elif not clients.is_shared(key) and not key.startswith(("replication.policy.", _TASKS)):
            _Config(flow=flow.name, findings=findings).add_other(key, value, setting_table.WORKER_SCOPES)
    return config
