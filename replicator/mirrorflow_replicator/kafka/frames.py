"""Frames of Kafka's protocol on a socket: four bytes of length, then the body.

A large body is received straight into a buffer of its own (`kafka.buffers`), so a fetched batch is not copied before it
is rewritten (but for the few kilobytes that came with its length), and a large request is written from the buffers it
lies in. Small answers come many at a time.
What a frame means, and which request it answers, is `kafka.connection`'s.
"""

import asyncio
import os
import socket
import struct
import sys
from collections.abc import Callable, Sequence

from mirrorflow_replicator.kafka.buffers import Buffers

# A fetch answer is at most fetch.max.bytes (50 MiB) plus one batch that is larger than that; what exceeds this is
# not Kafka speaking (a TLS alert read as a length is 352 MB, "HTTP" is 1.2 GB) and must not be allocated.
FRAME_BYTES_MAX = 256 * 1024 * 1024
FRAME_BYTES_MIN = 4  # the correlation id
# Two produce requests of 1 MiB for each of a few partitions; beyond it the sender waits in `drained`.
WRITE_BUFFER_HIGH_BYTES = 4 * 1024 * 1024
WRITE_BUFFER_LOW_BYTES = 1024 * 1024

SCRATCH_BYTES = (
    32 * 1024
)  # hundreds of produce answers; little enough to be copied where a large body begins in it
# Below this, joining the parts costs less than a system call that gathers them.
GATHERED_BYTES_MIN = 64 * 1024
GATHERED_PARTS_MAX = 512  # IOV_MAX is 1024 on Linux
# Of a large body, wait for so much before waking up: each time costs more than the system call. Much less than what a
# kernel holds for a socket, or the sender would stand still meanwhile.
WAKE_BYTES = 512 * 1024

_SIZE = struct.Struct(">i")
_TLS_ALERT, _TLS_HANDSHAKE = 0x15, 0x16


class FrameError(Exception):
    """The peer does not speak Kafka's frames; internal, `kafka.connection` turns it into an error for the user."""


class FrameProtocol(asyncio.BufferedProtocol):
    """Cuts what arrives into frames and keeps the sender's back-pressure.

    `on_frame` gets each body as a writable view of memory of its own, in order. `on_lost` is called once, with the reason
    if there is one.
    """

    def __init__(
        self, *, on_frame: Callable[[memoryview], None], on_lost: Callable[[Exception | None], None]
    ) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._scratch = bytearray(SCRATCH_BYTES)
        self._scratch_view = memoryview(self._scratch)
        self._buffers = Buffers()
        self._body: memoryview | None = None
        self._view = self._scratch_view
        self._wake_bytes = 1  # what the kernel waits for
        self._received = 0  # of the body, or else of the scratch
        self._plain: socket.socket | None = None  # where nothing encrypts
        self._plain_fd = -1  # its number, asked for once: each request would ask again
        self._fault: Exception | None = None
        self._writable: asyncio.Future[None] | None = None
        self._is_lost = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the socket up; called for the plain socket, also when TLS follows."""
        assert isinstance(transport, asyncio.Transport)
        peer: socket.socket | None = transport.get_extra_info("socket")
        if peer is not None:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.use(transport)
        self._plain = peer
        self._plain_fd = -1 if peer is None else peer.fileno()

    def use(self, transport: asyncio.Transport) -> None:
        """Write to *transport* from now on: the plain one, then the one that encrypts."""
        self._plain, self._plain_fd = None, -1
        transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES, low=WRITE_BUFFER_LOW_BYTES)
        self.transport = transport

    def write(self, parts: Sequence[bytes | bytearray | memoryview], size_bytes: int) -> None:
        """Write *parts*, of *size_bytes* together, one after the other."""
        transport = self.transport
        assert transport is not None
        gathers = size_bytes >= GATHERED_BYTES_MIN and len(parts) <= GATHERED_PARTS_MAX
        if not gathers or self._plain_fd < 0 or transport.get_write_buffer_size():
            transport.writelines(parts)
            return
        try:
            written = os.writev(self._plain_fd, parts)
        except OSError:
            written = 0  # full, or broken: the transport finds out which
        for part in parts:
            if written >= len(part):
                written -= len(part)
            else:
                transport.write(memoryview(part)[written:])
                written = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        """The rest of a large body, or what is free of the scratch."""
        return self._view[self._received :]

    def buffer_updated(self, nbytes: int) -> None:
        """Count what arrived; hand on every frame that is whole."""
        self._received += nbytes
        body = self._body
        if body is None:
            self._cut(self._received)
        elif self._received == len(body):
            self._body, self._view, self._received = None, self._scratch_view, 0
            self._wake_at(1)
            self._on_frame(body)
        elif len(body) - self._received < self._wake_bytes:
            self._wake_at(len(body) - self._received)

    def _cut(self, end: int) -> None:
        """Cut frames from the scratch, which is filled up to *end*."""
        scratch = self._scratch_view
        at = 0
        while end - at >= _SIZE.size:
            (size,) = _SIZE.unpack_from(scratch, at)
            if not FRAME_BYTES_MIN <= size <= FRAME_BYTES_MAX:
                self._refuse(size, bytes(scratch[at : at + _SIZE.size]))
                return
            begin, at = at + _SIZE.size, at + _SIZE.size + size
            if at > end:
                self._body = self._view = self._buffers.take(size)
                self._received = end - begin
                self._view[: self._received] = scratch[begin:end]
                self._wake_at(min(size - self._received, WAKE_BYTES))
                return
            self._buffers.unused()
            self._on_frame(memoryview(bytearray(scratch[begin:at])))
        scratch[: end - at] = scratch[at:end]
        self._received = end - at

    def _wake_at(self, wake_bytes: int) -> None:
        """Have the kernel tell of this socket only when so much can be received (Linux; elsewhere it tells at once)."""
        if self._plain is not None and wake_bytes != self._wake_bytes and sys.platform == "linux":
            self._plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake_bytes)
            self._wake_bytes = wake_bytes

    def _refuse(self, size: int, head: bytes) -> None:
        problem = f"it sent a frame of {size} bytes"
        if head[0] in {_TLS_ALERT, _TLS_HANDSHAKE} and head[1] == 0x03:
            problem = "the listener speaks TLS, but security.protocol has none"
        self._fault = FrameError(problem)
        if self.transport is not None:
            self.transport.abort()

    def eof_received(self) -> bool:
        """Close our side too: a half-open connection answers nothing."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell once, and release whoever waits to write."""
        if self._is_lost:
            return
        self._is_lost = True
        self.resume_writing()
        self._on_lost(self._fault or exc)

    def pause_writing(self) -> None:
        """The write buffer is above its high mark."""
        if self._writable is None:
            self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """The write buffer is below its low mark again."""
        waiting, self._writable = self._writable, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def drained(self) -> None:
        """Wait until the write buffer takes more; returns as well when the connection is lost."""
        while self._writable is not None:
            await asyncio.shield(self._writable)


def after_tags(frame: memoryview, at: int) -> int:
    """The position after the tagged fields at *at* (KIP-482); brokers send none in headers today."""
    count, at = _uvarint(frame, at)
    for _ in range(count):
        _, at = _uvarint(frame, at)
        size, at = _uvarint(frame, at)
        at += size
    return at


def _uvarint(frame: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = frame[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
