"""A connection keeps the order of requests, and each request gets a response or an error."""

import asyncio
import itertools
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeResponse

from mirrorflow_core.errors import (
    AuthenticationFailedError,
    ConnectionLostError,
    UnreachableError,
    UnsupportedBrokerError,
)
from mirrorflow_kafka.client import frames as frames_module
from mirrorflow_kafka.client.connection import Connection
from mirrorflow_kafka.client.frames import ARRIVING_BYTES_MIN, FRAME_BYTES_MAX, FrameProtocol
from mirrorflow_kafka.client.pool import connect_problem, open_connection
from tests.unit.kafka.scripted import Broker, scripted

BOUND_S = 300.0


def run(body: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(BOUND_S):
            await body

    asyncio.run(bounded())


class PlainCredentials:
    """PLAIN credentials that count their authentications."""

    ssl_context = None

    def __init__(self) -> None:
        self.authentications = 0
        self.reauthenticated = asyncio.Event()

    async def prepare(self, address: str) -> None:
        pass

    def sasl_client(self, address: str) -> "PlainCredentials":
        self.authentications += 1
        if self.authentications > 1:
            self.reauthenticated.set()
        return self

    mechanism = "PLAIN"

    async def first(self) -> bytes:
        return b"\0me\0secret"

    def receive(self, challenge: bytes) -> bytes | None:
        return None

    def refused(self, problem: str) -> str:
        return problem


async def connect(port: int, security: Any = None, **more: Any) -> Connection:
    return await open_connection(
        "127.0.0.1", port, client_id="tester", security=security, cluster="east", timeout_s=5, **more
    )


def run_with_broker(
    script: Callable[[Broker], Awaitable[None]],
    test: Callable[[Connection], Awaitable[None]],
    security: PlainCredentials | None = None,
) -> None:
    """Runs *test* with a connection to a broker that runs *script*."""

    async def connect_and_test() -> None:
        async with scripted(script) as port:
            connection = await connect(port, security)
            try:
                await test(connection)
            finally:
                connection.close()

    run(connect_and_test())


def new_protocol(on_frame: Callable[[memoryview], None]) -> FrameProtocol:
    return FrameProtocol(on_frame=on_frame, on_lost=lambda _: None, on_writable=lambda: None)


@given(
    bodies=st.lists(st.binary(min_size=4, max_size=40), min_size=1, max_size=5),
    cuts=st.lists(st.integers(min_value=1, max_value=9), min_size=1, max_size=8),
)
def test_frames_do_not_depend_on_how_bytes_arrive(bodies: list[bytes], cuts: list[int]) -> None:
    """For any division of the stream into reads, each body is returned once and in order."""
    frames: list[bytes] = []
    protocol = new_protocol(lambda frame: frames.append(bytes(frame)))
    stream = b"".join(struct.pack(">i", len(body)) + body for body in bodies)

    position = turn = 0
    while position < len(stream):
        buffer = protocol.get_buffer(-1)
        taken = min(cuts[turn % len(cuts)], len(buffer), len(stream) - position)
        buffer[:taken] = stream[position : position + taken]
        protocol.buffer_updated(taken)
        position += taken
        turn += 1

    assert bodies == frames


def test_a_large_frame_that_arrives_byte_by_byte_does_not_extend_its_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a peer that sends one byte at a time would delay a request forever."""
    clock = itertools.count(1.0)
    monkeypatch.setattr(frames_module, "monotonic", lambda: next(clock))
    protocol = new_protocol(lambda _: None)

    def receive(data: bytes) -> float:
        buffer = protocol.get_buffer(-1)
        buffer[: len(data)] = data
        protocol.buffer_updated(len(data))
        return protocol.arriving_s

    began_s = receive(struct.pack(">i", 1 << 20) + b"x")

    assert {began_s} == {receive(b"x") for _ in range(1_000)}
    assert began_s < receive(bytes(ARRIVING_BYTES_MIN)) < receive(bytes(ARRIVING_BYTES_MIN))


def test_a_writer_is_called_after_the_write_that_has_made_room() -> None:
    """The transport resumes writing during a write. Data written at that time would overtake the rest."""
    called: list[str] = []

    async def test() -> None:
        protocol = FrameProtocol(
            on_frame=lambda _: None, on_lost=lambda _: None, on_writable=lambda: called.append("writer")
        )
        protocol.pause_writing()
        protocol.resume_writing()
        called.append("transport")
        await asyncio.sleep(0)

    run(test())

    assert called == ["transport", "writer"]


def test_pipelined_responses_are_matched_to_their_requests() -> None:
    """Three requests in flight get their responses in one burst. Each gets its response as a writable view."""

    async def script(broker: Broker) -> None:
        await broker.respond_to_api_versions()
        requests = [await broker.next() for _ in range(3)]
        await broker.send(b"".join(request.response(request.body[::-1]) for request in requests))
        await broker.next()

    async def test(connection: Connection) -> None:
        responses = [
            connection.send(0, 8, (b"ab", bytearray(text)), flexible=False) for text in (b"1", b"2", b"3")
        ]
        views = await asyncio.gather(*responses)
        assert [bytes(view) for view in views] == [b"1ba", b"2ba", b"3ba"]
        assert [view.readonly for view in views] == [False] * 3

    run_with_broker(script, test)


def test_a_large_response_in_pieces_is_received_completely_and_a_small_one_after_it_at_once() -> None:
    """The receive low-water mark of a large body must not delay its last bytes or the next response."""
    large = bytes(range(256)) * 12_000  # 3 MB

    async def script(broker: Broker) -> None:
        await broker.respond_to_api_versions()
        first, second = await broker.next(), await broker.next()
        frame = first.response(large)
        for begin, end in ((0, 40), (40, 600_000), (600_000, len(frame) - 1)):
            await broker.send(frame[begin:end])
        await broker.next()  # the rest is sent after the test has checked that there is no response yet
        await broker.send(frame[-1:] + second.response(b"small"))
        await broker.next()

    async def test(connection: Connection) -> None:
        responses = [connection.send(1, 11, (b"x",), flexible=False) for _ in range(2)]
        assert not responses[0].done()
        connection.send(1, 11, (b"go on",), flexible=False)
        assert [large, b"small"] == [bytes(view) for view in await asyncio.gather(*responses)]

    run_with_broker(script, test)


def test_flexible_headers_are_written_and_parsed() -> None:
    """Request header 2 has tagged fields after the client id, and response header 1 before the body."""

    async def script(broker: Broker) -> None:
        await broker.respond_to_api_versions()
        request = await broker.next()
        assert request.body == b"\x00body"
        await broker.send(request.response(b"content", flexible=True))
        await broker.next()

    async def test(connection: Connection) -> None:
        assert bytes(await connection.send(1, 12, (b"body",), flexible=True)) == b"content"

    run_with_broker(script, test)


def test_a_lost_connection_fails_all_requests_without_a_response() -> None:
    """Each pending request fails, and `lost` has the error."""

    async def script(broker: Broker) -> None:
        await broker.respond_to_api_versions()
        await broker.next()

    async def test(connection: Connection) -> None:
        responses = [connection.send(0, 8, (b"x",), flexible=False) for _ in range(3)]
        for response in responses:
            with pytest.raises(ConnectionLostError):
                await response
        assert isinstance(await connection.lost, ConnectionLostError)
        assert not connection.is_open
        with pytest.raises(ConnectionLostError):
            await connection.send(0, 8, (b"x",), flexible=False)

    run_with_broker(script, test)


def test_a_missing_response_closes_the_connection_after_the_timeout() -> None:
    """The oldest request counts, so that a frozen broker is detected although its socket stays open."""

    async def script(broker: Broker) -> None:
        while True:
            await broker.next()

    async def test() -> None:
        async with scripted(script) as port:
            connection = Connection(
                cluster="east", address="here", node_id=1, client_id="x", response_timeout_s=0.05
            )
            await asyncio.get_running_loop().create_connection(lambda: connection.frames, "127.0.0.1", port)
            with pytest.raises(ConnectionLostError, match=r"not answered for 0\.05 s"):
                await connection.send(0, 8, (b"x",), flexible=False)

    run(test())


def test_the_response_timeout_is_extended_by_the_throttle_time() -> None:
    """A broker does not read during the throttle time, so a response may take that much longer."""

    async def script(broker: Broker) -> None:
        request = await broker.next()
        await asyncio.sleep(0.2)  # four times the timeout
        await broker.send(request.response(b"late"))
        await broker.next()

    async def test() -> None:
        async with scripted(script) as port:
            connection = Connection(
                cluster="east", address="here", node_id=1, client_id="x", response_timeout_s=0.05
            )
            await asyncio.get_running_loop().create_connection(lambda: connection.frames, "127.0.0.1", port)
            unanswered = connection.send(0, 8, (b"x",), flexible=False)
            connection.throttled(10_000)
            assert b"late" == bytes(await unanswered)
            connection.close()

    run(test())


def test_the_response_timeout_is_extended_by_transit_times_on_a_slow_link() -> None:
    """The request has a long expected transit time, and the response arrives in pieces."""
    large = bytes(3_000_000)

    async def script(broker: Broker) -> None:
        request = await broker.next()
        await asyncio.sleep(0.4)  # twice the timeout
        frame = request.response(large)
        for begin in range(0, len(frame), 600_000):
            await broker.send(frame[begin : begin + 600_000])
            await asyncio.sleep(0.1)
        await broker.next()

    async def test() -> None:
        async with scripted(script) as port:
            connection = Connection(
                cluster="east", address="here", node_id=1, client_id="x", response_timeout_s=0.2
            )
            await asyncio.get_running_loop().create_connection(lambda: connection.frames, "127.0.0.1", port)
            unanswered = asyncio.get_running_loop().create_future()
            connection.send_for(unanswered, 0, 8, (b"x",), flexible=False, transit_s=0.3)
            assert large == bytes(await unanswered)
            connection.close()

    run(test())


@pytest.mark.parametrize("is_pipelined", [True, False])
def test_a_long_transit_time_does_not_extend_the_timeout_of_later_requests(*, is_pipelined: bool) -> None:
    """The first request may take 1000 s and is answered at once; then the broker freezes."""

    async def script(broker: Broker) -> None:
        first = await broker.next()
        if is_pipelined:
            await broker.next()
        await broker.send(first.response(b""))
        while True:
            await broker.next()

    async def test() -> None:
        async with scripted(script) as port:
            connection = Connection(
                cluster="east", address="here", node_id=1, client_id="x", response_timeout_s=0.05
            )
            await asyncio.get_running_loop().create_connection(lambda: connection.frames, "127.0.0.1", port)
            answered = asyncio.get_running_loop().create_future()
            connection.send_for(answered, 0, 8, (b"x",), flexible=False, transit_s=1_000)
            if not is_pipelined:
                await answered
            with pytest.raises(ConnectionLostError, match=r"not answered for 0\.05 s"):
                await connection.send(0, 8, (b"x",), flexible=False)
            assert answered.result() == b""

    run(test())


def test_an_incomplete_response_closes_the_connection_after_the_timeout() -> None:
    async def script(broker: Broker) -> None:
        request = await broker.next()
        await broker.send(request.response(bytes(100_000))[:50_000])
        await broker.next()

    async def test() -> None:
        async with scripted(script) as port:
            connection = Connection(
                cluster="east", address="here", node_id=1, client_id="x", response_timeout_s=0.05
            )
            await asyncio.get_running_loop().create_connection(lambda: connection.frames, "127.0.0.1", port)
            with pytest.raises(ConnectionLostError, match="not answered"):
                await connection.send(0, 8, (b"x",), flexible=False)

    run(test())


def test_a_response_with_an_unexpected_correlation_id_closes_the_connection() -> None:
    """Otherwise a partition could get the response of another one."""

    async def script(broker: Broker) -> None:
        await broker.respond_to_api_versions()
        first, second = await broker.next(), await broker.next()
        await broker.send(second.response(b"") + first.response(b""))
        await broker.next()

    async def test(connection: Connection) -> None:
        responses = [connection.send(0, 8, (b"x",), flexible=False) for _ in range(2)]
        results = await asyncio.gather(*responses, return_exceptions=True)
        assert [ConnectionLostError] * 2 == [type(result) for result in results]

    run_with_broker(script, test)


@pytest.mark.parametrize("header", [b"", b"\x01", b"\x01\x00\x05ab"], ids=["none", "no tag", "a cut tag"])
def test_a_truncated_header_of_a_response_closes_the_connection(header: bytes) -> None:
    """Its request fails, as all others do."""

    async def script(broker: Broker) -> None:
        await broker.respond_to_api_versions()
        first, _ = await broker.next(), await broker.next()
        await broker.send(first.response(header))
        await broker.next()

    async def test(connection: Connection) -> None:
        responses = [connection.send(1, 12, (b"x",), flexible=True) for _ in range(2)]
        for result in await asyncio.gather(*responses, return_exceptions=True):
            assert isinstance(result, ConnectionLostError)
            assert result.problem == "the header of its response cannot be read"

    run_with_broker(script, test)


@pytest.mark.parametrize("size", [-1, 3, FRAME_BYTES_MAX + 1])
def test_an_impossible_frame_size_closes_the_connection(size: int) -> None:
    """No memory is allocated for it."""

    async def script(broker: Broker) -> None:
        await broker.respond_to_api_versions()
        await broker.send(struct.pack(">i", size))
        await broker.next()

    async def test(connection: Connection) -> None:
        with pytest.raises(ConnectionLostError, match=f"frame of {size} bytes"):
            raise await connection.lost

    run_with_broker(script, test)


def test_a_plaintext_connection_to_a_tls_listener_is_reported() -> None:
    """The client recognizes the TLS alert."""

    async def script(broker: Broker) -> None:
        await broker.next()
        await broker.send(bytes.fromhex("15030300020250"))
        await broker.next()

    async def test() -> None:
        async with scripted(script) as port:
            with pytest.raises(UnreachableError, match="speaks TLS"):
                await connect(port)

    run(test())


@pytest.mark.parametrize("has_versions", [True, False])
def test_the_api_versions_request_falls_back_to_a_supported_version(has_versions: bool) -> None:  # noqa: FBT001
    """The UNSUPPORTED_VERSION response has version 0, with or without the supported versions."""
    requested_versions: list[int] = []

    async def script(broker: Broker) -> None:
        first = await broker.next()
        requested_versions.append(first.version)
        refusal = (
            struct.pack(">hi", 35, 1) + struct.pack(">hhh", 18, 0, 2)
            if has_versions
            else struct.pack(">hi", 35, 0)
        )
        await broker.send(first.response(refusal))
        requested_versions.append((await broker.respond_to_api_versions()).version)
        await broker.next()

    async def test(connection: Connection) -> None:
        assert connection.versions[3] == (0, 13)
        assert [2 if has_versions else 0] == requested_versions[1:]

    run_with_broker(script, test)


def test_a_call_uses_the_highest_common_version() -> None:
    """The response is decoded with the same version."""

    async def script(broker: Broker) -> None:
        await broker.respond_to_api_versions()
        request = await broker.next()
        assert (request.api_key, request.version) == (3, 13)
        body = MetadataResponse(cluster_id="abc", brokers=[], topics=[]).encode(version=13)
        await broker.send(request.response(bytes(body), flexible=True))
        await broker.next()

    async def test(connection: Connection) -> None:
        assert (await connection.call(MetadataRequest(topics=[]))).cluster_id == "abc"
        with pytest.raises(UnsupportedBrokerError):
            await connection.call(MetadataRequest(topics=[], min_version=14))

    run_with_broker(script, test)


async def _sasl(broker: Broker, *, error: int = 0, message: str | None = None, lifetime_ms: int = 0) -> bytes:
    handshake = await broker.next()
    assert (handshake.api_key, handshake.version) == (17, 1)
    await broker.send(
        handshake.response(bytes(SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN"]).encode(version=1)))
    )
    request = await broker.next()
    response = SaslAuthenticateResponse(
        error_code=error, error_message=message, auth_bytes=b"", session_lifetime_ms=lifetime_ms
    )
    await broker.send(request.response(bytes(response.encode(version=2)), flexible=True))
    return bytes(SaslAuthenticateRequest.decode(request.body[1:], version=2).auth_bytes)


def test_sasl_sends_the_token_in_kafka_requests() -> None:
    """SaslHandshake 1 and SaslAuthenticate 2 contain the bytes of the mechanism."""
    tokens: list[bytes] = []

    async def script(broker: Broker) -> None:
        await broker.respond_to_api_versions()
        tokens.append(await _sasl(broker))
        await broker.next()

    async def test(connection: Connection) -> None:
        assert connection.is_open
        assert tokens == [b"\0me\0secret"]

    run_with_broker(script, test, PlainCredentials())


def test_an_authentication_error_has_the_broker_message() -> None:
    """It does not show the token."""

    async def script(broker: Broker) -> None:
        await broker.respond_to_api_versions()
        await _sasl(broker, error=58, message="Authentication failed: Invalid username or password")

    async def test() -> None:
        async with scripted(script) as port:
            with pytest.raises(AuthenticationFailedError, match="Invalid username") as caught:
                await connect(port, PlainCredentials())
            assert "secret" not in str(caught.value)

    run(test())


@pytest.mark.parametrize(
    ("error", "problem"),
    [(34, "the listener does not use SASL, as security.protocol does"), (35, "UNSUPPORTED_VERSION")],
)
def test_a_refused_sasl_handshake_is_explained(error: int, problem: str) -> None:
    """A listener without SASL responds with ILLEGAL_SASL_STATE."""

    async def script(broker: Broker) -> None:
        await broker.respond_to_api_versions()
        handshake = await broker.next()
        response = SaslHandshakeResponse(error_code=error, mechanisms=[])
        await broker.send(handshake.response(bytes(response.encode(version=1))))

    async def test() -> None:
        async with scripted(script) as port:
            with pytest.raises(AuthenticationFailedError, match=problem):
                await connect(port, PlainCredentials())

    run(test())


def test_requests_wait_for_reauthentication_and_keep_their_order() -> None:
    """SASL runs again before the session expires; requests during it are sent afterwards, in order (KIP-368)."""
    bodies: list[bytes] = []

    async def script(broker: Broker) -> None:
        await broker.respond_to_api_versions()
        await _sasl(broker, lifetime_ms=100)
        await _sasl(broker)
        for _ in range(2):
            request = await broker.next()
            bodies.append(request.body)
            await broker.send(request.response(b""))
        await broker.next()

    async def test(connection: Connection) -> None:
        await security.reauthenticated.wait()
        responses = [connection.send(0, 8, (body,), flexible=False) for body in (b"1", b"2")]
        await asyncio.gather(*responses)
        assert bodies == [b"1", b"2"]

    security = PlainCredentials()
    run_with_broker(script, test, security)


def test_a_refused_connection_is_an_unreachable_error() -> None:
    """The port has no listener."""

    async def test() -> None:
        with pytest.raises(UnreachableError, match=r"cannot be reached at .*:1: Connection refused;"):
            await connect(1)

    run(test())


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)"), "Connection refused"),
        (
            OSError(
                "Multiple exceptions: [Errno 111] Connect call failed ('::1', 1, 0, 0), "
                "[Errno 111] Connect call failed ('127.0.0.1', 1)"
            ),
            "Connection refused",
        ),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (OSError("no errno"), "no errno"),
    ],
    ids=["one address", "several addresses", "unknown host", "anything else"],
)
def test_a_connection_error_has_the_message_of_the_operating_system(error: OSError, problem: str) -> None:
    assert problem == connect_problem(error)


@pytest.mark.parametrize(
    ("host", "port"),
    [("kafka-0.kafka..svc", 9092), ("a" * 64 + ".svc", 9092), ("kafka\0", 9092), ("127.0.0.1", 70_000)],
    ids=["empty label", "long label", "null character", "port"],
)
def test_an_invalid_address_is_an_unreachable_error(host: str, port: int) -> None:
    """A broker advertises it, or the user has written it."""

    async def test() -> None:
        with pytest.raises(UnreachableError, match="its host name or port is not valid"):
            await open_connection(host, port, client_id="tester", security=None, cluster="east")

    run(test())


def test_each_connection_has_its_own_generation() -> None:
    """Generations increase within the process."""

    async def script(broker: Broker) -> None:
        await broker.respond_to_api_versions()
        await broker.next()

    async def test() -> None:
        async with scripted(script) as port:
            first, second = await connect(port), await connect(port)
            assert first.generation < second.generation
            first.close()
            second.close()

    run(test())
