"""A node calls another over TLS and verifies the configured name, not the address that it calls."""

import asyncio
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.errors import UnreachableError
from mirrorflow_replicator.http.commands import Fence, PutTasks
from mirrorflow_replicator.http.server import HttpServer
from mirrorflow_replicator.http.server_tls import server_context
from mirrorflow_replicator.http.worker_view import Request, Response
from mirrorflow_replicator.worker.internal_rest import call, flow_of, flow_path, route
from tests.unit.http.reports import view
from tests.unit.kafka.certificates import authority, signed

NAME = "east-to-west-source.mirrors.svc"


def answered(server_name: str) -> int:
    """The HTTP status that a node with a certificate for NAME alone gives who expects *server_name*."""
    pods = signed(NAME, names=(NAME,))
    own = {"ssl.keystore.key": pods.key_pem(), "ssl.keystore.certificate.chain": pods.pem}

    async def main() -> int:
        context, _ = server_context(own)
        server = await HttpServer.start(["https://127.0.0.1:0"], view, tls=context)
        try:
            trusting = ssl.create_default_context(cadata=authority().pem)
            request = Request(method="GET", path="/healthz")
            url = server.addresses[0]
            answer = await call(url, request, tls=trusting, server_name=server_name, timeout_s=10)
            return answer.status
        finally:
            await server.close()

    return asyncio.run(main())


def test_pods_that_share_a_certificate_are_known_by_the_name_in_it():
    assert answered(NAME) == 200


@pytest.mark.parametrize("name", ["", "east-to-west-checkpoint.mirrors.svc"])
def test_who_has_no_certificate_for_the_name_is_not_asked(name: str):
    """Without a name the address counts, which no certificate of pods has."""
    with pytest.raises(UnreachableError, match="certificate"):
        answered(name)


ODD = "B-_~:?#[]@!$&'()*+=\"<>{}|^`618"
FLOWS = [("A", "B"), ("A", ODD)]
aliases = st.text(min_size=1, max_size=12).filter(lambda text: text.strip("/"))


def asked(method: str, path: str, flows: list[tuple[str, str]] | None = FLOWS) -> object:
    found = route(Request(method=method, path=path), flows)
    return found.status if isinstance(found, Response) else found


@given(aliases.map(lambda text: text.encode("utf-8", "replace").decode()), aliases)
def test_any_alias_finds_its_flow(source: str, target: str) -> None:
    target = target.encode("utf-8", "replace").decode()
    path = f"{flow_path(source, target)}/connectors/MirrorSourceConnector/tasks"
    assert (source, target) == flow_of(Request(method="POST", path=path))
    assert PutTasks(name="MirrorSourceConnector") == asked("POST", path, [(source, target)])


def test_odd_letters_are_percent_encoded() -> None:
    assert flow_path("A", "B c/d").endswith("/B%20c%2Fd")
    assert Fence(name="x") == asked("PUT", f"{flow_path('A', ODD)}/connectors/x/fence")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/connectors", 404),
        ("GET", "/metrics", 404),
        ("POST", "/connectors/x/tasks", 404),
        ("POST", "/A/B/connectors", 404),
        ("PUT", "/A/B/connectors/x/config", 404),
        ("DELETE", "/A/B/connectors/x", 404),
        ("GET", "/A/B/connectors/x/tasks", 405),
        ("POST", "/A/B/connectors/x/fence", 405),
        ("POST", "/A/C/connectors/x/tasks", 404),
        ("POST", "/%ff/B/connectors/x/tasks", 400),
    ],
)
def test_nothing_else_is_answered(method: str, path: str, status: int) -> None:
    assert status == asked(method, path)


def test_a_worker_without_flows_has_connects_own_paths() -> None:
    assert PutTasks(name="x") == asked("POST", "/connectors/x/tasks", None)
    assert 404 == asked("POST", "/A/B/connectors/x/tasks", None)


def test_an_unknown_flow_is_named() -> None:
    found = route(Request(method="POST", path="/A/C/connectors/x/tasks"), FLOWS)
    assert isinstance(found, Response)
    assert b"No replication flow found for source 'A' and target 'C'" in bytes(found.body)  # type: ignore[arg-type]
