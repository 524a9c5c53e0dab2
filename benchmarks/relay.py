"""A bare relay: fetch, write a producer into each header, checksum, produce. It shows what a copier on asyncio could reach.

        python -m benchmarks.relay SOURCE_PORT TARGET_PORT TOPIC REMOTE PARTITIONS RECORDS

It has no producer identity, repeats nothing and ends at the first error: it is an upper bound, not a replicator. After the
copy it stays until it is killed, so that its cost can be read. Both sides are single brokers on 127.0.0.1, and REMOTE exists.
It uses Fetch version 11 and Produce version 8 like the project's `wire`, but with its own code, so that the bound does not
change with the code that it limits.
"""

import asyncio
import signal
import socket
import struct
import sys
from collections import deque

from crc32c import crc32c

PARTITION_BYTES_MAX = 1 << 20  # a fetch response of 4 MiB with four partitions
FETCH_BYTES_MAX = 50 << 20
REQUESTS_IN_FLIGHT_MAX = 8
_BATCH = struct.Struct(">qiibIhiqqqhii")
_PRODUCER_FROM, _CRC_FROM = 43, 21
_NO_PRODUCER = struct.pack(">qhi", -1, -1, -1)

Part = bytes | memoryview


class Wire(asyncio.BufferedProtocol):
    """Frames: four bytes of length, then a body that is received into its own buffer."""

    def __init__(self) -> None:
        self.head = bytearray(4)
        self.body: bytearray | None = None
        self.got = 0
        self.waiting: deque[asyncio.Future[bytearray]] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self.head if self.body is None else self.body)[self.got :]

    def buffer_updated(self, nbytes: int) -> None:
        self.got += nbytes
        if self.body is None:
            if self.got == len(self.head):
                self.body, self.got = bytearray(int.from_bytes(self.head)), 0
        elif self.got == len(self.body):
            whole, self.body, self.got = self.body, None, 0
            self.waiting.popleft().set_result(whole)

    def connection_lost(self, exc: Exception | None) -> None:
        for response in self.waiting:
            response.set_exception(ConnectionError(str(exc)))

    def send(self, parts: list[Part]) -> asyncio.Future[bytearray]:
        response: asyncio.Future[bytearray] = asyncio.get_running_loop().create_future()
        self.waiting.append(response)
        self.transport.writelines([sum(map(len, parts)).to_bytes(4), *parts])
        return response


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def _fetch_request(topic: str, offsets: dict[int, int]) -> list[Part]:
    head = struct.pack(">hhi", 1, 11, 0) + _text("relay")
    head += struct.pack(">iiiibii", -1, 500, 1, FETCH_BYTES_MAX, 0, 0, -1)
    asked = b"".join(
        struct.pack(">iiqqi", part, -1, offset, -1, PARTITION_BYTES_MAX) for part, offset in offsets.items()
    )
    return [head + struct.pack(">i", 1) + _text(topic) + struct.pack(">i", len(offsets)) + asked + bytes(6)]


def _batches(body: bytearray, offsets: dict[int, int]) -> tuple[list[deque[Part]], list[int], int]:
    """Returns the rewritten batches of each partition that has any, the partitions' numbers, and the number of records."""
    view, position, records = memoryview(body), 14, 0
    queues: list[deque[Part]] = []
    numbers: list[int] = []
    if not struct.unpack_from(">i", body, position)[0]:
        return queues, numbers, 0
    position += 4
    position += 2 + struct.unpack_from(">h", body, position)[0]
    (count,) = struct.unpack_from(">i", body, position)
    position += 4
    for _ in range(count):
        part, error = struct.unpack_from(">ih", body, position)
        if error:
            raise RuntimeError(f"fetching partition {part} met error {error}")
        position += 30
        position += 8 + max(0, struct.unpack_from(">i", body, position)[0]) * 16
        end = position + 4 + struct.unpack_from(">i", body, position)[0]
        position += 4
        queue: deque[Part] = deque()
        while position + _BATCH.size <= end:
            base, length, _, _, _, _, last, _, _, _, _, _, in_batch = _BATCH.unpack_from(body, position)
            after = position + 12 + length
            if after > end:
                break
            body[position : position + 8] = bytes(8)  # a producer's base offset is 0
            body[position + _PRODUCER_FROM : position + _PRODUCER_FROM + 14] = _NO_PRODUCER
            struct.pack_into(">I", body, position + 17, crc32c(view[position + _CRC_FROM : after]))
            queue.append(view[position:after])
            offsets[part] = base + last + 1
            records += in_batch
            position = after
        position = end
        if queue:
            queues.append(queue)
            numbers.append(part)
    return queues, numbers, records


def _produce_request(remote: str, queues: list[deque[Part]], numbers: list[int]) -> list[Part]:
    """Returns a request with one batch of each partition, because a broker accepts only one of each in a request."""
    parts: list[Part] = []
    for number, queue in zip(numbers, queues, strict=True):
        if queue:
            batch = queue.popleft()
            parts += (struct.pack(">ii", number, len(batch)), batch)
    head = struct.pack(">hhi", 0, 8, 0) + _text("relay") + struct.pack(">hhii", -1, -1, 30_000, 1)
    return [head + _text(remote) + struct.pack(">i", len(parts) // 2), *parts]


async def relay(
    source_port: int, target_port: int, topic: str, remote: str, partitions: int, records: int
) -> None:
    """Copies *records* records of *topic* to *remote*, and returns when the last is acknowledged."""
    loop = asyncio.get_running_loop()
    _, source = await loop.create_connection(Wire, "127.0.0.1", source_port)
    _, target = await loop.create_connection(Wire, "127.0.0.1", target_port)
    target.transport.set_write_buffer_limits(high=4 << 20)
    room = asyncio.Semaphore(REQUESTS_IN_FLIGHT_MAX)
    offsets = dict.fromkeys(range(partitions), 0)
    errors_at = 4 + 4 + 2 + len(remote) + 4 + 4  # of the first partition in a produce response
    failed: list[int] = []

    def acknowledged(response: asyncio.Future[bytearray]) -> None:
        failed.extend(
            struct.unpack_from(">h", response.result(), errors_at) if response.result()[errors_at + 1] else ()
        )
        room.release()

    copied = 0
    coming = source.send(_fetch_request(topic, offsets))
    while copied < records:
        queues, numbers, count = _batches(await coming, offsets)
        copied += count
        coming = source.send(_fetch_request(topic, offsets))
        while any(queues):
            await room.acquire()
            target.send(_produce_request(remote, queues, numbers)).add_done_callback(acknowledged)
        if failed:
            raise RuntimeError(f"producing met error {failed[0]}")
    for _ in range(REQUESTS_IN_FLIGHT_MAX):
        await room.acquire()


if __name__ == "__main__":
    _ports = [int(text) for text in sys.argv[1:3]]
    _counts = [int(text) for text in sys.argv[5:7]]
    asyncio.run(relay(_ports[0], _ports[1], sys.argv[3], sys.argv[4], _counts[0], _counts[1]))
    signal.pause()
