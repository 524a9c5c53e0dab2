"""Produces to one target broker over several pipelined connections; each partition uses one of them.

A broker handles the next request of a connection only after it has responded to the previous one, with acks=all
after replication; hence several connections. A request may hold one batch per partition; hence pipelining.

A `ProduceConnection` is one of these connections: it puts the next batches of its partitions into one request and hands each partition its
part of the response. A `BrokerWriter` holds the connections of a broker.

Batches of a partition are sent in order, on one connection. Each is reported to its partition exactly once,
by `acknowledged`, `refused` or `lost`. `connected` is called before anything is written on a new connection
(the copier must find out where to continue first).
"""

import asyncio
import math
import struct
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from kafka.protocol.metadata import MetadataRequest

from mirrorflow_core.errors import ClusterError, MirrorFlowError
from mirrorflow_core.send_window import SendWindow
from mirrorflow_core.wire import produce
from mirrorflow_core.wire.produce import Buffer
from mirrorflow_kafka.client.background_tasks import report_failure
from mirrorflow_kafka.client.cancellation import cancel_and_wait
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.connection import Connection

CONNECTIONS = 2  # to each broker; more bring nothing once the replicas are as busy as the leader
# The most in-flight bytes of one connection: enough to cover the round trip, little enough for the memory of a
# small pod.
IN_FLIGHT_BYTES_MIN = 4 << 20
IN_FLIGHT_BYTES_MAX = 16 << 20
# Fewer if the target takes longer than this to answer them: a slow link, or a quota that throttles. It is more than a
# round trip, and less than the time that a task has to stop.
IN_FLIGHT_S = 2.0
BANDWIDTH_BYTES_PER_S = 256 << 20
# They queue in the broker's socket; small requests over a long distance need many.
IN_FLIGHT_REQUESTS_MAX = 512
REQUEST_BYTES_MAX = 2 << 20  # of the batches in a request, but for the last one
REQUEST_TIMEOUT_MS = 30_000  # as Java's request.timeout.ms: how long the leader waits for its replicas
RETRY_S = 0.2


class WrittenPartition(Protocol):
    """The interface of a partition that a `BrokerWriter` produces to."""

    target_topic: str
    partition: int
    # Of its newest batch; None outside of a transaction. One request may hold batches of both kinds.
    transactional_id: str | None

    def connected(self) -> None:
        """There is a new connection to the leader: where to continue must be determined before writing."""

    def next_batch(self) -> Buffer | None:
        """Returns the next batch, which then counts as sent; None if there is nothing to send now.

        A partition that has more batches calls `ProduceConnection.ready`.
        """

    def acknowledged(self, base_offset: int, append_time_ms: int) -> None:
        """The oldest in-flight batch is in the target, its first record at *base_offset*.

        *append_time_ms* is as in `wire.produce.PartitionProduceResponse`.
        """

    def refused(self, code: int, message: str, records: Sequence[int] = ()) -> None:
        """The oldest in-flight batch was refused with an error code.

        *records* are the indexes of the refused records in it, where the broker names them.
        """

    def lost(self) -> None:
        """The oldest in-flight batch got no response: it may or may not be in the target."""


