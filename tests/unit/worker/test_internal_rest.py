"""Internal REST calls between nodes verify the configured server name, and their paths select a flow."""

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


def call_status(server_name: str) -> int:
    """Returns the HTTP status of a call that expects *server_name*.

    The certificate of the server contains only NAME.
    """
    pods = signed(NAME, names=(NAME,))
    own = {"ssl.keystore.key": pods.key_pem(), "ssl.keystore.certificate.chain": pods.pem}

    async def main() -> int:
        context, _ = server_context(own)
        server = await HttpServer.start(["https://127.0.0.1:0"], view, tls=context)
        try:
            trusting = ssl.create_default_context(cadata=authority().pem)
            request = Request(method="GET", path="/healthz")
            url = server.addresses[0]
            response = await call(url, request, tls=trusting, server_name=server_name, timeout_s=10)
            return response.status
        finally:
            await server.close()

    return asyncio.run(main())


def test_a_certificate_with_the_configured_name_is_accepted():
    assert call_status(NAME) == 200


@pytest.mark.parametrize("name", ["", "east-to-west-checkpoint.mirrors.svc"])
def test_a_certificate_without_the_expected_name_is_refused(name: str):
    """Without a configured name the address is expected, which certificates of pods do not contain."""
    with pytest.raises(UnreachableError, match="certificate"):
        call_status(name)


def test_a_host_with_an_empty_label_is_unreachable():
    request = Request(method="GET", path="/healthz")

    with pytest.raises(UnreachableError, match="label empty"):
        asyncio.run(call("http://east..example:8083", request, timeout_s=10))


ALIAS_WITH_SPECIAL_CHARACTERS = "B-_~:?#[]@!$&'()*+=\"<>{}|^`618"
FLOWS = [("A", "B"), ("A", ALIAS_WITH_SPECIAL_CHARACTERS)]
aliases = st.text(min_size=1, max_size=12).filter(lambda text: text.strip("/"))


def routed(method: str, path: str, flows: list[tuple[str, str]] | None = FLOWS) -> object:
    result = route(Request(method=method, path=path), flows)
    return result.status if isinstance(result, Response) else result


@given(aliases.map(lambda text: text.encode("utf-8", "replace").decode()), aliases)
def test_a_path_with_any_alias_selects_its_flow(source: str, target: str) -> None:
    target = target.encode("utf-8", "replace").decode()
    path = f"{flow_path(source, target)}/connectors/MirrorSourceConnector/tasks"
    assert (source, target) == flow_of(Request(method="POST", path=path))
    assert PutTasks(name="MirrorSourceConnector") == routed("POST", path, [(source, target)])


def test_special_characters_in_aliases_are_percent_encoded() -> None:
    assert flow_path("A", "B c/d").endswith("/B%20c%2Fd")
    assert Fence(name="x") == routed(
        "PUT", f"{flow_path('A', ALIAS_WITH_SPECIAL_CHARACTERS)}/connectors/x/fence"
    )


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
def test_paths_and_methods_that_are_not_internal_are_refused(method: str, path: str, status: int) -> None:
    assert status == routed(method, path)


def test_a_connect_worker_uses_the_paths_of_connect() -> None:
    assert PutTasks(name="x") == routed("POST", "/connectors/x/tasks", None)
    assert 404 == routed("POST", "/A/B/connectors/x/tasks", None)


def test_the_response_to_an_unknown_flow_names_its_aliases() -> None:
    response = route(Request(method="POST", path="/A/C/connectors/x/tasks"), FLOWS)
    assert isinstance(response, Response)
    assert b"No replication flow found for source 'A' and target 'C'" in bytes(response.body)  # type: ignore[arg-type]
