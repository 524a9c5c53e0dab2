"""Reads the switchovers that this user has carried out on this machine, and those that run here now."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from mirrorflow_cli.switchover_progress import local_switchovers
from mirrorflow_console.switchovers import SwitchoverReading, switchover_reading

# Pages share a reading for so long. It is well below the second after which an open cockpit is rendered again.
SHARED_S: Final = 0.5


class LocalSwitchovers:
    """A `SwitchoverSource`: the files that `mirrorflow switchover` writes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._readings: tuple[SwitchoverReading, ...] = ()
        self._read_s = float("-inf")

    def read(self) -> Sequence[SwitchoverReading]:
        """Returns the switchovers of this machine."""
        with self._lock:
            if self._clock() - self._read_s >= SHARED_S:
                known = [
                    switchover_reading(local.document, is_running=local.is_running)
                    for local in local_switchovers()
                ]
                self._readings = tuple(reading for reading in known if reading is not None)
                self._read_s = self._clock()
            return self._readings
