"""Parses the properties of MM2's heartbeat connector into `HeartbeatSettings`."""

from collections.abc import Mapping

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.settings import BeatSettings, ClientSettings, HeartbeatSettings
from mirrorflow_replicator.config import clients
from mirrorflow_replicator.config.connector_properties import CommonSettings, interval_s
from mirrorflow_replicator.config.plugins import policy_settings
from mirrorflow_replicator.config.storage import replication_factor

_EMIT_TO_KEY = "mirrorflow.heartbeats.emit.to"


def parse_heartbeat(properties: Mapping[str, str], worker: Mapping[str, str]) -> HeartbeatSettings | None:
    """Returns the settings of the connector with *properties*; None if it writes nothing.

    Raises InvalidSettingError and RefusedSettingError.
    """
    basics = CommonSettings.of(properties, worker)
    read = basics.read
    policy = policy_settings(read, basics.source_alias)
    every_s = interval_s(read, "emit.heartbeats")
    factor = replication_factor(read, "heartbeats.topic.replication.factor")
    sides = read.names(_EMIT_TO_KEY)
    for side in sides:
        if side not in {"target", "source"}:
            raise InvalidSettingError(
                key=_EMIT_TO_KEY, problem=f"{side!r} is not a side", action="write target, source or both"
            )
    beats = []
    if "target" in sides:
        beats.append(_to_target(basics, properties, worker))
    if "source" in sides:
        beats.append(_to_source(basics, properties))
    if every_s is None or not beats:
        return None
    return HeartbeatSettings(
        name=basics.name,
        flow=basics.flow,
        source_alias=basics.source_alias,
        target_alias=basics.target_alias,
        policy=policy,
        interval_s=every_s,
        replication_factor=factor,
        beats=tuple(beats),
        providers=basics.providers,
    )


def _to_target(
    basics: CommonSettings, properties: Mapping[str, str], worker: Mapping[str, str]
) -> BeatSettings:
    """As in MM2: the worker's producer writes, the connector's admin client creates the topic."""
    producer = clients.data_producer(properties, worker)
    admin = clients.target_client(properties, worker, "admin")
    clients.require_addresses(producer, key="bootstrap.servers")
    alias = basics.target_alias
    return BeatSettings(
        source_alias=basics.source_alias,
        target_alias=alias,
        producer=clients.task_producer(alias, basics.name, producer),
        admin=clients.client_settings(alias, f"{basics.label}|heartbeats-target-admin", admin),
    )


def _to_source(basics: CommonSettings, properties: Mapping[str, str]) -> BeatSettings:
    alias = basics.source_alias

    def client(kind: str) -> ClientSettings:
        client_properties = clients.connector_client(properties, "source", kind)
        clients.require_addresses(client_properties, key="source.cluster.bootstrap.servers")
        return clients.client_settings(alias, f"{basics.label}|heartbeats-source-{kind}", client_properties)

    return BeatSettings(
        source_alias=basics.target_alias,
        target_alias=alias,
        producer=client("producer"),
        admin=client("admin"),
    )
