"""What nodes ask of each other: two paths for each flow, whatever letters its aliases have, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_replicator.http.commands import Fence, PutTasks
from mirrorflow_replicator.http.internal_rest import flow_of, flow_path, route
from mirrorflow_replicator.http.worker_view import Request, Response

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
