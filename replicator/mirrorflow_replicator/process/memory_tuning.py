"""Tunes glibc's allocator and Python's garbage collector for a process that copies megabytes.

By default glibc asks the kernel for every large buffer and returns it at once. The kernel then zeroes each
page and faults it in again, which cost a third of the CPU of a copy. Kept pages serve the next buffer; they
are returned when there is nothing to copy.
"""

import contextlib
import ctypes
import gc
import resource

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
MMAP_THRESHOLD_BYTES = 32 << 20  # the largest value that glibc accepts; fetch responses are smaller
TRIM_THRESHOLD_BYTES = 256 << 20  # so high that glibc never trims by itself; `give_back` does
# Batches are tuples that the collector need not visit, thousands a second; reference counting frees them.
GC_THRESHOLD = 200_000


def settle_in() -> None:
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


def give_back() -> None:
    """Returns free memory to the kernel, after collecting garbage (of a start, or a backlog)."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def peak_bytes() -> int:
    """Returns the peak memory of this process in bytes. Linux counts in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
