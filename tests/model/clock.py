"""Virtual time, and how product code comes to read it.

Product modules call `time.monotonic()`, `random.uniform()` and the like by the modules that they have imported. During a
run these names stand for the simulated ones, in product modules alone: pytest, threads and asyncio keep the real ones.
"""

import contextlib
import random
import sys
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any
from zlib import crc32

PRODUCT = ("mirrorflow_core", "mirrorflow_kafka", "mirrorflow_replicator")
START_S = 1_000.0
EPOCH_S = 1_800_000_000.0  # 15 January 2027: the wall clock at monotonic time 0

_CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "clock_gettime")
_DRAWS = ("random", "uniform", "shuffle", "choice", "randrange", "randint", "sample")


class Clock:
    """The time of one world, in seconds; `wall_ms` as records carry it."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = START_S

    @property
    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return int((EPOCH_S + self.now) * 1000)


class _VirtualTime(ModuleType):
    """Stands in for the module `time`."""

    def __init__(self, clock: Clock) -> None:
        super().__init__("time")
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def time(self) -> float:
        return EPOCH_S + self._clock.now

    def time_ns(self) -> int:
        return self._clock.wall_ms * 1_000_000

    def monotonic(self) -> float:
        return self._clock.now

    def monotonic_ns(self) -> int:
        return int(self._clock.now * 1e9)

    def perf_counter(self) -> float:
        return self._clock.now

    def clock_gettime(self, _clock_id: int) -> float:
        return self._clock.now


def stable_hash(value: object) -> int:
    """A hash of text that is the same in each process."""
    return crc32(value.encode()) if isinstance(value, str) else hash(value)


@contextlib.contextmanager
def virtual(clock: Clock, draws: random.Random) -> Iterator[None]:
    """Product code sees *clock*, and draws from *draws*, inside the block."""
    replaced: list[tuple[Any, str, Any]] = []
    fake_time = _VirtualTime(clock)
    by_identity: dict[int, Any] = {id(time): fake_time, id(random): draws}
    by_identity |= {id(getattr(time, name)): getattr(fake_time, name) for name in _CLOCKS}
    by_identity |= {id(getattr(random, name)): getattr(draws, name) for name in _DRAWS}
    try:
        for module, name, kind in _places():
            replaced.append((module, name, getattr(module, name)))
            setattr(module, name, by_identity[kind])
        yield
    finally:
        for module, name, value in replaced:
            setattr(module, name, value)


_found: dict[int, list[tuple[Any, str, int]]] = {}


def _places() -> list[tuple[Any, str, int]]:
    """Where product modules have a clock or a source of chance, looked for anew when further modules were imported."""
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] in PRODUCT]
    if len(modules) not in _found:
        wanted = {id(time), id(random)}
        wanted |= {id(getattr(time, name)) for name in _CLOCKS} | {
            id(getattr(random, name)) for name in _DRAWS
        }
        _found[len(modules)] = [
            (module, name, id(value))
            for module in modules
            for name, value in vars(module).items()
            if id(value) in wanted
        ]
    return _found[len(modules)]
