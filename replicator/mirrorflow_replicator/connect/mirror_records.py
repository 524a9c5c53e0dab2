"""The records of MM2's own topics in their exact bytes: offset syncs, checkpoints, heartbeats.

Layouts are those of Java's OffsetSync, Checkpoint and Heartbeat: big endian, a string as an int16 length and UTF-8,
never null; values of the last two begin with an int16 version, 0. What a reader cannot understand (another version, a
tombstone, a cut string) raises ValueError with what is wrong and never the content; it is the reader's to pass over it.
As in Java, bytes behind the last field are not looked at.

Pure: which topic and when is for `runtime`.
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
    """Record *upstream_offset* of the source's partition is record *downstream_offset* of its copy."""

    topic: str  # on the source
    partition: int
    upstream_offset: int
    downstream_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A group that stands at *upstream_offset* on the source would stand at *downstream_offset* on the target."""

    group: str
    topic: str  # on the target
    partition: int
    upstream_offset: int
    downstream_offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The flow from *source_alias* to *target_alias* was alive at *timestamp_ms*."""

    source_alias: str
    target_alias: str
    timestamp_ms: int


def encode_offset_sync_key(sync: OffsetSync) -> bytes:
    """Topic, partition."""
    return _string(sync.topic) + _INT32.pack(sync.partition)


def encode_offset_sync_value(sync: OffsetSync) -> bytes:
    """Both offsets, without a version."""
    return _TWO_OFFSETS.pack(sync.upstream_offset, sync.downstream_offset)


def decode_offset_sync(key: bytes | None, value: bytes | None) -> OffsetSync:
    """Raises ValueError for what is none."""
    at_key, at_value = _Reader(key, "key"), _Reader(value, "value")
    return OffsetSync(
        topic=at_key.string(),
        partition=at_key.int32(),
        upstream_offset=at_value.int64(),
        downstream_offset=at_value.int64(),
    )


def encode_checkpoint_key(checkpoint: Checkpoint) -> bytes:
    """Group, topic on the target, partition."""
    return _string(checkpoint.group) + _string(checkpoint.topic) + _INT32.pack(checkpoint.partition)


def encode_checkpoint_value(checkpoint: Checkpoint) -> bytes:
    """Version, both offsets, the group's own metadata."""
    offsets = _VERSION_AND_OFFSETS.pack(VERSION, checkpoint.upstream_offset, checkpoint.downstream_offset)
    return offsets + _string(checkpoint.metadata)


def decode_checkpoint(key: bytes | None, value: bytes | None) -> Checkpoint:
    """Raises ValueError for what is none."""
    at_key, at_value = _Reader(key, "key"), _Reader(value, "value")
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
    """Both aliases."""
    return _string(heartbeat.source_alias) + _string(heartbeat.target_alias)


def encode_heartbeat_value(heartbeat: Heartbeat) -> bytes:
    """Version, time."""
    return _VERSION_AND_TIME.pack(VERSION, heartbeat.timestamp_ms)


def decode_heartbeat(key: bytes | None, value: bytes | None) -> Heartbeat:
    """Raises ValueError for what is none."""
    at_key, at_value = _Reader(key, "key"), _Reader(value, "value")
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


class _Reader:
    """A place in the key or the value of one record."""

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
