"""The C allocator's habits, set for a process that moves megabytes through buffers of its own.

By default glibc asks the kernel for every large buffer anew and gives it back at once; each page is then zeroed and
faulted in again, which cost a third of the CPU of a copy. Kept, the pages serve the next buffer; when there is nothing
to copy they are given back.
"""

import contextlib
import ctypes
import gc

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
MMAP_THRESHOLD_BYTES = 32 << 20  # the largest that glibc takes; fetch answers are smaller
TRIM_THRESHOLD_BYTES = 256 << 20  # never by itself: `give_back` does


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
