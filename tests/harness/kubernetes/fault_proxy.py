"""A proxy between a client and the API server, which causes what a healthy server never shows.

    with FaultProxy(kubeconfig_behind=user.kubeconfig, folder=tmp_path) as proxy:
        operator = start(..., environment={"KUBECONFIG": str(proxy.kubeconfig)})
        rule = proxy.on(Match(verb="patch", resource="deployments"), Refuse(409))
        proxy.drop_watches()

Plain HTTP in front, on 127.0.0.1; behind it the server and the identity of *kubeconfig*. A token of the client's own
passes through. It runs in a thread of this process, so that a test can strike between any two requests. Each
connection of a client has one of its own to the server, and neither is buffered: what the server says is passed on
byte for byte as it comes. What came by is in `seen`.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import h11

from tests.harness.kafka.processes import free_port
from tests.harness.kubernetes.faults import (
    Ask,
    CutBody,
    Delay,
    Drop,
    Fault,
    LoseAnswer,
    Match,
    Refuse,
    Rule,
    Seen,
    Silence,
    status_body,
)
from tests.harness.kubernetes.requests import tls_of

T = TypeVar("T")
READ_BYTES = 64 * 1024
HEAD_BYTES_MAX = 64 * 1024
START_WAIT_S = 10.0
COMMAND_WAIT_S = 10.0
CLOSE_WAIT_S = 1.0  # who does not take what is left for it does not get it
LAST_TURNS = 5  # of the loop, in which transports that were aborted say so


class _EndedError(Exception):
    """This connection is over, as the fault wanted it or as one of the two sides did."""


@dataclass(kw_only=True, slots=True)
class _Side:
    """One end of the conversation: its socket and what HTTP knows of it."""

    http: h11.Connection
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def next(self) -> Any:
        """The next event of h11; `_EndedError` when the peer is gone."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self.reader.read(READ_BYTES))
        if isinstance(event, h11.ConnectionClosed):
            raise _EndedError
        return event

    async def send(self, event: Any) -> None:
        data = self.http.send(event)
        if data:
            self.writer.write(data)
            await self.writer.drain()


@dataclass(kw_only=True, slots=True)
class _Pair:
    """A client's connection, and its own to the server once there was something to pass on."""

    near: _Side
    far: _Side | None = None


@dataclass(kw_only=True, slots=True)
class _Watch:
    """A watch that runs; *silent*: nothing passes any more, and nothing closes."""

    ask: Ask
    near: _Side
    silent: bool = False


