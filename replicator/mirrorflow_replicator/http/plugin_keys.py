"""Lists the settings of each connector class for Connect's REST: Java's definitions, then our own settings.

Java's are read from `plugin_definitions.json`, which tests/harness/kafka/plugin_definitions.py writes from a
Java worker; a test compares them with one. The texts are ours: they describe what a setting does here.
"""

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from mirrorflow_replicator.config import keys
from mirrorflow_replicator.config.key_rows import Key, Scope, Verdict
from mirrorflow_replicator.config.worker import CONNECTORS, HEARTBEAT_CONNECTOR, SOURCE_CONNECTOR
from mirrorflow_replicator.http.worker_view import PluginKey

GROUP = "MirrorFlow"  # of our own settings
_FILE = "plugin_definitions.json"
# Our keys that belong to only one of the three classes; all others belong to each.
_OWN: Mapping[str, tuple[str, ...]] = {
    HEARTBEAT_CONNECTOR: ("mirrorflow.heartbeats.",),
    SOURCE_CONNECTOR: (
        "use.defaults.from",
        "mirrorflow.start.",
        "mirrorflow.source.",
        "mirrorflow.takeover.",
        "mirrorflow.bytes.",
        "mirrorflow.balance.",
        "mirrorflow.config.",
        "mirrorflow.sync.",
    ),
}
_DEFAULTS = {
    "use.defaults.from": "target",
    "offset.flush.interval.ms": "5000",
    "mirrorflow.state": "running",
    "mirrorflow.heartbeats.emit.to": "target",
    "mirrorflow.source.loss.policy": "fail",
    "mirrorflow.refused.records": "stop",
    "mirrorflow.balance.tasks.enabled": "true",
    "mirrorflow.balance.tasks.interval.seconds": "60",
    "mirrorflow.sync.topic.configs.report.only": "false",
    "mirrorflow.sync.topic.acls.report.only": "false",
}


def plugin_keys() -> dict[str, tuple[PluginKey, ...]]:
    """Returns the settings of each connector class, by its simple name."""
    text = files("mirrorflow_replicator.http").joinpath(_FILE).read_text(encoding="utf-8")
    found = json.loads(text)
    java: Mapping[str, Mapping[str, Any]] = found["definitions"]
    return {
        plugin: (*(_of_java(java[name]) for name in found["plugins"][plugin]), *_of_ours(plugin, java))
        for plugin in CONNECTORS
    }


def _of_java(definition: Mapping[str, Any]) -> PluginKey:
    return PluginKey(
        name=definition["name"],
        type=definition["type"],
        default=definition["default_value"],
        required=definition["required"],
        importance=definition["importance"],
        documentation=_documentation(keys.find(definition["name"], keys.CONNECTOR_SCOPES)),
        group=definition["group"],
        order=definition["order_in_group"],
        width=definition["width"],
        display_name=definition["display_name"],
    )


def _of_ours(plugin: str, java: Mapping[str, object]) -> Iterator[PluginKey]:
    others = tuple(start for owner, starts in _OWN.items() if owner != plugin for start in starts)
    mine = [
        key
        for key in keys.KEYS
        if key.scope is Scope.CONNECTOR
        and key.verdict is Verdict.HONOURED
        and key.name not in java
        and "*" not in key.name
        and not key.name.startswith(others)
    ]
    for order, key in enumerate(mine, start=1):
        yield PluginKey(
            name=key.name,
            type=_type(key.name),
            default=_DEFAULTS.get(key.name),
            importance="LOW",
            documentation=_documentation(key),
            group=GROUP,
            order=order,
        )


def _documentation(key: Key | None) -> str:
    return "" if key is None else f"{key.verdict.value}: {key.note}"


def _type(name: str) -> str:
    """Returns Java's ConfigDef.Type of one of our settings; their names follow a pattern."""
    if name.endswith((".enabled", ".only")):
        return "BOOLEAN"
    if name.endswith((".interval.seconds", ".ms")):
        return "LONG"
    if name.endswith((".by.topic", ".listeners", ".emit.to")):
        return "LIST"
    return "STRING"
