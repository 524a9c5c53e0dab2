"""Steps the wall clock of a Python process and its child processes, as NTP or an administrator may do.

See `tests.harness.clock`. Python imports this module at its start, because its folder is in PYTHONPATH.
"""

import mmap
import os
import struct
import time
from pathlib import Path

_SECONDS = struct.Struct("=q")
_read_s, _read_ns = time.time, time.time_ns

with Path(os.environ["STEPPING_CLOCK"]).open("rb") as _file:
    _step = mmap.mmap(_file.fileno(), _SECONDS.size, access=mmap.ACCESS_READ)


def _step_s() -> int:
    step_s: int
    (step_s,) = _SECONDS.unpack_from(_step)
    return step_s


def _time() -> float:
    return _read_s() + _step_s()


def _time_ns() -> int:
    return _read_ns() + _step_s() * 1_000_000_000


time.time, time.time_ns = _time, _time_ns
