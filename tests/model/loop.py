"""Event loops on virtual time: one for each simulated process, all driven by the world.

A loop runs only when the world steps it. So a process can be frozen (not stepped, while time passes), killed (never
stepped again), or left to run; and nothing in a run depends on real time. Only what asyncio's own tasks, futures, locks
and timeouts need is there; sockets, threads and subprocesses are not.
"""

import asyncio
import contextvars
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from tests.model.clock import Clock

# A process that runs so many callbacks without letting time pass never waits: it spins.
CALLBACKS_PER_INSTANT_MAX = 200_000
NEVER_S = float("inf")
_tasks = itertools.count()


class SpinningError(Exception):
    """A process keeps its loop busy for ever."""


class VirtualTask(asyncio.Task[Any]):
    """A task whose hash is a number of its own: sets of tasks have the same order in each run."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], **settings: Any) -> None:
        self._number = next(_tasks)
        super().__init__(coroutine, **settings)
        # The world drops what a killed process was doing.
        self._log_destroy_pending = False

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class VirtualLoop(asyncio.AbstractEventLoop):
    """An event loop on virtual time. *on_error* receives what a task or callback did not catch."""

    def __init__(
        self, clock: Clock, *, name: str, on_error: Callable[[str, BaseException | None], None]
    ) -> None:
        self.name = name
        self._clock = clock
        self._on_error = on_error
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = itertools.count()
        self._is_running = False
        self._callbacks = 0
        self._instant = -1.0

    # -- what the world does

    @property
    def is_ready(self) -> bool:
        """Whether something can be run now."""
        return bool(self._ready)

    @property
    def next_at(self) -> float:
        """When the next timer is due; infinite if there is none."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        return timers[0][0] if timers else NEVER_S

    def run_now(self) -> None:
        """Run what is ready and what is due, until all of it waits."""
        now, timers, ready = self._clock.now, self._timers, self._ready
        if now != self._instant:
            self._instant, self._callbacks = now, 0
        while timers and timers[0][0] <= now:
            timer = heapq.heappop(timers)[2]
            if not timer._cancelled:
                ready.append(timer)
        asyncio._set_running_loop(self)
        self._is_running = True
        try:
            while ready:
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
                    self._callbacks += 1
                    if self._callbacks > CALLBACKS_PER_INSTANT_MAX:
                        raise SpinningError(f"{self.name} spins: {handle!r}")
        finally:
            self._is_running = False
            asyncio._set_running_loop(None)

    def drop(self) -> None:
        """Cancel everything and let it end, as far as it does so at once."""
        for task in [task for task in asyncio.all_tasks(self) if not task.done()]:
            task.cancel()
        self._timers.clear()
        for _ in range(10):
            if not self._ready:
                break
            self.run_now()
            self._timers.clear()

    # -- asyncio's interface

    def time(self) -> float:
        return self._clock.now

    def call_soon(  # type: ignore[override]  # as asyncio's own, without its type variables
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._clock.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._order), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is dropped when its turn comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> VirtualTask:
        return VirtualTask(coro, loop=self, name=name, context=context)  # type: ignore[arg-type]

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return False

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._on_error(str(context.get("message", "")), context.get("exception"))


def new_loop(
    clock: Clock, *, name: str, on_error: Callable[[str, BaseException | None], None]
) -> VirtualLoop:
    """A loop; what asyncio's interface has besides (sockets, subprocesses, signals) is missing on purpose."""
    return VirtualLoop(clock, name=name, on_error=on_error)  # type: ignore[abstract]
