"""Sends one HTTP POST to a token endpoint, with limits on time and size, using h11 over asyncio.

Redirects are not followed, because they would send the secret elsewhere. `token_endpoint` builds the request
and interprets the response.
"""

import asyncio
import ssl
from urllib.parse import urlsplit

from mirrorflow_kafka.security.tls import certificate_name
from mirrorflow_kafka.security.tokens import TOKEN_BYTES_MAX, TokenError

Request = tuple[str, list[tuple[str, str]], bytes]  # target, headers, body


async def post(
    url: str,
    request: Request,
    *,
    place: str,
    context: ssl.SSLContext | None,
    connect_timeout_s: float,
    read_timeout_s: float,
) -> tuple[int, bytes]:
    """Send *request* to *url*; return status and body.

    Raises TokenError, which shows *place* instead of the URL.
    """
    parts = urlsplit(url)
    tls = context if parts.scheme == "https" else None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(connect_timeout_s):
            reader, writer = await asyncio.open_connection(
                parts.hostname,
                port,
                ssl=tls,
                server_hostname=certificate_name(parts.hostname) if tls else None,
            )
    except TimeoutError:
        raise TokenError(f"{place} does not answer within {connect_timeout_s:g} s", final=False) from None
    except ssl.SSLCertVerificationError as error:
        raise TokenError(f"the certificate of {place} is not accepted ({error.verify_message})") from None
    except OSError as error:
        problem = error.strerror or type(error).__name__
        raise TokenError(f"{place} cannot be reached ({problem})", final=False) from None
    try:
        async with asyncio.timeout(read_timeout_s):
            return await _exchange(reader, writer, request, place)
    except TimeoutError:
        raise TokenError(f"{place} does not answer within {read_timeout_s:g} s", final=False) from None
    except OSError:
        raise TokenError(f"{place} closed the connection", final=False) from None
    finally:
        writer.transport.abort()


async def _exchange(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    request: Request,
    place: str,
) -> tuple[int, bytes]:
    """Send one POST and read the whole response."""
    import h11  # noqa: PLC0415 - only for this kind of token

    target, headers, body = request
    client = h11.Connection(h11.CLIENT)
    status, answer = 0, bytearray()
    try:
        for event in (
            h11.Request(method="POST", target=target, headers=headers),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            writer.write(client.send(event) or b"")
        await writer.drain()
        while True:
            heard = client.next_event()
            if heard is h11.NEED_DATA:
                client.receive_data(await reader.read(65536))
            elif isinstance(heard, h11.Response):
                status = heard.status_code
            elif isinstance(heard, h11.Data):
                answer += heard.data
                if len(answer) > TOKEN_BYTES_MAX:
                    raise TokenError(f"{place} answers with more than {TOKEN_BYTES_MAX} bytes")
            elif isinstance(heard, h11.EndOfMessage):
                return status, bytes(answer)
            elif isinstance(heard, h11.ConnectionClosed):
                raise TokenError(f"{place} closed the connection", final=False)
    except h11.ProtocolError:
        raise TokenError(
            f"{place} does not speak HTTP, or a credential holds characters that HTTP refuses", final=False
        ) from None
