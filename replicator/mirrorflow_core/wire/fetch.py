"""Writes fetch requests and reads fetch responses without copying records; keeps fetch sessions.

Supports versions 11 (Kafka 2.3: preferred replica), 12 (2.7: flexible, log divergence) and 13 (3.1: topic
ids, so the first fetch detects a re-created topic). Later versions add nothing that a copier needs. Source:
FetchRequest.json, FetchResponse.json.

In an incremental fetch session (KIP-227) each request sends only the partitions that changed. The broker remembers
the partitions, so ten thousand idle ones cost nothing. After any error or lost response the next request is a full
one; a partition is never assumed to be in a session that the broker does not have.

The broker sends all records below the last stable offset, including aborted ones, and the list of transactions
aborted there. `AbortedFilter` skips them for one partition of a read_committed reader, by KafkaConsumer's rule
(CompletedFetch.nextFetchedRecord).
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from mirrorflow_core.errors import CorruptRecordsError
from mirrorflow_core.wire import primitives
from mirrorflow_core.wire.batch import CONTROL_BIT, HEADER_BYTES, TRANSACTIONAL_BIT, Batch
from mirrorflow_core.wire.primitives import Cursor, uvarint

_ABORT = 0
_CONTROL_KEY = struct.Struct(">hh")  # version, type (ControlRecordType)
API_KEY = 1
VERSIONS = (11, 12, 13)
_MIN_BYTES = 1  # the broker answers as soon as there is anything
_HEAD = struct.Struct(">iiiibii")
_PARTITION_V11 = struct.Struct(">iiqqi")
_PARTITION_V12 = struct.Struct(">iiqiqib")  # ends with an empty tagged-field section
_PARTITION_RESPONSE = struct.Struct(">ihqqq")
_INFLEXIBLE_PARTITION_RESPONSE = struct.Struct(
    ">ihqqqBi"
)  # Flexible form up to the preferred replica, for a response without aborted transactions.
_NOTHING = (0, 1)  # encoded length of a null and of an empty array, flexible form
_ABORTED = struct.Struct(">qq")
FULL = 0  # epoch of a request that opens a session
NO_SESSION = -1  # epoch of a request outside of any session
_EPOCH_MAX = 0x7FFFFFFF
FETCH_BYTES_MAX = 0x7FFFFFFF  # of a partition: `partition_max_bytes` has 32 bits


class AbortedFilter:
    """Decides for each batch, in offset order, whether its records are delivered."""

    __slots__ = ("_aborted", "_ahead")

    def __init__(self, aborted: Iterable[tuple[int, int]] = ()) -> None:
        self._ahead: list[tuple[int, int]] = []  # (first offset, producer id), the next one last
        self._aborted: set[int] = set()  # producer ids whose records are dropped now
        self.feed(aborted)

    def feed(self, aborted: Iterable[tuple[int, int]]) -> None:
        """Starts the next fetch response; *aborted* is its list of (producer id, first offset)."""
        self._ahead = sorted(
            ((first_offset, producer_id) for producer_id, first_offset in aborted), reverse=True
        )
        self._aborted = set()

    def delivers(self, batch: Batch) -> bool:
        """Returns whether the records of *batch* are delivered. Raises CorruptRecordsError if a marker cannot be read."""
        attributes = batch.attributes
        producer_id = batch.producer_id
        if producer_id < 0:
            return not attributes & CONTROL_BIT
        ahead = self._ahead
        if ahead:
            last_offset = batch.last_offset
            while ahead and ahead[-1][0] <= last_offset:
                self._aborted.add(ahead.pop()[1])
        if attributes & CONTROL_BIT:
            if self._aborted and is_abort_marker(batch):
                self._aborted.discard(producer_id)
            return False
        return not (attributes & TRANSACTIONAL_BIT and producer_id in self._aborted)


def is_abort_marker(batch: Batch) -> bool:
    """Returns whether a control batch aborts its transaction; False where compaction removed its marker.

    Raises CorruptRecordsError if its control record has no type.
    """
    if batch.count <= 0:
        return False
    data = batch.data
    _, index = primitives.decode_varint(data, HEADER_BYTES)  # length
    _, index = primitives.decode_varint(data, index + 1)  # timestamp, after the attributes
    _, index = primitives.decode_varint(data, index)  # offset
    key_bytes, index = primitives.decode_varint(data, index)
    if key_bytes < _CONTROL_KEY.size or index + key_bytes > len(data):
        raise CorruptRecordsError(f"the control record at offset {batch.base_offset} has no type")
    kind: int = _CONTROL_KEY.unpack_from(data, index)[1]
    return kind == _ABORT


class FetchKey(NamedTuple):
    """A partition as the fetch session identifies it: by topic id from version 13, by topic name before."""

    topic: bytes  # 16-byte topic id, or the name in UTF-8
    partition: int


class FetchFrom(NamedTuple):
    """The offset and epochs to fetch a partition from."""

    offset: int
    leader_epoch: int = -1  # the expected leader epoch; the broker refuses a stale one
    last_epoch: int = -1  # epoch of the record before `offset`, by which the broker detects divergence
    max_bytes: int = 1 << 20


class PartitionFetchResponse(NamedTuple):
    """The response for one partition. `records` is a writable view; offsets are -1 with an error.

    The view lies in the response frame. A tuple, because light traffic over many partitions creates one for
    nearly every record.
    """

    key: FetchKey
    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]  # (producer id, first offset)
    preferred_replica: int
    records: memoryview
    diverging: tuple[int, int] | None = None  # (epoch, end offset): beyond it our log is not the leader's
    leader: tuple[int, int] | None = None  # (leader id, leader epoch) known to the broker


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """A fetch response."""

    throttle_ms: int
    error: int
    session_id: int
    partitions: tuple[PartitionFetchResponse, ...]


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """The session fields and partitions of the next fetch request."""

    session_id: int
    session_epoch: int
    partitions: tuple[tuple[FetchKey, FetchFrom], ...]
    forgotten: tuple[FetchKey, ...] = ()


def fetch_request(
    version: int,
    request: SessionRequest,
    *,
    read_committed: bool = False,
    max_wait_ms: int,
    max_bytes: int,
    rack: str = "",
) -> bytes:
    """Returns the body of a fetch request."""
    flexible = version >= 12
    session = (request.session_id, request.session_epoch)
    out = [_HEAD.pack(-1, max_wait_ms, _MIN_BYTES, max_bytes, read_committed, *session)]
    grouped: dict[bytes, list[bytes]] = {}
    for key, start in request.partitions:
        if flexible:
            packed = _PARTITION_V12.pack(
                key.partition, start.leader_epoch, start.offset, start.last_epoch, -1, start.max_bytes, 0
            )
        else:
            packed = _PARTITION_V11.pack(key.partition, start.leader_epoch, start.offset, -1, start.max_bytes)
        grouped.setdefault(key.topic, []).append(packed)
    _topics(out, version, grouped)
    dropped: dict[bytes, list[bytes]] = {}
    for key in request.forgotten:
        dropped.setdefault(key.topic, []).append(struct.pack(">i", key.partition))
    _topics(out, version, dropped)
    encoded = rack.encode()
    out.append(
        uvarint(len(encoded) + 1) + encoded + b"\0" if flexible else struct.pack(">h", len(encoded)) + encoded
    )
    return b"".join(out)


def _topics(out: list[bytes], version: int, grouped: dict[bytes, list[bytes]]) -> None:
    if version < 12:
        out.append(struct.pack(">i", len(grouped)))
        for topic, packed in grouped.items():
            out += (struct.pack(">h", len(topic)), topic, struct.pack(">i", len(packed)), *packed)
        return
    out.append(uvarint(len(grouped) + 1))
    for topic, packed in grouped.items():
        name = topic if version >= 13 else uvarint(len(topic) + 1) + topic
        out += (name, uvarint(len(packed) + 1), *packed, b"\0")


def parse_fetch_response(version: int, body: memoryview) -> FetchResponse:
    """Parses a response body; the result holds views of *body*.

    Raises struct.error or IndexError where the body is too short.
    """
    cursor = Cursor(body, flexible=version >= 12)
    throttle_ms, error, session_id = cursor.int32(), cursor.int16(), cursor.int32()
    partitions = []
    for _ in range(cursor.count()):
        topic = bytes(cursor.raw(16)) if version >= 13 else cursor.string().encode()
        partitions += [_partition(cursor, topic) for _ in range(cursor.count())]
        cursor.tags()
    return FetchResponse(throttle_ms, error, session_id, tuple(partitions))


def _partition(cursor: Cursor, topic: bytes) -> PartitionFetchResponse:
    partition, error, high_watermark, last_stable, log_start, count, preferred = (
        _INFLEXIBLE_PARTITION_RESPONSE.unpack_from(cursor.data, cursor.index)
    )
    aborted: list[tuple[int, int]] = []
    if cursor.flexible and count in _NOTHING:
        cursor.skip(_INFLEXIBLE_PARTITION_RESPONSE.size)
    else:
        cursor.skip(_PARTITION_RESPONSE.size)
        for _ in range(cursor.count()):
            aborted.append(_ABORTED.unpack(cursor.raw(16)))
            cursor.tags()
        preferred = cursor.int32()
    records = cursor.records()
    diverging = leader = None
    tags = cursor.tags()
    if tags:
        diverging = struct.unpack_from(">iq", tags[0]) if 0 in tags else None
        leader = struct.unpack_from(">ii", tags[1]) if 1 in tags else None
    return PartitionFetchResponse(
        FetchKey(topic, partition),
        error,
        high_watermark,
        last_stable,
        log_start,
        tuple(aborted),
        preferred,
        records,
        diverging,
        leader,
    )


class FetchSession:
    """The fetch session with one broker."""

    def __init__(self) -> None:
        self._wanted: dict[FetchKey, FetchFrom] = {}
        self._changed: set[FetchKey] = set()
        self._forgotten: set[FetchKey] = set()
        self._known: set[FetchKey] = set()  # what the broker has once the in-flight request succeeds
        self._session_id = 0
        self._epoch = FULL

    def __len__(self) -> int:
        return len(self._wanted)

    def __contains__(self, key: FetchKey) -> bool:
        return key in self._wanted

    def put(self, key: FetchKey, start: FetchFrom) -> None:
        """Fetches *key* from *start*, starting with the next request.

        In a full request it is the last one: brokers fill a response in the order of its request, and without a session each request
        is a full one, so the first partitions would starve the others.
        """
        if self._epoch == FULL:
            self._wanted.pop(key, None)
        self._wanted[key] = start
        self._changed.add(key)
        self._forgotten.discard(key)

    def remove(self, key: FetchKey) -> None:
        """Stops fetching *key*."""
        if self._wanted.pop(key, None) is None:
            return
        self._changed.discard(key)
        if key in self._known:
            self._forgotten.add(key)

    def next_request(self) -> SessionRequest:
        """Returns the next request and records its content as sent; after an error, call `failed`."""
        if self._epoch == FULL:
            partitions = tuple(self._wanted.items())
            forgotten: tuple[FetchKey, ...] = ()
            self._known = set(self._wanted)
        else:
            partitions = tuple((key, self._wanted[key]) for key in self._changed)
            forgotten = tuple(self._forgotten)
            self._known.difference_update(forgotten)
            self._known.update(self._changed)
        self._changed.clear()
        self._forgotten.clear()
        return SessionRequest(self._session_id, self._epoch, partitions, forgotten)

    def answered(self, session_id: int) -> None:
        """Records a successful response. *session_id* 0 means that the broker keeps no session (its cache is full)."""
        self._session_id = session_id
        if session_id == 0:
            self._epoch = FULL
        else:
            self._epoch = 1 if self._epoch == _EPOCH_MAX else self._epoch + 1

    def failed(self) -> None:
        """Records a refused or lost request: the next one is a full request."""
        self._session_id = 0
        self._epoch = FULL
        self._known.clear()
