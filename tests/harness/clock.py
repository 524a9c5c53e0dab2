"""A wall clock that steps: each process of a `Replicator` that is started with `environment` follows it at once.

The monotonic clock of these processes does not step.
"""

import struct
from collections.abc import Mapping
from pathlib import Path

_FOLDER = Path(__file__).parent / "stepping_clock"
_SECONDS = struct.Struct("=q")


class SteppingClock:
    """A clock that begins with the time of this machine; *file* has by how many seconds it differs."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_SECONDS.pack(0))
        self._file = file

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of the processes that follow the clock."""
        return {"PYTHONPATH": str(_FOLDER), "STEPPING_CLOCK": str(self._file)}

    def step_to(self, seconds: int) -> None:
        """Sets the clock to *seconds* ahead of the machine's; behind it where negative."""
        with self._file.open("r+b") as file:
            file.write(_SECONDS.pack(seconds))
