"""A connection keeps the order of requests, and ends whole: no request is left without an answer or an error."""

import asyncio
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
from mirrorflow_kafka.client.connection import Connection
from mirrorflow_kafka.client.frames import FRAME_BYTES_MAX, FrameProtocol
from mirrorflow_kafka.client.pool import connect_problem, open_connection
from tests.unit.kafka.scripted import Broker, scripted

BOUND_S = 300.0


def run(body: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(BOUND_S):
            await body

    asyncio.run(bounded())


class Plain:
    """Credentials that need one token, and count how often they were asked for."""

    ssl_context = None

    def __init__(self) -> None:
        self.conversations = 0
        self.again = asyncio.Event()

    def sasl_client(self, address: str) -> "Plain":
        self.conversations += 1
        if self.conversations > 1:
            self.again.set()
        return self

    mechanism = "PLAIN"

    async def first(self) -> bytes:
        return b"\0me\0secret"

    def receive(self, challenge: bytes) -> bytes | None:
        return None


async def connect(port: int, security: Any = None, **more: Any) -> Connection:
    return await open_connection(
        "127.0.0.1", port, client_id="tester", security=security, cluster="east", timeout_s=5, **more
    )


def talk(
    script: Callable[[Broker], Awaitable[None]],
    test: Callable[[Connection], Awaitable[None]],
    security: Plain | None = None,
) -> None:
    """Run *test* on a connection to a broker that runs *script*."""

    async def both() -> None:
        async with scripted(script) as port:
            connection = await connect(port, security)
            try:
                await test(connection)
            finally:
                connection.close()

    run(both())


@given(
    bodies=st.lists(st.binary(min_size=4, max_size=40), min_size=1, max_size=5),
    cuts=st.lists(st.integers(min_value=1, max_value=9), min_size=1, max_size=8),
)
def test_frames_are_the_same_however_the_bytes_arrive(bodies: list[bytes], cuts: list[int]) -> None:
    """Any cutting of the stream into reads gives each body once, in order."""
    frames: list[bytes] = []
    protocol = FrameProtocol(on_frame=lambda frame: frames.append(bytes(frame)), on_lost=lambda _: None)
    stream = b"".join(struct.pack(">i", len(body)) + body for body in bodies)

    at = turn = 0
    while at < len(stream):
        buffer = protocol.get_buffer(-1)
        taken = min(cuts[turn % len(cuts)], len(buffer), len(stream) - at)
        buffer[:taken] = stream[at : at + taken]
        protocol.buffer_updated(taken)
        at += taken
        turn += 1

    assert bodies == frames


def test_pipelined_answers_reach_their_own_requests() -> None:
    """Three requests on the way, answered in one burst, resolve in their order as writable views."""

    async def script(broker: Broker) -> None:
        await broker.greet()
        asked = [await broker.next() for _ in range(3)]
        await broker.say(b"".join(one.answer(one.body[::-1]) for one in asked))
        await broker.next()

    async def test(connection: Connection) -> None:
        answers = [
            connection.send(0, 8, (b"ab", bytearray(text)), flexible=False) for text in (b"1", b"2", b"3")
        ]
        views = await asyncio.gather(*answers)
        assert [bytes(view) for view in views] == [b"1ba", b"2ba", b"3ba"]
        assert [view.readonly for view in views] == [False] * 3

    talk(script, test)


def test_a_large_answer_comes_whole_however_it_trickles_and_a_small_one_behind_it_at_once() -> None:
    """For a large body the kernel waits until much is there: its rest, and what follows, must not wait for more."""
    large = bytes(range(256)) * 12_000  # 3 MB

    async def script(broker: Broker) -> None:
        await broker.greet()
        first, second = await broker.next(), await broker.next()
        frame = first.answer(large)
        for begin, end in ((0, 40), (40, 600_000), (600_000, len(frame) - 1)):
            await broker.say(frame[begin:end])
        await broker.next()  # what is missing comes only when the test has seen that nothing is answered
        await broker.say(frame[-1:] + second.answer(b"small"))
        await broker.next()

    async def test(connection: Connection) -> None:
        answers = [connection.send(1, 11, (b"x",), flexible=False) for _ in range(2)]
        assert not answers[0].done()
        connection.send(1, 11, (b"go on",), flexible=False)
        assert [large, b"small"] == [bytes(view) for view in await asyncio.gather(*answers)]

    talk(script, test)


def test_flexible_header_is_written_and_read() -> None:
    """Request header 2 has tagged fields after the client id, response header 1 before the body."""

    async def script(broker: Broker) -> None:
        await broker.greet()
        asked = await broker.next()
        assert asked.body == b"\x00body"
        await broker.say(asked.answer(b"answer", flexible=True))
        await broker.next()

    async def test(connection: Connection) -> None:
        assert bytes(await connection.send(1, 12, (b"body",), flexible=True)) == b"answer"

    talk(script, test)


def test_lost_connection_fails_everything_unanswered() -> None:
    """A broker that goes away fails each pending request, and says so once by `lost`."""

    async def script(broker: Broker) -> None:
        await broker.greet()
        await broker.next()

    async def test(connection: Connection) -> None:
        answers = [connection.send(0, 8, (b"x",), flexible=False) for _ in range(3)]
        for answer in answers:
            with pytest.raises(ConnectionLostError):
                await answer
        assert isinstance(await connection.lost, ConnectionLostError)
        assert not connection.is_open
        with pytest.raises(ConnectionLostError):
            await connection.send(0, 8, (b"x",), flexible=False)

    talk(script, test)


def test_silence_longer_than_the_limit_ends_the_connection() -> None:
    """The oldest request counts: a frozen broker is noticed although its socket stays open."""

    async def script(broker: Broker) -> None:
        while True:
            await broker.next()

    async def test() -> None:
        async with scripted(script) as port:
            connection = Connection(
                cluster="east", address="here", node_id=1, client_id="x", answer_timeout_s=0.05
            )
            await asyncio.get_running_loop().create_connection(lambda: connection.frames, "127.0.0.1", port)
            with pytest.raises(ConnectionLostError, match=r"not answered for 0\.05 s"):
                await connection.send(0, 8, (b"x",), flexible=False)

    run(test())


def test_a_throttled_connection_is_not_silent() -> None:
    """A broker reads nothing for the throttle time, so an answer may take that much longer."""

    async def script(broker: Broker) -> None:
        asked = await broker.next()
        await asyncio.sleep(0.2)  # four times the limit
        await broker.say(asked.answer(b"late"))
        await broker.next()

    async def test() -> None:
        async with scripted(script) as port:
            connection = Connection(
                cluster="east", address="here", node_id=1, client_id="x", answer_timeout_s=0.05
            )
            await asyncio.get_running_loop().create_connection(lambda: connection.frames, "127.0.0.1", port)
            unanswered = connection.send(0, 8, (b"x",), flexible=False)
            connection.throttled(10_000)
            assert b"late" == bytes(await unanswered)
            connection.close()

    run(test())


def test_a_request_and_an_answer_on_a_slow_link_may_take_longer_than_a_broker_may_take() -> None:
    """The request is expected to be on its way for long, and the answer arrives in parts."""
    large = bytes(3_000_000)

    async def script(broker: Broker) -> None:
        asked = await broker.next()
        await asyncio.sleep(0.4)  # twice the limit
        frame = asked.answer(large)
        for begin in range(0, len(frame), 600_000):
            await broker.say(frame[begin : begin + 600_000])
            await asyncio.sleep(0.1)
        await broker.next()

    async def test() -> None:
        async with scripted(script) as port:
            connection = Connection(
                cluster="east", address="here", node_id=1, client_id="x", answer_timeout_s=0.2
            )
            await asyncio.get_running_loop().create_connection(lambda: connection.frames, "127.0.0.1", port)
            unanswered = asyncio.get_running_loop().create_future()
            connection.send_for(unanswered, 0, 8, (b"x",), flexible=False, transit_s=0.3)
            assert large == bytes(await unanswered)
            connection.close()

    run(test())


def test_an_answer_that_stops_in_the_middle_ends_the_connection() -> None:
    async def script(broker: Broker) -> None:
        asked = await broker.next()
        await broker.say(asked.answer(bytes(100_000))[:50_000])
        await broker.next()

    async def test() -> None:
        async with scripted(script) as port:
            connection = Connection(
                cluster="east", address="here", node_id=1, client_id="x", answer_timeout_s=0.05
            )
            await asyncio.get_running_loop().create_connection(lambda: connection.frames, "127.0.0.1", port)
            with pytest.raises(ConnectionLostError, match="not answered"):
                await connection.send(0, 8, (b"x",), flexible=False)

    run(test())


def test_answer_to_another_request_ends_the_connection() -> None:
    """A correlation id out of order would give one partition's answer to another: nothing is believed any more."""

    async def script(broker: Broker) -> None:
        await broker.greet()
        first, second = await broker.next(), await broker.next()
        await broker.say(second.answer(b"") + first.answer(b""))
        await broker.next()

    async def test(connection: Connection) -> None:
        answers = [connection.send(0, 8, (b"x",), flexible=False) for _ in range(2)]
        results = await asyncio.gather(*answers, return_exceptions=True)
        assert [ConnectionLostError] * 2 == [type(result) for result in results]

    talk(script, test)


@pytest.mark.parametrize("size", [-1, 3, FRAME_BYTES_MAX + 1])
def test_impossible_frame_size_ends_the_connection(size: int) -> None:
    """Such a size is not allocated."""

    async def script(broker: Broker) -> None:
        await broker.greet()
        await broker.say(struct.pack(">i", size))
        await broker.next()

    async def test(connection: Connection) -> None:
        with pytest.raises(ConnectionLostError, match=f"frame of {size} bytes"):
            raise await connection.lost

    talk(script, test)


def test_tls_listener_spoken_to_in_plaintext_is_named() -> None:
    """The alert of a TLS listener is recognized."""

    async def script(broker: Broker) -> None:
        await broker.next()
        await broker.say(bytes.fromhex("15030300020250"))
        await broker.next()

    async def test() -> None:
        async with scripted(script) as port:
            with pytest.raises(UnreachableError, match="speaks TLS"):
                await connect(port)

    run(test())


@pytest.mark.parametrize("knows", [True, False])
def test_versions_fall_back_as_the_broker_asks(knows: bool) -> None:  # noqa: FBT001
    """UNSUPPORTED_VERSION is answered in version 0: with the highest that it takes, or with nothing."""
    asked_versions: list[int] = []

    async def script(broker: Broker) -> None:
        first = await broker.next()
        asked_versions.append(first.version)
        refusal = (
            struct.pack(">hi", 35, 1) + struct.pack(">hhh", 18, 0, 2) if knows else struct.pack(">hi", 35, 0)
        )
        await broker.say(first.answer(refusal))
        asked_versions.append((await broker.greet()).version)
        await broker.next()

    async def test(connection: Connection) -> None:
        assert connection.versions[3] == (0, 13)
        assert [2 if knows else 0] == asked_versions[1:]

    talk(script, test)


def test_call_uses_the_highest_common_version_and_decodes() -> None:
    """The answer is decoded in the version that was asked."""

    async def script(broker: Broker) -> None:
        await broker.greet()
        asked = await broker.next()
        assert (asked.api_key, asked.version) == (3, 13)
        body = MetadataResponse(cluster_id="abc", brokers=[], topics=[]).encode(version=13)
        await broker.say(asked.answer(bytes(body), flexible=True))
        await broker.next()

    async def test(connection: Connection) -> None:
        assert (await connection.call(MetadataRequest(topics=[]))).cluster_id == "abc"
        with pytest.raises(UnsupportedBrokerError):
            await connection.call(MetadataRequest(topics=[], min_version=14))

    talk(script, test)


async def _sasl(broker: Broker, *, error: int = 0, message: str | None = None, lifetime_ms: int = 0) -> bytes:
    handshake = await broker.next()
    assert (handshake.api_key, handshake.version) == (17, 1)
    await broker.say(
        handshake.answer(bytes(SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN"]).encode(version=1)))
    )
    asked = await broker.next()
    answer = SaslAuthenticateResponse(
        error_code=error, error_message=message, auth_bytes=b"", session_lifetime_ms=lifetime_ms
    )
    await broker.say(asked.answer(bytes(answer.encode(version=2)), flexible=True))
    return bytes(SaslAuthenticateRequest.decode(asked.body[1:], version=2).auth_bytes)


def test_sasl_sends_the_token_in_frames() -> None:
    """SaslHandshake 1 and SaslAuthenticate 2 carry the mechanism's bytes."""
    tokens: list[bytes] = []

    async def script(broker: Broker) -> None:
        await broker.greet()
        tokens.append(await _sasl(broker))
        await broker.next()

    async def test(connection: Connection) -> None:
        assert connection.is_open
        assert tokens == [b"\0me\0secret"]

    talk(script, test, Plain())


def test_refused_credentials_say_what_the_broker_said() -> None:
    """The broker's sentence reaches the user; the token does not."""

    async def script(broker: Broker) -> None:
        await broker.greet()
        await _sasl(broker, error=58, message="Authentication failed: Invalid username or password")

    async def test() -> None:
        async with scripted(script) as port:
            with pytest.raises(AuthenticationFailedError, match="Invalid username") as caught:
                await connect(port, Plain())
            assert "secret" not in str(caught.value)

    run(test())


@pytest.mark.parametrize(
    ("error", "problem"),
    [(34, "the listener does not use SASL, as security.protocol does"), (35, "UNSUPPORTED_VERSION")],
)
def test_refused_handshake_is_explained(error: int, problem: str) -> None:
    """A listener without SASL answers with an error that names a state."""

    async def script(broker: Broker) -> None:
        await broker.greet()
        handshake = await broker.next()
        answer = SaslHandshakeResponse(error_code=error, mechanisms=[])
        await broker.say(handshake.answer(bytes(answer.encode(version=1))))

    async def test() -> None:
        async with scripted(script) as port:
            with pytest.raises(AuthenticationFailedError, match=problem):
                await connect(port, Plain())

    run(test())


def test_requests_wait_for_reauthentication_and_keep_their_order() -> None:
    """Before the session ends SASL runs again in place; what is sent meanwhile comes after it, in order (KIP-368)."""
    bodies: list[bytes] = []

    async def script(broker: Broker) -> None:
        await broker.greet()
        await _sasl(broker, lifetime_ms=100)
        await _sasl(broker)
        for _ in range(2):
            asked = await broker.next()
            bodies.append(asked.body)
            await broker.say(asked.answer(b""))
        await broker.next()

    async def test(connection: Connection) -> None:
        await security.again.wait()
        answers = [connection.send(0, 8, (body,), flexible=False) for body in (b"1", b"2")]
        await connection.drained()
        await asyncio.gather(*answers)
        assert bodies == [b"1", b"2"]

    security = Plain()
    talk(script, test, security)


def test_refused_connection_is_unreachable() -> None:
    """A port without a listener."""

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
def test_failed_connection_has_the_words_of_the_system(error: OSError, problem: str) -> None:
    assert problem == connect_problem(error)


def test_generations_differ() -> None:
    """Each connection of the process has its own."""

    async def script(broker: Broker) -> None:
        await broker.greet()
        await broker.next()

    async def test() -> None:
        async with scripted(script) as port:
            first, second = await connect(port), await connect(port)
            assert first.generation < second.generation
            first.close()
            second.close()

    run(test())
