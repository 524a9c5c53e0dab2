"""The broker's side of the two messages that the product writes and reads by hand: produce 8, fetch 11 to 13.

ProduceRequest.json, ProduceResponse.json, FetchRequest.json, FetchResponse.json of Kafka; KIP-482 for the flexible form.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mirrorflow_core.wire.cursor import Cursor, uvarint

PRODUCE, FETCH = 0, 1
FLEXIBLE_FETCH = 12
_NO_ERRORS_AND_MESSAGE = struct.pack(">ih", 0, -1)
_PRODUCED = struct.Struct(">ihqqq")
_FETCHED = struct.Struct(">ihqqq")


class ProduceRequest(NamedTuple):
    """Batches by (topic, partition), in the order of the request."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    batches: tuple[tuple[tuple[str, int], bytes], ...]


class Produced(NamedTuple):
    """The answer for one partition."""

    error: int = 0
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    message: str = ""


class Wanted(NamedTuple):
    """A partition of a fetch request."""

    offset: int
    leader_epoch: int
    last_epoch: int
    max_bytes: int


class FetchRequest(NamedTuple):
    """A partition is (topic id or name in UTF-8, number)."""

    max_wait_ms: int
    max_bytes: int
    is_committed: bool
    session_id: int
    session_epoch: int
    wanted: dict[tuple[bytes, int], Wanted]
    forgotten: tuple[tuple[bytes, int], ...]


class Fetched(NamedTuple):
    """The answer for one partition."""

    error: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] = ()
    records: bytes = b""
    diverging: tuple[int, int] | None = None


def read_produce(body: bytes) -> ProduceRequest:
    """A request body of version 8."""
    cursor = Cursor(memoryview(body), flexible=False)
    (length,) = struct.unpack_from(">h", body)
    transactional_id = cursor.string() if length >= 0 else None
    if length < 0:
        cursor.at = 2
    acks, timeout_ms = cursor.int16(), cursor.int32()
    batches = []
    for _ in range(cursor.int32()):
        topic = cursor.string()
        for _ in range(cursor.int32()):
            partition = cursor.int32()
            batches.append(((topic, partition), bytes(cursor.raw(cursor.int32()))))
    return ProduceRequest(transactional_id, acks, timeout_ms, tuple(batches))


def write_produced(answers: Mapping[tuple[str, int], Produced]) -> bytes:
    """A response body of version 8."""
    by_topic: dict[str, list[bytes]] = {}
    for (topic, partition), one in answers.items():
        errors = _NO_ERRORS_AND_MESSAGE
        if one.message:
            text = one.message.encode()
            errors = struct.pack(">ih", 0, len(text)) + text
        head = _PRODUCED.pack(
            partition, one.error, one.base_offset, one.log_append_time, one.log_start_offset
        )
        by_topic.setdefault(topic, []).append(head + errors)
    out = [struct.pack(">i", len(by_topic))]
    for topic, parts in by_topic.items():
        name = topic.encode()
        out += (struct.pack(">h", len(name)), name, struct.pack(">i", len(parts)), *parts)
    return b"".join((*out, struct.pack(">i", 0)))


def read_fetch(version: int, body: bytes) -> FetchRequest:
    """A request body of version 11, 12 or 13."""
    flexible = version >= FLEXIBLE_FETCH
    cursor = Cursor(memoryview(body), flexible=flexible)
    _, max_wait_ms, _, max_bytes = (cursor.int32() for _ in range(4))
    is_committed = cursor.raw(1)[0] == 1
    session_id, session_epoch = cursor.int32(), cursor.int32()
    wanted = {}
    for _ in range(cursor.count()):
        topic = _topic(cursor, version)
        for _ in range(cursor.count()):
            partition, leader_epoch, offset = cursor.int32(), cursor.int32(), cursor.int64()
            last_epoch = cursor.int32() if flexible else -1
            cursor.int64()  # the log start offset of a follower
            wanted[topic, partition] = Wanted(offset, leader_epoch, last_epoch, cursor.int32())
            cursor.tags()
        cursor.tags()
    forgotten = []
    for _ in range(cursor.count()):
        topic = _topic(cursor, version)
        forgotten += [(topic, cursor.int32()) for _ in range(cursor.count())]
        cursor.tags()
    return FetchRequest(
        max_wait_ms, max_bytes, is_committed, session_id, session_epoch, wanted, tuple(forgotten)
    )


def _topic(cursor: Cursor, version: int) -> bytes:
    return bytes(cursor.raw(16)) if version > FLEXIBLE_FETCH else cursor.string().encode()


def write_fetched(
    version: int, answers: Mapping[tuple[bytes, int], Fetched], *, session_id: int, error: int = 0
) -> bytes:
    """A response body of version 11, 12 or 13."""
    flexible = version >= FLEXIBLE_FETCH
    by_topic: dict[bytes, list[bytes]] = {}
    for (topic, partition), one in answers.items():
        by_topic.setdefault(topic, []).append(_fetched(partition, one, flexible=flexible))
    out = [struct.pack(">ihi", 0, error, session_id), _count(len(by_topic), flexible=flexible)]
    for topic, parts in by_topic.items():
        if version > FLEXIBLE_FETCH:
            out.append(topic)
        else:
            out += (uvarint(len(topic) + 1) if flexible else struct.pack(">h", len(topic)), topic)
        out += (_count(len(parts), flexible=flexible), *parts, b"\0" if flexible else b"")
    return b"".join((*out, b"\0" if flexible else b""))


def _fetched(partition: int, one: Fetched, *, flexible: bool) -> bytes:
    head = _FETCHED.pack(
        partition, one.error, one.high_watermark, one.last_stable_offset, one.log_start_offset
    )
    tag = b"\0" if flexible else b""
    aborted = b"".join(struct.pack(">qq", *entry) + tag for entry in one.aborted)
    count = _count(len(one.aborted), flexible=flexible)
    size = uvarint(len(one.records) + 1) if flexible else struct.pack(">i", len(one.records))
    tags = tag
    if one.diverging is not None and flexible:
        tags = uvarint(1) + uvarint(0) + uvarint(13) + struct.pack(">iq", *one.diverging) + b"\0"
    return b"".join((head, count, aborted, struct.pack(">i", -1), size, one.records, tags))


def _count(count: int, *, flexible: bool) -> bytes:
    return uvarint(count + 1) if flexible else struct.pack(">i", count)
