"""A produce connection takes from responses the end of a throttle and the size of its send window."""

import asyncio
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_kafka.client import broker_writer
from mirrorflow_kafka.client.broker_writer import ProduceConnection
from tests.unit.core.wire.test_produce import response_of


class UnreachedCluster:
    """A cluster whose broker never responds to a connection attempt."""

    alias = "west"

    async def connection(self, *_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()


@pytest.mark.parametrize("throttle_ms", [0, 5_000])
def test_a_throttled_response_holds_its_connection_back(throttle_ms: int):
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
    """A partition that always has a batch to send."""

    target_topic, partition = "orders", 2
    transactional_id: str | None = None

    def __init__(self, connection: ProduceConnection) -> None:
        self.connection = connection
        connection.ready(self)

    def connected(self) -> None:
        """Ignored: this partition does not resync."""

    def next_batch(self) -> bytes:
        self.connection.ready(self)
        return BATCH

    def acknowledged(self, base_offset: int, append_time_ms: int) -> None: ...

    def refused(self, code: int, message: str, records: Sequence[int] = ()) -> None: ...

    def lost(self) -> None: ...


class StubConnection:
    """A connection that records the expected transit time of each request without a response."""

    is_open, is_retired = True, False

    def __init__(self) -> None:
        self.unanswered: list[Any] = []
        self.transit_s: list[float] = []

    def send_for(self, response: Any, *_: Any, flexible: bool, transit_s: float) -> None:
        self.unanswered.append(response)
        self.transit_s.append(transit_s)

    def throttled(self, _: int) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(("responses_per_s", "in_flight"), [(40, 80), (200, 400)])
def test_a_connection_has_in_flight_what_the_target_acknowledges_in_two_seconds(
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
