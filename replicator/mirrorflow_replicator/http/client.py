"""Sends one HTTP request to another node of the group, with h11 over asyncio, bounded in time and size.

It never retries: the caller knows which calls are safe to repeat.
"""

import asyncio
import ssl
from collections.abc import Sequence
from urllib.parse import urlsplit

import h11

from mirrorflow_core.connect.rest_calls import NO_SIGNATURE, Signature
from mirrorflow_core.errors import UnreachableError
from mirrorflow_kafka.security.tls import certificate_name
from mirrorflow_replicator.http.worker_view import ALGORITHM_HEADER, JSON, SIGNATURE_HEADER, Response

CONNECT_S = 5.0  # for a node of the same cluster; the caller retries one that is gone
ANSWER_BYTES_MAX = 16 << 20  # all stored offsets of a flow; nothing else comes near
READ_BYTES = 64 * 1024


async def call(
    url: str,
    method: str,
    target: str,
    *,
    body: bytes = b"",
    content_type: str = JSON,
    signature: Signature = NO_SIGNATURE,
    tls: ssl.SSLContext | None = None,
    server_name: str = "",
    timeout_s: float,
) -> Response:
    """Returns the response of the node at *url*. *target* is path and query as they are sent.

    *server_name* is the name that its certificate must be for, "" for the host of *url*. Raises
    UnreachableError.
    """
    parts = urlsplit(url)
    secure = tls if parts.scheme == "https" else None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    headers = [("Host", parts.netloc), ("Accept", JSON), ("Connection", "close")]
    if body:
        headers.append(("Content-Type", content_type))
    if method != "GET":
        headers.append(("Content-Length", str(len(body))))
    if signature.mac:
        headers += [(SIGNATURE_HEADER, signature.mac), (ALGORITHM_HEADER, signature.algorithm)]
    try:
        async with asyncio.timeout(CONNECT_S):
            name = certificate_name(server_name or parts.hostname) if secure else None
            reader, writer = await asyncio.open_connection(
                parts.hostname, port, ssl=secure, server_hostname=name
            )
    except (TimeoutError, OSError) as error:
        raise _unreachable(url, str(error) or "no answer") from error
    try:
        async with asyncio.timeout(timeout_s):
            return await _exchange(reader, writer, method, target, headers, body)
    except (TimeoutError, OSError, h11.ProtocolError) as error:
        raise _unreachable(url, str(error) or f"no answer within {timeout_s:g} s") from error
    finally:
        writer.transport.abort()


async def _exchange(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    method: str,
    target: str,
    headers: Sequence[tuple[str, str]],
    body: bytes,
) -> Response:
    client = h11.Connection(h11.CLIENT)
    writer.write(client.send(h11.Request(method=method, target=target, headers=list(headers))) or b"")
    if body:
        writer.write(client.send(h11.Data(data=body)) or b"")
    writer.write(client.send(h11.EndOfMessage()) or b"")
    await writer.drain()
    status, content_type, passed_on, answer = 0, JSON, [], bytearray()
    while True:
        event = client.next_event()
        if event is h11.NEED_DATA:
            client.receive_data(await reader.read(READ_BYTES))
        elif isinstance(event, h11.Response):
            status = event.status_code
            for name, value in event.headers:
                if name == b"content-type":
                    content_type = value.decode("latin-1")
                if name == b"location":
                    # Without the other node's address: the client called this node.
                    there = urlsplit(value.decode("latin-1"))
                    passed_on.append(("Location", there._replace(scheme="", netloc="").geturl()))
        elif isinstance(event, h11.Data):
            answer += event.data
            if len(answer) > ANSWER_BYTES_MAX:
                message = f"an answer of more than {ANSWER_BYTES_MAX} bytes"
                raise h11.RemoteProtocolError(message)
        elif isinstance(event, h11.EndOfMessage):
            return Response(
                status=status, content_type=content_type, headers=tuple(passed_on), body=bytes(answer)
            )
        elif isinstance(event, h11.ConnectionClosed):
            message = "it closed the connection"
            raise h11.RemoteProtocolError(message)


def _unreachable(url: str, problem: str) -> UnreachableError:
    return UnreachableError(cluster="the group's own workers", addresses=url, problem=problem)
