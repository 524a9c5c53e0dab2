"""Serves the console: pages, the stream of their updates, and static files. Nothing can be changed by it.

Each page is rendered on the server. A stream sends the same part of the page again after each poll; streams of one page share
one rendering. Headers forbid inline scripts and styles and every other host.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from urllib.parse import parse_qsl

from jinja2 import Template
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mirrorflow_console.gate import Gate, GateUnavailableError, OpenGate, Visitor
from mirrorflow_console.history import History
from mirrorflow_console.internal_topics import InternalTopics, cursor_text, parsed_cursor, records_page
from mirrorflow_console.job_views import with_results
from mirrorflow_console.local_jobs import LocalJobs
from mirrorflow_console.namespace_results import NamespaceResults
from mirrorflow_console.pages import PAGES, SWITCHOVERS_PATH, Page, PageError, switchover_values
from mirrorflow_console.poller import Interest, SharedPoller, Snapshot
from mirrorflow_console.rendering import environment
from mirrorflow_console.result_files import ResultFiles
from mirrorflow_console.switchover_views import switchover_views
from mirrorflow_console.switchovers import SwitchoverSource
from mirrorflow_replicator.version import version

STREAMS_MAX: Final = 500  # each holds a connection and one piece of a page
SEND_MAX_S: Final = 20.0  # a reader that takes nothing for so long is disconnected; its page connects again
QUERY_MAX: Final = 4_096  # characters: a topic and a partition, percent-encoded
RENDERED_MAX: Final = 64  # pages of one version that are kept for other streams
_POLICY: Final = (
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With no-referrer a browser calls the origin of the form to sign in "null".
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_LOG: Final = logging.getLogger(__name__)


class Console:
    """The pages over one poller. *gate* recognises visitors; *name* stands in the page's head."""

    def __init__(
        self,
        poller: SharedPoller,
        history: History,
        *,
        gate: Gate | None = None,
        place: str = "this machine",
        internal: InternalTopics | None = None,
        results: ResultFiles | NamespaceResults | None = None,
        jobs: LocalJobs | None = None,
        switchovers: SwitchoverSource | None = None,
    ) -> None:
        self._poller = poller
        self._history = history
        self._gate = OpenGate() if gate is None else gate
        self._place = place
        self._internal = internal
        self._jobs = [source for source in (results, jobs) if source is not None]
        self._switchovers = switchovers
        self._templates = environment()
        self._streams = 0
        self._rendered: dict[tuple[object, ...], bytes] = {}
        self._rendered_version = 0

    def application(self, *, hosts: Sequence[str] = ("*",), routes: Sequence[BaseRoute] = ()) -> Starlette:
        """Returns the ASGI application. *hosts*: names under which it may be called; *routes*: further ones."""
        pages = [Route(path, self._page, methods=["GET"]) for path in PAGES]
        return Starlette(
            routes=[
                *routes,
                *pages,
                *([] if self._internal is None else [Route("/topics", self._topics, methods=["GET"])]),
                Route("/events", self._events, methods=["GET"]),
                Route("/healthz", _healthz, methods=["GET"]),
                Mount("/static", StaticFiles(packages=[("mirrorflow_console", "static")])),
            ],
            middleware=[
                Middleware(SecureHeaders),
                Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False),
            ],
            exception_handlers={404: self._not_found, 500: _failed, GateUnavailableError: self._unavailable},
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        polling = asyncio.create_task(self._poller.run())
        try:
            yield
        finally:
            polling.cancel()
            with suppress(asyncio.CancelledError):
                await polling

    # -- pages

    async def _page(self, request: Request) -> Response:
        path, query = request.url.path, dict(request.query_params)
        if len(request.url.query) > QUERY_MAX:
            return await self._error(request, 414, "The address is too long.")
        page = PAGES[path]
        # Strangers cause no poll, and visitors none of flows that they may not see.
        interest = await self._interest(request, page, query)
        if interest is None:
            return RedirectResponse("/sign-in", status_code=303)
        snapshot = await self._poller.fresh(interest)
        visitor = await self._gate.visitor(request, snapshot)
        if visitor is None:
            return RedirectResponse("/sign-in", status_code=303)
        try:
            body = self._render(path, query, snapshot, visitor, is_part=False)
        except PageError as error:
            return await self._error(request, 404, str(error))
        return HTMLResponse(body, headers={"Cache-Control": "no-store"})

    async def _interest(self, request: Request, page: Page, query: Mapping[str, str]) -> Interest | None:
        """Returns what a page needs for its visitor; None: they must sign in. Raises GateUnavailableError."""
        snapshot = self._poller.snapshot
        visitor = await self._gate.visitor(request, snapshot)
        if visitor is not None and not snapshot.version:
            snapshot = await self._poller.fresh(Interest())
            visitor = await self._gate.visitor(request, snapshot)
        if visitor is None:
            return None
        interest = page.interest(query)
        views = visitor.visible(snapshot).views
        return interest if any(view.key == interest.flow for view in views) else Interest()

    async def _topics(self, request: Request) -> Response:
        """The records of an internal topic: read at each request, because Kafka is asked for them."""
        query, source = request.query_params, self._internal
        visitor = await self._gate.visitor(request, self._poller.snapshot)
        if source is None or visitor is None:
            return RedirectResponse("/sign-in", status_code=303)
        if len(request.url.query) > QUERY_MAX:
            return await self._error(request, 414, "The address is too long.")
        flow = query.get("flow") if query.get("flow") in source.flows else next(iter(source.flows), "")
        kind = query.get("kind") if query.get("kind") in source.kinds else next(iter(source.kinds), "")
        topic = await source.read(flow or "", kind or "", parsed_cursor(query.get("before", "")))
        number = (
            int(text)
            if (text := query.get("page", "0")).isascii() and text.isdigit() and len(text) < 6
            else 0
        )
        values = {
            **self._frame("/topics", "Internal topics", self._poller.snapshot),
            "flows": source.flows,
            "kinds": source.kinds,
            "flow": flow,
            "kind": kind,
            "topic": topic,
            "q": query.get("q", ""),
            "records": records_page(topic, query.get("q", ""), number),
            "before": cursor_text(topic.before),
            "older": cursor_text(topic.older),
            "query": {"flow": flow, "kind": kind, "before": query.get("before", "")},
        }
        text = self._templates.get_template("topics.html").render(values)
        return HTMLResponse(text, headers={"Cache-Control": "no-store"})

    def _render(
        self, path: str, query: Mapping[str, str], snapshot: Snapshot, visitor: Visitor, *, is_part: bool
    ) -> bytes:
        """Renders a page, or the event with the part that changes; streams of one page share its bytes. Raises PageError."""
        if self._rendered_version != snapshot.version or len(self._rendered) >= RENDERED_MAX:
            self._rendered.clear()
            self._rendered_version = snapshot.version
        update_s = PAGES[path].update_s
        moment = int(time.time() / update_s) if update_s else 0
        key = (path, *sorted(query.items()), visitor, is_part, moment)
        rendered = self._rendered.get(key)
        if rendered is None:
            text = self._text(PAGES[path], path, query, visitor.visible(snapshot), visitor, is_part=is_part)
            rendered = self._rendered[key] = _event("page", text) if is_part else text.encode()
        return rendered

    def _text(
        self,
        page: Page,
        path: str,
        query: Mapping[str, str],
        snapshot: Snapshot,
        visitor: Visitor,
        *,
        is_part: bool,
    ) -> str:
        template = self._templates.get_template(page.template)
        values = {
            **self._frame(path, page.title, snapshot),
            **page.values(snapshot, query, self._history),
            **self._switchover_values(path, query, visitor),
            "query": query,
            "visitor": visitor,
        }
        if "jobs" in values:
            others = (job for source in self._jobs for job in source.read())
            values["jobs"] = with_results(values["jobs"], visitor.visible_results(others))
        return _part(template, values) if is_part else template.render(values)

    def _switchover_values(self, path: str, query: Mapping[str, str], visitor: Visitor) -> dict[str, Any]:
        """Returns the switchovers that the page shows, and those that are under way. Raises PageError."""
        if self._switchovers is None:
            return {}
        readings, now_s = [*filter(visitor.may_see, self._switchovers.read())], time.time()
        if path == SWITCHOVERS_PATH:
            return switchover_values(readings, query, now_s)
        return {"under_way": [view for view in switchover_views(readings, now_s) if view.is_under_way]}

    def _frame(self, path: str, title: str, snapshot: Snapshot) -> dict[str, Any]:
        return {
            "path": path,
            "title": title,
            "at_s": snapshot.at_s,
            "problem": snapshot.problem,
            "place": self._place,
            "has_topics": self._internal is not None,
            "has_switchovers": self._switchovers is not None,
            "under_way": [],
            "version": version(),
            "visitor": Visitor(),
            "view": None,
            "query": {},
        }

    async def _error(self, request: Request, status: int, sentence: str) -> Response:
        values = {**self._frame(request.url.path, "Not here", Snapshot()), "sentence": sentence}
        return HTMLResponse(
            self._templates.get_template("error.html").render(values),
            status_code=status,
            headers={"Cache-Control": "no-store"},
        )

    async def _unavailable(self, request: Request, _: Exception) -> Response:
        sentence = "Your rights cannot be checked now: the API server does not answer. Load the page again."
        return await self._error(request, 503, sentence)

    async def _not_found(self, request: Request, _: Exception) -> Response:
        return await self._error(request, 404, "There is no such page.")

    # -- the stream of updates

    async def _events(self, request: Request) -> Response:
        path = request.query_params.get("path", "/")
        page = PAGES.get(path)
        if page is None or len(request.url.query) > QUERY_MAX:
            return PlainTextResponse("There is no such page.\n", status_code=404)
        query = dict(parse_qsl(request.query_params.get("query", ""), keep_blank_values=True))
        interest = await self._interest(request, page, query)
        if interest is None:
            return PlainTextResponse("Sign in first.\n", status_code=401)
        if self._streams >= STREAMS_MAX:
            return PlainTextResponse("Too many open pages.\n", status_code=503, headers={"Retry-After": "30"})
        return EventStream(self._updates(request, path, query, interest))

    async def _updates(
        self, request: Request, path: str, query: Mapping[str, str], interest: Interest
    ) -> AsyncGenerator[bytes, None]:
        """Yields the changing part of a page after each poll, until the visitor leaves or may see it no longer."""
        page = PAGES[path]
        self._streams += 1
        try:
            with self._poller.watching(interest):
                snapshot = self._poller.snapshot
                while True:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(page.update_s):
                            snapshot = await self._poller.next_version(snapshot.version)
                    try:
                        visitor = await self._gate.visitor(request, snapshot)
                    except GateUnavailableError:
                        continue  # the page shows for how long it has had no update
                    if visitor is None:
                        yield _event("signed-out", "")
                        return
                    try:
                        yield self._render(path, query, snapshot, visitor, is_part=True)
                    except PageError as error:
                        yield _event("gone", str(error))
        finally:
            self._streams -= 1


