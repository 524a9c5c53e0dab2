"""Fetches from one source broker: one fetch session, one fetch in flight.

The next fetch is sent before the previous response is processed. Each partition receives its response
together with the offset it was requested from; errors are passed on by code; after the connection is lost a
new fetch session begins. A `ReadPartition` decides what to fetch.
"""

import asyncio
import math
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from kafka.protocol.metadata import MetadataRequest

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.wire import fetch
from mirrorflow_core.wire.error_codes import (
    FETCH_SESSION_ID_NOT_FOUND,
    FETCH_SESSION_TOPIC_ID_ERROR,
    INVALID_FETCH_SESSION_EPOCH,
    raise_for,
)
from mirrorflow_core.wire.fetch import (
    FetchFrom,
    FetchKey,
    FetchResponse,
    FetchSession,
    PartitionFetchResponse,
)
from mirrorflow_kafka.client.background_tasks import report_failure
from mirrorflow_kafka.client.cancellation import cancel_and_wait
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.connection import Connection

MAX_WAIT_MS = 500  # as Java's fetch.max.wait.ms: how long a broker without new data delays its response
# While a partition waits for memory, the broker must respond soon, because memory may become free at any
# moment.
MAX_WAIT_CROWDED_MS = 10
# One response is processed while the next one arrives, so a reader holds at most twice this size.
RESPONSE_BYTES_MIN = 4 << 20
RESPONSE_BYTES_MAX = 16 << 20
PARTITION_BYTES_MIN = 1 << 20  # as Java's max.partition.fetch.bytes
PARTITION_BYTES_MAX = 4 << 20
# With one fetch in flight, each round trip moves one response. The response size is chosen to reach this
# throughput also over a long distance.
BANDWIDTH_BYTES_PER_S = 256 << 20
RETRY_S = 0.2  # after a lost connection, in addition to the connection pool's backoff
FETCH_TIMEOUT_S = 30.0
# With few records on many partitions each fetch returns one record, so every record costs a fetch and a
# write. After a small response of many partitions the reader therefore waits, longer for more partitions. Few
# partitions are not delayed, many by no more than a short network distance.
SMALL_RESPONSE_BYTES = 64 << 10
FEW_PARTITIONS = 4
GATHER_S = 0.001  # for each partition beyond a few
GATHER_MAX_S = 0.025
SESSION_ERRORS = {FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR}


class ReadPartition(Protocol):
    """The interface of a partition that a `BrokerReader` fetches."""

    def next_fetch(self) -> FetchFrom | None:
        """Returns where to fetch from next; None to fetch nothing now."""

    def may_fetch_soon(self) -> bool:
        """Returns whether `next_fetch` may change from None to an offset at any moment."""

    def fetched(self, response: PartitionFetchResponse, asked_offset: int) -> None:
        """Receives a response. It must be cheap, because the next fetch waits for it."""


