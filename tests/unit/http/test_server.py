"""The HTTP server over loopback, with requests as raw bytes."""

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
    """Runs *client*(port, server) with a running server."""

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
    """Reads one response. Returns the status, the headers by lowercase name, and the body."""
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


def exchange(*chunks, responses=1, head=False, **options):
    """Sends each of *chunks* separately and returns the responses. None means that the server closed the connection."""

    async def client(port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for chunk in chunks:
            writer.write(chunk)
            await writer.drain()
            await asyncio.sleep(0)
        received = []
        for _ in range(responses):
            try:
                received.append(await receive(reader, head=head))
            except asyncio.IncompleteReadError:
                received.append(None)
        writer.close()
        return received

    return run(client, **options)


def statuses(*chunks, **options):
    return [response and response[0] for response in exchange(*chunks, **options)]


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
def test_each_path_has_its_status_and_content_type(path, status, kind):
    [(actual, headers, body)] = exchange(GET % path)

    assert (actual, headers["content-type"]) == (status, kind)
    assert body
    if kind == "application/json":
        json.loads(body)


def test_pipelined_requests_get_their_responses_in_order():
    """Three requests in one segment get three responses on the same connection."""
    paths = [b"/connectors", b"/metrics", b"/"]
    bodies = [body for _, _, body in exchange(b"".join(GET % path for path in paths), responses=3)]

    assert bodies[0] == b'["A->B.source"]'
    assert b"mirrorflow_record_lag" in bodies[1]
    assert json.loads(bodies[2])["version"] == "4.3.1-mirrorflow-1.2.3"


def test_a_request_may_arrive_byte_by_byte():
    request = GET % b"/connectors"

    assert statuses(*(request[index : index + 1] for index in range(len(request)))) == [200]


def test_the_response_to_head_has_only_headers():
    """This holds for responses with a length and for chunked ones."""
    head = b"HEAD %s HTTP/1.1\r\nHost: h\r\n\r\n"
    received = exchange(head % b"/connectors" + head % b"/metrics" + head % b"/none", responses=3, head=True)

    assert [status for status, _, _ in received] == [200, 200, 404]
    assert received[0][1]["content-length"] == "15"


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_the_server_closes_the_connection_after_connection_close(version):
    """The same holds for requests with HTTP/1.0."""
    request = b"GET /connectors HTTP/" + version + b"\r\nHost: h\r\nConnection: close\r\n\r\n"

    assert statuses(request, responses=2) == [200, None]


def test_a_streamed_response_to_http_1_0_ends_with_the_connection():
    """HTTP/1.0 has no chunked encoding."""

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
def test_invalid_requests_have_the_error_body_of_connect(sent, status):
    [(actual, _, body)] = exchange(sent)

    assert (actual, json.loads(body)["error_code"]) == (status, status)


def test_the_connection_is_closed_after_a_protocol_error():
    assert statuses(b"nonsense\r\n\r\n" + GET % b"/", responses=2) == [400, None]


def test_a_request_with_expect_continue_gets_100_continue():
    """The client sends its body only after that."""

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


def test_the_task_configs_of_many_partitions_fit_into_a_call_of_another_node():
    """30,000 partitions with long names have more than the usual limit. Java's server has none."""
    names = ",".join(f"{'topic' * 12}-{number}" for number in range(30_000))
    tasks = json.dumps([{"task.assigned.partitions": names}]).encode()
    head = b"%s HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    received = []

    async def carry_out(_, request):
        received.append(request.body)
        return Response(status=204)

    state = lambda: replace(VIEW, takes_calls=True, takes_changes=True)  # noqa: E731
    post = head % (b"POST /connectors/a/tasks", len(tasks)) + tasks
    put = head % (b"PUT /connectors/a/config", len(tasks)) + tasks

    assert len(tasks) > HttpLimits().body_bytes
    assert [204, 204] == statuses(post + post, responses=2, state=state, carry_out=carry_out)
    assert [tasks, tasks] == received
    assert [413] == statuses(put, state=state, carry_out=carry_out)


def test_one_large_body_is_read_at_a_time():
    """A client that does not finish its own delays that of another one, and no small request."""
    state = lambda: replace(VIEW, takes_changes=True, modify_enabled=True)  # noqa: E731
    head = b"POST /connectors/a/tasks HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n"

    async def client(port, _):
        _, unfinished = await asyncio.open_connection("127.0.0.1", port)
        unfinished.write(head + b"x" * 50)
        await unfinished.drain()
        small, small_writer = await asyncio.open_connection("127.0.0.1", port)
        waiting, waiting_writer = await asyncio.open_connection("127.0.0.1", port)
        waiting_writer.write(head + b"x" * 100)
        answered = asyncio.create_task(receive(waiting))
        for _ in range(10):
            small_writer.write(GET % b"/healthz")
            await receive(small)
        was_answered = answered.done()
        unfinished.close()
        status = (await answered)[0]
        small_writer.close()
        waiting_writer.close()
        return was_answered, status

    # Without a signature the call is refused, once its body was read.
    assert (False, 400) == run(client, limits=HttpLimits(body_bytes=10), state=state)


def test_an_unfinished_request_times_out_with_408():
    """A connection without a request is closed without a response."""
    brief = HttpLimits(request_s=0.05, idle_s=0.05)

    assert statuses(b"GET / HT", responses=2, limits=brief) == [408, None]
    assert statuses(responses=1, limits=brief) == [None]


def test_connections_above_the_limit_are_closed():
    """A new connection is accepted after another one has ended."""

    async def client(port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET % b"/healthz")
        first = (await receive(reader))[0]
        second, second_writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            is_closed = await second.read() == b""
        except ConnectionResetError:
            is_closed = True
        second_writer.close()
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        await receive(reader)
        await reader.read()
        writer.close()
        third, third_writer = await asyncio.open_connection("127.0.0.1", port)
        third_writer.write(GET % b"/healthz")
        last = (await receive(third))[0]
        third_writer.close()
        return first, is_closed, last

    assert run(client, limits=HttpLimits(connections=1)) == (200, True, 200)


def test_a_client_that_does_not_read_is_disconnected():
    """Sending a large response to it ends at the write timeout. Meanwhile, other clients are served."""
    many = view(connector(task(*(partition(n, "t" * 200) for n in range(20_000)))))

    async def client(port, server):
        not_reading = socket.socket()
        not_reading.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        not_reading.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(not_reading, ("127.0.0.1", port))
        await loop.sock_sendall(not_reading, GET % b"/metrics")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET % b"/healthz")
        status, _, _ = await receive(reader)
        writer.close()
        while server._connections:
            await asyncio.wait(server._connections)
        not_reading.close()
        return status

    assert run(client, state=lambda: many, limits=HttpLimits(write_s=0.05)) == 200


