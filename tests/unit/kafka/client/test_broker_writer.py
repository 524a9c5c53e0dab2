"""A produce connection sends as much as its send window, the throttle time and the socket allow."""

import asyncio
import socket
import time
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.metadata import MetadataResponse

from mirrorflow_core.errors import ConnectionLostError, MirrorFlowError
from mirrorflow_core.send_window import SendWindow
from mirrorflow_kafka.client import broker_writer
from mirrorflow_kafka.client.broker_writer import IN_FLIGHT_BYTES_MAX, ProduceConnection
from mirrorflow_kafka.client.connection import Connection
from mirrorflow_kafka.client.pool import open_connection
from tests.unit.core.wire.test_produce import response_of
from tests.unit.kafka.scripted import Broker, scripted


class UnreachedCluster:
    """A cluster whose broker never responds to a connection attempt."""

    alias = "west"

    async def connection(self, *_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()


@pytest.mark.parametrize("throttle_ms", [0, 5_000])
def test_a_throttled_response_delays_the_next_request_of_its_connection(throttle_ms: int):
    acknowledged_offsets: list[int] = []
    partition: Any = SimpleNamespace(
        target_topic="orders", partition=2, acknowledged=lambda offset, _: acknowledged_offsets.append(offset)
    )

    async def held_s() -> float:
        cluster: Any = UnreachedCluster()
        connection = ProduceConnection(cluster, 1, 0, awake=lambda: None, on_error=lambda _: None)
        body = response_of({"orders": {2: (0, 17, -1, [], None)}}, throttle_ms)
        connection.on_response(memoryview(body), [partition], 100)
        await connection.close()
        return connection.held_until_s - time.monotonic()

    held = asyncio.run(held_s())

    assert acknowledged_offsets == [17]
    assert 4 < held <= 5 if throttle_ms else held < 0


BATCH = bytes(10_000)


class SendingPartition:
    """A partition that has *batches* to send, each with the bytes of *batch*."""

    target_topic, partition = "orders", 2
    transactional_id: str | None = None

    def __init__(self, connection: ProduceConnection, batch: bytes = BATCH, batches: int = 1 << 20) -> None:
        self.connection = connection
        self.batch = batch
        self.batches = batches
        self.sent = 0
        connection.ready(self)

    def connected(self) -> None:
        """Does nothing, because this partition does not resync."""

    def next_batch(self) -> bytes | None:
        if self.sent == self.batches:
            return None
        self.sent += 1
        self.connection.ready(self)
        return self.batch

    def acknowledged(self, base_offset: int, append_time_ms: int) -> None: ...

    def refused(self, code: int, message: str, records: Sequence[int] = ()) -> None: ...

    def lost(self) -> None: ...


class StubConnection:
    """A connection that records the expected transit time of each request without a response."""

    is_open, is_retired, is_full = True, False, False

    def __init__(self) -> None:
        self.unanswered: list[Any] = []
        self.transit_s: list[float] = []

    def send_for(self, response: Any, *_: Any, flexible: bool, transit_s: float) -> None:
        self.unanswered.append(response)
        self.transit_s.append(transit_s)

    def throttled(self, _: int) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(("responses_per_s", "in_flight"), [(40, 80), (200, 400)])
def test_the_bytes_in_flight_are_those_that_the_target_acknowledges_in_two_seconds(
    responses_per_s: int, in_flight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [1_000.0]

    async def run() -> StubConnection:
        cluster: Any = UnreachedCluster()
        connection, stub = (
            ProduceConnection(cluster, 1, 0, awake=lambda: None, on_error=lambda _: None),
            StubConnection(),
        )
        connection._connection = stub  # type: ignore[assignment]
        monkeypatch.setattr(broker_writer, "REQUEST_BYTES_MAX", len(BATCH))
        monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
        SendingPartition(connection)
        connection.pump()
        for number in range(5_000):
            now_s[0] += 1 / responses_per_s
            body = response_of({"orders": {2: (0, number, -1, [], None)}}, 0)
            stub.unanswered.pop(0).set_result(memoryview(body))
        await connection.close()
        return stub

    stub = asyncio.run(run())

    assert len(stub.unanswered) == pytest.approx(in_flight, rel=0.15)
    assert stub.transit_s[-1] == pytest.approx(2, rel=0.15)


def _plain(connection: Connection) -> socket.socket:
    plain = connection.frames._plain
    assert plain is not None
    return plain


LARGE_BATCH = bytes(200_000)
LARGE_BATCHES = 15
METADATA = bytes(
    MetadataResponse(throttle_time_ms=0, brokers=[], cluster_id="x", controller_id=1, topics=[]).encode(
        version=13
    )
)


class OneConnection:
    """A cluster with one open connection."""

    alias = "west"

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def connection(self, *_: Any, **__: Any) -> Connection:
        return self._connection


def test_a_full_socket_leaves_batches_in_the_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At most one request is copied into the transport's buffer.

    The broker then receives all requests without responding.
    """
    monkeypatch.setattr(broker_writer, "SendWindow", partial(SendWindow, size_bytes=IN_FLIGHT_BYTES_MAX))
    received: list[bytes] = []

    async def script(broker: Broker) -> None:
        await broker.respond_to_api_versions()
        await broker.send((await broker.next()).response(METADATA, flexible=True))
        await reads.wait()
        while len(received) < LARGE_BATCHES:
            received.append((await broker.next()).body)
        all_received.set()

    async def test() -> None:
        async with scripted(script) as port:
            connection = await open_connection(
                "127.0.0.1", port, client_id="tester", security=None, cluster="west", timeout_s=5
            )
            _plain(connection).setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
            cluster: Any = OneConnection(connection)
            writer = ProduceConnection(cluster, 1, 0, awake=lambda: None, on_error=print)
            partition = SendingPartition(writer, LARGE_BATCH, LARGE_BATCHES)
            writer.add(partition)
            async with asyncio.timeout(20):
                while not connection.is_full:
                    await asyncio.sleep(0.01)
                    writer.pump()
                assert partition.sent < LARGE_BATCHES
                assert connection.frames._transport.get_write_buffer_size() < 2 * len(LARGE_BATCH)
                reads.set()
                await all_received.wait()
            await writer.close()

    reads, all_received = asyncio.Event(), asyncio.Event()
    asyncio.run(test())

    assert all(body.endswith(LARGE_BATCH) for body in received)


def test_an_unexpected_error_of_a_connection_is_reported() -> None:
    """The handler of a task process ends it.."""

    class FailingCluster:
        alias = "west"

        async def connection(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("a bug")

    async def write() -> dict[str, Any]:
        contexts: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: contexts.put_nowait(context))
        cluster: Any = FailingCluster()
        writer = ProduceConnection(cluster, 1, 0, awake=lambda: None, on_error=print)
        writer.add(SendingPartition(writer))
        async with asyncio.timeout(300):
            return await contexts.get()

    context = asyncio.run(write())

    assert (str(context["exception"]), context["message"]) == ("a bug", "the task write-west-1-0 failed")


WHOLE = response_of({"orders": {2: (0, 17, -1, [], None)}}, 0)


@pytest.mark.parametrize("size_bytes", [0, 2, 4, 7, 14, 20, len(WHOLE) - 1])
def test_a_truncated_response_loses_its_batches_and_ends_the_connection(size_bytes: int) -> None:
    """The batches after it are lost, too: each may be in the target."""
    errors: list[MirrorFlowError] = []
    failures: list[Any] = []

    class LosingPartition(SendingPartition):
        losses = 0

        def connected(self) -> None:
            self.connection.pump()

        def lost(self) -> None:
            self.losses += 1
            if self.losses == 2:
                both_lost.set()

        def acknowledged(self, base_offset: int, append_time_ms: int) -> None:
            pytest.fail("it was acknowledged")

    async def script(broker: Broker) -> None:
        await broker.respond_to_api_versions()
        await broker.send((await broker.next()).response(METADATA, flexible=True))
        first, _ = await broker.next(), await broker.next()
        await broker.send(first.response(WHOLE[:size_bytes]))
        await broker.next()

    async def test() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        async with scripted(script) as port:
            connection = await open_connection(
                "127.0.0.1", port, client_id="tester", security=None, cluster="west", timeout_s=5
            )
            cluster: Any = OneConnection(connection)
            writer = ProduceConnection(cluster, 1, 0, awake=lambda: None, on_error=errors.append)
            partition = LosingPartition(writer, LARGE_BATCH, 2)
            writer.add(partition)
            async with asyncio.timeout(20):
                await both_lost.wait()
                await connection.lost
            await writer.close()

    both_lost = asyncio.Event()
    asyncio.run(test())

    assert failures == []
    assert isinstance(errors[0], ConnectionLostError)
    assert "its response to Produce cannot be read" in str(errors[0])
