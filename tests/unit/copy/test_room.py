"""A reader that waits for buffer space does not block the responses that free the space."""

import asyncio
from types import SimpleNamespace
from typing import Any

from mirrorflow_replicator.copy.task_session import BUFFERED_BYTES_MAX, TaskSession


def test_a_reader_that_waits_for_buffer_space_lets_responses_arrive() -> None:
    """Pumping a connection updates the clock, as a response does. This wakes the waiting readers."""
    pumped = 0

    def pump() -> None:
        nonlocal pumped
        pumped += 1
        assert pumped < 1_000, "the reader never waits"
        task._awake()

    async def spend(_: int, *, reader: int) -> None:
        """Applies no rate limit."""

    async def wait_for_a_response() -> None:
        def on_response() -> None:
            task._effects.buffered_bytes = 0
            task._awake()

        asyncio.get_running_loop().call_later(0.01, on_response)
        await asyncio.wait_for(task._wait_for_room(1, 1, 1), timeout=10)

    task: Any = object.__new__(TaskSession)
    task._effects = SimpleNamespace(buffered_bytes=BUFFERED_BYTES_MAX, update_clock=lambda: None)
    task._routes = SimpleNamespace(pump=pump)
    task._room = asyncio.Event()
    task._copied_bytes = 0
    task.pauses = SimpleNamespace(beat=lambda: None)
    task.pace = SimpleNamespace(spend=spend)

    asyncio.run(wait_for_a_response())

    assert task._effects.buffered_bytes == 0
