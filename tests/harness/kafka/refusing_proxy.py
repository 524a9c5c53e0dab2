"""A proxy that hides APIs of a broker, to simulate Kafka services that do not offer all of them.

It removes the APIs from the broker's ApiVersions responses. Like a broker, it closes a connection that requests one of
them. Usage: python -m tests.harness.kafka.refusing_proxy API_KEY,API_KEY... LISTEN:TARGET ... (ports of 127.0.0.1)
"""

import asyncio
import struct
import sys
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.harness.kafka.processes import Child, accepts, free_port, start, wait_until

LOOPBACK = "127.0.0.1"
API_VERSIONS, UNSUPPORTED_VERSION = 18, 35
FLEXIBLE_SINCE = 3  # the version of ApiVersions with compact arrays and tagged fields
_ENTRY = struct.Struct(">hhh")  # API key, lowest and highest version


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusingProxy:
    """The program. `ports` has a port for each key of its targets."""

    child: Child
    ports: Mapping[int, int]

    @classmethod
    def start(cls, targets: Mapping[int, int], *, refused: Collection[int], log: Path) -> Self:
        """Starts to forward to each port of *targets*, and returns when it accepts connections."""
        ports = {key: free_port() for key in targets}
        routes = [f"{ports[key]}:{target}" for key, target in targets.items()]
        command = [sys.executable, "-m", __name__, ",".join(map(str, sorted(refused))), *routes]
        child = start("refusing-proxy", command, log=log)

        def opened() -> bool:
            child.must_run()
            return all(map(accepts, ports.values()))

        wait_until("the refusing proxy opens its ports", opened)
        return cls(child=child, ports=ports)


def without_apis(response: bytes, version: int, refused: Collection[int]) -> bytes:
    """Returns the body of an ApiVersions response in *version* without the APIs *refused*."""
    (error,) = struct.unpack_from(">h", response)
    if error == UNSUPPORTED_VERSION:
        return response  # the response has version 0, and the client repeats its request
    is_flexible = version >= FLEXIBLE_SINCE
    count, position = _count(response, is_flexible=is_flexible)
    size = _ENTRY.size + is_flexible  # an entry has no tagged fields: one byte
    entries = [response[position + index * size : position + (index + 1) * size] for index in range(count)]
    kept = [entry for entry in entries if _ENTRY.unpack_from(entry)[0] not in refused]
    header = _varint(len(kept) + 1) if is_flexible else struct.pack(">i", len(kept))
    return response[:2] + header + b"".join(kept) + response[position + count * size :]


def _count(response: bytes, *, is_flexible: bool) -> tuple[int, int]:
    """Returns the number of entries, and the index of the first."""
    if not is_flexible:
        return struct.unpack_from(">i", response, 2)[0], 6
    value, shift, position = 0, 0, 2
    while True:
        byte = response[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value - 1, position


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))


async def _forward(
    target: int, refused: Collection[int], client: asyncio.StreamReader, to_client: asyncio.StreamWriter
) -> None:
    """Forwards the requests and responses of one connection, until either side or a refusal ends it."""
    broker, to_broker = await asyncio.open_connection(LOOPBACK, target)
    sent: deque[tuple[int, int]] = deque()  # API key and version of each request without a response

    async def requests() -> None:
        while True:
            frame = await _frame(client)
            key, version = struct.unpack_from(">hh", frame, 4)
            if key in refused:
                return
            sent.append((key, version))
            to_broker.write(frame)
            await to_broker.drain()

    async def responses() -> None:
        while True:
            frame = await _frame(broker)
            key, version = sent.popleft()
            if key == API_VERSIONS:
                body = frame[4:8] + without_apis(frame[8:], version, refused)
                frame = struct.pack(">i", len(body)) + body
            to_client.write(frame)
            await to_client.drain()

    tasks = [asyncio.create_task(requests()), asyncio.create_task(responses())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for writer in (to_client, to_broker):
        writer.close()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(4)
    return head + await reader.readexactly(struct.unpack(">i", head)[0])


async def _serve(refused: Collection[int], routes: Mapping[int, int]) -> None:
    async def open_port(listen: int, target: int) -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError):  # the broker is down
                await _forward(target, refused, reader, writer)
            writer.close()

        server = await asyncio.start_server(accept, LOOPBACK, listen)
        await server.serve_forever()

    await asyncio.gather(*(open_port(listen, target) for listen, target in routes.items()))


def main(arguments: Sequence[str]) -> None:
    refused = frozenset(int(key) for key in arguments[0].split(","))
    routes = {
        int(listen): int(target) for listen, _, target in (route.partition(":") for route in arguments[1:])
    }
    asyncio.run(_serve(refused, routes))


if __name__ == "__main__":
    main(sys.argv[1:])
