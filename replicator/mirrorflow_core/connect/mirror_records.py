"""Encodes and decodes MirrorMaker 2's internal records: offset syncs, checkpoints and heartbeats.

Layouts are those of Java's OffsetSync, Checkpoint and Heartbeat: big endian, a string as an int16 length and
UTF-8, never null; checkpoint and heartbeat values begin with an int16 version, 0. Unreadable data (another
version, a tombstone, a truncated string) raises ValueError with the problem, never with the content; the
caller decides to skip it. As in Java, bytes after the last field are ignored.

Pure: `copy.offset_sync_writer`, `connectors.checkpoint_passes` and `connectors.heartbeat_connector` write
them.
"""

import struct
from dataclasses import dataclass
from typing import Final

VERSION: Final = 0  # of checkpoints and heartbeats; offset syncs have none
_STRING_MAX = 2**15 - 1  # bytes, an int16

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_TWO_OFFSETS = struct.Struct(">qq")
_VERSION_AND_OFFSETS = struct.Struct(">hqq")
_VERSION_AND_TIME = struct.Struct(">hq")


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
    """Return the key: topic, partition. Raises ValueError for a topic that does not fit."""
    return _string(sync.topic) + _INT32.pack(sync.partition)


def encode_offset_sync_value(sync: OffsetSync) -> bytes:
    """Return the value: both offsets, without a version."""
    return _TWO_OFFSETS.pack(sync.upstream_offset, sync.downstream_offset)


def decode_offset_sync(key: bytes | None, value: bytes | None) -> OffsetSync:
    """Return the decoded offset sync. Raises ValueError for anything else."""
    at_key, at_value = _RecordReader(key, "key"), _RecordReader(value, "value")
    return OffsetSync(
        topic=at_key.string(),
        partition=at_key.int32(),
        upstream_offset=at_value.int64(),
        downstream_offset=at_value.int64(),
    )


def encode_checkpoint_key(checkpoint: Checkpoint) -> bytes:
    """Return the key: group, topic on the target, partition."""
    return _string(checkpoint.group) + _string(checkpoint.topic) + _INT32.pack(checkpoint.partition)


def encode_checkpoint_value(checkpoint: Checkpoint) -> bytes:
    """Return the value: version, both offsets, the group's own metadata."""
    offsets = _VERSION_AND_OFFSETS.pack(VERSION, checkpoint.upstream_offset, checkpoint.downstream_offset)
    return offsets + _string(checkpoint.metadata)


def decode_checkpoint(key: bytes | None, value: bytes | None) -> Checkpoint:
    """Return the decoded checkpoint. Raises ValueError for anything else."""
    at_key, at_value = _RecordReader(key, "key"), _RecordReader(value, "value")
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
    """Return the key: both aliases."""
    return _string(heartbeat.source_alias) + _string(heartbeat.target_alias)


def encode_heartbeat_value(heartbeat: Heartbeat) -> bytes:
    """Return the value: version, timestamp."""
    return _VERSION_AND_TIME.pack(VERSION, heartbeat.timestamp_ms)


def decode_heartbeat(key: bytes | None, value: bytes | None) -> Heartbeat:
    """Return the decoded heartbeat. Raises ValueError for anything else."""
    at_key, at_value = _RecordReader(key, "key"), _RecordReader(value, "value")
    at_value.version()
    return Heartbeat(
        source_alias=at_key.string(), target_alias=at_key.string(), timestamp_ms=at_value.int64()
    )


def _string(text: str) -> bytes:
    encoded = text.encode("utf-8", "replace")  # a lone surrogate becomes a question mark, as in Java
    if len(encoded) > _STRING_MAX:
        message = f"a name or metadata of {len(encoded)} bytes does not fit an MM2 record"
        raise ValueError(message)
    return _INT16.pack(len(encoded)) + encoded


class _RecordReader:
    """Reads fields one after the other from the key or value of one record."""

    __slots__ = ("_at", "_data", "_what")

    def __init__(self, data: bytes | None, what: str) -> None:
        if data is None:
            message = f"its {what} is null"
            raise ValueError(message)
        self._data = data
        self._at = 0
        self._what = what

    def version(self) -> None:
        found = self._number(_INT16)
        if found != VERSION:
            message = f"its version is {found}, not {VERSION}"
            raise ValueError(message)

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def string(self) -> str:
        size = self._number(_INT16)
        end = self._at + size
        if size < 0 or end > len(self._data):
            message = f"its {self._what} has a string of {size} bytes that is not there"
            raise ValueError(message)
        text = self._data[self._at : end].decode("utf-8", "replace")
        self._at = end
        return text

    def _number(self, form: struct.Struct) -> int:
        try:
            value: int = form.unpack_from(self._data, self._at)[0]
        except struct.error:
            message = f"its {self._what} ends too early"
            raise ValueError(message) from None
        self._at += form.size
        return value
