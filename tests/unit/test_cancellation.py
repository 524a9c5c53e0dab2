"""`cancel_and_wait` and `together` lose neither a cancellation nor an error."""

import asyncio
import gc

import pytest

from mirrorflow_kafka.client.cancellation import cancel_and_wait, together


class SlowlyEndingJob:
    """A task that ends only after it was cancelled and `allow_end` was called."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self._may_end = asyncio.Event()
        self.is_ending = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.is_ending.set()
            while not self._may_end.is_set():
                try:
                    await self._may_end.wait()
                except asyncio.CancelledError:
                    continue
            if self._error is not None:
                raise self._error from None
            raise

    def allow_end(self) -> None:
        self._may_end.set()


def test_cancel_and_wait_returns_after_the_task_has_ended() -> None:
    async def run() -> None:
        job = SlowlyEndingJob()
        await asyncio.sleep(0)
        waiting = asyncio.create_task(cancel_and_wait(job.task))
        await job.is_ending.wait()
        assert not waiting.done()
        job.allow_end()
        await waiting
        assert job.task.cancelled()

    asyncio.run(run())


def test_a_cancelled_waiting_task_ends_after_the_task_it_waits_for() -> None:
    async def run() -> None:
        job = SlowlyEndingJob()
        await asyncio.sleep(0)
        waiting = asyncio.create_task(cancel_and_wait(job.task))
        await job.is_ending.wait()
        for _ in range(2):
            waiting.cancel()
            await asyncio.sleep(0)
            assert not waiting.done()
        job.allow_end()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert job.task.done()

    asyncio.run(run())


def test_cancel_and_wait_raises_an_error_of_the_task() -> None:
    async def run() -> None:
        job = SlowlyEndingJob(ZeroDivisionError())
        await asyncio.sleep(0)
        job.allow_end()
        with pytest.raises(ZeroDivisionError):
            await cancel_and_wait(job.task)

    asyncio.run(run())


def test_together_raises_the_first_error_and_retrieves_the_others() -> None:
    """Otherwise asyncio logs the other errors when the tasks are garbage collected."""
    unretrieved: list[str] = []

    async def fail(error: Exception) -> None:
        raise error

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: unretrieved.append(str(context["message"]))
        )
        running = [asyncio.create_task(fail(error)) for error in (ZeroDivisionError(), KeyError())]
        with pytest.raises(ZeroDivisionError):
            await together(running)
        del running
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(run())
    assert [] == unretrieved
