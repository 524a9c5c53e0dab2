"""Answers Connect's `/connector-plugins`: connector classes, their settings, errors of a configuration.

Definitions of settings are those of Java's worker, followed by our own settings in a separate group
(`http.validation`). Bodies are those of ConnectorPluginsResource, ConfigKeyInfo and ConfigInfos of Kafka 4.3.
Pure.
"""

from collections.abc import Mapping

from mirrorflow_core.connect.rest_calls import ConnectError
from mirrorflow_replicator.config.secret_masking import shown_value
from mirrorflow_replicator.http.commands import NULL_VALUE
from mirrorflow_replicator.http.worker_view import PluginKey, WorkerView
from mirrorflow_replicator.version import connect_version

PACKAGE = "org.apache.kafka.connect.mirror."
SUFFIX = "Connector"  # Connect accepts a class without it
PLUGINS = ("MirrorCheckpointConnector", "MirrorHeartbeatConnector", "MirrorSourceConnector")


def plugins(state: WorkerView) -> list[dict[str, str]]:
    """Returns the connectors; with `connectorsOnly=false` Java adds converters and transforms.

    We have neither.
    """
    version = connect_version(state.version)
    return [{"class": PACKAGE + name, "type": "source", "version": version} for name in PLUGINS]


def definitions(name: str, state: WorkerView) -> list[dict[str, object]]:
    """Returns the settings of plugin *name*. Raises ConnectError."""
    plugin = _plugin(name)
    if plugin is None:
        raise ConnectError(
            400,
            f"Invalid plugin class {name}. Valid types are sink, source, converter, header_converter, transformation, predicate.",
        )
    return [_definition(key) for key in state.plugin_keys.get(plugin, ())]


def validation(name: str, given: Mapping[str, str | None], state: WorkerView) -> dict[str, object]:
    """Returns every known key with its value and errors, and the unknown keys that have errors.

    Raises ConnectError.
    """
    included = given.get("connector.class")
    if included is not None and not _alias(included).endswith(_alias(name)):
        raise ConnectError(400, f"Included connector type {included} does not match request type {name}")
    plugin = _plugin(included or name)
    if plugin is None:
        raise ConnectError(404, f"Unknown plugin {included or name}.")
    keys = {key.name: key for key in state.plugin_keys.get(plugin, ())}
    values = {key: value for key, value in given.items() if value is not None}
    problems = {
        key: NULL_VALUE.format(key) for key, value in given.items() if value is None and key != "name"
    }
    problems.update(state.validate(plugin, values))
    names = [*keys, *sorted(problems.keys() - keys.keys())]
    return {
        "name": included or PACKAGE + plugin,
        "error_count": len(problems),
        "groups": list(dict.fromkeys(key.group for key in keys.values() if key.group is not None)),
        "configs": [_validated(one, keys.get(one), values, problems) for one in names],
    }


def _validated(
    name: str, key: PluginKey | None, values: Mapping[str, str], problems: Mapping[str, str]
) -> dict[str, object]:
    """Returns Java's ConfigInfo; an unknown key has no definition."""
    value = {
        "name": name,
        "value": shown_value(name, values[name]) if name in values else key and key.default,
        "recommended_values": [],
        "errors": [problems[name]] if name in problems else [],
        "visible": _is_visible(name, values),
    }
    return {"definition": key and _definition(key), "value": value}


def _is_visible(name: str, values: Mapping[str, str]) -> bool:
    """Whether Java shows the setting: a converter's version only if the connector names that converter."""
    converter, is_version, _ = name.partition(".plugin.version")
    return not (is_version and converter.endswith(".converter")) or converter in values


def _definition(key: PluginKey) -> dict[str, object]:
    """Returns Java's ConfigKeyInfo."""
    return {
        "name": key.name,
        "type": key.type,
        "required": key.required,
        "default_value": key.default,
        "importance": key.importance,
        "documentation": key.documentation,
        "group": key.group,
        "order_in_group": key.order,
        "width": key.width,
        "display_name": key.display_name or key.name,
        "dependents": [],
    }


def _plugin(name: str) -> str | None:
    """Returns the simple class name of any form that Connect accepts: full, simple, or without suffix."""
    simple = name.removeprefix(PACKAGE)
    return next((plugin for plugin in PLUGINS if simple in {plugin, _alias(plugin)}), None)


def _alias(name: str) -> str:
    return name.removesuffix(SUFFIX) if len(name) > len(SUFFIX) else name