def _part(template: Template, values: Mapping[str, Any]) -> str:
    return "".join(template.blocks["main"](template.new_context(dict(values))))


def _event(name: str, text: str) -> bytes:
    # As JSON, so that no line of the text can be a field of the stream.
    return f"event: {name}\ndata: {json.dumps(text)}\n\n".encode()


class EventStream(Response):
    """A stream of server-sent events that ends when the client has left, or has read nothing for `SEND_MAX_S`."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends events until one side ends."""
        sending = asyncio.create_task(self._send_all(send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
                with suppress(asyncio.CancelledError, TimeoutError, OSError):
                    await task
            with suppress(RuntimeError):
                await self._events.aclose()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        # A first line, so that the browser knows that the stream is open.
        await _send_in_time(send, b"retry: 3000\n\n")
        async for event in self._events:
            await _send_in_time(send, event)
        await send({"type": "http.response.body", "body": b""})


async def _send_in_time(send: Send, body: bytes) -> None:
    async with asyncio.timeout(SEND_MAX_S):
        await send({"type": "http.response.body", "body": body, "more_body": True})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class SecureHeaders:
    """Adds the headers that forbid inline code, other hosts, frames and guessing of types to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        await self._app(scope, receive, send_with_headers)


async def _healthz(_: Request) -> Response:
    return PlainTextResponse("ok\n")


async def _failed(request: Request, error: Exception) -> Response:
    _LOG.error("The page %s failed.", request.url.path, exc_info=error)
    return PlainTextResponse("This page failed; the console's log has the reason.\n", status_code=500)
