"""Reads the wall clock in the unit of record timestamps.

Waiting and measuring use the monotonic clock instead.
"""

import time


def now_ms() -> int:
    """Returns milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