def test_a_large_response_arrives_completely_in_chunks():
    many = view(connector(task(*(partition(n) for n in range(3000)))))
    [(_, headers, body)] = exchange(GET % b"/metrics", state=lambda: many)

    assert headers["transfer-encoding"] == "chunked"
    assert body.count(b"\nmirrorflow_record_lag{") == 3000


def test_a_ready_process_stays_ready_when_it_gets_a_new_partition():
    """A new partition does not make a ready process unready."""
    states = iter([False, True, False])
    not_ready = replace(VIEW, ready=False)

    received = statuses(GET % b"/readyz" * 3, responses=3, state=lambda: VIEW if next(states) else not_ready)
    assert received == [503, 200, 200]


def test_an_unexpected_error_is_a_500_and_logged(caplog):
    """The connection stays open."""
    received = statuses(GET % b"/connectors" + GET % b"/healthz", responses=2, state=lambda: 1 / 0)

    assert received == [500, 200]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    "listener",
    ["127.0.0.1:1", "ftp://127.0.0.1:1", "http://127.0.0.1", "http://h:99999", "https://127.0.0.1:0"],
)
def test_an_invalid_listener_is_refused(listener):
    """The address is invalid, or an https listener has no certificate."""
    with pytest.raises(InvalidSettingError, match="listeners: "):
        asyncio.run(HttpServer.start([listener], lambda: VIEW))


def test_a_port_in_use_is_an_error_and_closes_other_listeners():
    """The second of two listeners cannot be bound."""

    async def main():
        first = await HttpServer.start(["http://127.0.0.1:0"], lambda: VIEW)
        with pytest.raises(InvalidSettingError, match="cannot bind http"):
            await HttpServer.start(["http://127.0.0.1:0", first.addresses[0]], lambda: VIEW)
        await first.close()

    asyncio.run(main())


def test_an_https_listener_uses_tls(certificate):
    """The other listener of the server is plain HTTP."""
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
    certificate = (
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
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path


def test_responses_without_a_body_have_no_content_type():
    """Jetty omits it too. A response with 204 may not have a Content-Length either."""

    async def carry_out(_command, request):
        return Response(status=204 if request.method == "DELETE" else 202)

    def headers_of(method):
        state = replace(VIEW, modify_enabled=True, takes_changes=True)
        request = b"%s /connectors/a%s HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"
        path = b"" if method == b"DELETE" else b"/pause"
        [(status, headers, _)] = exchange(request % (method, path), state=lambda: state, carry_out=carry_out)
        return status, headers.get("content-type"), headers.get("content-length")

    assert [(204, None, None), (202, None, "0")] == [headers_of(b"DELETE"), headers_of(b"PUT")]


def test_the_location_header_is_absolute():
    """As in Java, it has the host of the request."""

    async def carry_out(*_):
        return Response(status=201, headers=(("Location", "/connectors/a"),), body=b"{}")

    state = replace(VIEW, modify_enabled=True, takes_changes=True)
    request = (
        b"PUT /connectors/a/config HTTP/1.1\r\nHost: mirror.example:81\r\n"
        b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    )
    [(_, headers, _)] = exchange(request, state=lambda: state, carry_out=carry_out)

    assert "http://mirror.example:81/connectors/a" == headers["location"]
