"""Answers Connect's `/connector-plugins`: connector classes, their settings, errors of a configuration.

Bodies are those of ConnectorPluginsResource, ConfigKeyInfo and ConfigInfos of Kafka 4.3. Definitions of
settings are those of Java's worker, followed by our own settings in a separate group. Java's are read from
`plugin_definitions.json`, which tests/harness/kafka/plugin_definitions.py writes from a Java worker; a test
compares them with one. The texts are ours: they describe what a setting does here.

Anyone who can reach the REST API may validate a configuration, so that resolves nothing: values with
references are not checked, and the configuration's own providers are not created. Otherwise the response would
reveal secrets and files of this host.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from mirrorflow_core import setting_table
from mirrorflow_core.connect.session_keys import ConnectError
from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError
from mirrorflow_core.setting_table import Key, Scope, Verdict
from mirrorflow_replicator.config.connector_classes import (
    CONNECTORS,
    HEARTBEAT_CONNECTOR,
    SCHEMA_CONNECTOR,
    SOURCE_CONNECTOR,
    simple_name,
)
from mirrorflow_replicator.config.connector_settings import parse_connector
from mirrorflow_replicator.config.plugins import MIRROR_PACKAGE
from mirrorflow_replicator.config.providers import PROVIDERS_KEY, shown_value
from mirrorflow_replicator.http.commands import NULL_VALUE
from mirrorflow_replicator.http.worker_view import WorkerView
from mirrorflow_replicator.version import connect_version

GROUP = "MirrorFlow"  # of our own settings
_FILE = "plugin_definitions.json"
# Our keys that belong to some of the classes; all others belong to each.
_OWN: Mapping[str, tuple[str, ...]] = {
    HEARTBEAT_CONNECTOR: ("mirrorflow.heartbeats.",),
    SCHEMA_CONNECTOR: ("mirrorflow.schemas.subject", "mirrorflow.schemas.contexts"),
    SOURCE_CONNECTOR: (
        "use.defaults.from",
        "mirrorflow.start.",
        "mirrorflow.source.",
        "mirrorflow.takeover.",
        "mirrorflow.bytes.",
        "mirrorflow.balance.",
        "mirrorflow.config.",
        "mirrorflow.sync.",
        "mirrorflow.schemas.",
    ),
}
Definition = Mapping[str, Any]  # Java's ConfigKeyInfo
_REQUIRED = ("name", "connector.class", "source.cluster.alias")
# Replaces a required value that is a reference.
_UNKNOWN = "reference-{}"
_CONNECTING = ("source.cluster.bootstrap.servers", "target.cluster.bootstrap.servers", "target.cluster.alias")
_CHAINED = ("transforms", "predicates")


def plugins(state: WorkerView) -> list[dict[str, str]]:
    """Returns the connectors; with `connectorsOnly=false` Java adds converters and transforms. We have neither."""
    version = connect_version(state.version)
    return [
        {"class": MIRROR_PACKAGE + name, "type": "source", "version": version} for name in sorted(CONNECTORS)
    ]


def definitions(name: str) -> list[Definition]:
    """Returns the settings of plugin *name*. Raises ConnectError."""
    plugin = simple_name(name)
    if plugin not in CONNECTORS:
        raise ConnectError(
            400,
            f"Invalid plugin class {name}. Valid types are sink, source, converter, header_converter, transformation, predicate.",
        )
    return list(plugin_keys()[plugin].values())


def validation(name: str, given: Mapping[str, str | None], state: WorkerView) -> dict[str, object]:
    """Returns every known key with its value and errors, and the unknown keys that have errors. Raises ConnectError."""
    included = given.get("connector.class")
    if included is not None and not _short_name(included).endswith(_short_name(name)):
        raise ConnectError(400, f"Included connector type {included} does not match request type {name}")
    plugin = simple_name(included or name)
    if plugin not in CONNECTORS:
        raise ConnectError(404, f"Unknown plugin {included or name}.")
    known = plugin_keys()[plugin]
    values = {key: value for key, value in given.items() if value is not None}
    problems = {
        key: NULL_VALUE.format(key) for key, value in given.items() if value is None and key != "name"
    }
    problems.update(state.validate(plugin, values))
    names = [*known, *sorted(problems.keys() - known.keys())]
    return {
        "name": included or MIRROR_PACKAGE + plugin,
        "error_count": len(problems),
        "groups": list(
            dict.fromkeys(
                definition["group"] for definition in known.values() if definition["group"] is not None
            )
        ),
        "configs": [_validated(name, known.get(name), values, problems) for name in names],
    }


def _validated(
    name: str, definition: Definition | None, values: Mapping[str, str], problems: Mapping[str, str]
) -> dict[str, object]:
    """Returns Java's ConfigInfo; an unknown key has no definition."""
    value = {
        "name": name,
        "value": shown_value(name, values[name])
        if name in values
        else definition and definition["default_value"],
        "recommended_values": [],
        "errors": [problems[name]] if name in problems else [],
        "visible": _is_visible(name, values),
    }
    return {"definition": definition, "value": value}


