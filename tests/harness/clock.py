"""A wall clock with steps. Every process of a `Replicator` with its `environment` follows it at once.

The monotonic clock of these processes has no steps.
"""

import struct
from collections.abc import Mapping
from pathlib import Path

_FOLDER = Path(__file__).parent / "stepping_clock"
_SECONDS = struct.Struct("=q")


class SteppingClock:
    """A clock that starts with the time of this machine. *file* contains its difference in seconds."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_SECONDS.pack(0))
        self._file = file

    @property
    def environment(self) -> Mapping[str, str]:
        """Returns the environment of the processes that follow the clock."""
        return {"PYTHONPATH": str(_FOLDER), "STEPPING_CLOCK": str(self._file)}

    def step_to(self, seconds: int) -> None:
        """Sets the clock *seconds* ahead of that of the machine, or back if negative."""
        with self._file.open("r+b") as file:
            file.write(_SECONDS.pack(seconds))
