"""A server on loopback that replaces services for tokens or credentials.

The services are STS, instance metadata, credential agents and token endpoints.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A request. Names of headers are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: str

    @property
    def form(self) -> dict[str, str]:
        return dict(parse_qsl(self.body))


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A response. A dict or list as `body` is encoded as JSON."""

    status: int = 200
    body: Any = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class IdentityServer:
    """A server that responds to each request with the result of `respond`, and records the requests."""

    respond: Callable[[Received], Response]
    requests: list[Received] = field(default_factory=list)
    url: str = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator["IdentityServer"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = (await reader.readexactly(int(headers.get("content-length", "0")))).decode()
        method, path, _ = first.split(" ")
        self.requests.append(Received(method=method, path=path, headers=headers, body=body))
        response = self.respond(self.requests[-1])
        data = (response.body if isinstance(response.body, str) else json.dumps(response.body)).encode()
        fields = {**response.headers, "Content-Length": str(len(data)), "Connection": "close"}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"HTTP/1.1 {response.status} X\r\n{head}\r\n".encode() + data)
        await writer.drain()
        writer.close()
