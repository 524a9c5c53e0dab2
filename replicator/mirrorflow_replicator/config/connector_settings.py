"""Parses the properties of one connector, of any of our classes, into `ConnectorSettings`, with warnings."""

from collections.abc import Mapping

from mirrorflow_core.errors import RefusedSettingError
from mirrorflow_core.java.patterns import meant_by_glob
from mirrorflow_core.java.properties import PropertyReader
from mirrorflow_core.setting_table import DEFAULTS
from mirrorflow_core.settings import ConnectorSettings, PolicyKind, SourceSettings
from mirrorflow_replicator.config.checkpoint_properties import parse_checkpoint
from mirrorflow_replicator.config.connector_classes import (
    CHECKPOINT_CONNECTOR,
    CONNECTORS,
    HEARTBEAT_CONNECTOR,
    SCHEMA_CONNECTOR,
    SOURCE_CONNECTOR,
)
from mirrorflow_replicator.config.connector_properties import TASKS_MAX
from mirrorflow_replicator.config.heartbeat_properties import parse_heartbeat
from mirrorflow_replicator.config.plugins import MIRROR_PACKAGE, make_selection
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.config.schema_properties import parse_schemas
from mirrorflow_replicator.config.source_properties import parse_source

CONVERTER_KEYS = ("key.converter", "value.converter", "header.converter")
CONVERTER_NOT_USED = "ConverterNotUsed"
BYTE_CONVERTER = "org.apache.kafka.connect.converters.ByteArrayConverter"


def parse_connector(
    properties: Mapping[str, str], worker: Mapping[str, str], *, now_ms: int | None = None
) -> ConnectorSettings:
    """Parses one connector of a worker with the derived *worker* properties.

    Raises InvalidSettingError, RefusedSettingError.
    """
    read = PropertyReader(properties, Resolver({**worker, **properties}), DEFAULTS)
    name = read.required("name", action="name the connector, for example MirrorSourceConnector")
    written = read.required("connector.class", action="write " + " or ".join(CONNECTORS))
    connector_class = written.removeprefix(MIRROR_PACKAGE)
    if connector_class not in CONNECTORS:
        raise RefusedSettingError(
            key="connector.class", why=f"{written} is a Java class; this process runs {', '.join(CONNECTORS)}"
        )
    # Checked for every class, also where one task does all the work.
    read.whole("tasks.max", minimum=1, maximum=TASKS_MAX)
    enabled = read.flag("enabled")
    is_source, is_heartbeat = connector_class == SOURCE_CONNECTOR, connector_class == HEARTBEAT_CONNECTOR
    is_checkpoint = connector_class == CHECKPOINT_CONNECTOR
    source = parse_source(properties, worker, now_ms=now_ms) if is_source and enabled else None
    return ConnectorSettings(
        name=name,
        connector_class=connector_class,
        properties=dict(properties),
        source=source,
        checkpoint=parse_checkpoint(properties, worker) if is_checkpoint and enabled else None,
        # Java's heartbeat connector ignores `enabled`: an mm2.properties has herders for heartbeats only.
        heartbeat=parse_heartbeat(properties, worker) if is_heartbeat else None,
        schema=parse_schemas(properties, worker) if connector_class == SCHEMA_CONNECTOR and enabled else None,
        is_paused=read.choice("mirrorflow.state", ("running", "paused")) == "paused",
        warnings=(*converter_warnings(properties, worker), *_never_copied(source), *_glob_warnings(read)),
    )


def _glob_warnings(read: PropertyReader) -> tuple[str, ...]:
    """Returns a warning for each expression that is probably meant as a shell's pattern."""
    return tuple(
        f"{key}: {pattern} is a regular expression, in which * repeats the character before it; "
        f"write {meant} if * stands for any characters."
        for key in ("topics", "topics.exclude", "groups", "groups.exclude")
        for pattern in read.names(key, ())
        if (meant := meant_by_glob(pattern)) is not None
    )


def _never_copied(source: SourceSettings | None) -> tuple[str, ...]:
    # A class of the user's own is imported when the connector starts.
    if source is None or source.topic_filter is not None or source.policy.kind is PolicyKind.CUSTOM:
        return ()
    return make_selection(source).never_copied


def converter_warnings(properties: Mapping[str, str], worker: Mapping[str, str]) -> tuple[str, ...]:
    """Returns a warning if the connector with *properties* inherits converters of *worker* that change bytes.

    It contains no property's value except the simple name of a class.
    """
    inherited = {
        key: worker[key].strip().rpartition(".")[2]
        for key in CONVERTER_KEYS
        if worker.get(key, "").strip() and key not in properties
    }
    changing = {key: name for key, name in inherited.items() if name != BYTE_CONVERTER.rpartition(".")[2]}
    if not changing:
        return ()
    converters = ", ".join(f"{key}={name}" for key, name in changing.items())
    *most, last = changing
    names = f"{', '.join(most)} and {last}" if most else last
    sentence = (
        f"{CONVERTER_NOT_USED}: the worker has {converters}, which Java's worker would apply to every record of this connector. "
        f"Records are copied byte for byte instead. To have the same with Java, and no warning, set {names} "
        f"to {BYTE_CONVERTER} in the connector."
    )
    return (sentence,)
