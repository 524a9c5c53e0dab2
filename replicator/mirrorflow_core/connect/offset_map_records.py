"""Encodes and decodes the records of the offset map topic, `mm2-offset-map.<source alias>.internal`.

The topic is MirrorFlow's own. It has one key per source partition; the latest record counts.

    key     topic STRING, partition INT32                        as in an offset sync
    value   version INT16 = 0
            source topic id STRING, target topic id STRING       as text; "" where brokers have none
            generation, ordinal, upstream end, number of runs    VARLONG each, as in record batches (zigzag)
            of each run: upstream - end of the run before, downstream - end of the run before,
                         upstream length, downstream length, records          VARLONG each; the first from 0
            leader epoch of the target                           VARLONG; 0 where it is absent

Big endian; a STRING is an int16 length and UTF-8. Bytes after the last field are ignored, so that a later
version may add fields. Unreadable or contradictory data raises ValueError, which never shows the content.

Pure: `copy.offset_map_writer` writes them, `connectors.checkpoint_passes` reads them.
"""

import struct
from typing import Final

from mirrorflow_core.errors import CorruptRecordsError
from mirrorflow_core.offsets.offset_map import FIRST_EPOCH, RUNS_MAX, MapStream, OffsetMap, Run
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire import varint

VERSION: Final = 0
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_SOONER_OR_LATER = 4  # times RUNS_MAX: the most runs accepted, as a later version may keep more


def offset_map_topic(source_alias: str) -> str:
    """Return the topic's name on the target, the same for every replication policy.

    The identity topic's name is policy-independent, too.
    """
    return f"mm2-offset-map.{source_alias}.internal"


def encode_map_key(partition: TopicPartition) -> bytes:
    """Return the key: topic and partition of the source."""
    return _string(partition.topic) + _INT32.pack(partition.partition)


def encode_map(known: OffsetMap) -> bytes:
    """Return the value of *known* in the layout of the module docstring."""
    stream = known.stream
    parts = [
        _INT16.pack(VERSION),
        _string(stream.source_topic_id),
        _string(stream.target_topic_id),
        *map(varint.encode, (stream.generation, known.ordinal, known.upstream_end, len(known.runs))),
    ]
    upstream = downstream = 0
    for run in known.runs:
        parts += map(
            varint.encode,
            (
                run.upstream - upstream,
                run.downstream - downstream,
                run.upstream_end - run.upstream,
                run.downstream_end - run.downstream,
                run.records,
            ),
        )
        upstream, downstream = run.upstream_end, run.downstream_end
    return b"".join([*parts, varint.encode(known.leader_epoch)])


def decode_map_key(key: bytes | None) -> TopicPartition:
    """Return the source partition of *key*. Raises ValueError for anything else."""
    try:
        topic, at = _text(key or b"", 0)
        return TopicPartition(topic, _INT32.unpack_from(key or b"", at)[0])
    except (struct.error, UnicodeDecodeError) as error:
        message = "its key is not a topic and a partition"
        raise ValueError(message) from error


def decode_map(value: bytes | None) -> OffsetMap:
    """Return the decoded offset map. Raises ValueError for anything else or another version."""
    data = value or b""
    try:
        version = _INT16.unpack_from(data)[0]
        if version != VERSION:
            message = f"its version is {version}, not {VERSION}"
            raise ValueError(message)
        return _decoded(data)
    except (struct.error, UnicodeDecodeError, CorruptRecordsError) as error:
        message = "it ends too early, or is no map of offsets"
        raise ValueError(message) from error


def _decoded(data: bytes) -> OffsetMap:
    source_topic_id, at = _text(data, _INT16.size)
    target_topic_id, at = _text(data, at)
    (generation, ordinal, upstream_end, count), at = _numbers(data, at, 4)
    if not 0 < count <= _SOONER_OR_LATER * RUNS_MAX:
        message = f"it has {count} runs"
        raise ValueError(message)
    runs: list[Run] = []
    upstream = downstream = 0
    for _ in range(count):
        (up_gap, down_gap, up_length, down_length, records), at = _numbers(data, at, 5)
        begin = upstream + up_gap, downstream + down_gap
        upstream, downstream = begin[0] + up_length, begin[1] + down_length
        run = Run(*begin, upstream, downstream, records)
        if min(up_gap, down_gap) < 0 or not run.is_possible:
            message = "its runs overlap, or have no room for their records"
            raise ValueError(message)
        runs.append(run)
    if upstream_end < upstream:
        message = "it ends before its last run"
        raise ValueError(message)
    leader_epoch = FIRST_EPOCH
    if at < len(data):
        (leader_epoch,), at = _numbers(data, at, 1)
    return OffsetMap(
        stream=MapStream(generation, source_topic_id, target_topic_id),
        ordinal=ordinal,
        upstream_end=upstream_end,
        runs=tuple(runs),
        leader_epoch=max(leader_epoch, FIRST_EPOCH),
    )


def _numbers(data: bytes, at: int, count: int) -> tuple[list[int], int]:
    found = []
    for _ in range(count):
        number, at = varint.decode(data, at)
        found.append(number)
    return found, at


def _string(text: str) -> bytes:
    encoded = text.encode("utf-8", "replace")
    return _INT16.pack(len(encoded)) + encoded


def _text(data: bytes, at: int) -> tuple[str, int]:
    size = _INT16.unpack_from(data, at)[0]
    begin, end = at + _INT16.size, at + _INT16.size + size
    if size < 0 or end > len(data):
        message = f"a string of {size} bytes is not there"
        raise ValueError(message)
    return data[begin:end].decode(), end
