"""Writing to one target broker: several connections, each partition pinned to one, each connection pipelined.

A broker takes the next request of a connection only when it has answered the one before, and with acks=all that is when
the replicas have it; hence several connections. The broker takes one batch of a partition and request; hence pipelining.

Promises: batches of a partition are sent in order, on one connection; each is answered to its partition exactly once, by
`acknowledged`, `refused` or `lost`; a partition is told of every new connection before anything is written on it
(clause 4: a leader on a new connection has to be asked first). What a refusal means is for `runtime.lane`.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Protocol

from kafka.protocol.metadata import MetadataRequest

from mirrorflow_replicator.errors import ClusterError, MirrorFlowError
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.connection import Connection
from mirrorflow_replicator.wire import produce
from mirrorflow_replicator.wire.produce import Buffer

CONNECTIONS = 2  # to each broker; more only cost, once the replicas are as busy as the leader
# Bytes on their way on one connection: enough for the round trip, little enough for the memory of a small pod.
IN_FLIGHT_BYTES_MIN = 4 << 20
IN_FLIGHT_BYTES_MAX = 16 << 20
BANDWIDTH_BYTES_PER_S = 256 << 20
IN_FLIGHT_REQUESTS_MAX = (
    512  # the broker keeps a queue of them in its socket; small requests on a long way need many
)
REQUEST_BYTES_MAX = 2 << 20  # of batches in one request, unless a single batch is larger
REQUEST_TIMEOUT_MS = 30_000  # as Java's request.timeout.ms: how long the leader waits for its replicas
RETRY_S = 0.2


class Partition(Protocol):
    """What a writer needs of a partition."""

    target_topic: str
    partition: int
    # Of the transaction that its batches are inside of; None: of none. One request takes batches of both kinds.
    transactional_id: str | None

    def next_batch(self) -> Buffer | None:
        """The next batch, which counts as sent; None: nothing to be sent now. Who has more says `Pipe.ready`."""

    def acknowledged(self, base_offset: int) -> None:
        """The oldest batch in flight is in the target, its first record at *base_offset*."""

    def refused(self, code: int, message: str) -> None:
        """The oldest batch in flight was refused."""

    def lost(self) -> None:
        """The oldest batch in flight has no answer: it may be in the target, or not."""

    def connected(self) -> None:
        """A new connection to the leader: ask before writing."""


class Pipe:
    """One connection of a writer, and the partitions pinned to it."""

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
        self._partitions: set[Partition] = set()
        self._wanted = asyncio.Event()
        self._ready: dict[Partition, None] = {}
        self._connection: Connection | None = None
        self._in_flight_bytes = 0
        self._in_flight = 0
        self._window_bytes = IN_FLIGHT_BYTES_MIN
        self.throttle_ms = 0
        self._task = asyncio.create_task(
            self._keep_connected(), name=f"write-{cluster.alias}-{node_id}-{index}"
        )

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and self._connection.is_open

    def add(self, partition: Partition) -> None:
        self._partitions.add(partition)
        self._wanted.set()
        if self.is_connected:
            partition.connected()

    def remove(self, partition: Partition) -> None:
        self._partitions.discard(partition)
        self._ready.pop(partition, None)

    def ready(self, partition: Partition) -> None:
        """*partition* has something to send; `pump` takes it."""
        self._ready[partition] = None

    async def close(self) -> None:
        """Stop; what is in flight is lost."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        if self._connection is not None:
            self._connection.close()

    async def _keep_connected(self) -> None:
        while True:
            if not self._partitions:
                # A broker that leads nothing of ours any more may be gone for good.
                self._wanted.clear()
                await self._wanted.wait()
            try:
                connection = await self._cluster.connection(
                    self._node_id, purpose="produce", index=self._index
                )
                began = time.perf_counter()
                await connection.call(MetadataRequest(topics=[]))
                fit = int(BANDWIDTH_BYTES_PER_S * (time.perf_counter() - began))
                self._window_bytes = min(max(fit, IN_FLIGHT_BYTES_MIN), IN_FLIGHT_BYTES_MAX)
                self._connection = connection
                for partition in tuple(self._partitions):
                    partition.connected()
                await connection.lost
            except MirrorFlowError as error:
                self._on_error(error)
            await asyncio.sleep(RETRY_S)

    def pump(self) -> None:
        """Send what is ready as far as the window allows."""
        self._awake()
        connection = self._connection
        if connection is None or not connection.is_open:
            return
        if connection.is_retired:
            # What is in flight is answered first: nothing is in doubt. The one in its place is asked before it is written to.
            if not self._in_flight:
                connection.close()
            return
        ready = self._ready
        while (
            ready and self._in_flight_bytes < self._window_bytes and self._in_flight < IN_FLIGHT_REQUESTS_MAX
        ):
            batches: dict[str, list[tuple[int, Buffer]]] = {}
            sent: list[Partition] = []
            size_bytes = 0
            transactional_id = None
            for partition in tuple(ready):
                # Who has more goes to the end of the line: whoever did not fit comes first next time.
                del ready[partition]
                batch = partition.next_batch()
                if batch is None:
                    continue
                batches.setdefault(partition.target_topic, []).append((partition.partition, batch))
                sent.append(partition)
                transactional_id = transactional_id or partition.transactional_id
                size_bytes += len(batch)
                if size_bytes >= REQUEST_BYTES_MAX:
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
        sent: list[Partition],
        size_bytes: int,
    ) -> None:
        self._in_flight_bytes += size_bytes
        self._in_flight += 1
        request = _Request(self, sent, size_bytes)
        connection.send_for(request, produce.API_KEY, produce.VERSION, parts, flexible=False)

    def lost(self, sent: list[Partition], size_bytes: int) -> None:
        """A request of that many bytes will not be answered."""
        self._in_flight_bytes -= size_bytes
        self._in_flight -= 1
        for partition in sent:
            partition.lost()

    def answered(self, body: memoryview, sent: list[Partition], size_bytes: int) -> None:
        """A request of that many bytes is answered."""
        self._awake()
        self._in_flight_bytes -= size_bytes
        self._in_flight -= 1
        answers, throttle_ms = produce.read_produced(body)
        self.throttle_ms += throttle_ms
        for partition in sent:
            answer = answers.get((partition.target_topic, partition.partition))
            if answer is None:
                partition.lost()
                continue
            error, base_offset, message = answer
            if error:
                partition.refused(error, message)
            else:
                partition.acknowledged(base_offset)
        self.pump()


