"""Parses the connector properties of a MirrorCheckpointConnector into `CheckpointSettings`.

Keys, defaults and prefix rules are MM2's (MirrorConnectorConfig, MirrorCheckpointConfig of 4.3). Beyond Java,
`emit.checkpoints.enabled=false` with `sync.group.offsets.enabled=true` is supported: group offsets are
synced, and no checkpoint is written (Java accepts it and then runs no task). Client properties keep their
references.
"""

from collections.abc import Mapping

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.patterns import GROUPS_EXCLUDE, TOPICS_EXCLUDE
from mirrorflow_core.java.properties import PropertyReader
from mirrorflow_core.settings import CheckpointSettings, ClientSettings
from mirrorflow_core.transforms import read_transforms
from mirrorflow_replicator.config import clients
from mirrorflow_replicator.config.connector_basics import Basics, interval_s, patterns
from mirrorflow_replicator.config.plugins import group_filter, policy_settings, topic_filter
from mirrorflow_replicator.config.storage import replication_factor

REPLICATION_FACTOR_KEY = "checkpoints.topic.replication.factor"
EMIT, SYNC, REFRESH = "emit.checkpoints", "sync.group.offsets", "refresh.groups"
SYNCS_KEY = "emit.offset-syncs.enabled"


def parse_checkpoint(properties: Mapping[str, str], worker: Mapping[str, str]) -> CheckpointSettings:
    """Returns the settings of a connector with *properties*, in a worker with derived *worker* properties.

    Raises InvalidSettingError and RefusedSettingError.
    """
    basics = Basics.of(properties, worker)
    read = basics.read
    problem = why_not(read)
    if problem:
        raise InvalidSettingError(
            key=problem[0], problem=problem[1], action="set it to true, or enabled=false"
        )
    made = _clients(properties, worker, basics)
    return CheckpointSettings(
        name=basics.name,
        flow=basics.flow,
        source_alias=basics.source_alias,
        target_alias=basics.target_alias,
        policy=policy_settings(read, basics.source_alias),
        topics=patterns(read, "topics", (".*",)),
        topics_exclude=patterns(read, "topics.exclude", TOPICS_EXCLUDE),
        topic_filter=topic_filter(read),
        transforms=read_transforms(read),
        groups=patterns(read, "groups", (".*",)),
        groups_exclude=patterns(read, "groups.exclude", GROUPS_EXCLUDE),
        group_filter=group_filter(read),
        refresh_groups_s=interval_s(read, REFRESH, 600),
        emit_s=interval_s(read, EMIT, 60),
        sync_s=interval_s(read, SYNC, 60, enabled=False),
        replication_factor=replication_factor(read, REPLICATION_FACTOR_KEY, 3),
        syncs_on_source=read.choice("offset-syncs.topic.location", ("source", "target"), "source")
        == "source",
        source_admin=made["source", "admin"],
        source_consumer=made["source", "consumer"],
        target_admin=made["target", "admin"],
        target_consumer=made["target", "consumer"],
        target_producer=made["target", "producer"],
        providers=basics.providers,
    )


def why_not(read: PropertyReader) -> tuple[str, str] | None:
    """Returns the key and the reason for which MM2 refuses the connector; None if it can run."""
    if not read.flag(SYNCS_KEY, default=True):
        return SYNCS_KEY, "a MirrorCheckpointConnector translates by offset syncs and cannot run without them"
    emits, moves = (read.flag(f"{EMIT}.enabled", default=True), read.flag(f"{SYNC}.enabled", default=False))
    if not emits and not moves:
        return (
            f"{EMIT}.enabled",
            f"with {SYNC}.enabled=false too a MirrorCheckpointConnector has nothing to do",
        )
    return None


def _clients(
    properties: Mapping[str, str], worker: Mapping[str, str], basics: Basics
) -> dict[tuple[str, str], ClientSettings]:
    """Returns the clients by side and kind, named as Java's task 0 names them."""
    made = {("target", "producer"): clients.data_producer(properties, worker)}
    for kind in ("admin", "consumer"):
        made["source", kind] = clients.connector_client(properties, "source", kind)
        made["target", kind] = clients.target_client(properties, worker, kind)
    clients.require_addresses(made["source", "admin"], key="source.cluster.bootstrap.servers")
    clients.require_addresses(made["target", "producer"], key="bootstrap.servers")
    roles = {
        ("source", "admin"): "checkpoint-source-admin",
        ("source", "consumer"): "offset-syncs-source-consumer",
        ("target", "admin"): "checkpoint-target-admin",
        ("target", "consumer"): "checkpoints-target-consumer",
    }
    aliases = {"source": basics.source_alias, "target": basics.target_alias}
    named = {
        client: clients.task_client(aliases[client[0]], basics.label, role, made[client])
        for client, role in roles.items()
    }
    producer = clients.task_producer(basics.target_alias, basics.name, made["target", "producer"])
    return {**named, ("target", "producer"): producer}
