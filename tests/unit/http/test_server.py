"""The server over loopback, spoken to in raw bytes; every wait is on a socket and bounded by its time-out."""

import asyncio
import json
import socket
import ssl
from dataclasses import replace

import pytest

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_replicator.http.server import HttpLimits, HttpServer, refuse
from mirrorflow_replicator.http.worker_view import Response
from tests.unit.http.reports import connector, partition, task, view

WAIT_S = 300.0
VIEW = view(connector(task(partition())), ready=True)
GET = b"GET %s HTTP/1.1\r\nHost: h\r\n\r\n"


def run(client, *, state=lambda: VIEW, limits=None, carry_out=refuse):
    """Run *client*(port, server) against a server."""

    async def main():
        server = await HttpServer.start(
            ["http://127.0.0.1:0"], state, limits=limits or HttpLimits(), carry_out=carry_out
        )
        try:
            port = int(server.addresses[0].rpartition(":")[2])
            return await asyncio.wait_for(client(port, server), WAIT_S)
        finally:
            await server.close()

    return asyncio.run(main())


async def receive(reader, *, head=False):
    """One response: status, headers by lower-case name, body."""
    start = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in start[1:] if line)
    body = b""
    if headers.get("transfer-encoding") == "chunked" and not head:
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    elif not head:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return int(start[0].split()[1]), headers, body


def exchange(*pieces, answers=1, head=False, **options):
    """Send *pieces*, each flushed alone, and return the responses; None stands for the server's close."""

    async def client(port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        found = []
        for _ in range(answers):
            try:
                found.append(await receive(reader, head=head))
            except asyncio.IncompleteReadError:
                found.append(None)
        writer.close()
        return found

    return run(client, **options)


def statuses(*pieces, **options):
    return [response and response[0] for response in exchange(*pieces, **options)]


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        (b"/healthz", 200, "application/json"),
        (b"/readyz", 200, "application/json"),
        (b"/progress", 200, "application/json"),
        (b"/progress?connector=none", 404, "application/json"),
        (b"/progress/partitions?limit=1", 200, "application/json"),
        (b"/metrics", 200, "text/plain; version=0.0.4; charset=utf-8"),
        (b"/connectors", 200, "application/json"),
        (b"/nothing", 404, "application/json"),
    ],
)
def test_paths_are_answered(path, status, kind):
    """Our own paths and Connect's."""
    [(found, headers, body)] = exchange(GET % path)

    assert (found, headers["content-type"]) == (status, kind)
    assert body
    if kind == "application/json":
        json.loads(body)


def test_pipelined_requests_are_answered_in_order():
    """Three requests in one segment, three answers on the same connection."""
    paths = [b"/connectors", b"/metrics", b"/"]
    bodies = [body for _, _, body in exchange(b"".join(GET % path for path in paths), answers=3)]

    assert bodies[0] == b'["A->B.source"]'
    assert b"mirrorflow_record_lag" in bodies[1]
    assert json.loads(bodies[2])["version"] == "4.3.1-mirrorflow-1.2.3"


def test_request_may_come_byte_by_byte():
    """A request is what it is however it was cut."""
    request = GET % b"/connectors"

    assert statuses(*(request[at : at + 1] for at in range(len(request)))) == [200]


def test_head_has_headers_only():
    """HEAD is GET without a body, for whole and for streamed answers."""
    head = b"HEAD %s HTTP/1.1\r\nHost: h\r\n\r\n"
    found = exchange(head % b"/connectors" + head % b"/metrics" + head % b"/none", answers=3, head=True)

    assert [status for status, _, _ in found] == [200, 200, 404]
    assert found[0][1]["content-length"] == "15"


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_close_is_honoured(version):
    """After Connection: close, or HTTP/1.0, the server closes when the answer is out."""
    request = b"GET /connectors HTTP/" + version + b"\r\nHost: h\r\nConnection: close\r\n\r\n"

    assert statuses(request, answers=2) == [200, None]


def test_streamed_answer_to_http_1_0_ends_with_the_connection():
    """A client without chunks reads to the end."""

    async def client(port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        text = await reader.read()
        writer.close()
        return text

    assert run(client).endswith(b"\n")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00 TLS\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: x\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: h\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 200_000, 431),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2000000\r\n\r\n" + b"a" * 2_000_000, 413),
        (b"GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"POST /metrics HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n", 405),
        (b"DELETE /connectors/x HTTP/1.1\r\nHost: h\r\n\r\n", 403),
    ],
)
def test_bad_requests_get_connects_error_body(sent, status):
    """A malformed or too large request is rejected with a reason, and the server survives."""
    [(found, _, body)] = exchange(sent)

    assert (found, json.loads(body)["error_code"]) == (status, status)


def test_refused_connection_is_closed():
    """After a protocol error nothing more is read as HTTP."""
    assert statuses(b"nonsense\r\n\r\n" + GET % b"/", answers=2) == [400, None]


def test_expect_continue_is_answered():
    """A client that asks before it sends its body gets 100 Continue."""

    async def client(port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        path = b"/connector-plugins/MirrorSource/config/validate"
        headers = (
            b"Host: h\r\nContent-Type: application/json\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
        )
        writer.write(b"PUT " + path + b" HTTP/1.1\r\n" + headers)
        first = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"{}")
        status, _, _ = await receive(reader)
        writer.close()
        return first, status

    first, status = run(client)
    assert first.startswith(b"HTTP/1.1 100 ")
    assert status == 200


