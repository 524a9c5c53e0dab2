"""Reads and writes Kafka protocol frames on a socket: four bytes of length, then the body.

A large body is received directly into its own buffer, so a fetched batch is not copied before it is rewritten
(except for the few kilobytes that arrive with its length). A large request is written from its original buffers.
Small responses are read many at a time. `client.connection` matches frames to requests.

Buffers of large responses are reused: a new 4 MiB buffer must be zeroed and faulted in page by page. A buffer is
reused only if no memoryview of it exists. Holders need not release it explicitly: a bytearray raises BufferError
when it is resized while a view exists.
"""

import asyncio
import math
import os
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from time import monotonic

# Two responses wait, one is processed, one arrives. Further responses get buffers that are not kept.
KEPT_MAX = 4
GRAIN_BYTES = 1 << 20  # response sizes differ slightly
UNUSED_MAX = 4  # after this many small responses in a row the backlog is over, so the memory is released
# A fetch response is at most fetch.max.bytes (50 MiB) plus one batch that is larger than that. A larger
# length is not Kafka's protocol (a TLS alert read as a length is 352 MB, "HTTP" is 1.2 GB) and must not be
# allocated.
FRAME_BYTES_MAX = 256 * 1024 * 1024
FRAME_BYTES_MIN = 4  # the correlation id
# Of what the socket has no room for: it is copied into the transport's buffer, so that a sender of much waits until that is empty.
WRITE_BUFFER_HIGH_BYTES = 1
WRITE_BUFFER_LOW_BYTES = 0
# Room for hundreds of produce responses, and cheap to copy if a large body begins in it.
SCRATCH_BYTES = 32 * 1024
# Below this size, joining the parts costs less than a gathering system call (writev).
GATHERED_BYTES_MIN = 64 * 1024
GATHERED_PARTS_MAX = 512  # IOV_MAX is 1024 on Linux
# The bytes of a large body to wait for before waking up, because a wake-up costs more than the system call.
# Much less than the kernel's socket buffer, or the sender would stall meanwhile.
WAKE_BYTES = 512 * 1024
# A body is still arriving if so much of it comes within the time of a response (40 s): a slower peer would never end, because
# one byte at a time can take any time. With TLS that is 1.6 kB/s. Without it, parts are seen each WAKE_BYTES, so a body of more than that
# needs 13 kB/s.
ARRIVING_BYTES_MIN = 64 * 1024
_SIZE = struct.Struct(">i")
_TLS_ALERT, _TLS_HANDSHAKE = 0x15, 0x16


class Buffers:
    """The response buffers of one connection."""

    __slots__ = ("_kept", "_unused")

    def __init__(self) -> None:
        self._kept: list[bytearray] = []
        self._unused = 0

    def take(self, size_bytes: int) -> memoryview:
        """Returns a writable view of *size_bytes*; its content is undefined."""
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
        """Notes a response that needed no buffer; after UNUSED_MAX in a row all buffers are released."""
        self._unused += 1
        if self._unused == UNUSED_MAX:
            self._kept.clear()


def _is_free(buffer: bytearray) -> bool:
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True


class FrameError(Exception):
    """Raised if the peer does not send Kafka frames; `client.connection` converts it for the user."""


