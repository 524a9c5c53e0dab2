"""Visitors of a cluster's console who have not signed in get the form, and nothing else; rights are requested, and never guessed."""

import asyncio
import json
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from kubernetes import client
from starlette.requests import Request

from mirrorflow_console import sign_in
from mirrorflow_console.gate import GateUnavailableError
from mirrorflow_console.poller import Snapshot
from mirrorflow_console.rendering import environment
from mirrorflow_console.sign_in import ClusterGate
from tests.unit.console.flow_readings import FixedFlows, healthy, reading
from tests.unit.console.served_console import served
from tests.unit.http.reports import partition


def test_every_page_redirects_to_the_sign_in_form():
    """The form needs no request to the API server."""
    gate = ClusterGate(client.ApiClient(), environment())
    with served(FixedFlows([reading(healthy(partition(0)))]), gate=gate, routes=gate.routes) as console:
        for path in ("/", "/history", "/flow?flow=f"):
            with urllib.request.urlopen(f"{console.url}{path}") as response:
                assert response.url == f"{console.url}/sign-in"
                body = response.read().decode()
            assert '<label for="token">Token</label>' in body
            assert "orders" not in body


def test_a_browser_may_name_the_origin_of_the_form():
    """With the policy no-referrer it sends the origin "null", and the console refuses its own form."""
    gate = ClusterGate(client.ApiClient(), environment())
    with (
        served(FixedFlows(), gate=gate, routes=gate.routes) as console,
        urllib.request.urlopen(f"{console.url}/sign-in") as response,
    ):
        assert response.headers["Referrer-Policy"] == "same-origin"


class ReviewsHandler(BaseHTTPRequestHandler):
    """An API server that accepts the token `good`, whose user may get MirrorFlows everywhere."""

    protocol_version = "HTTP/1.1"
    is_away = False
    delay_s = 0.0
    asked: Counter[str]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        kind = self.path.rpartition("/")[2]
        self.asked[kind] += 1
        threading.Event().wait(self.delay_s)
        if self.is_away:
            self.send_error(503)
            return
        status: dict[str, Any] = {"allowed": True}
        if kind == "tokenreviews":
            is_good = body["spec"]["token"] == "good"
            status = {"authenticated": is_good, "user": {"username": "ada"}}
        content = json.dumps({**body, "status": status}).encode()
        self.send_response(201)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Logs nothing."""


@pytest.fixture
def reviews() -> Iterator[Any]:
    handler: Any = type("Handler", (ReviewsHandler,), {"asked": Counter()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    handler.server_url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield handler
    server.shutdown()
    server.server_close()


@pytest.fixture
def now_s() -> list[float]:
    return [1_000.0]


@pytest.fixture
def gate(reviews: Any, now_s: list[float]) -> ClusterGate:
    api = client.ApiClient(client.Configuration(host=reviews.server_url))
    return ClusterGate(api, environment(), clock=lambda: now_s[0])


def from_proxy(token: str = "good") -> Request:
    return Request({"type": "http", "headers": [(b"authorization", f"Bearer {token}".encode())]})


def test_rights_that_cannot_be_requested_are_not_shown_as_missing(
    gate: ClusterGate, reviews: Any, now_s: list[float]
):
    """While the API server restarts, each flow would be missing from the page, and for a minute after it."""
    visitor = asyncio.run(gate.visitor(from_proxy(), Snapshot()))
    assert visitor is not None
    assert visitor.namespaces is None

    reviews.is_away = True
    now_s[0] += sign_in.REVIEW_KEPT_S + 1
    with pytest.raises(GateUnavailableError):
        asyncio.run(gate.visitor(from_proxy(), Snapshot()))

    reviews.is_away = False
    visitor = asyncio.run(gate.visitor(from_proxy(), Snapshot()))
    assert visitor is not None
    assert visitor.namespaces is None


def test_a_page_without_a_review_of_rights_names_the_reason(gate: ClusterGate, reviews: Any):
    reviews.is_away = True
    with served(FixedFlows(), gate=gate, routes=gate.routes) as console:
        for path in ("/", "/events?path=/"):
            request = urllib.request.Request(f"{console.url}{path}", headers={"Authorization": "Bearer good"})
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request)
            assert refused.value.code == 503
            assert "cannot be checked" in refused.value.read().decode()
        form = urllib.request.Request(f"{console.url}/sign-in", data=b"token=good")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(form)
        assert refused.value.code == 503
        assert "does not accept" not in refused.value.read().decode()


def test_visitors_who_wait_for_one_review_share_it(gate: ClusterGate, reviews: Any):
    """200 open pages of one user request the same rights at the same time, once a minute."""
    reviews.delay_s = 0.2

    async def visit() -> None:
        await asyncio.gather(*(gate.visitor(from_proxy(), Snapshot()) for _ in range(50)))

    asyncio.run(visit())

    assert reviews.asked == {"tokenreviews": 1, "subjectaccessreviews": 1}


def test_tokens_of_strangers_delay_neither_a_poll_nor_the_rights_of_others(
    gate: ClusterGate, reviews: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sign_in, "TOKENS_WAITING_MAX", 20)

    async def flood() -> tuple[int, bool]:
        assert await gate.visitor(from_proxy(), Snapshot()) is not None
        reviews.delay_s = 1.0
        strangers = [asyncio.create_task(gate.visitor(from_proxy(str(n)), Snapshot())) for n in range(60)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        refused = sum(
            task.done() and isinstance(task.exception(), GateUnavailableError) for task in strangers
        )
        async with asyncio.timeout(0.9):  # before one review of a stranger ends
            await asyncio.to_thread(int)  # as a poll
        for task in strangers:
            task.cancel()
        await asyncio.gather(*strangers, return_exceptions=True)
        return refused, True

    assert asyncio.run(flood()) == (40, True)