def test_unfinished_request_times_out():
    """An unfinished request gets 408 and is closed; a silent connection is closed."""
    brief = HttpLimits(request_s=0.05, idle_s=0.05)

    assert statuses(b"GET / HT", answers=2, limits=brief) == [408, None]
    assert statuses(answers=1, limits=brief) == [None]


def test_connections_above_the_limit_are_closed():
    """One more than allowed is dropped; when one leaves there is room again."""

    async def client(port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET % b"/healthz")
        first = (await receive(reader))[0]
        other, surplus = await asyncio.open_connection("127.0.0.1", port)
        try:
            dropped = await other.read() == b""
        except ConnectionResetError:
            dropped = True
        surplus.close()
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        await receive(reader)
        await reader.read()
        writer.close()
        again, third = await asyncio.open_connection("127.0.0.1", port)
        third.write(GET % b"/healthz")
        last = (await receive(again))[0]
        third.close()
        return first, dropped, last

    assert run(client, limits=HttpLimits(connections=1)) == (200, True, 200)


def test_client_that_does_not_read_is_dropped():
    """A large answer to a client that takes nothing ends after the write time-out, the others are served."""
    many = view(connector(task(*(partition(n, "t" * 200) for n in range(20_000)))))

    async def client(port, server):
        lazy = socket.socket()
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(lazy, ("127.0.0.1", port))
        await loop.sock_sendall(lazy, GET % b"/metrics")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET % b"/healthz")
        status, _, _ = await receive(reader)
        writer.close()
        while server._connections:
            await asyncio.wait(server._connections)
        lazy.close()
        return status

    assert run(client, state=lambda: many, limits=HttpLimits(write_s=0.05)) == 200


def test_large_answer_arrives_whole():
    """Every partition's line comes over, in chunks."""
    many = view(connector(task(*(partition(n) for n in range(3000)))))
    [(_, headers, body)] = exchange(GET % b"/metrics", state=lambda: many)

    assert headers["transfer-encoding"] == "chunked"
    assert body.count(b"\nmirrorflow_record_lag{") == 3000


def test_ready_stays_ready():
    """A partition that appears later does not take a ready process out of service."""
    states = iter([False, True, False])
    unready = replace(VIEW, ready=False)

    found = statuses(GET % b"/readyz" * 3, answers=3, state=lambda: VIEW if next(states) else unready)
    assert found == [503, 200, 200]


def test_bug_in_an_answer_is_a_500(caplog):
    """The client gets an error, the log has the cause, and connection and server continue."""
    found = statuses(GET % b"/connectors" + GET % b"/healthz", answers=2, state=lambda: 1 / 0)

    assert found == [500, 200]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    "listener",
    ["127.0.0.1:1", "ftp://127.0.0.1:1", "http://127.0.0.1", "http://h:99999", "https://127.0.0.1:0"],
)
def test_wrong_listener_is_refused(listener):
    """A listener that is none, or https without a certificate, is named."""
    with pytest.raises(InvalidSettingError, match="listeners: "):
        asyncio.run(HttpServer.start([listener], lambda: VIEW))


def test_taken_port_is_named_and_nothing_is_left_open():
    """The second of two equal listeners fails, and the first is closed again."""

    async def main():
        first = await HttpServer.start(["http://127.0.0.1:0"], lambda: VIEW)
        with pytest.raises(InvalidSettingError, match="cannot bind http"):
            await HttpServer.start(["http://127.0.0.1:0", first.addresses[0]], lambda: VIEW)
        await first.close()

    asyncio.run(main())


def test_https_listener_speaks_tls(certificate):
    """Two listeners at once, one of them with the TLS context that was given."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(certificate)
    client_context = ssl.create_default_context(cafile=certificate)

    async def main():
        server = await HttpServer.start(
            ["http://127.0.0.1:0", "https://127.0.0.1:0"], lambda: VIEW, tls=server_context
        )
        port = int(server.addresses[1].rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_context)
        writer.write(GET % b"/connectors")
        status, _, _ = await asyncio.wait_for(receive(reader), WAIT_S)
        writer.close()
        await server.close()
        return server.addresses[1].partition(":")[0], status

    assert asyncio.run(main()) == ("https", 200)


@pytest.fixture
def certificate(tmp_path):
    """A key and a self-signed certificate of 127.0.0.1 in one PEM file."""
    import datetime as dt
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "both.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path


def test_answers_without_a_body_name_no_media_type():
    """As Jetty; HTTP forbids 204 even the length."""

    async def carry_out(_command, request):
        return Response(status=204 if request.method == "DELETE" else 202)

    def of(method):
        state = replace(VIEW, modify_enabled=True, takes_changes=True)
        request = b"%s /connectors/a%s HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"
        path = b"" if method == b"DELETE" else b"/pause"
        [(status, headers, _)] = exchange(request % (method, path), state=lambda: state, carry_out=carry_out)
        return status, headers.get("content-type"), headers.get("content-length")

    assert [(204, None, None), (202, None, "0")] == [of(b"DELETE"), of(b"PUT")]


def test_locations_are_absolute():
    """As Java's: with the host that the client asked, whatever it is called here."""

    async def carry_out(*_):
        return Response(status=201, headers=(("Location", "/connectors/a"),), body=b"{}")

    state = replace(VIEW, modify_enabled=True, takes_changes=True)
    request = (
        b"PUT /connectors/a/config HTTP/1.1\r\nHost: mirror.example:81\r\n"
        b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    )
    [(_, headers, _)] = exchange(request, state=lambda: state, carry_out=carry_out)

    assert "http://mirror.example:81/connectors/a" == headers["location"]