class FrameProtocol(asyncio.BufferedProtocol):
    """Splits received bytes into frames and applies back-pressure to the sender.

    `on_frame` receives each body in order, as a writable view of its own memory. `on_lost` is called once,
    with the reason if there is one. While `is_full`, the socket takes no more; then `on_writable` is called.
    """

    def __init__(
        self,
        *,
        on_frame: Callable[[memoryview], None],
        on_lost: Callable[[Exception | None], None],
        on_writable: Callable[[], None],
    ) -> None:
        self.is_full = False
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._on_writable = on_writable
        self._scratch = bytearray(SCRATCH_BYTES)
        self._scratch_view = memoryview(self._scratch)
        self._buffers = Buffers()
        self._body: memoryview | None = None
        self._view = self._scratch_view
        self._wake_bytes = 1  # SO_RCVLOWAT of the socket
        self._received = 0  # bytes in the body, or in the scratch buffer if there is no body
        self._received_s = -math.inf  # when a part of a body came, of ARRIVING_BYTES_MIN
        self._counted = 0  # bytes of the body that had come then
        self._plain: socket.socket | None = None  # None with TLS
        self._plain_fd = -1  # its file descriptor, cached for speed
        self._fault: Exception | None = None
        self._is_lost = False
        self._transport = asyncio.Transport()  # it raises NotImplementedError until `connection_made`
        self._is_connected = False

    @property
    def arriving_s(self) -> float:
        """When the newest ARRIVING_BYTES_MIN came of a large frame that is still arriving (monotonic clock); -inf if there is none."""
        return -math.inf if self._body is None else self._received_s

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Configures the socket; called for the plain socket, also if TLS follows."""
        assert isinstance(transport, asyncio.Transport)
        peer: socket.socket | None = transport.get_extra_info("socket")
        if peer is not None:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.use(transport)
        self._plain = peer
        self._plain_fd = -1 if peer is None else peer.fileno()

    def use(self, transport: asyncio.Transport) -> None:
        """Writes to *transport* from now on: first the plain transport, then the TLS one."""
        self._plain, self._plain_fd = None, -1
        transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES, low=WRITE_BUFFER_LOW_BYTES)
        self._transport, self._is_connected = transport, True

    def abort(self) -> None:
        """Closes the transport, if there is one, without sending what is buffered."""
        if self._is_connected:
            self._transport.abort()

    def write(self, parts: Sequence[bytes | bytearray | memoryview], size_bytes: int) -> None:
        """Writes *parts* in order; *size_bytes* is their total size."""
        transport = self._transport
        gathers = size_bytes >= GATHERED_BYTES_MIN and len(parts) <= GATHERED_PARTS_MAX
        if not gathers or self._plain_fd < 0 or transport.get_write_buffer_size():
            transport.writelines(parts)
            return
        try:
            written = os.writev(self._plain_fd, parts)
        except OSError:
            written = 0  # the socket is full or broken; the transport handles both
        for part in parts:
            if written >= len(part):
                written -= len(part)
            else:
                transport.write(memoryview(part)[written:])
                written = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns the unfilled rest of a large body, or of the scratch buffer."""
        return self._view[self._received :]

    def buffer_updated(self, nbytes: int) -> None:
        """Counts the received bytes and pass on every complete frame."""
        self._received += nbytes
        body = self._body
        if body is None:
            self._cut(self._received)
        elif self._received == len(body):
            self._body, self._view, self._received = None, self._scratch_view, 0
            self._wake_at(1)
            self._on_frame(body)
        else:
            if self._received - self._counted >= ARRIVING_BYTES_MIN:
                self._received_s, self._counted = monotonic(), self._received
            if len(body) - self._received < self._wake_bytes:
                self._wake_at(len(body) - self._received)

    def _cut(self, end: int) -> None:
        """Passes on the frames in the scratch buffer, which is filled up to *end*."""
        scratch = self._scratch_view
        index = 0
        while end - index >= _SIZE.size:
            (size,) = _SIZE.unpack_from(scratch, index)
            if not FRAME_BYTES_MIN <= size <= FRAME_BYTES_MAX:
                self._abort_on_size(size, bytes(scratch[index : index + _SIZE.size]))
                return
            begin, index = index + _SIZE.size, index + _SIZE.size + size
            if index > end:
                self._body = self._view = self._buffers.take(size)
                self._received = self._counted = end - begin
                self._received_s = monotonic()
                self._view[: self._received] = scratch[begin:end]
                self._wake_at(min(size - self._received, WAKE_BYTES))
                return
            self._buffers.unused()
            self._on_frame(memoryview(bytearray(scratch[begin:index])))
        scratch[: end - index] = scratch[index:end]
        self._received = end - index

    def _wake_at(self, wake_bytes: int) -> None:
        """Lets the kernel report the socket as readable only with *wake_bytes* available (Linux only)."""
        if self._plain is not None and wake_bytes != self._wake_bytes and sys.platform == "linux":
            self._plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake_bytes)
            self._wake_bytes = wake_bytes

    def _abort_on_size(self, size: int, head: bytes) -> None:
        problem = f"it sent a frame of {size} bytes"
        if head[0] in {_TLS_ALERT, _TLS_HANDSHAKE} and head[1] == 0x03:
            problem = "the listener speaks TLS, but security.protocol has none"
        self._fault = FrameError(problem)
        self.abort()

    def eof_received(self) -> bool:
        """Closes this side too: a half-open connection returns no responses."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Calls `on_lost` once."""
        if self._is_lost:
            return
        self._is_lost = True
        self._on_lost(self._fault or exc)

    def pause_writing(self) -> None:
        """The socket has no room for all that was written."""
        self.is_full = True

    def resume_writing(self) -> None:
        """The socket has taken all that was written.

        The transport calls this in the middle of a write, so that a writer may write only in the next turn of the loop.
        """
        self.is_full = False
        asyncio.get_running_loop().call_soon(self._on_writable)
