"""Parses the properties of the schema connector, which a source connector whose topics wait for schemas has, too."""

from collections.abc import Mapping

from mirrorflow_core.java.properties import PropertyReader
from mirrorflow_core.settings import (
    REGISTRY_PREFIX,
    REGISTRY_URL_KEY,
    SCHEMA_WAIT_MAX,
    SCHEMA_WAIT_TOPICS,
    RegistrySettings,
    SchemaSettings,
    SchemaWaitSettings,
)
from mirrorflow_replicator.config import clients
from mirrorflow_replicator.config.connector_properties import DAY_MS, CommonSettings, patterns


def parse_schemas(properties: Mapping[str, str], worker: Mapping[str, str]) -> SchemaSettings:
    """Returns the settings of a schema connector with *properties*, in a worker with derived *worker* properties.

    Raises InvalidSettingError.
    """
    # Most flows have no registries.
    from mirrorflow_core.schemas.subject_mapping import (  # noqa: PLC0415
        CONTEXTS_KEY,
        PREFIX_KEY,
        SUBJECTS_KEY,
        read_contexts,
    )

    basics = CommonSettings.of(properties, worker)
    read = basics.read

    def registry(side: str, alias: str) -> RegistrySettings:
        own_properties = clients.with_prefix(properties, f"{side}.cluster.")
        own = {key: value for key, value in own_properties.items() if key.startswith(REGISTRY_PREFIX)}
        read.required(f"{side}.cluster.{REGISTRY_URL_KEY}", action="write https://host:port")
        return RegistrySettings(alias=alias, side=side, properties=own)

    return SchemaSettings(
        name=basics.name,
        flow=basics.flow,
        source_alias=basics.source_alias,
        target_alias=basics.target_alias,
        source=registry("source", basics.source_alias),
        target=registry("target", basics.target_alias),
        subjects=patterns(read, SUBJECTS_KEY),
        contexts=read_contexts(read.names(CONTEXTS_KEY)),
        subject_prefix=read.text(PREFIX_KEY),
        providers=basics.providers,
    )


def schema_wait(
    read: PropertyReader, properties: Mapping[str, str], worker: Mapping[str, str]
) -> SchemaWaitSettings | None:
    """Returns which topics wait for their schemas, and for how long; None if none does. Raises InvalidSettingError."""
    topics = patterns(read, SCHEMA_WAIT_TOPICS)
    if not topics:
        return None
    return SchemaWaitSettings(
        topics=topics,
        longest_s=read.whole(SCHEMA_WAIT_MAX, minimum=1, maximum=DAY_MS) / 1000,
        schemas=parse_schemas(properties, worker),
    )
