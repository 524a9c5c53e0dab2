"""Asynchronous requests end at one time limit, and carry the credentials of the login."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject

from mirrorflow_kubernetes.async_login import ApiServerLogin
from mirrorflow_kubernetes.async_requests import ApiServerResponse, AsyncConnection

Respond = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def exchange(respond: Respond, *, timeout_s: float = 60.0) -> ApiServerResponse:
    """Sends a patch with a token to a server that handles the connection with *respond*."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await respond(reader, writer)
        except ConnectionError:
            pass  # the client has ended the request
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    configuration = Configuration(host=f"http://{host}:{port}")
    configuration.api_key["BearerToken"] = "Bearer secret"
    pool = RESTClientObject(configuration)
    try:
        return await AsyncConnection(ApiServerLogin(configuration), pool).send(
            "PATCH",
            "/api/v1/services/a",
            timeout_s=timeout_s,
            params={"dryRun": "All"},
            body={"spec": {}},
            content_type="application/merge-patch+json",
        )
    finally:
        await pool.close()
        server.close()


def test_a_request_has_the_token_and_the_type_of_its_body():
    received: list[str] = []

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append((await reader.readuntil(b"\r\n\r\n")).decode())
        body = json.dumps({"kind": "Service"}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()

    response = asyncio.run(exchange(respond))

    assert (200, b'{"kind": "Service"}') == (response.status, response.content)
    assert received[0].startswith("PATCH /api/v1/services/a?dryRun=All HTTP/1.1\r\n")
    assert "\r\nAuthorization: Bearer secret\r\n" in received[0]
    assert "\r\nContent-Type: application/merge-patch+json\r\n" in received[0]


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 ", b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"])
def test_a_response_that_never_ends_is_cut_at_the_time_limit(start: bytes):
    """Each byte arrives within the time limit of a single read."""

    async def respond(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        while True:
            writer.write(b"a")
            await writer.drain()
            await asyncio.sleep(0.01)

    with pytest.raises(TimeoutError):
        asyncio.run(exchange(respond, timeout_s=0.3))
