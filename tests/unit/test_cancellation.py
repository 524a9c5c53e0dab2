"""A task that is waited for may be cancelled, and so may the task that waits: neither cancellation is lost."""

import asyncio
import gc

import pytest

from mirrorflow_kafka.client.cancellation import cancel_and_wait, together


class Job:
    """Ends a while after it is cancelled: once it is `let_end`."""

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

    def let_end(self) -> None:
        self._may_end.set()


def test_it_returns_when_the_task_has_ended() -> None:
    async def run() -> None:
        job = Job()
        await asyncio.sleep(0)
        waiting = asyncio.create_task(cancel_and_wait(job.task))
        await job.is_ending.wait()
        assert not waiting.done()
        job.let_end()
        await waiting
        assert job.task.cancelled()

    asyncio.run(run())


def test_the_waiting_task_is_cancelled_after_the_other_has_ended() -> None:
    async def run() -> None:
        job = Job()
        await asyncio.sleep(0)
        waiting = asyncio.create_task(cancel_and_wait(job.task))
        await job.is_ending.wait()
        for _ in range(2):
            waiting.cancel()
            await asyncio.sleep(0)
            assert not waiting.done()
        job.let_end()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert job.task.done()

    asyncio.run(run())


def test_an_error_of_the_task_is_raised() -> None:
    async def run() -> None:
        job = Job(ZeroDivisionError())
        await asyncio.sleep(0)
        job.let_end()
        with pytest.raises(ZeroDivisionError):
            await cancel_and_wait(job.task)

    asyncio.run(run())


def test_several_errors_are_all_retrieved_and_the_first_is_raised() -> None:
    """Otherwise asyncio logs the others with a traceback when they are collected."""
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
