"""Parses a MirrorSourceConnector's properties into `OffsetSyncSettings`: topic, frequency and clients.

Keys, defaults and prefix rules are MM2's (MirrorSourceConfig): the producer is the connector's own,
`producer.*` and `source.producer.*` or `target.producer.*`, and never the worker's that writes the copies.
Its names are MM2's too, so that quotas and ACLs by client id keep working.
"""

from collections.abc import Mapping

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.properties import PropertyReader
from mirrorflow_core.settings import OffsetSyncSettings, SourceSettings
from mirrorflow_replicator.config import clients
from mirrorflow_replicator.config.plugins import make_replication_policy
from mirrorflow_replicator.config.storage import replication_factor

ENABLED_KEY = "emit.offset-syncs.enabled"
LOCATION_KEY = "offset-syncs.topic.location"
REPLICATION_FACTOR_KEY = "offset-syncs.topic.replication.factor"
REPLICATION_FACTOR = 3
LAG_MAX_KEY = "offset.lag.max"
LAG_MAX = 100
# With `emit.offset-syncs.enabled=false` MM2 refuses keys with these prefixes.
_OWN = ("offset-syncs-", "offset-syncs.topic.")


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
    if not read.flag(ENABLED_KEY, default=True):
        for key in properties:
            if key.startswith(_OWN):
                raise InvalidSettingError(
                    key=ENABLED_KEY,
                    problem=f"false contradicts {key}, as in MM2",
                    action=f"leave {key} out, or write true",
                )
        return None
    side = read.choice(LOCATION_KEY, ("source", "target"), "source")
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
        replication_factor=replication_factor(read, REPLICATION_FACTOR_KEY, REPLICATION_FACTOR),
        lag_max=read.whole(LAG_MAX_KEY, LAG_MAX, minimum=-(2**63)),
        producer=clients.task_client(alias, label, f"offset-syncs-{side}-producer", producer),
        admin=clients.client_settings(alias, f"{label}|offset-syncs-{side}-admin", admin),
    )


def offset_syncs_topic(settings: SourceSettings) -> str:
    """Returns the topic's name, which contains the alias of the flow's other cluster."""
    assert settings.syncs is not None
    other = settings.target_alias if settings.syncs.on_source else settings.source_alias
    return make_replication_policy(settings).offset_syncs_topic(other)
