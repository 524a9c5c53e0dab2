"""`mirrorflow dump`: the records of a flow's own topics, one a line; nothing is changed.

Every record that is still there, in the order of the log, so that what was superseded is seen too. What cannot be read is
told as such and passed over, as the connectors do. Payloads of users are in none of these topics.
"""

import argparse
import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from mirrorflow_cli.clusters import reached
from mirrorflow_cli.errors import EXIT_DONE, FailedError
from mirrorflow_cli.flows import add_flow_arguments, flow_from, layout_from
from mirrorflow_cli.settings import source_settings
from mirrorflow_operator.plan.plan import ConnectorKind, Plan, plan
from mirrorflow_replicator.connect.checkpoint import parse_checkpoint
from mirrorflow_replicator.connect.mirror_records import (
    decode_checkpoint,
    decode_heartbeat,
    decode_offset_sync,
)
from mirrorflow_replicator.connect.offset_map_records import decode_map, decode_map_key, offset_map_topic
from mirrorflow_replicator.connect.plugins import make_replication_policy
from mirrorflow_replicator.errors import InvalidSettingError
from mirrorflow_replicator.flow import identity, topic_acls
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.mirror_log import MirrorLog
from mirrorflow_replicator.settings import ClientSettings, OffsetStore, SourceSettings
from mirrorflow_replicator.wire.records import Record

Fields = Mapping[str, Any]
Read = Callable[[bytes | None, bytes | None], Fields]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A topic, how to get to it, and what its records are."""

    client: ClientSettings
    topic: str
    read: Read


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `mirrorflow dump`."""
    parser.add_argument("what", choices=sorted(_PLACES), metavar="WHAT", help=", ".join(sorted(_PLACES)))
    add_flow_arguments(parser, addresses=True)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def execute(arguments: argparse.Namespace) -> int:
    """Print; FailedError where the topic is not there."""
    planned = plan(flow_from(arguments), layout_from(arguments))
    settings, _ = source_settings(planned)
    places = _PLACES[arguments.what](planned, settings)
    asyncio.run(_dump(places, settings, as_json=arguments.json))
    return EXIT_DONE


async def _dump(places: list[Place], settings: SourceSettings, *, as_json: bool) -> None:
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


def _line(place: Place, partition: int, record: Record, *, as_json: bool) -> str:
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
    """As it is where that is one word."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if text and text.isprintable() and not set(text) & set(" \"'=") else json.dumps(text)


def _moment(timestamp_ms: int) -> str:
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _positions(_: Plan, settings: SourceSettings) -> list[Place]:
    if settings.offsets.store is OffsetStore.FILE:
        raise InvalidSettingError(
            key="offset.storage.store",
            problem="positions are in a file",
            action=f"read {settings.offsets.file}",
        )
    return [Place(client=settings.offsets.client, topic=settings.offsets.topic, read=_read_position)]


def _identity(_: Plan, settings: SourceSettings) -> list[Place]:
    topic = identity.identity_topic(settings.source_alias)
    return [Place(client=settings.target_admin, topic=topic, read=_read_decision)]


def _heartbeats(_: Plan, settings: SourceSettings) -> list[Place]:
    policy = make_replication_policy(settings)
    own = policy.heartbeats_topic()
    return [
        Place(client=settings.target_admin, topic=topic, read=_as_fields(decode_heartbeat))
        for topic in dict.fromkeys((own, policy.remote_topic(settings.source_alias, own)))
    ]


def _checkpoints(_: Plan, settings: SourceSettings) -> list[Place]:
    topic = make_replication_policy(settings).checkpoints_topic(settings.source_alias)
    return [Place(client=settings.target_admin, topic=topic, read=_as_fields(decode_checkpoint))]


def _offset_map(_: Plan, settings: SourceSettings) -> list[Place]:
    topic = offset_map_topic(settings.source_alias)
    return [Place(client=settings.target_admin, topic=topic, read=_read_map)]


def _offset_syncs(planned: Plan, settings: SourceSettings) -> list[Place]:
    (connector,) = (one for one in planned.connectors if one.kind is ConnectorKind.CHECKPOINT)
    checkpoint = parse_checkpoint(connector.connector_properties, connector.worker_properties)
    policy = make_replication_policy(settings)
    client, other = checkpoint.target_consumer, settings.source_alias
    if checkpoint.syncs_on_source:
        client, other = checkpoint.source_consumer, settings.target_alias
    return [Place(client=client, topic=policy.offset_syncs_topic(other), read=_as_fields(decode_offset_sync))]


_PLACES: Mapping[str, Callable[[Plan, SourceSettings], list[Place]]] = {
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
    """As it stands there: Java's connectors of other classes keep theirs in the same topic."""
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