@dataclass(kw_only=True)
class FaultProxy:
    """A proxy of the API server that injects faults; the first rule that matches a request applies."""

    kubeconfig_behind: Path
    folder: Path
    port: int = field(default_factory=free_port, init=False)
    seen: list[Seen] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        content = json.loads(self.kubeconfig_behind.read_text())
        behind = urlsplit(content["clusters"][0]["cluster"]["server"])
        self._host, self._behind_port = behind.hostname, behind.port
        self._tls = tls_of(content)
        self.kubeconfig = self.folder / f"through-{self.port}.kubeconfig"
        self._rules: list[Rule] = []
        self._watches: list[_Watch] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)

    def __enter__(self) -> Self:
        cluster = {"server": f"http://127.0.0.1:{self.port}"}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        self.kubeconfig.write_text(json.dumps(content, indent=1))
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._accept, "127.0.0.1", self.port))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_WAIT_S)
        self._loop.close()

    def on(self, match: Match, fault: Fault, *, skip: int = 0, times: int = 1) -> Rule:
        """From now on *fault* strikes what *match* finds, after the first *skip*, *times* times; `struck` counts."""
        rule = Rule(match=match, fault=fault, skip=skip, times=times)
        self._do(lambda: self._rules.append(rule))
        return rule

    def heal(self) -> None:
        """No rule strikes any more; watches that were silenced stay so until their clients give up."""
        self._do(self._rules.clear)

    def asks(self, match: Match) -> list[Ask]:
        """What came by so far, in the order in which it was answered."""
        return [one.ask for one in tuple(self.seen) if match(one.ask)]

    def watched(self) -> frozenset[str]:
        """The resources of which a watch runs right now."""
        return self._do(lambda: frozenset(one.ask.resource for one in self._watches))

    def drop_watches(self, match: Match | None = None) -> int:
        """Cuts the watches that run, as a load balancer does; how many."""
        return self._each_watch(match or Match(), lambda watch: watch.near.writer.transport.abort())

    def silence_watches(self, match: Match | None = None) -> int:
        """Half-open: nothing passes on them any more and nothing closes, until the client gives up; how many."""

        def silence(watch: _Watch) -> None:
            watch.silent = True

        return self._each_watch(match or Match(), silence)

    def expire_watches(self, match: Match | None = None) -> int:
        """Ends the watches that run with an ERROR event of status 410, as after a compaction of etcd; how many."""

        def expire(watch: _Watch) -> None:
            event = {"type": "ERROR", "object": status_body(410, watch.ask)}
            data = watch.near.http.send(h11.Data(json.dumps(event).encode() + b"\n"))
            watch.near.writer.write((data or b"") + (watch.near.http.send(h11.EndOfMessage()) or b""))
            watch.near.writer.close()

        return self._each_watch(match or Match(), expire)

    def _each_watch(self, match: Match, strike: Callable[[_Watch], None]) -> int:
        def each() -> int:
            found = [one for one in self._watches if match(one.ask) and not one.silent]
            for watch in found:
                strike(watch)
            return len(found)

        return self._do(each)

    def _do(self, action: Callable[[], T]) -> T:
        """Runs *action* in the proxy's thread."""

        async def done() -> T:
            return action()

        return self._run(done())

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(COMMAND_WAIT_S)

    async def _close(self) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        for _ in range(LAST_TURNS):
            await asyncio.sleep(0)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        pair = _Pair(
            near=_Side(http=h11.Connection(h11.SERVER, HEAD_BYTES_MAX), reader=reader, writer=writer)
        )
        try:
            while True:
                await self._exchange(pair)
        except (_EndedError, OSError, h11.ProtocolError, asyncio.CancelledError):
            pass  # an asyncio server of Python 3.11 logs a task that ends as cancelled
        finally:
            if pair.far is not None:
                pair.far.writer.transport.abort()  # TLS would take its leave, and the server need not hear of it
            pair.near.writer.close()  # what a client is to get still goes out
            with suppress(OSError):
                async with asyncio.timeout(CLOSE_WAIT_S):
                    await pair.near.writer.wait_closed()
            pair.near.writer.transport.abort()
            self._connections.discard(task)

    async def _exchange(self, pair: _Pair) -> None:
        """One request and its answer."""
        near = pair.near
        request = await near.next()
        parts = []
        while isinstance(event := await near.next(), h11.Data):
            parts.append(bytes(event.data))
        ask = Ask.of(request.method.decode(), request.target.decode())
        fault = next((rule.fault for rule in self._rules if rule.strikes(ask)), None)
        match fault:
            case Refuse():
                await self._refuse(near, ask, fault)
                return
            case Drop():
                self._end(ask, fault)
            case Silence():
                await near.reader.read(1)  # whatever comes now: the client has given up
                self._end(ask, fault)
            case Delay():
                await asyncio.sleep(fault.seconds)
        far = pair.far
        if far is None or far.reader.at_eof():  # the server ends what was idle for long
            if far is not None:
                far.writer.transport.abort()
            far = pair.far = await self._connect()
        await far.send(
            h11.Request(method=request.method, target=request.target, headers=self._headers(request))
        )
        await far.send(h11.Data(b"".join(parts)))
        await far.send(h11.EndOfMessage())
        answer = await far.next()
        if ask.verb == "watch" and answer.status_code == 200:
            self.seen.append(Seen(ask=ask, status=200, fault=fault))
            await self._relay_watch(near, far, ask, answer)
        else:
            await self._relay(near, far, ask, fault, answer)
        near.http.start_next_cycle()
        far.http.start_next_cycle()

    def _headers(self, request: h11.Request) -> list[tuple[bytes, bytes]]:
        own = [(name, value) for name, value in request.headers if name != b"host"]
        return [(b"host", f"{self._host}:{self._behind_port}".encode()), *own]

    def _end(self, ask: Ask, fault: Drop | LoseAnswer | Silence) -> None:
        self.seen.append(Seen(ask=ask, status=0, fault=fault))
        if not isinstance(fault, Silence) and fault.then is not None:
            fault.then()
        raise _EndedError

    async def _refuse(self, near: _Side, ask: Ask, fault: Refuse) -> None:
        body = json.dumps(status_body(fault.status, ask)).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        if fault.retry_after_s is not None:
            headers.append(("Retry-After", str(fault.retry_after_s)))
        self.seen.append(Seen(ask=ask, status=fault.status, fault=fault))
        await near.send(h11.Response(status_code=fault.status, headers=headers))
        await near.send(h11.Data(body))
        await near.send(h11.EndOfMessage())
        near.http.start_next_cycle()

    async def _relay(self, near: _Side, far: _Side, ask: Ask, fault: Fault | None, answer: Any) -> None:
        if isinstance(fault, LoseAnswer):
            while not isinstance(await far.next(), h11.EndOfMessage):
                pass
            self._end(ask, fault)
        self.seen.append(Seen(ask=ask, status=answer.status_code, fault=fault))
        await near.send(answer)
        left = fault.bytes if isinstance(fault, CutBody) else None
        while not isinstance(event := await far.next(), h11.EndOfMessage):
            if left is not None:
                await near.send(h11.Data(bytes(event.data)[:left]))
                left -= len(event.data)
                if left <= 0:
                    raise _EndedError
            else:
                await near.send(event)
        if left is not None:  # a body that is shorter than the cut still loses its end
            raise _EndedError
        await near.send(event)

    async def _relay_watch(self, near: _Side, far: _Side, ask: Ask, answer: Any) -> None:
        """Until the server ends it, the client leaves, or a test strikes."""
        await near.send(answer)

        async def relay() -> None:
            while not isinstance(event := await far.next(), h11.EndOfMessage):
                if not watch.silent:
                    await near.send(event)
            if watch.silent:
                await asyncio.Event().wait()
            await near.send(event)

        watch = _Watch(ask=ask, near=near)
        relaying = asyncio.ensure_future(relay())
        leaving = asyncio.ensure_future(near.reader.read(1))
        self._watches.append(watch)
        try:
            await asyncio.wait({relaying, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                raise _EndedError
            relaying.result()
        finally:
            self._watches.remove(watch)
            for task in (relaying, leaving):
                task.cancel()
                with suppress(asyncio.CancelledError, OSError, h11.ProtocolError, _EndedError):
                    await task

    async def _connect(self) -> _Side:
        reader, writer = await asyncio.open_connection(self._host, self._behind_port, ssl=self._tls)
        return _Side(http=h11.Connection(h11.CLIENT, HEAD_BYTES_MAX), reader=reader, writer=writer)
