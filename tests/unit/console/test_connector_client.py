"""The client polls connectors concurrently, keeps their connections, and bounds the cost of each."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirrorflow_console import connector_client
from mirrorflow_console.connector_client import ConnectorAddress, ConnectorClient, ConnectorRequest
from mirrorflow_console.documents import DocumentError
from tests.harness.kubernetes.authority import Authority

Talk = Callable[[socket.socket], None]
BODY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Connector:
    """Accepts connections on a port of its own, and lets *talk* handle each in a thread."""

    def __init__(self, talk: Talk, tls: ssl.SSLContext | None = None) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._talk, self._tls = talk, tls
        self.port = self._listener.getsockname()[1]
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def request(self, host_name: str = "") -> ConnectorRequest:
        return ConnectorRequest(ConnectorAddress("127.0.0.1", self.port, host_name), "/progress?limit=0")

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with (
                connection
                if self._tls is None
                else self._tls.wrap_socket(connection, server_side=True) as served
            ):
                self._talk(served)
        except OSError:
            return


@contextmanager
def connector(talk: Talk, tls: ssl.SSLContext | None = None) -> Iterator[Connector]:
    served = Connector(talk, tls)
    try:
        yield served
    finally:
        served.close()


@pytest.fixture
def client() -> Iterator[ConnectorClient]:
    opened = ConnectorClient()
    yield opened
    opened.close()


def answering(response: bytes, times: int = 1_000) -> Talk:
    """Returns *response* to each of *times* requests of a connection, and closes it."""

    def talk(connection: socket.socket) -> None:
        for _ in range(times):
            if not connection.recv(65_536):
                return
            connection.sendall(response)

    return talk


def fetched(client: ConnectorClient, *requests: ConnectorRequest) -> dict[int, str]:
    """Returns the body of each request, or why there is none."""
    return {
        index: str(body) if isinstance(body, DocumentError) else body.decode()
        for index, body in client.fetch(requests)
    }


def test_a_connection_serves_several_polls(client):
    with connector(answering(BODY)) as served:
        assert [fetched(client, served.request()) for _ in range(3)] == [{0: "{}"}] * 3
        assert served.connections == 1


def test_a_connection_that_the_connector_closed_is_opened_again(client):
    with connector(answering(BODY, times=1)) as served:
        assert [fetched(client, served.request()) for _ in range(3)] == [{0: "{}"}] * 3
        assert served.connections == 3


def test_requests_above_the_concurrency_limit_all_get_a_response(client):
    with connector(answering(BODY)) as served:
        requests = [served.request()] * (2 * connector_client.REQUESTS_MAX + 1)
        assert fetched(client, *requests) == dict.fromkeys(range(len(requests)), "{}")


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (b"SSH-2.0-OpenSSH_9\r\n", "invalid HTTP response"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            "invalid HTTP response",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", "more than 16 MiB"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{}", "invalid HTTP response"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "HTTP status 404"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 40_000, "invalid HTTP response"),
        (b"", "Connection reset"),
    ],
)
def test_an_invalid_response_is_an_error_only_for_its_connector(client, response, reason):
    with connector(answering(response, times=1)) as broken, connector(answering(BODY)) as served:
        bodies = fetched(client, broken.request(), served.request())

    assert reason in bodies[0]
    assert bodies[1] == "{}"


def test_a_body_without_a_length_ends_with_the_connection(client):
    with connector(answering(b"HTTP/1.0 200 OK\r\n\r\n[1]", times=1)) as served:
        assert fetched(client, served.request()) == {0: "[1]"}


def test_a_body_without_a_length_that_does_not_end_is_given_up(client, monkeypatch):
    """Its connector sends faster than a time limit could help."""
    monkeypatch.setattr(connector_client, "BODY_MAX_BYTES", 100_000)
    sent: list[int] = []

    def send(connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while len(sent) < 10_000:
            connection.sendall(b" " * 10_000)
            sent.append(10_000)

    with connector(send) as served:
        assert "more than 16 MiB" in fetched(client, served.request())[0]
    assert len(sent) < 10_000


def test_a_silent_connector_delays_no_other_one(client, monkeypatch):
    monkeypatch.setattr(connector_client, "SILENCE_MAX_S", 0.5)
    ended = threading.Event()

    def wait_for_end(_: socket.socket) -> None:
        ended.wait(60)

    with connector(wait_for_end) as silent, connector(answering(BODY)) as served:
        results = [*client.fetch([silent.request(), served.request()])]
        ended.set()

    assert results[0] == (1, b"{}")
    assert "does not answer within" in str(results[1][1])


def test_a_connector_that_sends_too_slowly_times_out(client, monkeypatch):
    monkeypatch.setattr(connector_client, "RESPONSE_MAX_S", 0.5)
    ended = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n")
        while not ended.wait(0.05):
            connection.sendall(b" ")

    with connector(drip) as served:
        assert "takes more than" in fetched(client, served.request())[0]
        ended.set()


def test_a_connector_that_was_too_slow_delays_later_polls_for_a_shorter_time(client, monkeypatch):
    """Only after two slow responses; it has the whole time again after a while, and as soon as it has answered."""
    monkeypatch.setattr(connector_client, "LATE_RESPONSE_MAX_S", 0.0)
    monkeypatch.setattr(client, "_response_max_s", 0.5)
    is_slow, dripped = threading.Event(), threading.Event()
    is_slow.set()

    def drip(connection: socket.socket) -> None:
        while connection.recv(65_536):
            if not is_slow.is_set():
                connection.sendall(BODY)
                continue
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n")
            while not dripped.wait(0.05):
                connection.sendall(b" ")

    with connector(drip) as served:
        for limit_s in ("0.5", "0.5", "0", "0"):
            assert f"takes more than {limit_s} s" in fetched(client, served.request())[0]

        dripped.set()
        is_slow.clear()
        monkeypatch.setattr(connector_client, "LATE_RESPONSE_MAX_S", 5.0)
        assert fetched(client, served.request()) == {0: "{}"}
        assert client._late == {}


def test_a_connector_that_is_no_longer_polled_is_forgotten(client, monkeypatch):
    monkeypatch.setattr(connector_client, "SILENCE_MAX_S", 0.1)
    monkeypatch.setattr(connector_client, "LATE_KEPT_S", 0.0)
    ended = threading.Event()

    def wait_for_end(_: socket.socket) -> None:
        ended.wait(60)

    with connector(wait_for_end) as silent, connector(answering(BODY)) as served:
        fetched(client, silent.request())
        assert len(client._late) == 1
        fetched(client, served.request())
        ended.set()

    assert client._late == {}


def test_a_refused_connection_is_an_error(client):
    # A bound port is given to no other process, and nothing listens on this one.
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        request = ConnectorRequest(ConnectorAddress("127.0.0.1", bound.getsockname()[1]), "/")
        assert "refused" in fetched(client, request)[0]


def test_the_name_in_a_certificate_is_verified(client, tmp_path: Path):
    authority = Authority(tmp_path / "ca")
    identity = authority.server("pod", "orders-source.team.svc")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(identity.certificate, identity.key)
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.load_verify_locations(cafile=str(authority.own.certificate))

    with connector(answering(BODY), server) as served:
        named = [*client.fetch([served.request("orders-source.team.svc")], trusting)]
        other = [*client.fetch([served.request("other.team.svc")], trusting)]
        stranger = [*client.fetch([served.request("x.team.svc")], ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))]

    assert named == [(0, b"{}")]
    for (_, error), *_ in (other, stranger):
        assert "TLS certificate verification failed" in str(error)
