"""`mirrorflow dump`: prints the records of a flow's internal topics, one per line; changes nothing.

It prints the records that still exist, in log order; of positions only the newest for each partition, unless `--all` is
given. A record that cannot be decoded is printed as unreadable, and reading continues, as in the connectors. These topics hold no
payloads of users.
"""

import argparse
import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from mirrorflow_cli.clusters import connected
from mirrorflow_cli.errors import EXIT_DONE, FailedError
from mirrorflow_cli.flow_arguments import flow_from, layout_from, source_settings, valid_plan
from mirrorflow_cli.flow_flags import add_flow_arguments
from mirrorflow_core.connect.mirror_records import decode_checkpoint, decode_offset_sync
from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.settings import ClientSettings, OffsetStore, SourceSettings
from mirrorflow_core.wire.records import Record
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = sorted(_TOPICS)
    parser.add_argument("what", choices=kinds, metavar="WHAT", help=", ".join(kinds))
    add_flow_arguments(parser, addresses=True)
    parser.add_argument("--all", action="store_true", help="print superseded positions, too")
    parser.add_argument("--json", action="store_true", help="print JSON, one object per line")


def execute(arguments: argparse.Namespace) -> int:
    """Prints the records. Raises FailedError if the topic does not exist or may not be described."""
    planned = valid_plan(flow_from(arguments), layout_from(arguments))
    settings, _ = source_settings(planned)
    topic = _TOPICS[arguments.what](planned, settings)
    if arguments.all:
        topic = replace(topic, newest_only=False)
    asyncio.run(_dump(topic, settings, as_json=arguments.json))
    return EXIT_DONE


async def _dump(topic: DumpTopic, settings: SourceSettings, *, as_json: bool) -> None:
    async with connected(topic.client, settings) as cluster:
        partitions = await _partitions(cluster, topic.name)
        if not partitions:
            alias = topic.client.alias
            raise FailedError(f"There is no topic {topic.name} of {alias}, or Describe on it is not granted.")
        for partition in partitions:
            newest: dict[bytes | None, Record] = {}
            async for record in MirrorLog(cluster, topic.name, partition).read_new():
                if topic.newest_only:
                    newest[record.key] = record
                else:
                    print(_line(topic, partition, record, as_json=as_json))
            for record in sorted(newest.values(), key=lambda one: one.offset):
                print(_line(topic, partition, record, as_json=as_json))


async def _partitions(cluster: Cluster, topic: str) -> list[int]:
    await cluster.refresh([topic])
    known = cluster.metadata.topics.get(topic)
    return [] if known is None or known.error else sorted(known.partitions)


def _line(topic: DumpTopic, partition: int, record: Record, *, as_json: bool) -> str:
    try:
        fields = topic.read(record.key, record.value)
    except ValueError as error:
        fields = {"unreadable": str(error)}
    if as_json:
        whole = {
            "cluster": topic.client.alias,
            "topic": topic.name,
            "partition": partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "record": fields,
        }
        return json.dumps(whole, ensure_ascii=False)
    text = " ".join(f"{name}={_quoted(value)}" for name, value in fields.items())
    return f"{topic.name}-{partition}@{record.offset} {_timestamp(record.timestamp)} {text}"


def _quoted(value: object) -> str:
    """Returns *value* as text, quoted as JSON unless it is one plain word."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if text and text.isprintable() and not set(text) & set(" \"'=") else json.dumps(text)


def _timestamp(timestamp_ms: int) -> str:
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


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


_TOPICS: Mapping[str, Callable[[Plan, SourceSettings], DumpTopic]] = {
    "checkpoints": _checkpoints,
    "offset-syncs": _offset_syncs,
    "positions": _positions,
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
