"""Memory for large answers, used again: a fresh buffer of 4 MiB is zeroed, and each of its pages faulted in, before it serves.

A buffer is taken again only when nobody looks at it any more. Who holds a view of it keeps it, without a word: a
bytearray cannot change its size while somebody does, and says so.
"""

# Two answers wait, one is worked on, one arrives. What comes beyond that gets a buffer that is not kept.
KEPT_MAX = 4
GRAIN_BYTES = 1 << 20  # sizes differ by a little from answer to answer
UNUSED_MAX = 4  # small answers in a row: the backlog is over, and idle memory is what an idle connector costs


class Buffers:
    """Those of one connection."""

    __slots__ = ("_kept", "_unused")

    def __init__(self) -> None:
        self._kept: list[bytearray] = []
        self._unused = 0

    def take(self, size_bytes: int) -> memoryview:
        """A writable view of *size_bytes*; what is in it is of no meaning."""
        self._unused = 0
        free = [buffer for buffer in self._kept if _is_free(buffer)]
        for buffer in free:
            if len(buffer) >= size_bytes:
                return memoryview(buffer)[:size_bytes]
        if free and len(self._kept) == KEPT_MAX:
            self._kept = [buffer for buffer in self._kept if buffer is not free[0]]
        buffer = bytearray(-(-size_bytes // GRAIN_BYTES) * GRAIN_BYTES)
        if len(self._kept) < KEPT_MAX:
            self._kept.append(buffer)
        return memoryview(buffer)[:size_bytes]

    def unused(self) -> None:
        """An answer came that needed none: after some of those, none is kept."""
        self._unused += 1
        if self._unused == UNUSED_MAX:
            self._kept.clear()


def _is_free(buffer: bytearray) -> bool:
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True
