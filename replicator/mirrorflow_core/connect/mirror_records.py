"""Encodes and decodes the internal records of MirrorMaker 2 (offset syncs, checkpoints, heartbeats) and our offset maps.

Big endian; a string is an int16 length and UTF-8, never null. Layouts are those of Java's OffsetSync, Checkpoint and Heartbeat;
checkpoint and heartbeat values begin with an int16 version, 0. Unreadable data (another version, a tombstone, a truncated
string) raises ValueError with the problem, never with the content; the caller decides to skip it. Bytes after the last field are
ignored, as in Java, so that a later version may add fields.

The offset map topic, `mm2-offset-map.<source alias>.internal`, has one key per source partition; the latest record counts:

    key     topic STRING, partition INT32                        as in an offset sync
    value   version INT16 = 0
            source topic id STRING, target topic id STRING       as text; "" where brokers have none
            generation, ordinal, upstream end, number of runs    VARLONG each, as in record batches (zigzag)
            of each run: upstream - end of the run before, downstream - end of the run before,
                         upstream length, downstream length, records          VARLONG each; the first from 0
            leader epoch of the target                           VARLONG; 0 where it is absent
"""

import struct
from typing import Final

from mirrorflow_core.errors import CorruptRecordsError
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.offsets.offset_map import FIRST_EPOCH, RUNS_MAX, MapStream, OffsetMap, Run
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire import primitives

VERSION: Final = 0  # of checkpoints and heartbeats; offset syncs have none
_STRING_MAX = 2**15 - 1  # bytes, an int16

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_TWO_OFFSETS = struct.Struct(">qq")
_VERSION_AND_OFFSETS = struct.Struct(">hqq")
_VERSION_AND_TIME = struct.Struct(">hq")
_SOONER_OR_LATER = 4  # times RUNS_MAX: the most runs accepted, as a later version may keep more


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSync:
    """Maps record *upstream_offset* of a source partition to record *downstream_offset* of its copy."""

    topic: str  # on the source
    partition: int
    upstream_offset: int
    downstream_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Maps a group's offset *upstream_offset* on the source to *downstream_offset* on the target."""

    group: str
    topic: str  # on the target
    partition: int
    upstream_offset: int
    downstream_offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """States that the flow from *source_alias* to *target_alias* was alive at *timestamp_ms*."""

    source_alias: str
    target_alias: str
    timestamp_ms: int


def encode_offset_sync_key(sync: OffsetSync) -> bytes:
    """Returns the key: topic, partition. Raises ValueError for a topic that does not fit."""
    return encode_string(sync.topic) + _INT32.pack(sync.partition)


def encode_offset_sync_value(sync: OffsetSync) -> bytes:
    """Returns the value: both offsets, without a version."""
    return _TWO_OFFSETS.pack(sync.upstream_offset, sync.downstream_offset)


def decode_offset_sync(key: bytes | None, value: bytes | None) -> OffsetSync:
    """Returns the decoded offset sync. Raises ValueError for anything else."""
    at_key, at_value = RecordReader(key, "key"), RecordReader(value, "value")
    return OffsetSync(
        topic=at_key.string(),
        partition=at_key.int32(),
        upstream_offset=at_value.int64(),
        downstream_offset=at_value.int64(),
    )


def encode_checkpoint_key(checkpoint: Checkpoint) -> bytes:
    """Returns the key: group, topic on the target, partition."""
    return (
        encode_string(checkpoint.group) + encode_string(checkpoint.topic) + _INT32.pack(checkpoint.partition)
    )


def encode_checkpoint_value(checkpoint: Checkpoint) -> bytes:
    """Returns the value: version, both offsets, the group's own metadata."""
    offsets = _VERSION_AND_OFFSETS.pack(VERSION, checkpoint.upstream_offset, checkpoint.downstream_offset)
    return offsets + encode_string(checkpoint.metadata)


def decode_checkpoint(key: bytes | None, value: bytes | None) -> Checkpoint:
    """Returns the decoded checkpoint. Raises ValueError for anything else."""
    at_key, at_value = RecordReader(key, "key"), RecordReader(value, "value")
    at_value.version()
    return Checkpoint(
        group=at_key.string(),
        topic=at_key.string(),
        partition=at_key.int32(),
        upstream_offset=at_value.int64(),
        downstream_offset=at_value.int64(),
        metadata=at_value.string(),
    )


def encode_heartbeat_key(heartbeat: Heartbeat) -> bytes:
    """Returns the key: both aliases."""
    return encode_string(heartbeat.source_alias) + encode_string(heartbeat.target_alias)


def encode_heartbeat_value(heartbeat: Heartbeat) -> bytes:
    """Returns the value: version, timestamp."""
    return _VERSION_AND_TIME.pack(VERSION, heartbeat.timestamp_ms)


