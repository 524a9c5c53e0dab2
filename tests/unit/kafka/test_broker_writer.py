"""What a pipe learns from answers: until when a quota holds it back, and how much it may have in flight."""

import asyncio
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_kafka.client import broker_writer
from mirrorflow_kafka.client.broker_writer import ProduceConnection
from tests.unit.core.wire.test_produce import response_of


class Silent:
    """A cluster whose broker is not reached."""

    alias = "west"

    async def connection(self, *_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()


@pytest.mark.parametrize("throttle_ms", [0, 5_000])
def test_a_throttled_answer_is_a_wait_of_its_connection(throttle_ms: int):
    answered: list[int] = []
    partition: Any = SimpleNamespace(
        target_topic="orders", partition=2, acknowledged=lambda offset, _: answered.append(offset)
    )

    async def held_s() -> float:
        cluster: Any = Silent()
        pipe = ProduceConnection(cluster, 1, 0, awake=lambda: None, on_error=lambda _: None)
        body = response_of({"orders": {2: (0, 17, -1, [], None)}}, throttle_ms)
        pipe.on_response(memoryview(body), [partition], 100)
        await pipe.close()
        return pipe.held_until_s - time.monotonic()

    held = asyncio.run(held_s())

    assert answered == [17]
    assert 4 < held <= 5 if throttle_ms else held < 0


BATCH = bytes(10_000)


class Sending:
    """A partition that always has a batch to send."""

    target_topic, partition = "orders", 2
    transactional_id: str | None = None

    def __init__(self, pipe: ProduceConnection) -> None:
        self.pipe = pipe
        pipe.ready(self)

    def connected(self) -> None:
        """It does not have to find out where to continue."""

    def next_batch(self) -> bytes:
        self.pipe.ready(self)
        return BATCH

    def acknowledged(self, base_offset: int, append_time_ms: int) -> None: ...

    def refused(self, code: int, message: str, records: Sequence[int] = ()) -> None: ...

    def lost(self) -> None: ...


class Link:
    """The connection of a pipe; *took_s* is how long each answer takes, by the clock that the test sets."""

    is_open, is_retired = True, False

    def __init__(self) -> None:
        self.unanswered: list[Any] = []
        self.transit_s: list[float] = []

    def send_for(self, answer: Any, *_: Any, flexible: bool, transit_s: float) -> None:
        self.unanswered.append(answer)
        self.transit_s.append(transit_s)

    def throttled(self, _: int) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(("answers_per_s", "in_flight"), [(40, 80), (200, 400)])
def test_a_pipe_has_in_flight_what_the_target_answers_in_two_seconds(
    answers_per_s: int, in_flight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [1_000.0]

    async def fly() -> Link:
        cluster: Any = Silent()
        pipe, link = ProduceConnection(cluster, 1, 0, awake=lambda: None, on_error=lambda _: None), Link()
        pipe._connection = link  # type: ignore[assignment]
        monkeypatch.setattr(broker_writer, "REQUEST_BYTES_MAX", len(BATCH))
        monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
        Sending(pipe)
        pipe.pump()
        for number in range(5_000):
            now_s[0] += 1 / answers_per_s
            body = response_of({"orders": {2: (0, number, -1, [], None)}}, 0)
            link.unanswered.pop(0).set_result(memoryview(body))
        await pipe.close()
        return link

    link = asyncio.run(fly())

    assert len(link.unanswered) == pytest.approx(in_flight, rel=0.15)
    assert link.transit_s[-1] == pytest.approx(2, rel=0.15)
