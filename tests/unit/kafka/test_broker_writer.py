"""A pipe knows until when a quota holds it back, by the answer that came last."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_kafka.client.broker_writer import Pipe
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
        pipe = Pipe(cluster, 1, 0, awake=lambda: None, on_error=lambda _: None)
        body = response_of({"orders": {2: (0, 17, -1, [], None)}}, throttle_ms)
        pipe.on_response(memoryview(body), [partition], 100)
        await pipe.close()
        return pipe.held_until_s - time.monotonic()

    held = asyncio.run(held_s())

    assert answered == [17]
    assert 4 < held <= 5 if throttle_ms else held < 0