def _is_visible(name: str, values: Mapping[str, str]) -> bool:
    """Whether Java shows the setting: a converter's version only if the connector names that converter."""
    converter, is_version, _ = name.partition(".plugin.version")
    return not (is_version and converter.endswith(".converter")) or converter in values


def _short_name(name: str) -> str:
    # Connect accepts a class without the suffix.
    return name.removesuffix("Connector") if len(name) > len("Connector") else name


@cache
def plugin_keys() -> Mapping[str, Mapping[str, Definition]]:
    """Returns the settings of each connector class, by its simple name and theirs."""
    text = files("mirrorflow_replicator.http").joinpath(_FILE).read_text(encoding="utf-8")
    content = json.loads(text)
    java: Mapping[str, Definition] = content["definitions"]
    of_java: Mapping[str, list[str]] = content["plugins"]
    # Java has no schema connector: what all of its own connectors have.
    first, *others = of_java.values()
    shared = [name for name in first if all(name in names for names in others)]
    return {
        plugin: {
            **{
                name: {
                    **java[name],
                    "documentation": _documentation(setting_table.find(name, setting_table.CONNECTOR_SCOPES)),
                }
                for name in of_java.get(plugin, shared)
            },
            **{own_definition["name"]: own_definition for own_definition in _own_definitions(plugin, java)},
        }
        for plugin in CONNECTORS
    }


def _own_definitions(plugin: str, java: Mapping[str, Definition]) -> Iterator[Definition]:
    others = tuple(start for owner, starts in _OWN.items() if owner != plugin for start in starts)
    mine = [
        key
        for key in setting_table.KEYS
        if key.scope is Scope.CONNECTOR
        and key.verdict is Verdict.HONOURED
        and key.name not in java
        and "*" not in key.name
        and (key.name.startswith(_OWN.get(plugin, ())) or not key.name.startswith(others))
    ]
    for order, key in enumerate(mine, start=1):
        yield {
            "name": key.name,
            "type": _type(key.name),
            "required": False,
            "default_value": key.default or None,
            "importance": "LOW",
            "documentation": _documentation(key),
            "group": GROUP,
            "order_in_group": order,
            "width": "NONE",
            "display_name": key.name,
            "dependents": [],
        }


def _documentation(key: Key | None) -> str:
    return "" if key is None else f"{key.verdict.value}: {key.note}"


def _type(name: str) -> str:
    """Returns Java's ConfigDef.Type of one of our settings; their names follow a pattern."""
    if name.endswith((".enable", ".enabled", ".only")):
        return "BOOLEAN"
    if name.endswith((".interval.seconds", ".ms")):
        return "LONG"
    if name.endswith((".by.topic", ".listeners", ".emit.to")):
        return "LIST"
    return "STRING"


def problems(plugin: str, properties: Mapping[str, str], worker: Mapping[str, str]) -> dict[str, str]:
    """Returns an error for each key of *properties* that a connector of class *plugin* would refuse.

    *worker* holds the worker's own properties for the target. Unknown keys are not errors, as in Java.
    """
    errors: dict[str, str] = {}
    for name, value in properties.items():
        key = setting_table.find(name, setting_table.CONNECTOR_SCOPES)
        if key is not None and key.verdict is Verdict.REFUSED and not key.accepts(value):
            errors[name] = str(RefusedSettingError(key=name, why=key.note))
    checked = _without_references({"connector.class": plugin, **properties})
    checked = {name: value for name, value in checked.items() if name not in errors}
    # An error names the first wrong key only: without that key the next one appears.
    while True:
        try:
            parse_connector(checked, worker)
        except (InvalidSettingError, RefusedSettingError) as error:
            if error.key in errors:
                return errors
            errors[error.key] = str(error)
            if error.key.startswith(_CHAINED):
                # They depend on each other: only the first wrong one is reported, then errors of other keys.
                checked = {name: value for name, value in checked.items() if not name.startswith(_CHAINED)}
            elif checked.pop(error.key, None) is None:
                return errors
        else:
            return errors


def _without_references(properties: Mapping[str, str]) -> dict[str, str]:
    placed = (*_REQUIRED, *_CONNECTING)
    return {
        name: _UNKNOWN.format(number) if "${" in value else value
        for number, (name, value) in enumerate(properties.items())
        if not name.startswith(PROVIDERS_KEY) and ("${" not in value or name in placed)
    }