class ProduceConnection:
    """One connection of a writer, with the partitions that use it; it reconnects by itself."""

    def __init__(
        self,
        cluster: Cluster,
        node_id: int,
        index: int,
        *,
        awake: Callable[[], None],
        on_error: Callable[[MirrorFlowError], None],
    ) -> None:
        self._cluster = cluster
        self._node_id = node_id
        self._index = index
        self._awake = awake
        self._on_error = on_error
        self._partitions: set[WrittenPartition] = set()
        self._wanted = asyncio.Event()
        self._ready: dict[WrittenPartition, None] = {}
        self._connection: Connection | None = None
        self._in_flight_bytes = 0
        self._in_flight = 0
        self._in_flight_bytes_max = IN_FLIGHT_BYTES_MIN
        self._window = SendWindow(IN_FLIGHT_S)
        self.request_bytes = self._window.size_bytes  # a request takes no further batch once it has so many
        self._answered_s = -math.inf  # when the newest response came (monotonic clock)
        self.throttle_ms = 0
        # When the latest quota throttling ends or ended (monotonic clock). The broker answers a connection in
        # order, so no later request changes this while an earlier one has no response.
        self.held_until_s = -math.inf
        self._task = asyncio.create_task(
            self._keep_connected(), name=f"write-{cluster.alias}-{node_id}-{index}"
        )
        self._task.add_done_callback(report_failure)

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and self._connection.is_open

    def expects_response_by(self, since_s: float) -> float:
        """Returns by when everything in flight has reached the broker at the measured rate (monotonic clock).

        It counts from the newest response, from the end of a throttling, or from *since_s*, whichever is later.
        """
        transit_s = self._window.transit_s(self._in_flight_bytes)
        return max(since_s, self._answered_s, self.held_until_s) + transit_s

    def add(self, partition: WrittenPartition) -> None:
        self._partitions.add(partition)
        self._wanted.set()
        if self.is_connected:
            partition.connected()

    def remove(self, partition: WrittenPartition) -> None:
        """Forgets *partition*."""
        self._partitions.discard(partition)
        self._ready.pop(partition, None)

    def ready(self, partition: WrittenPartition) -> None:
        """Notes that *partition* has something to send; `pump` sends it."""
        self._ready[partition] = None

    async def close(self) -> None:
        """Closes the connection; in-flight batches are reported as lost."""
        await cancel_and_wait(self._task)
        if self._connection is not None:
            self._connection.close()

    async def _keep_connected(self) -> None:
        while True:
            if not self._partitions:
                # Do not reconnect without partitions: a broker that leads none of them may be gone
                # permanently.
                self._wanted.clear()
                await self._wanted.wait()
            try:
                connection = await self._cluster.connection(
                    self._node_id, purpose="produce", index=self._index
                )
                began = time.perf_counter()
                await connection.call(MetadataRequest(topics=[]))
                fit = int(BANDWIDTH_BYTES_PER_S * (time.perf_counter() - began))
                self._in_flight_bytes_max = min(max(fit, IN_FLIGHT_BYTES_MIN), IN_FLIGHT_BYTES_MAX)
                self._connection = connection
                connection.call_when_writable(self.pump)
                for partition in tuple(self._partitions):
                    partition.connected()
                # Shielded: a cancelled wait must not look like a lost connection, which stays open then.
                await asyncio.shield(connection.lost)
            except MirrorFlowError as error:
                self._on_error(error)
            await asyncio.sleep(RETRY_S)

    def pump(self) -> None:
        """Sends the batches that are ready, as far as the in-flight window and the socket allow."""
        self._awake()
        connection = self._connection
        if connection is None or not connection.is_open or connection.is_full:
            return
        if connection.is_retired:
            # The responses to in-flight requests are awaited first, so the outcome of every batch is known.
            if not self._in_flight:
                connection.close()
            return
        ready = self._ready
        window_bytes = min(self._window.size_bytes, self._in_flight_bytes_max)
        while (
            ready
            and self._in_flight_bytes < window_bytes
            and self._in_flight < IN_FLIGHT_REQUESTS_MAX
            and not connection.is_full
        ):
            batches: dict[str, list[tuple[int, Buffer]]] = {}
            sent: list[WrittenPartition] = []
            size_bytes = 0
            transactional_id = None
            for partition in tuple(ready):
                # A partition with more batches goes to the end of the queue; those that did not fit come
                # first next time.
                del ready[partition]
                batch = partition.next_batch()
                if batch is None:
                    continue
                batches.setdefault(partition.target_topic, []).append((partition.partition, batch))
                sent.append(partition)
                transactional_id = transactional_id or partition.transactional_id
                size_bytes += len(batch)
                if size_bytes >= self.request_bytes:
                    break
            if sent:
                parts = produce.produce_request(
                    batches, timeout_ms=REQUEST_TIMEOUT_MS, transactional_id=transactional_id
                )
                self._send(connection, parts, sent, size_bytes)

    def _send(
        self,
        connection: Connection,
        parts: list[Buffer],
        sent: list[WrittenPartition],
        size_bytes: int,
    ) -> None:
        self._in_flight_bytes += size_bytes
        self._in_flight += 1
        request = _Request(self, sent, size_bytes, time.monotonic(), self._in_flight_bytes)
        transit_s = self._window.transit_s(self._in_flight_bytes)
        connection.send_for(
            request, produce.API_KEY, produce.VERSION, parts, flexible=False, transit_s=transit_s
        )

    def measured(self, in_flight_bytes: int, sent_s: float) -> None:
        """Notes the response to a request that was sent at *sent_s*, as the last of *in_flight_bytes*."""
        self._answered_s = time.monotonic()
        took_s = self._answered_s - sent_s
        # A window above the limit changes nothing, so that it need not grow.
        if took_s > IN_FLIGHT_S or self._window.size_bytes < IN_FLIGHT_BYTES_MAX:
            self._window = self._window.after(in_flight_bytes, took_s)
            self.request_bytes = min(self._window.size_bytes // 2, REQUEST_BYTES_MAX)

    def lost(self, sent: list[WrittenPartition], size_bytes: int) -> None:
        """Handles a request of *size_bytes* that will get no response."""
        self._in_flight_bytes -= size_bytes
        self._in_flight -= 1
        for partition in sent:
            partition.lost()

    def on_response(self, body: memoryview, sent: list[WrittenPartition], size_bytes: int) -> None:
        """Handles the response to a request of *size_bytes*."""
        self._awake()
        self._in_flight_bytes -= size_bytes
        self._in_flight -= 1
        try:
            responses, throttle_ms = produce.parse_produce_response(body)
        except (struct.error, IndexError, ValueError):
            self._end_unreadable(sent)
            return
        if throttle_ms:
            self.throttle_ms += throttle_ms
            self.held_until_s = time.monotonic() + throttle_ms / 1000
        if self._connection is not None:
            self._connection.throttled(throttle_ms)
        for partition in sent:
            response = responses.get((partition.target_topic, partition.partition))
            if response is None:
                partition.lost()
                continue
            error, base_offset, append_time_ms, message, records = response
            if error:
                partition.refused(error, message, records)
            else:
                partition.acknowledged(base_offset, append_time_ms)
        self.pump()

    def _end_unreadable(self, sent: list[WrittenPartition]) -> None:
        """Loses the batches of *sent*, whose response cannot be read, and all in flight after them."""
        for partition in sent:
            partition.lost()
        if self._connection is not None:
            self._on_error(self._connection.unreadable("Produce"))


class _Request:
    """An in-flight produce request: passes its response to the connection synchronously on arrival."""

    __slots__ = ("_in_flight_bytes", "_owner", "_sent", "_sent_s", "_size_bytes")

    def __init__(
        self,
        owner: ProduceConnection,
        sent: list[WrittenPartition],
        size_bytes: int,
        sent_s: float,
        in_flight_bytes: int,
    ) -> None:
        self._owner = owner
        self._sent = sent
        self._size_bytes = size_bytes
        self._sent_s = sent_s
        self._in_flight_bytes = in_flight_bytes

    def done(self) -> bool:
        return False

    def set_result(self, body: memoryview, /) -> None:
        self._owner.measured(self._in_flight_bytes, self._sent_s)
        self._owner.on_response(body, self._sent, self._size_bytes)

    def set_exception(self, error: ClusterError, /) -> None:
        self._owner.lost(self._sent, self._size_bytes)


class BrokerWriter:
    """Produces to one target broker through CONNECTIONS connections."""

    def __init__(
        self,
        cluster: Cluster,
        node_id: int,
        *,
        awake: Callable[[], None],
        on_error: Callable[[MirrorFlowError], None],
    ) -> None:
        self.node_id = node_id
        self.connections = tuple(
            ProduceConnection(cluster, node_id, index, awake=awake, on_error=on_error)
            for index in range(CONNECTIONS)
        )

    @property
    def throttle_ms(self) -> int:
        return sum(connection.throttle_ms for connection in self.connections)

    def connection_for(self, target_topic: str, partition: int) -> ProduceConnection:
        """Returns the connection of a partition; neighbouring partitions of a topic use different connections."""
        return self.connections[(hash(target_topic) + partition) % len(self.connections)]

    async def close(self) -> None:
        for connection in self.connections:
            await connection.close()
