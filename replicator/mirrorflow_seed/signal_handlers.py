"""Handles signals inside a block of a job."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def handling(handler: Callable[[int, Any], object], *signals: signal.Signals) -> Iterator[None]:
    """Handles *signals* by *handler* inside the block, if in the main thread: Python allows handlers in no other one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
