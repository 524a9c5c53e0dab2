"""Habits of the C allocator and of Python's collector, set for a process that moves megabytes through buffers of its own.

By default glibc asks the kernel for every large buffer anew and gives it back at once; each page is then zeroed and
faulted in again, which cost a third of the CPU of a copy. Kept, the pages serve the next buffer; when there is nothing
to copy they are given back.
"""

import contextlib
import ctypes
import gc
import resource

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
MMAP_THRESHOLD_BYTES = 32 << 20  # the largest that glibc takes; fetch answers are smaller
TRIM_THRESHOLD_BYTES = 256 << 20  # never by itself: `give_back` does
# Batches are tuples that the collector need not visit, thousands a second; reference counts free them.
GC_THRESHOLD = 200_000


def settle_in() -> None:
    """For a process that copies or compares, when it has imported what it needs. A second time it does nothing."""
    if gc.get_threshold()[0] == GC_THRESHOLD:
        return
    gc.freeze()  # what was imported stays for good
    gc.set_threshold(GC_THRESHOLD)
    keep_buffers()


def keep_buffers() -> None:
    """Let freed buffers serve again. Only for glibc; elsewhere nothing happens."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)


def give_back() -> None:
    """Return what is free to the kernel, after the garbage of what is over (a start, a backlog) was collected."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def peak_bytes() -> int:
    """The most that this process has ever used. Linux counts in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
