"""Reads and decodes the records of a flow's internal topics, for `mirrorflow dump` and the console; changes nothing.

A record that cannot be decoded is reported as unreadable, and reading continues, as in the connectors. These topics hold no
payloads of users.
"""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mirrorflow_cli.clusters import connected
from mirrorflow_cli.errors import FailedError
from mirrorflow_core.connect.mirror_records import (
    decode_checkpoint,
    decode_heartbeat,
    decode_map,
    decode_map_key,
    decode_offset_sync,
    offset_map_topic,
)
from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.json_text import parsed_object
from mirrorflow_core.settings import ClientSettings, OffsetStore, SourceSettings
from mirrorflow_core.switchover.record import SWITCHOVERS_TOPIC, decode_record
from mirrorflow_core.wire.records import Record
from mirrorflow_core.writer.claim import claims_topic, decode_claim
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.compacted_topic import MirrorLog
from mirrorflow_operator.plan.properties import Plan
from mirrorflow_replicator.config.connector_properties import offset_syncs_topic
from mirrorflow_replicator.config.plugins import make_replication_policy

Fields = Mapping[str, Any]
Read = Callable[[bytes | None, bytes | None], Fields]


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpTopic:
    """A topic with the client that reads it and the decoder of its records."""

    client: ClientSettings
    name: str
    read: Read
    newest_only: bool = False  # leave out records that a later one with the same key supersedes


async def read_topic(topic: DumpTopic, settings: SourceSettings) -> AsyncIterator[tuple[int, Record]]:
    """Yields partition and record of all that the topic holds, in log order.

    Raises FailedError if the topic does not exist or may not be described.
    """
    async with connected(topic.client, settings) as cluster:
        for partition in await partitions_of(topic, cluster):
            newest: dict[bytes | None, Record] = {}
            async for record in MirrorLog(cluster, topic.name, partition).read_new():
                if topic.newest_only:
                    newest[record.key] = record
                else:
                    yield partition, record
            for record in sorted(newest.values(), key=lambda record: record.offset):
                yield partition, record


def decoded(topic: DumpTopic, record: Record) -> Fields:
    """Returns the fields of *record*, or why it cannot be read."""
    try:
        return topic.read(record.key, record.value)
    except ValueError as error:
        return {"unreadable": str(error)}


async def partitions_of(topic: DumpTopic, cluster: Cluster) -> list[int]:
    """Returns the partitions of *topic*. Raises FailedError if it does not exist or may not be described; ClusterError."""
    await cluster.refresh([topic.name])
    known = cluster.metadata.topics.get(topic.name)
    if known is None or known.error or not known.partitions:
        alias = topic.client.alias
        raise FailedError(f"There is no topic {topic.name} of {alias}, or Describe on it is not granted.")
    return sorted(known.partitions)


def _positions(_: Plan, settings: SourceSettings) -> DumpTopic:
    if settings.offsets.store is OffsetStore.FILE:
        raise InvalidSettingError(
            key="offset.storage.store",
            problem="positions are in a file",
            action=f"read {settings.offsets.file}",
        )
    offsets = settings.offsets
    return DumpTopic(client=offsets.client, name=offsets.topic, read=_read_position, newest_only=True)


def _checkpoints(_: Plan, settings: SourceSettings) -> DumpTopic:
    topic = make_replication_policy(settings).checkpoints_topic(settings.source_alias)
    return DumpTopic(client=settings.target_admin, name=topic, read=_as_fields(decode_checkpoint))


def _offset_syncs(_: Plan, settings: SourceSettings) -> DumpTopic:
    if settings.syncs is None:
        raise FailedError("The flow writes no offset syncs (emit.offset-syncs.enabled=false).")
    on_source = settings.syncs.on_source
    client = settings.source_admin if on_source else settings.target_admin
    name = offset_syncs_topic(settings, on_source=on_source)
    return DumpTopic(client=client, name=name, read=_as_fields(decode_offset_sync))


def _heartbeats(_: Plan, settings: SourceSettings) -> DumpTopic:
    """The heartbeats of the source, as they were copied to the target."""
    policy = make_replication_policy(settings)
    topic = policy.remote_topic(settings.source_alias, policy.heartbeats_topic())
    return DumpTopic(client=settings.target_admin, name=topic, read=_as_fields(decode_heartbeat))


def _offset_map(_: Plan, settings: SourceSettings) -> DumpTopic:
    return DumpTopic(
        client=settings.target_admin,
        name=offset_map_topic(settings.source_alias),
        read=_read_offset_map,
        newest_only=True,
    )


def _claims(_: Plan, settings: SourceSettings) -> DumpTopic:
    return DumpTopic(client=settings.target_admin, name=claims_topic(settings.source_alias), read=_read_claim)


def _switchovers(_: Plan, settings: SourceSettings) -> DumpTopic:
    return DumpTopic(client=settings.target_admin, name=SWITCHOVERS_TOPIC, read=_read_switchover)


TOPICS: Mapping[str, Callable[[Plan, SourceSettings], DumpTopic]] = {
    "checkpoints": _checkpoints,
    "claims": _claims,
    "heartbeats": _heartbeats,
    "offset-map": _offset_map,
    "offset-syncs": _offset_syncs,
    "positions": _positions,
    "switchovers": _switchovers,
}


def _as_fields(decode: Callable[[bytes | None, bytes | None], Any]) -> Read:
    return lambda key, value: asdict(decode(key, value))


def _read_position(key: bytes | None, value: bytes | None) -> Fields:
    """Decodes an offsets record without interpreting it: other Java connectors may use the same topic."""
    try:
        connector, where = json.loads(key or b"")
        fields = {"connector": connector, **where}
    except TypeError as error:
        message = "its key is not a connector's name with a source partition"
        raise ValueError(message) from error
    return {**fields, "position": None if value is None else json.loads(value)}


def _read_offset_map(key: bytes | None, value: bytes | None) -> Fields:
    """Decodes a partition's map: its ends, and how many runs of parallel offsets it has."""
    partition = decode_map_key(key)
    fields: dict[str, Any] = {"topic": partition.topic, "partition": partition.partition}
    if value is None:
        return fields | {"map": None}
    known = decode_map(value)
    return fields | {
        "upstream_end": known.upstream_end,
        "downstream_end": known.runs[-1].downstream_end,
        "runs": len(known.runs),
        "records": known.ordinal,
        "leader_epoch": known.leader_epoch,
    }


def _read_claim(key: bytes | None, value: bytes | None) -> Fields:
    if key is None or value is None:
        return {"claim": None}
    return asdict(decode_claim(key, value))


def _read_switchover(key: bytes | None, value: bytes | None) -> Fields:
    """Decodes a record of the journal of switchovers, or a note, which says what a switchover may have changed."""
    identity = parsed_object(key or b"")
    if value is None or "note" in identity:
        return identity if value is None else {**identity, **parsed_object(value)}
    record = decode_record(key or b"", value)
    return {
        "pair": record.pair,
        "switchover": record.id,
        "type": record.type.value,
        "source": record.source,
        "to": record.to,
        "state": record.state.value,
        "epoch": record.epoch,
        "revision": record.revision,
        "attempt": record.attempt,
        "runner": record.runner,
        "reason": record.reason,
        "sealed_partitions": None if record.seal is None else len(record.seal.partitions),
        "seal_sha256": None if record.seal is None else record.seal.sha256,
    }
