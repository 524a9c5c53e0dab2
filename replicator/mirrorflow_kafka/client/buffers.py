"""Reuses the memory of large responses: a new 4 MiB buffer must be zeroed and faulted in page by page.

A buffer is reused only if no memoryview of it exists. Holders need not release it explicitly: a bytearray
raises BufferError when it is resized while a view exists.
"""

# Two responses wait, one is processed, one arrives. Further responses get buffers that are not kept.
KEPT_MAX = 4
GRAIN_BYTES = 1 << 20  # response sizes differ slightly
UNUSED_MAX = 4  # after this many small responses in a row the backlog is over, so the memory is released


class Buffers:
    """The response buffers of one connection."""

    __slots__ = ("_kept", "_unused")

    def __init__(self) -> None:
        self._kept: list[bytearray] = []
        self._unused = 0

    def take(self, size_bytes: int) -> memoryview:
        """Return a writable view of *size_bytes*; its content is undefined."""
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
        """Note a response that needed no buffer; after UNUSED_MAX in a row all buffers are released."""
        self._unused += 1
        if self._unused == UNUSED_MAX:
            self._kept.clear()


def _is_free(buffer: bytearray) -> bool:
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True
