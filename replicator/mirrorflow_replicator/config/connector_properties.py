"""Parses the properties that MM2's connectors share: aliases, providers, intervals, expressions, and offset syncs.

Keys, defaults and prefix rules are MM2's (MirrorConnectorConfig and the configs of the three connectors, of 4.3); own keys
begin with `mirrorflow.`. Client properties keep their references; everything else is resolved here, once. Errors name the
key and what to write. `mirrorflow_core.setting_table` has the known keys and their defaults. Each connector's own properties are in a
module of its name, such as `source_properties`; `connector_settings` chooses it by the class.
"""

from collections.abc import Mapping
from typing import Self

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.patterns import compile_patterns
from mirrorflow_core.java.properties import PropertyReader
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.setting_table import DEFAULTS
from mirrorflow_core.settings import (
    CheckpointSettings,
    ClientSettings,
    OffsetStorageSettings,
    OffsetSyncSettings,
    SourceSettings,
)
from mirrorflow_replicator.config import clients
from mirrorflow_replicator.config.plugins import make_replication_policy
from mirrorflow_replicator.config.providers import PROVIDERS_KEY, Resolver
from mirrorflow_replicator.config.storage import offset_storage, replication_factor

DAY_MS = 86_400_000
TASKS_MAX = 1_000  # processes; a higher number is a typing error
SYNCS_FACTOR_KEY = "offset-syncs.topic.replication.factor"
SYNCS_KEY = "emit.offset-syncs.enabled"
# With `emit.offset-syncs.enabled=false` MM2 refuses keys with these prefixes.
_OF_SYNCS = ("offset-syncs-", "offset-syncs.topic.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonSettings:
    """The common settings of a connector; *read* reads the others."""

    name: str
    flow: str
    source_alias: str
    target_alias: str
    providers: Mapping[str, str]  # `config.providers` and its keys
    resolver: Resolver  # of these
    read: PropertyReader

    @property
    def label(self) -> str:
        return clients.label(self.source_alias, self.target_alias, self.name)

    @classmethod
    def of(cls, properties: Mapping[str, str], worker: Mapping[str, str]) -> Self:
        """Reads the common settings of a connector in a worker with the derived *worker* properties.

        Raises InvalidSettingError.
        """
        providers = {
            key: value
            for text in (worker, properties)
            for key, value in text.items()
            if key.startswith(PROVIDERS_KEY)
        }
        resolver = Resolver(providers)
        read = PropertyReader(properties, resolver, DEFAULTS)
        name = read.required("name", action="name the connector, for example MirrorSourceConnector")
        source = require_source_alias(read)
        target = read.text("target.cluster.alias")
        if source == target:
            raise InvalidSettingError(
                key="target.cluster.alias",
                problem=f"source and target are both {source!r}",
                action="choose different aliases",
            )
        return cls(
            name=name,
            flow=read.text("mirrorflow.flow", f"{source}->{target}"),
            source_alias=source,
            target_alias=target,
            providers=providers,
            resolver=resolver,
            read=read,
        )


def require_source_alias(read: PropertyReader) -> str:
    """Returns the alias of the source. Raises InvalidSettingError where it is missing or empty."""
    key = "source.cluster.alias"
    alias = read.text(key)
    if not alias and key in read:
        raise InvalidSettingError(
            key=key,
            problem="it is empty, an old way to keep the names of topics",
            action="write replication.policy.class=IdentityReplicationPolicy instead, without empty aliases and separators. "
            "Offsets stored under an empty alias are not found: set mirrorflow.start.from, or topics are copied again",
        )
    return read.required(key, action="name the source cluster")


def patterns(read: PropertyReader, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Returns a list of expressions. Raises InvalidSettingError for an invalid one, before anything starts."""
    written = read.names(key, default)
    compile_patterns(key, written)
    return written


def interval_s(read: PropertyReader, prefix: str) -> float | None:
    """Returns `prefix.interval.seconds`; None for never: `prefix.enabled=false` or a negative interval.

    Raises InvalidSettingError for 0.
    """
    is_enabled = read.flag(f"{prefix}.enabled")
    key = f"{prefix}.interval.seconds"
    seconds = read.whole(key, minimum=-(2**31), maximum=2**31)
    # Java's scheduler takes a negative interval as "never".
    if not is_enabled or seconds < 0:
        return None
    if seconds == 0:
        raise InvalidSettingError(
            key=key, problem="must be at least 1", action=f"set {prefix}.enabled=false to disable it"
        )
    return float(seconds)


def connector_offset_storage(
    properties: Mapping[str, str], worker: Mapping[str, str]
) -> tuple[OffsetStorageSettings, ClientSettings]:
    """Returns where a connector's offsets are stored, whatever its class, and the client that reads them.

    Raises InvalidSettingError.
    """
    basics = CommonSettings.of(properties, worker)
    client = clients.target_client(properties, worker, "admin")
    clients.require_addresses(client, key="bootstrap.servers")
    admin = clients.client_settings(basics.target_alias, f"{basics.label}|offsets-target-admin", client)
    return offset_storage(
        PropertyReader(worker, basics.resolver, DEFAULTS), worker, basics.source_alias, admin
    ), admin


def offset_syncs(
    read: PropertyReader,
    properties: Mapping[str, str],
    worker: Mapping[str, str],
    *,
    label: str,
) -> OffsetSyncSettings | None:
    """Returns the offset sync settings of *properties*; None if no offset syncs are written.

    *label* is the beginning of the names of MM2's clients. Raises InvalidSettingError.
    """
    if not read.flag(SYNCS_KEY):
        for key in properties:
            if key.startswith(_OF_SYNCS):
                raise InvalidSettingError(
                    key=SYNCS_KEY,
                    problem=f"false contradicts {key}, as in MM2",
                    action=f"leave {key} out, or write true",
                )
        return None
    side = read.choice("offset-syncs.topic.location", ("source", "target"))
    on_source = side == "source"
    producer, admin = (
        clients.connector_client(properties, side, kind)
        if on_source
        else clients.target_client(properties, worker, kind)
        for kind in ("producer", "admin")
    )
    alias = read.text(f"{side}.cluster.alias", side)
    return OffsetSyncSettings(
        on_source=on_source,
        replication_factor=replication_factor(read, SYNCS_FACTOR_KEY),
        lag_max=read.whole("offset.lag.max", minimum=-(2**63)),
        producer=clients.task_client(alias, label, f"offset-syncs-{side}-producer", producer),
        admin=clients.client_settings(alias, f"{label}|offset-syncs-{side}-admin", admin),
    )


def offset_syncs_topic(settings: SourceSettings | CheckpointSettings, *, on_source: bool) -> str:
    """Returns the name of the topic on the source or the target; it contains the alias of the other cluster."""
    other = settings.target_alias if on_source else settings.source_alias
    return make_replication_policy(settings).offset_syncs_topic(other)