class BrokerReader:
    """Fetches the assigned partitions from one source broker."""

    def __init__(
        self,
        cluster: Cluster,
        node_id: int,
        *,
        read_committed: bool,
        rack: str,
        room: Callable[[int, int], Awaitable[None]],
        response_bytes_max: Callable[[], int | None],
        after: Callable[[], None],
        on_error: Callable[[MirrorFlowError], None],
    ) -> None:
        self.node_id = node_id
        self.throttle_ms = 0
        self.held_until_s = -math.inf  # when the latest quota throttling ends or ended (monotonic clock)
        self.responses = 0  # with records
        self._cluster = cluster
        self._read_committed = read_committed
        self._rack = rack
        self._room = room
        self._response_bytes_max = response_bytes_max
        self._after = after
        self._on_error = on_error
        self._partitions: dict[tuple[str, int], tuple[bytes, ReadPartition]] = {}
        self._keys: dict[FetchKey, tuple[str, int, ReadPartition]] = {}
        self._session = FetchSession()
        self._requested: dict[FetchKey, int] = {}
        # In the order of the next request: a broker without fetch sessions answers the first ones.
        self._dirty: dict[tuple[str, int], None] = {}
        self._coming: set[tuple[str, int]] = set()
        self._version = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.response_bytes = RESPONSE_BYTES_MIN
        self.partition_bytes = PARTITION_BYTES_MIN

    def __len__(self) -> int:
        """Returns the number of partitions read from this broker."""
        return len(self._partitions)

    def add(self, topic: str, partition: int, topic_id: bytes, reader: ReadPartition) -> None:
        """Starts reading a partition from this broker; *topic_id* may differ from before."""
        known = self._partitions.get((topic, partition))
        if known is not None and known[0] != topic_id:
            self._drop(self._key(topic, partition, known[0]))
        self._partitions[topic, partition] = (topic_id, reader)
        self.changed(topic, partition)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"read-{self._cluster.alias}-{self.node_id}")
            self._task.add_done_callback(report_failure)

    def remove(self, topic: str, partition: int) -> None:
        """Stops reading a partition from this broker."""
        entry = self._partitions.pop((topic, partition), None)
        if entry is not None:
            self._coming.discard((topic, partition))
            self._drop(self._key(topic, partition, entry[0]))

    def changed(self, topic: str, partition: int) -> None:
        """Notes that the result of `next_fetch` of that partition may have changed."""
        self._dirty[topic, partition] = None
        self._wake.set()

    async def close(self) -> None:
        """Stops reading."""
        if self._task is not None:
            await cancel_and_wait(self._task)

    def _key(self, topic: str, partition: int, topic_id: bytes) -> FetchKey:
        return FetchKey(topic_id if self._version >= 13 else topic.encode(), partition)

    def _drop(self, key: FetchKey) -> None:
        self._session.remove(key)
        self._keys.pop(key, None)

    async def _run(self) -> None:
        while True:
            while not self._partitions:
                self._wake.clear()
                await self._wake.wait()
            try:
                connection = await self._cluster.connection(self.node_id, purpose="fetch")
                await self._negotiate(connection)
                await self._read(connection)
                connection.close()
            except MirrorFlowError as error:
                self._on_error(error)
            self._session.failed()
            await asyncio.sleep(RETRY_S)

    async def _negotiate(self, connection: Connection) -> None:
        """Chooses the Fetch version, and response sizes that suit the round-trip time."""
        newest = connection.versions.get(fetch.API_KEY, (0, fetch.VERSIONS[0]))[1]
        version = max((v for v in fetch.VERSIONS if v <= newest), default=fetch.VERSIONS[0])
        if any(not topic_id.strip(b"\0") for topic_id, _ in self._partitions.values()):
            version = min(version, 12)
        if version != self._version:
            self._version = version
            self._session = FetchSession()
            self._keys.clear()
            self._dirty = dict.fromkeys(self._partitions)
        began = time.perf_counter()
        await connection.call(MetadataRequest(topics=[]), timeout_s=FETCH_TIMEOUT_S)
        fit = int(BANDWIDTH_BYTES_PER_S * (time.perf_counter() - began))
        self.response_bytes = min(max(fit, RESPONSE_BYTES_MIN), RESPONSE_BYTES_MAX)
        self.partition_bytes = min(max(fit // 4, PARTITION_BYTES_MIN), PARTITION_BYTES_MAX)

    async def _read(self, connection: Connection) -> None:
        # A retired connection has answered its last fetch here; the next fetch is sent on its replacement.
        while not connection.is_retired:
            self._wake.clear()
            pending = self._send_fetch(connection)
            # The next fetch is sent before this work, so the broker reads while these records are checked and
            # written.
            self._after()
            if pending is None:
                await self._wake.wait()
                continue
            body = await pending
            fetched = self._parse_response(connection, body)
            if fetched.throttle_ms:
                self.throttle_ms += fetched.throttle_ms
                self.held_until_s = time.monotonic() + fetched.throttle_ms / 1000
            connection.throttled(fetched.throttle_ms)
            if fetched.error:
                self._note_error(fetched.error)
                continue
            self._session.answered(fetched.session_id)
            self._pass_on(fetched)
            await self._room(len(body), self.response_bytes)
            spread = len(fetched.partitions) - FEW_PARTITIONS
            if spread > 0 and len(body) < SMALL_RESPONSE_BYTES:
                self._after()
                await asyncio.sleep(min(spread * GATHER_S, GATHER_MAX_S))

    def _pass_on(self, fetched: FetchResponse) -> None:
        """Passes each partition its response; those that got records are the last of the next request, as in Java's client.

        Not inlined in `_read`, whose local variables would keep the last large response in memory while it
        waits.
        """
        self.responses += any(len(part.records) for part in fetched.partitions)
        empty: dict[tuple[str, int], None] = {}
        served: dict[tuple[str, int], None] = {}
        for part in fetched.partitions:
            entry = self._keys.get(part.key)
            if entry is not None:
                (served if len(part.records) else empty)[entry[:2]] = None
                entry[2].fetched(part, self._requested.get(part.key, -1))
        self._dirty = empty | self._dirty | served

    def _parse_response(self, connection: Connection, body: memoryview) -> FetchResponse:
        try:
            return fetch.parse_fetch_response(self._version, body)
        except (struct.error, IndexError) as error:
            raise connection.unreadable("Fetch") from error

    def _note_error(self, code: int) -> None:
        if code not in SESSION_ERRORS:
            raise_for(code, cluster=self._cluster.alias, request="Fetch", subject=f"broker {self.node_id}")
        self._session.failed()

    def _send_fetch(self, connection: Connection) -> asyncio.Future[memoryview] | None:
        """Sends the next fetch; returns None if no partition is to be fetched.

        The broker would respond to an empty session at once, which would make a busy loop.
        """
        for topic, number in self._dirty:
            entry = self._partitions.get((topic, number))
            if entry is None:
                continue
            key = self._key(topic, number, entry[0])
            wanted = entry[1].next_fetch()
            if wanted is None:
                self._drop(key)
                (self._coming.add if entry[1].may_fetch_soon() else self._coming.discard)((topic, number))
            else:
                self._coming.discard((topic, number))
                self._keys[key] = (topic, number, entry[1])
                self._session.put(key, wanted)
        self._dirty.clear()
        if not len(self._session):
            return None
        request = self._session.next_request()
        for key, start in request.partitions:
            self._requested[key] = start.offset
        most = self._response_bytes_max()
        body = fetch.fetch_request(
            self._version,
            request,
            read_committed=self._read_committed,
            max_wait_ms=MAX_WAIT_CROWDED_MS if self._coming else MAX_WAIT_MS,
            # The broker returns the first batch whole, also if it is larger.
            max_bytes=self.response_bytes if most is None else min(most, self.response_bytes),
            rack=self._rack,
        )
        return connection.send(fetch.API_KEY, self._version, (body,), flexible=self._version >= 12)