class _Request:
    """A produce request on its way: hands its answer to the pipe in the moment in which it arrives."""

    __slots__ = ("_pipe", "_sent", "_size_bytes")

    def __init__(self, pipe: Pipe, sent: list[Partition], size_bytes: int) -> None:
        self._pipe = pipe
        self._sent = sent
        self._size_bytes = size_bytes

    def done(self) -> bool:
        return False

    def set_result(self, body: memoryview, /) -> None:
        self._pipe.answered(body, self._sent, self._size_bytes)

    def set_exception(self, error: ClusterError, /) -> None:
        self._pipe.lost(self._sent, self._size_bytes)


class TargetWriter:
    """All connections to one target broker."""

    def __init__(
        self,
        cluster: Cluster,
        node_id: int,
        *,
        awake: Callable[[], None],
        on_error: Callable[[MirrorFlowError], None],
    ) -> None:
        self.node_id = node_id
        self.pipes = tuple(
            Pipe(cluster, node_id, index, awake=awake, on_error=on_error) for index in range(CONNECTIONS)
        )

    @property
    def throttle_ms(self) -> int:
        return sum(pipe.throttle_ms for pipe in self.pipes)

    def pipe_for(self, target_topic: str, partition: int) -> Pipe:
        """The pipe to which a partition is pinned: neighbours on different ones."""
        return self.pipes[(hash(target_topic) + partition) % len(self.pipes)]

    async def close(self) -> None:
        for pipe in self.pipes:
            await pipe.close()
