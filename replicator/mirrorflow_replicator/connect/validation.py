"""What Connect's REST says of a connector class: its settings, and what is wrong about a configuration that it is given.

Whoever may reach the REST API may ask, so nothing is looked up for him: values with references are not checked and the
providers that he names are not made, or the answer would tell him secrets and files of this host.
"""

from collections.abc import Iterable, Mapping

from mirrorflow_replicator.connect import keys
from mirrorflow_replicator.connect.key_rows import Key, Scope, Verdict
from mirrorflow_replicator.connect.providers import PROVIDERS_KEY
from mirrorflow_replicator.connect.view import PluginKey
from mirrorflow_replicator.connect.worker import (
    CHECKPOINT_CONNECTOR,
    CONNECTORS,
    HEARTBEAT_CONNECTOR,
    SOURCE_CONNECTOR,
    parse_connector,
)
from mirrorflow_replicator.errors import InvalidSettingError, RefusedSettingError

# Keys that belong to one of the three alone; all others belong to each.
_OWN: Mapping[str, tuple[str, ...]] = {
    CHECKPOINT_CONNECTOR: (
        "groups",
        "group.filter.",
        "refresh.groups.",
        "emit.checkpoints.",
        "sync.group.",
        "checkpoints.",
        "task.assigned.groups",
    ),
    HEARTBEAT_CONNECTOR: ("emit.heartbeats.", "heartbeats.topic.", "mirrorflow.heartbeats."),
    SOURCE_CONNECTOR: (
        "config.propert",
        "replication.factor",
        "refresh.topics.",
        "sync.topic.",
        "heartbeats.replication.",
        "use.defaults.from",
        "add.source.alias.",
        "task.assigned.partitions",
        "offset.lag.max",
        "mirrorflow.start.",
        "mirrorflow.source.",
        "mirrorflow.bytes.",
    ),
}
_REQUIRED = ("name", "connector.class", "source.cluster.alias")
# What a required value is taken for while a reference stands for it.
_UNKNOWN = "reference-{}"
_CONNECTING = ("source.cluster.bootstrap.servers", "target.cluster.bootstrap.servers", "target.cluster.alias")
_CHAINED = ("transforms", "predicates")
# As MirrorSourceConfig, MirrorCheckpointConfig and MirrorHeartbeatConfig have them.
_DEFAULTS = {
    "tasks.max": "1",
    "enabled": "true",
    "target.cluster.alias": "target",
    "topics": ".*",
    "topics.exclude": "mm2.*\\.internal,.*\\.replica,__.*",
    "groups": ".*",
    "groups.exclude": "console-consumer-.*,connect-.*,__.*",
    "replication.factor": "2",
    "replication.policy.class": "org.apache.kafka.connect.mirror.DefaultReplicationPolicy",
    "replication.policy.separator": ".",
    "replication.policy.internal.topic.separator.enabled": "true",
    "refresh.topics.enabled": "true",
    "refresh.topics.interval.seconds": "600",
    "sync.topic.configs.enabled": "true",
    "sync.topic.configs.interval.seconds": "600",
    "sync.topic.acls.enabled": "true",
    "sync.topic.acls.interval.seconds": "600",
    "heartbeats.replication.enabled": "true",
    "emit.heartbeats.enabled": "true",
    "emit.heartbeats.interval.seconds": "1",
    "heartbeats.topic.replication.factor": "3",
    "mirrorflow.heartbeats.emit.to": "target",
    "emit.offset-syncs.enabled": "true",
    "offset-syncs.topic.location": "source",
    "offset-syncs.topic.replication.factor": "3",
    "offset.lag.max": "100",
    "emit.checkpoints.enabled": "true",
    "emit.checkpoints.interval.seconds": "60",
    "sync.group.offsets.enabled": "false",
    "sync.group.offsets.interval.seconds": "60",
    "refresh.groups.enabled": "true",
    "refresh.groups.interval.seconds": "600",
    "mirrorflow.source.loss.policy": "fail",
    "offset.flush.interval.ms": "5000",
}


def plugin_keys() -> dict[str, tuple[PluginKey, ...]]:
    """The settings of each connector class, by its simple name."""
    return {plugin: tuple(_definition(key) for key in _keys_of(plugin)) for plugin in CONNECTORS}


def problems(plugin: str, properties: Mapping[str, str], worker: Mapping[str, str]) -> dict[str, str]:
    """A sentence for each key of *properties* that a connector of class *plugin* would be refused for.

    *worker* holds what the worker's own properties say of the target. Unknown keys are no problem, as in Java.
    """
    found: dict[str, str] = {}
    for name, value in properties.items():
        key = keys.find(name, keys.CONNECTOR_SCOPES)
        if key is not None and key.verdict is Verdict.REFUSED and not key.accepts(value):
            found[name] = str(RefusedSettingError(key=name, why=key.note))
    checked = _without_references({"connector.class": plugin, **properties})
    checked = {name: value for name, value in checked.items() if name not in found}
    # An error names the first wrong key only: without that key the next one comes to light.
    while True:
        try:
            parse_connector(checked, worker)
        except (InvalidSettingError, RefusedSettingError) as error:
            if error.key in found:
                return found
            found[error.key] = str(error)
            if error.key.startswith(_CHAINED):
                # They make sense together only; the first one that is wrong is told, and then what else is.
                checked = {name: value for name, value in checked.items() if not name.startswith(_CHAINED)}
            elif checked.pop(error.key, None) is None:
                return found
        else:
            return found


def _without_references(properties: Mapping[str, str]) -> dict[str, str]:
    placed = (*_REQUIRED, *_CONNECTING)
    return {
        name: _UNKNOWN.format(number) if "${" in value else value
        for number, (name, value) in enumerate(properties.items())
        if not name.startswith(PROVIDERS_KEY) and ("${" not in value or name in placed)
    }


def _keys_of(plugin: str) -> Iterable[Key]:
    others = tuple(start for owner, starts in _OWN.items() if owner != plugin for start in starts)
    for key in keys.KEYS:
        if key.scope is Scope.CONNECTOR and "*" not in key.name and not key.name.startswith(others):
            yield key


def _definition(key: Key) -> PluginKey:
    return PluginKey(
        name=key.name,
        type=_type(key.name),
        default=_DEFAULTS.get(key.name),
        required=key.name in _REQUIRED,
        importance="HIGH" if key.name in _REQUIRED else "LOW",
        documentation=f"{key.verdict.value}: {key.note}",
    )


def _type(name: str) -> str:
    """Java's ConfigDef.Type; MM2 names its settings so regularly that the name tells."""
    if name.endswith((".enabled", ".enable")) or name == "enabled":
        return "BOOLEAN"
    if name.endswith((".interval.seconds", ".ms", ".lag.max")):
        return "LONG"
    if name.endswith(("replication.factor", ".max", ".index")):
        return "INT"
    if name.endswith(".class"):
        return "CLASS"
    if name.startswith(("topics", "groups", "config.properties.")) or name == "config.providers":
        return "LIST"
    return "STRING"
