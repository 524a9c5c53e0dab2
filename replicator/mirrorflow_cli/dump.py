"""`mirrorflow dump`: prints the records of a flow's internal topics, one per line; changes nothing.

It prints every record that still exists, in log order, so superseded records are shown too. A record that
cannot be decoded is printed as unreadable, and reading continues, as in the connectors. These topics hold no
payloads of users. `dump_resumption` implements `dump resumption`.
"""

import argparse
import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from mirrorflow_cli import dump_resumption
from mirrorflow_cli.clusters import reached
from mirrorflow_cli.errors import EXIT_DONE, FailedError, UsageError
from mirrorflow_cli.flow_plans import valid_plan
from mirrorflow_cli.flows import add_flow_arguments, flow_from, layout_from
from mirrorflow_cli.settings import source_settings
from mirrorflow_core.connect.mirror_records import (
    decode_checkpoint,
    decode_heartbeat,
    decode_offset_sync,
)
from mirrorflow_core.connect.offset_map_records import decode_map, decode_map_key, offset_map_topic
from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.exactly_once import identity
from mirrorflow_core.settings import ClientSettings, OffsetStore, SourceSettings
from mirrorflow_core.topics import topic_acls
from mirrorflow_core.wire.records import Record
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.mirror_log import MirrorLog
from mirrorflow_operator.plan.plan import ConnectorKind, Plan
from mirrorflow_replicator.config.checkpoint import parse_checkpoint
from mirrorflow_replicator.config.plugins import make_replication_policy

RESUMPTION = "resumption"
Fields = Mapping[str, Any]
Read = Callable[[bytes | None, bytes | None], Fields]


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpTopic:
    """A topic with the client that reads it and the decoder of its records."""

    client: ClientSettings
    topic: str
    read: Read


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `mirrorflow dump`."""
    kinds = sorted((*_PLACES, RESUMPTION))
    parser.add_argument("what", choices=kinds, metavar="WHAT", help=", ".join(kinds))
    add_flow_arguments(parser, addresses=True)
    parser.add_argument("--topic", metavar="NAME", help=f"{RESUMPTION}: of this topic of the source only")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def execute(arguments: argparse.Namespace) -> int:
    """Prints the records. Raises FailedError if the topic does not exist or may not be described."""
    planned = valid_plan(flow_from(arguments), layout_from(arguments))
    settings, _ = source_settings(planned)
    if arguments.what == RESUMPTION:
        dump_resumption.execute(settings, topic=arguments.topic, as_json=arguments.json)
        return EXIT_DONE
    if arguments.topic:
        raise UsageError(
            f"--topic is for `mirrorflow dump {RESUMPTION}`; the other kinds show topics of the flow itself."
        )
    places = _PLACES[arguments.what](planned, settings)
    asyncio.run(_dump(places, settings, as_json=arguments.json))
    return EXIT_DONE


async def _dump(places: list[DumpTopic], settings: SourceSettings, *, as_json: bool) -> None:
    found = False
    for place in places:
        async with reached(place.client, settings) as cluster:
            partitions = await _partitions(cluster, place.topic)
            found |= bool(partitions)
            for partition in partitions:
                async for record in MirrorLog(cluster, place.topic, partition).read_new():
                    print(_line(place, partition, record, as_json=as_json))
    if not found:
        names = " or ".join(f"{place.topic} of {place.client.alias}" for place in places)
        raise FailedError(f"There is no topic {names}, or Describe on it is not granted.")


async def _partitions(cluster: Cluster, topic: str) -> list[int]:
    await cluster.refresh([topic])
    known = cluster.metadata.topics.get(topic)
    return [] if known is None or known.error else sorted(known.partitions)


def _line(place: DumpTopic, partition: int, record: Record, *, as_json: bool) -> str:
    try:
        fields = place.read(record.key, record.value)
    except ValueError as error:
        fields = {"unreadable": str(error)}
    if as_json:
        whole = {
            "cluster": place.client.alias,
            "topic": place.topic,
            "partition": partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "record": fields,
        }
        return json.dumps(whole, ensure_ascii=False)
    words = " ".join(f"{name}={_word(value)}" for name, value in fields.items())
    return f"{place.topic}-{partition}@{record.offset} {_moment(record.timestamp)} {words}"


def _word(value: object) -> str:
    """Returns *value* as text, quoted as JSON unless it is one plain word."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if text and text.isprintable() and not set(text) & set(" \"'=") else json.dumps(text)


