"""Parses the properties of MM2's checkpoint connector into `CheckpointSettings`."""

from collections.abc import Mapping

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.properties import PropertyReader
from mirrorflow_core.settings import CheckpointSettings, ClientSettings
from mirrorflow_core.transforms import read_transforms
from mirrorflow_replicator.config import clients
from mirrorflow_replicator.config.connector_properties import SYNCS_KEY, CommonSettings, interval_s, patterns
from mirrorflow_replicator.config.plugins import filter_class, policy_settings
from mirrorflow_replicator.config.storage import replication_factor

_EMIT, _SYNC = "emit.checkpoints", "sync.group.offsets"


def parse_checkpoint(properties: Mapping[str, str], worker: Mapping[str, str]) -> CheckpointSettings:
    """Returns the settings of a connector with *properties*, in a worker with derived *worker* properties.

    Raises InvalidSettingError and RefusedSettingError.
    """
    basics = CommonSettings.of(properties, worker)
    read = basics.read
    problem = checkpoint_refusal(read)
    if problem:
        raise InvalidSettingError(
            key=problem[0], problem=problem[1], action="set it to true, or enabled=false"
        )
    made = _checkpoint_clients(properties, worker, basics)
    return CheckpointSettings(
        name=basics.name,
        flow=basics.flow,
        source_alias=basics.source_alias,
        target_alias=basics.target_alias,
        policy=policy_settings(read, basics.source_alias),
        topics=patterns(read, "topics"),
        topics_exclude=patterns(read, "topics.exclude"),
        topic_filter=filter_class(read, "topic.filter.class"),
        transforms=read_transforms(read),
        groups=patterns(read, "groups"),
        groups_exclude=patterns(read, "groups.exclude"),
        group_filter=filter_class(read, "group.filter.class"),
        refresh_groups_s=interval_s(read, "refresh.groups"),
        emit_s=interval_s(read, _EMIT),
        sync_s=interval_s(read, _SYNC),
        replication_factor=replication_factor(read, "checkpoints.topic.replication.factor"),
        syncs_on_source=read.choice("offset-syncs.topic.location", ("source", "target")) == "source",
        source_admin=made["source", "admin"],
        source_consumer=made["source", "consumer"],
        target_admin=made["target", "admin"],
        target_consumer=made["target", "consumer"],
        target_producer=made["target", "producer"],
        providers=basics.providers,
    )


def checkpoint_refusal(read: PropertyReader) -> tuple[str, str] | None:
    """Returns the key and the reason for which MM2 refuses the connector; None if it can run."""
    if not read.flag(SYNCS_KEY):
        return SYNCS_KEY, "a MirrorCheckpointConnector translates by offset syncs and cannot run without them"
    emits, moves = read.flag(f"{_EMIT}.enabled"), read.flag(f"{_SYNC}.enabled")
    if not emits and not moves:
        return (
            f"{_EMIT}.enabled",
            f"with {_SYNC}.enabled=false too a MirrorCheckpointConnector has nothing to do",
        )
    return None


def _checkpoint_clients(
    properties: Mapping[str, str], worker: Mapping[str, str], basics: CommonSettings
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
