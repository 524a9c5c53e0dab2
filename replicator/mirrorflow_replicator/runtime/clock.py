"""The wall clock as records carry it. What waits or measures takes the monotonic clock instead."""

import time


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