def decode_heartbeat(key: bytes | None, value: bytes | None) -> Heartbeat:
    """Returns the decoded heartbeat. Raises ValueError for anything else."""
    at_key, at_value = RecordReader(key, "key"), RecordReader(value, "value")
    at_value.version()
    return Heartbeat(
        source_alias=at_key.string(), target_alias=at_key.string(), timestamp_ms=at_value.int64()
    )


def encode_string(text: str) -> bytes:
    """Returns *text* with its length. Raises ValueError if it is too long."""
    encoded = text.encode("utf-8", "replace")  # a lone surrogate becomes a question mark, as in Java
    if len(encoded) > _STRING_MAX:
        raise ValueError(f"a text of {len(encoded)} bytes does not fit into a record of Connect or MM2")
    return _INT16.pack(len(encoded)) + encoded


class RecordReader:
    """Reads fields one after the other; *what* they are part of is named by the ValueError where they end too early."""

    __slots__ = ("_at", "_data", "_what")

    def __init__(self, data: bytes | None, what: str) -> None:
        if data is None:
            raise ValueError(f"its {what} is null")
        self._data = data
        self._at = 0
        self._what = what

    def version(self) -> None:
        version = self.int16()
        if version != VERSION:
            raise ValueError(f"its version is {version}, not {VERSION}")

    def int16(self) -> int:
        return self._number(_INT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def string(self) -> str:
        return self.take(self.int16()).decode("utf-8", "replace")

    def take(self, size: int) -> bytes:
        if size < 0 or self._at + size > len(self._data):
            raise ValueError(f"its {self._what} has a field of {size} bytes that is not there")
        self._at += size
        return self._data[self._at - size : self._at]

    def varints(self, count: int) -> list[int]:
        numbers = []
        for _ in range(count):
            try:
                number, self._at = primitives.decode_varint(self._data, self._at)
            except CorruptRecordsError:
                raise ValueError(f"its {self._what} ends too early") from None
            numbers.append(number)
        return numbers

    @property
    def has_more(self) -> bool:
        return self._at < len(self._data)

    def _number(self, form: struct.Struct) -> int:
        try:
            value: int = form.unpack_from(self._data, self._at)[0]
        except struct.error:
            raise ValueError(f"its {self._what} ends too early") from None
        self._at += form.size
        return value


def offset_map_topic(source_alias: str) -> str:
    """Returns the topic's name on the target, the same for every replication policy.

    The identity topic's name is policy-independent, too.
    """
    return f"mm2-offset-map.{source_alias}.internal"


def encode_map_key(partition: TopicPartition) -> bytes:
    """Returns the key: topic and partition of the source."""
    return encode_string(partition.topic) + _INT32.pack(partition.partition)


def encode_map(known: OffsetMap) -> bytes:
    """Returns the value of *known* in the layout of the module docstring."""
    stream = known.stream
    parts = [
        _INT16.pack(VERSION),
        encode_string(stream.source_topic_id),
        encode_string(stream.target_topic_id),
        *map(
            primitives.encode_varint, (stream.generation, known.ordinal, known.upstream_end, len(known.runs))
        ),
    ]
    upstream = downstream = 0
    for run in known.runs:
        parts += map(
            primitives.encode_varint,
            (
                run.upstream - upstream,
                run.downstream - downstream,
                run.upstream_end - run.upstream,
                run.downstream_end - run.downstream,
                run.records,
            ),
        )
        upstream, downstream = run.upstream_end, run.downstream_end
    return b"".join([*parts, primitives.encode_varint(known.leader_epoch)])


def decode_map_key(key: bytes | None) -> TopicPartition:
    """Returns the source partition of *key*. Raises ValueError for anything else."""
    reader = RecordReader(key, "key")
    return TopicPartition(reader.string(), reader.int32())


def decode_map(value: bytes | None) -> OffsetMap:
    """Returns the decoded offset map. Raises ValueError for anything else or another version."""
    reader = RecordReader(value, "value")
    reader.version()
    source_topic_id, target_topic_id = reader.string(), reader.string()
    generation, ordinal, upstream_end, count = reader.varints(4)
    if not 0 < count <= _SOONER_OR_LATER * RUNS_MAX:
        raise ValueError(f"it has {count} runs")
    runs: list[Run] = []
    upstream = downstream = 0
    for _ in range(count):
        up_gap, down_gap, up_length, down_length, records = reader.varints(5)
        begin = upstream + up_gap, downstream + down_gap
        upstream, downstream = begin[0] + up_length, begin[1] + down_length
        run = Run(*begin, upstream, downstream, records)
        if min(up_gap, down_gap) < 0 or not run.is_possible:
            raise ValueError("its runs overlap, or have no room for their records")
        runs.append(run)
    if upstream_end < upstream:
        raise ValueError("it ends before its last run")
    (leader_epoch,) = reader.varints(1) if reader.has_more else (FIRST_EPOCH,)
    return OffsetMap(
        stream=MapStream(generation, source_topic_id, target_topic_id),
        ordinal=ordinal,
        upstream_end=upstream_end,
        runs=tuple(runs),
        leader_epoch=max(leader_epoch, FIRST_EPOCH),
    )
