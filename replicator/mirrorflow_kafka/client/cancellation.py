"""Ends asyncio tasks: cancels and waits, without losing a cancellation of the waiting task."""

import asyncio
from collections.abc import Sequence
from typing import Any


async def cancel_and_wait(task: asyncio.Task[Any]) -> None:
    """Cancels *task* and returns when it has ended. Raises what it raised, unless that is its cancellation.

    If the waiting task is cancelled meanwhile, this raises CancelledError after *task* has ended. `await
    task` cannot distinguish the two cancellations: suppressing both would let the waiting task continue, and
    its canceller would wait for ever.
    """
    task.cancel()
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    if not task.cancelled():
        task.result()


async def together(running: Sequence[asyncio.Task[None]]) -> None:
    """Waits until one of *running* has ended, then cancels the others. Raises what it raised."""
    try:
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        ended = [task for task in running if task.done()]
        for task in ended:
            if not task.cancelled():
                task.exception()  # retrieved: of several errors only the first is raised
        for task in ended:
            task.result()
    finally:
        await asyncio.gather(*(cancel_and_wait(task) for task in running if not task.done()))
