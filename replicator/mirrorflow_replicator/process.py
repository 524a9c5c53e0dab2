"""What a process sets up and measures: its memory, its end with its parent's, the wall clock, the resources that it uses.

By default glibc asks the kernel for every large buffer and returns it at once. The kernel then zeroes each page and faults it
in again, which cost a third of the CPU of a copy. Kept pages serve the next buffer; they are returned when there is nothing to
copy. Waiting and measuring use the monotonic clock; `now_ms` is for the timestamps of records.
"""

import contextlib
import ctypes
import gc
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
MMAP_THRESHOLD_BYTES = 32 << 20  # the largest value that glibc accepts; fetch responses are smaller
TRIM_THRESHOLD_BYTES = 256 << 20  # so high that glibc never trims by itself; `trim_memory` does
# Batches are tuples that the collector need not visit, thousands a second; reference counting frees them.
GC_THRESHOLD = 200_000
_PR_SET_PDEATHSIG = 1
_PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat after the name in brackets, counted from the state (proc_pid_stat(5)). The four
# times are the process's own and those of its children that have ended.
_TIMES, _THREADS, _RESIDENT = slice(11, 15), 17, 21


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Turns the garbage collector off for imports: they make hundreds of thousands of objects that stay, and no garbage.

    A signal whose handler raises KeyboardInterrupt is handled at the end of the block. Imports have many finalizers, in which Python
    ignores an exception: the process would go on. In `__set_name__`, it becomes a RuntimeError.
    """
    arrived: list[int] = []
    before = _deferred(arrived) if threading.current_thread() is threading.main_thread() else []
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # imported objects stay for the life of the process
        gc.enable()
        for number in before:
            signal.signal(number, signal.default_int_handler)
        for late in arrived:
            signal.raise_signal(late)


def _deferred(arrived: list[int]) -> list[signal.Signals]:
    """Returns the signals whose handler raises KeyboardInterrupt, after it has made them append to *arrived* instead."""
    raising = [
        number
        for number in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) is signal.default_int_handler
    ]
    for each in raising:
        signal.signal(each, lambda number, _: arrived.append(number))
    return raising


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Turns the garbage collector off for work whose objects are freed by reference counting, or stay."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def keep_objects() -> None:
    """Takes all objects of this moment out of the garbage collector's sight, after collecting garbage."""
    gc.collect()
    gc.freeze()


def tune_memory() -> None:
    """Tunes a process that copies or compares, once its imports are done. Further calls do nothing."""
    if gc.get_threshold()[0] == GC_THRESHOLD:
        return
    gc.freeze()  # imported objects stay for the life of the process
    gc.set_threshold(GC_THRESHOLD)
    keep_buffers()


def keep_buffers() -> None:
    """Keeps freed buffers for reuse. Works only with glibc; does nothing elsewhere."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)


def share_heaps(count: int) -> None:
    """Lets all threads share *count* heaps of glibc, which otherwise has eight a core: each keeps what its threads freed."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").mallopt(_M_ARENA_MAX, count)


def allow_open_files() -> None:
    """Allows this process as many open files as the system lets it have: one that connects to hundreds of others."""
    with contextlib.suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def trim_memory() -> None:
    """Returns free memory to the kernel, after collecting garbage (of a start, or a backlog)."""
    gc.collect()
    return_free_memory()


def return_free_memory() -> None:
    """Returns free memory to the kernel."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def peak_bytes() -> int:
    """Returns the peak memory of this process in bytes. Linux counts in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def now_ms() -> int:
    """Returns milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def die_with_parent() -> None:
    """Makes the kernel kill this process when its parent dies. Linux only; elsewhere use `stdin_ended`.

    SIGKILL, because a stopped process does not handle any other signal. Exactly-once does not depend on a
    graceful stop.
    """
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before prctl
        os.kill(os.getpid(), signal.SIGKILL)


async def stdin_ended() -> None:
    """Waits until the writing end of our stdin is closed."""
    import asyncio  # noqa: PLC0415 the command imports this module and runs no loop

    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(4096):
        pass


class ResourceUsage(NamedTuple):
    """The resources that this process and its tasks' processes use."""

    resident_bytes: int
    threads: int
    cpu_s: float


def resource_usage() -> ResourceUsage | None:
    """Returns the sum over this process and its descendants; None where there is no /proc."""
    if not (_PROC / "self" / "stat").exists():
        return None
    pages = threads = ticks = 0
    for pid in _family(os.getpid()):
        try:
            text = (_PROC / str(pid) / "stat").read_text()
        except OSError:
            continue
        fields = text.rpartition(")")[2].split()
        pages += int(fields[_RESIDENT])
        threads += int(fields[_THREADS])
        ticks += sum(map(int, fields[_TIMES]))
    return ResourceUsage(resident_bytes=pages * _PAGE_BYTES, threads=threads, cpu_s=ticks / _TICKS)


def _family(pid: int) -> Iterator[int]:
    yield pid
    for thread in _PROC.glob(f"{pid}/task/*/children"):
        try:
            children = thread.read_text().split()
        except OSError:
            continue
        for child in children:
            yield from _family(int(child))
