"""A proxy between a client and the API server, which causes faults that a healthy server never shows.

        with FaultProxy(server_kubeconfig=user.kubeconfig, folder=tmp_path) as proxy:
            operator = start(..., environment={"KUBECONFIG": str(proxy.kubeconfig)})
            rule = proxy.on(Match(verb="patch", resource="deployments"), Refuse(409))
            proxy.drop_watches()

Clients connect by plain HTTP to 127.0.0.1; the proxy uses the server and the identity of *server_kubeconfig*, but passes a
client's own token. It runs in a thread of this process, so a test can cause a fault between any two requests. Each client
connection has its own connection to the server, and bytes are passed on without buffering. `proxied` has all requests.
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
    ApiRequest,
    CutBody,
    Delay,
    Drop,
    Fault,
    LoseResponse,
    Match,
    ProxiedRequest,
    Refuse,
    Rule,
    Silence,
    status_body,
)
from tests.harness.kubernetes.requests import tls_of

T = TypeVar("T")
READ_BYTES = 64 * 1024
HEAD_BYTES_MAX = 64 * 1024
START_WAIT_S = 10.0
COMMAND_WAIT_S = 10.0
CLOSE_WAIT_S = 1.0  # a client that does not read the rest in this time does not receive it
LAST_TURNS = 5  # number of event-loop iterations in which aborted transports close


class _EndedError(Exception):
    """The connection has ended, because of a fault or one of its two sides."""


@dataclass(kw_only=True, slots=True)
class _Side:
    """One side of a proxied connection, with its socket and its HTTP state."""

    http: h11.Connection
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def next(self) -> Any:
        """Returns the next event of h11. Raises `_EndedError` when the peer has closed."""
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
    """A client's connection, and its connection to the server after the first forwarded request."""

    near: _Side
    far: _Side | None = None


@dataclass(kw_only=True, slots=True)
class _Watch:
    """An open watch. If *silent*, its events are dropped and it stays open."""

    request: ApiRequest
    near: _Side
    silent: bool = False


