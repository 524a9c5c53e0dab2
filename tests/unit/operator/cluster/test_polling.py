"""The poller reads the progress of connectors over real sockets."""

import asyncio
import itertools
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self

import pytest

from mirrorflow_operator.cluster import progress_client, progress_poller
from mirrorflow_operator.cluster.progress_client import (
    PARTITIONS_MAX_BYTES,
    PollTarget,
    TlsParameters,
    request_progress,
    request_source_ends,
    session,
)
from mirrorflow_operator.cluster.progress_poller import Poller
from mirrorflow_operator.cluster.switchover_jobs import request_switchover_report
from mirrorflow_operator.metrics import NAMESPACE
from mirrorflow_operator.status.observation import Key
from mirrorflow_operator.status.pod_reports import BODY_MAX_BYTES, PollFailure, Reading, Replicating
from tests.harness.kafka.processes import free_port
from tests.harness.kubernetes.authority import Authority
from tests.harness.kubernetes.stub_connectors import SILENT, StubConnectors, response_of, summary

HOST, OTHER = "127.1.0.1", "127.1.0.2"
FLOW: Key = ("here", "east-west")
WAIT_S = 300.0


async def _until(condition: Callable[[], bool]) -> None:
    """Waits, at most WAIT_S, until *condition* holds."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110  any condition, not an event
            await asyncio.sleep(0.005)


def _target(port: int, host: str = HOST, **changes: object) -> PollTarget:
    return PollTarget(uid=host, host=host, port=port, **changes)  # type: ignore[arg-type]  # fields of a target


def _poll_once(response: bytes) -> Reading:
    async def once() -> Reading:
        async with StubConnectors() as stubs, session() as client:
            stubs.default = response
            return await request_progress(client, _target(stubs.port), now_s=7.0)

    return asyncio.run(once())


def test_a_reading_has_the_summary_and_the_time_of_the_request():
    reading = _poll_once(summary(replicating="Advancing"))

    assert reading.summary is not None
    assert (7.0, Replicating.ADVANCING) == (reading.read_at_s, reading.summary.replicating)


@pytest.mark.parametrize(
    ("response", "failure"),
    [
        (response_of(b"", "503 Service Unavailable"), PollFailure.REFUSED),
        (response_of(b"", "302 Found", "Location: http://127.0.0.1:1/progress"), PollFailure.REFUSED),
        (response_of(b"<html>"), PollFailure.UNREADABLE),
        (response_of(b" " * (BODY_MAX_BYTES + 1)), PollFailure.UNREADABLE),
        (response_of(b"{}" * 10)[:-4], PollFailure.UNREADABLE),
        (response_of(b"{}", "200 OK", "Content-Encoding: gzip"), PollFailure.UNREADABLE),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", PollFailure.UNREADABLE),
        (b"SSH-2.0-OpenSSH_9.6\r\n", PollFailure.UNREADABLE),
        (summary(version=99), PollFailure.UNKNOWN_VERSION),
    ],
    ids=[
        "503",
        "redirect",
        "html",
        "long body",
        "truncated",
        "gzip",
        "long headers",
        "ssh",
        "unknown version",
    ],
)
def test_an_unreadable_response_is_a_failed_reading(response: bytes, failure: PollFailure):
    """No response raises an exception, and no redirect is followed."""
    reading = _poll_once(response)

    assert reading.summary is None
    assert failure is reading.failure
    assert reading.problem


def test_a_body_above_the_size_limit_is_not_read_completely():
    """The response has no Content-Length header."""
    endless = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b" " * 10_000_000

    assert _poll_once(endless).failure is PollFailure.UNREADABLE


def test_each_connector_of_a_shared_pod_is_polled_by_name():
    """Each connector has its own reading. Removing one keeps the other."""

    async def run() -> None:
        async with _Polling() as polling:
            both = [_target(polling.stubs.port, connector=name) for name in ("first", "second")]
            polling.poller.set_targets(FLOW, both)
            await _until(lambda: all(polling.poller.reading(HOST, target.connector) for target in both))
            assert {"/progress?connector=first", "/progress?connector=second"} == set(polling.stubs.paths)
            polling.poller.set_targets(FLOW, both[:1])
            assert polling.poller.reading(HOST, "second") is None
            assert polling.poller.reading(HOST, "first") is not None
            assert polling.poller.reading(HOST) is None

    asyncio.run(run())


def test_a_refused_connection_is_unreachable():
    """The failure is a reading, not an exception."""

    async def once() -> Reading:
        async with session() as client:
            return await request_progress(client, _target(free_port()), now_s=0.0)

    assert asyncio.run(once()).failure is PollFailure.UNREACHABLE


def test_a_pod_that_accepts_a_connection_and_never_responds_is_unreachable(monkeypatch: pytest.MonkeyPatch):
    """The poll ends after RESPONSE_MAX_S."""
    monkeypatch.setattr(progress_client, "RESPONSE_MAX_S", 0.1)

    assert _poll_once(SILENT).failure is PollFailure.UNREACHABLE


class _EndlessPod:
    """A pod that responds to each request with *start*, and then with *parts*, which may never end."""

    def __init__(self, start: bytes, parts: Iterable[bytes], *, pause_s: float) -> None:
        self._start, self._parts, self._pause_s = start, parts, pause_s
        self.sent_bytes = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, HOST)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self._start)
            for part in self._parts:
                writer.write(part)
                await writer.drain()
                self.sent_bytes += len(part)
                await asyncio.sleep(self._pause_s)
        except OSError:
            pass  # the operator has closed the connection
        finally:
            writer.transport.abort()


OK = b"HTTP/1.1 200 OK\r\n"
BODY = OK + b"Connection: close\r\n\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("start", "part", "pause_s"),
    [
        (b"", b"H", 0.02),
        (OK, b"X", 0.02),
        (BODY, b" ", 0.02),
        (CHUNKED, b"1\r\n \r\n", 0.02),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.0),
        (OK, b"X: y\r\n", 0.0),
        (OK, b"x" * 65_536, 0.0),
        (BODY, b" " * 65_536, 0.0),
        (CHUNKED + b"1;", b"x" * 65_536, 0.0),
    ],
    ids=[
        "status byte by byte",
        "header byte by byte",
        "body byte by byte",
        "chunk by chunk",
        "endless provisional responses",
        "endless headers",
        "endless header",
        "endless body",
        "endless extension of a chunk",
    ],
)
@pytest.mark.parametrize("asked", ["progress", "source ends", "switchover"])
def test_a_poll_of_a_pod_that_never_completes_its_response_ends_in_time_with_few_bytes(
    monkeypatch: pytest.MonkeyPatch, asked: str, start: bytes, part: bytes, pause_s: float
):
    """The pod may send anything at any speed. The operator has no reading, and polls the next pod."""
    monkeypatch.setattr(progress_client, "RESPONSE_MAX_S", 0.3)

    async def ask(port: int) -> object:
        async with session() as client:
            target = _target(port)
            match asked:
                case "progress":
                    return (await request_progress(client, target, now_s=0.0)).summary
                case "source ends":
                    return await request_source_ends(client, target, now_s=0.0)
            return await request_switchover_report(HOST, port)

    async def scenario() -> int:
        async with _EndlessPod(start, itertools.repeat(part), pause_s=pause_s) as pod:
            async with asyncio.timeout(WAIT_S):
                assert await ask(pod.port) is None
            return pod.sent_bytes

    sent_bytes = asyncio.run(scenario())
    if start == BODY:
        # A socket buffers some megabytes before it blocks the sender.
        assert sent_bytes < PARTITIONS_MAX_BYTES + 32 * 1024 * 1024


def test_a_certificate_must_contain_the_expected_name(tmp_path: Path):
    """Another pod may have received the address in the meantime."""
    authority = Authority(tmp_path)
    identity = authority.server("pod", "right.example")
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(identity.certificate, identity.key)
    # As in the product: the default context of Python 3.13 refuses certificates without a key identifier.
    trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusted.load_verify_locations(cafile=authority.own.certificate)

    async def both() -> list[Reading]:
        async with StubConnectors(tls=served) as stubs, session() as client:
            return [
                await request_progress(
                    client, _target(stubs.port, tls=TlsParameters(context=trusted, name=name)), now_s=0.0
                )
                for name in ("right.example", "wrong.example")
            ]

    right, wrong = asyncio.run(both())
    assert right.summary is not None
    assert wrong.failure is PollFailure.REFUSED


class _Polling:
    """A running poller with short intervals, and its stubs. `queued` has the flows whose readings have changed."""

    def __init__(self, *, interval_s: float = 0.05, in_flight_max: int = 4) -> None:
        self.queued: list[Key] = []
        self.poller = Poller(
            changed=self.queued.append,
            digest_of=_digest,
            interval_s=interval_s,
            in_flight_max=in_flight_max,
            wall_s=lambda: 1.0,
        )
        self.stubs = StubConnectors()

    async def __aenter__(self) -> Self:
        await self.stubs.__aenter__()
        self.task = asyncio.create_task(self.poller.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.stubs.__aexit__(None, None, None)

    def sample(self, name: str) -> float:
        return self.poller.metrics.registry.get_sample_value(f"{NAMESPACE}_{name}") or 0.0

    def put(self, *hosts: str, **changes: object) -> None:
        self.poller.set_targets(FLOW, [_target(self.stubs.port, host, **changes) for host in hosts])


def _digest(reading: Reading) -> object:
    return reading.failure if reading.summary is None else reading.summary.replicating


def test_unchanged_readings_queue_no_flow():
    """The first reading and a changed one queue the flow. Changed figures do not."""

    async def scenario() -> None:
        async with _Polling() as polling:
            polling.put(HOST)
            await _until(lambda: polling.stubs.requests[HOST] >= 3)
            polling.stubs.default = summary(lagRecords=17, uptimeSeconds=9.0)
            await _until(lambda: polling.stubs.requests[HOST] >= 8)
            assert [FLOW] == polling.queued
            reading = polling.poller.reading(HOST)
            assert reading is not None
            assert reading.summary is not None
            assert reading.summary.lag_records == 17

            polling.stubs.default = summary(replicating="Stuck")
            await _until(lambda: len(polling.queued) == 2)

    asyncio.run(scenario())


def test_a_removed_pod_is_not_polled():
    """Its last reading is removed too."""

    async def scenario() -> None:
        async with _Polling() as polling:
            polling.put(HOST, OTHER)
            await _until(lambda: polling.stubs.requests[OTHER] >= 1)
            polling.put(HOST)
            assert polling.poller.reading(OTHER) is None
            polls_of_host, polls_of_other = polling.stubs.requests[HOST], polling.stubs.requests[OTHER]
            await _until(lambda: polling.stubs.requests[HOST] >= polls_of_host + 5)
            assert polling.stubs.requests[OTHER] <= polls_of_other + 1  # one poll may have been in flight

            polling.poller.remove(FLOW)
            assert len(polling.poller) == 0

    asyncio.run(scenario())


def test_a_pod_that_never_responds_is_polled_forever(monkeypatch: pytest.MonkeyPatch):
    """The interval has a maximum, because an unbounded power of 2 would overflow after 1,024 polls."""

    async def unreachable(*_: object, now_s: float) -> Reading:
        return Reading(read_at_s=now_s, failure=PollFailure.UNREACHABLE)

    monkeypatch.setattr(progress_poller, "request_progress", unreachable)

    async def scenario() -> None:
        async with _Polling(interval_s=0.0001) as polling:
            polling.put(HOST)
            await _until(lambda: polling.task.done() or polling.sample("polls_total") > 1_100)
            assert not polling.task.done()

    asyncio.run(scenario())


def test_a_pod_that_becomes_ready_is_polled_soon():
    """It is polled before its interval ends. Setting unchanged targets causes no poll."""

    async def scenario() -> None:
        async with _Polling(interval_s=15.0) as polling:
            polling.put(HOST)
            await _until(lambda: polling.queued == [FLOW])
            polling.put(HOST)
            polling.stubs.default = summary(replicating="Advancing")
            polling.put(HOST, ready=True)
            await _until(lambda: polling.queued == [FLOW, FLOW])

    asyncio.run(scenario())


def test_a_starting_pod_is_polled_more_often():
    """The flow is therefore Ready within seconds instead of after an interval."""

    async def scenario() -> None:
        async with _Polling(interval_s=3.0) as polling:
            polling.stubs.responses[HOST] = summary(replicating="Waiting")
            polling.put(HOST, OTHER)
            await _until(lambda: polling.stubs.requests[HOST] >= 3)
            assert polling.stubs.requests[OTHER] == 1

    asyncio.run(scenario())


def test_pods_that_never_respond_do_not_delay_other_polls(
    monkeypatch: pytest.MonkeyPatch,
):
    """The number of polls in flight and the duration of each are limited."""
    monkeypatch.setattr(progress_client, "RESPONSE_MAX_S", 0.05)
    silent = [f"127.2.0.{number}" for number in range(1, 41)]

    async def scenario() -> None:
        async with _Polling(in_flight_max=4) as polling:
            polling.stubs.responses.update(dict.fromkeys(silent, SILENT))
            polling.put(HOST, *silent)
            await _until(lambda: polling.stubs.requests[HOST] >= 3)
            await _until(lambda: all(polling.stubs.requests[host] for host in silent))
            assert polling.stubs.open_max <= 4
            assert polling.sample("polls_failed_total") >= 20

    asyncio.run(scenario())


def test_a_cancelled_poller_closes_its_connections():

    async def scenario() -> None:
        async with _Polling() as polling:
            polling.stubs.default = SILENT
            polling.put(HOST)
            await _until(lambda: polling.stubs.open == 1)
        await _until(lambda: polling.stubs.open == 0)

    asyncio.run(scenario())


def test_a_pod_whose_poll_was_cancelled_is_polled_in_the_next_term():
    """An operator that loses its Lease while the API server restarts continues with the same poller."""

    async def scenario() -> None:
        async with _Polling() as polling:
            polling.stubs.default = SILENT
            polling.put(HOST)
            await _until(lambda: polling.stubs.open == 1)
            polling.task.cancel()
            await asyncio.gather(polling.task, return_exceptions=True)
            polling.stubs.default = summary()
            polling.task = asyncio.create_task(polling.poller.run())
            polling.put(HOST)
            await _until(lambda: polling.poller.reading(HOST) is not None)

    asyncio.run(scenario())
