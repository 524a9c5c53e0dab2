"""Measures the resources of this process and its descendants, from Linux's /proc.

A process that ends meanwhile is left out.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from mirrorflow_replicator.http.worker_view import ResourceUsage

_PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat after the name in brackets, counted from the state (proc_pid_stat(5)). The four
# times are the process's own and those of its children that have ended.
_TIMES, _THREADS, _RESIDENT = slice(11, 15), 17, 21


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
        found = text.rpartition(")")[2].split()
        pages += int(found[_RESIDENT])
        threads += int(found[_THREADS])
        ticks += sum(map(int, found[_TIMES]))
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