def _moment(timestamp_ms: int) -> str:
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _positions(_: Plan, settings: SourceSettings) -> list[DumpTopic]:
    if settings.offsets.store is OffsetStore.FILE:
        raise InvalidSettingError(
            key="offset.storage.store",
            problem="positions are in a file",
            action=f"read {settings.offsets.file}",
        )
    return [DumpTopic(client=settings.offsets.client, topic=settings.offsets.topic, read=_read_position)]


def _identity(_: Plan, settings: SourceSettings) -> list[DumpTopic]:
    topic = identity.identity_topic(settings.source_alias)
    return [DumpTopic(client=settings.target_admin, topic=topic, read=_read_decision)]


def _heartbeats(_: Plan, settings: SourceSettings) -> list[DumpTopic]:
    policy = make_replication_policy(settings)
    own = policy.heartbeats_topic()
    return [
        DumpTopic(client=settings.target_admin, topic=topic, read=_as_fields(decode_heartbeat))
        for topic in dict.fromkeys((own, policy.remote_topic(settings.source_alias, own)))
    ]


def _checkpoints(_: Plan, settings: SourceSettings) -> list[DumpTopic]:
    topic = make_replication_policy(settings).checkpoints_topic(settings.source_alias)
    return [DumpTopic(client=settings.target_admin, topic=topic, read=_as_fields(decode_checkpoint))]


def _offset_map(_: Plan, settings: SourceSettings) -> list[DumpTopic]:
    topic = offset_map_topic(settings.source_alias)
    return [DumpTopic(client=settings.target_admin, topic=topic, read=_read_map)]


def _offset_syncs(planned: Plan, settings: SourceSettings) -> list[DumpTopic]:
    (connector,) = (one for one in planned.connectors if one.kind is ConnectorKind.CHECKPOINT)
    checkpoint = parse_checkpoint(connector.connector_properties, connector.worker_properties)
    policy = make_replication_policy(settings)
    client, other = checkpoint.target_consumer, settings.source_alias
    if checkpoint.syncs_on_source:
        client, other = checkpoint.source_consumer, settings.target_alias
    return [
        DumpTopic(client=client, topic=policy.offset_syncs_topic(other), read=_as_fields(decode_offset_sync))
    ]


_PLACES: Mapping[str, Callable[[Plan, SourceSettings], list[DumpTopic]]] = {
    "checkpoints": _checkpoints,
    "heartbeats": _heartbeats,
    "identity": _identity,
    "offset-map": _offset_map,
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


def _read_map(key: bytes | None, value: bytes | None) -> Fields:
    at, known = decode_map_key(key), decode_map(value)
    runs = [{name: number for name, number in run._asdict().items() if number >= 0} for run in known.runs]
    return {
        "topic": at.topic,
        "partition": at.partition,
        **known.stream._asdict(),
        "ordinal": known.ordinal,
        "upstream_end": known.upstream_end,
        "runs": runs,
    }


def _read_decision(key: bytes | None, value: bytes | None) -> Fields:
    proposal = identity.decode(key or b"", value or b"")
    mark = topic_acls.decode_mark(key or b"", value or b"")
    if mark is not None:
        acl, ours = mark
        return {"decision": "acl", "ours": ours, "acl": str(acl)}
    if proposal is None:
        message = "it is no decision that this version knows"
        raise ValueError(message)
    return {"decision": type(proposal).__name__.lower(), **asdict(proposal)}