@dataclass(kw_only=True)
class FaultProxy:
    """A proxy of the API server that injects faults. The first rule that matches a request applies."""

    server_kubeconfig: Path
    folder: Path
    port: int = field(default_factory=free_port, init=False)
    proxied: list[ProxiedRequest] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        content = json.loads(self.server_kubeconfig.read_text())
        server = urlsplit(content["clusters"][0]["cluster"]["server"])
        self._host, self._server_port = server.hostname, server.port
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
        """Applies *fault* to the next *times* requests that *match*, after the first *skip* of them.

        Returns the rule.
        """
        rule = Rule(match=match, fault=fault, skip=skip, times=times)
        self._do(lambda: self._rules.append(rule))
        return rule

    def heal(self) -> None:
        """Removes all rules. Silenced watches stay silent until their clients give up."""
        self._do(self._rules.clear)

    def requests(self, match: Match) -> list[ApiRequest]:
        """Returns the matching requests so far, in the order of their responses."""
        return [entry.request for entry in tuple(self.proxied) if match(entry.request)]

    def watched(self) -> frozenset[str]:
        """Returns the resources that have an open watch."""
        return self._do(lambda: frozenset(watch.request.resource for watch in self._watches))

    def drop_watches(self, match: Match | None = None) -> int:
        """Cuts the open watches like a load balancer, and returns their number."""
        return self._each_watch(match or Match(), lambda watch: watch.near.writer.transport.abort())

    def silence_watches(self, match: Match | None = None) -> int:
        """Drops events on the open watches, which stay open until the client gives up. Returns their number."""

        def silence(watch: _Watch) -> None:
            watch.silent = True

        return self._each_watch(match or Match(), silence)

    def expire_watches(self, match: Match | None = None) -> int:
        """Ends the open watches with an ERROR event of status 410, as after a compaction of etcd.

        Returns their number.
        """

        def expire(watch: _Watch) -> None:
            event = {"type": "ERROR", "object": status_body(410, watch.request)}
            data = watch.near.http.send(h11.Data(json.dumps(event).encode() + b"\n"))
            watch.near.writer.write((data or b"") + (watch.near.http.send(h11.EndOfMessage()) or b""))
            watch.near.writer.close()

        return self._each_watch(match or Match(), expire)

    def _each_watch(self, match: Match, action: Callable[[_Watch], None]) -> int:
        def each() -> int:
            matching = [watch for watch in self._watches if match(watch.request) and not watch.silent]
            for watch in matching:
                action(watch)
            return len(matching)

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
            pass  # in Python 3.11, an asyncio server logs a task that ends as cancelled
        finally:
            if pair.far is not None:
                pair.far.writer.transport.abort()  # a TLS shutdown is not needed
            pair.near.writer.close()  # pending data for the client is still sent
            with suppress(OSError):
                async with asyncio.timeout(CLOSE_WAIT_S):
                    await pair.near.writer.wait_closed()
            pair.near.writer.transport.abort()
            self._connections.discard(task)

    async def _exchange(self, pair: _Pair) -> None:
        """Proxies one request and its response."""
        near = pair.near
        request = await near.next()
        parts = []
        while isinstance(event := await near.next(), h11.Data):
            parts.append(bytes(event.data))
        api_request = ApiRequest.of(request.method.decode(), request.target.decode())
        fault = next((rule.fault for rule in self._rules if rule.applies_to(api_request)), None)
        match fault:
            case Refuse():
                await self._refuse(near, api_request, fault)
                return
            case Drop():
                self._end(api_request, fault)
            case Silence():
                await near.reader.read(1)  # any event here means that the client has given up
                self._end(api_request, fault)
            case Delay():
                await asyncio.sleep(fault.seconds)
        far = pair.far
        if far is None or far.reader.at_eof():  # the server ends idle connections
            if far is not None:
                far.writer.transport.abort()
            far = pair.far = await self._connect()
        await far.send(
            h11.Request(method=request.method, target=request.target, headers=self._headers(request))
        )
        await far.send(h11.Data(b"".join(parts)))
        await far.send(h11.EndOfMessage())
        response = await far.next()
        if api_request.verb == "watch" and response.status_code == 200:
            self.proxied.append(ProxiedRequest(request=api_request, status=200, fault=fault))
            await self._relay_watch(near, far, api_request, response)
        else:
            await self._relay(near, far, api_request, fault, response)
        near.http.start_next_cycle()
        far.http.start_next_cycle()

    def _headers(self, request: h11.Request) -> list[tuple[bytes, bytes]]:
        own = [(name, value) for name, value in request.headers if name != b"host"]
        return [(b"host", f"{self._host}:{self._server_port}".encode()), *own]

    def _end(self, api_request: ApiRequest, fault: Drop | LoseResponse | Silence) -> None:
        self.proxied.append(ProxiedRequest(request=api_request, status=0, fault=fault))
        if not isinstance(fault, Silence) and fault.then is not None:
            fault.then()
        raise _EndedError

    async def _refuse(self, near: _Side, api_request: ApiRequest, fault: Refuse) -> None:
        body = json.dumps(status_body(fault.status, api_request)).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        if fault.retry_after_s is not None:
            headers.append(("Retry-After", str(fault.retry_after_s)))
        self.proxied.append(ProxiedRequest(request=api_request, status=fault.status, fault=fault))
        await near.send(h11.Response(status_code=fault.status, headers=headers))
        await near.send(h11.Data(body))
        await near.send(h11.EndOfMessage())
        near.http.start_next_cycle()

    async def _relay(
        self, near: _Side, far: _Side, api_request: ApiRequest, fault: Fault | None, response: Any
    ) -> None:
        if isinstance(fault, LoseResponse):
            while not isinstance(await far.next(), h11.EndOfMessage):
                pass
            self._end(api_request, fault)
        self.proxied.append(ProxiedRequest(request=api_request, status=response.status_code, fault=fault))
        await near.send(response)
        remaining = fault.bytes if isinstance(fault, CutBody) else None
        while not isinstance(event := await far.next(), h11.EndOfMessage):
            if remaining is not None:
                await near.send(h11.Data(bytes(event.data)[:remaining]))
                remaining -= len(event.data)
                if remaining <= 0:
                    raise _EndedError
            else:
                await near.send(event)
        if remaining is not None:  # if the body is shorter than the cut, its end is also lost
            raise _EndedError
        await near.send(event)

    async def _relay_watch(self, near: _Side, far: _Side, api_request: ApiRequest, response: Any) -> None:
        """Passes events on until the server ends the watch, the client closes it, or a test ends it."""
        await near.send(response)

        async def relay() -> None:
            while not isinstance(event := await far.next(), h11.EndOfMessage):
                if not watch.silent:
                    await near.send(event)
            if watch.silent:
                await asyncio.Event().wait()
            await near.send(event)

        watch = _Watch(request=api_request, near=near)
        relaying = asyncio.ensure_future(relay())
        client_closes = asyncio.ensure_future(near.reader.read(1))
        self._watches.append(watch)
        try:
            await asyncio.wait({relaying, client_closes}, return_when=asyncio.FIRST_COMPLETED)
            if client_closes.done():
                raise _EndedError
            relaying.result()
        finally:
            self._watches.remove(watch)
            for task in (relaying, client_closes):
                task.cancel()
                with suppress(asyncio.CancelledError, OSError, h11.ProtocolError, _EndedError):
                    await task

    async def _connect(self) -> _Side:
        reader, writer = await asyncio.open_connection(self._host, self._server_port, ssl=self._tls)
        return _Side(http=h11.Connection(h11.CLIENT, HEAD_BYTES_MAX), reader=reader, writer=writer)
