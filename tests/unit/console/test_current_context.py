"""The flows of the kubeconfig's current context, for which no poll waits and no login program runs."""

import threading
from collections.abc import Callable
from contextlib import closing
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from mirrorflow_console.current_context import (
    FAILED,
    RETRY_S,
    UNANSWERED,
    CurrentContext,
    CurrentContextFlows,
    current_context,
)
from mirrorflow_console.documents import FlowReading
from mirrorflow_console.flow_source import FlowSource
from mirrorflow_console.local_server import listening_socket, sources
from mirrorflow_kubernetes.credentials import KubernetesLoginError
from tests.harness.kafka.processes import wait_until
from tests.unit.console.flow_readings import FixedFlows, healthy, reading
from tests.unit.console.test_cluster_flows import cluster  # noqa: F401  a fixture
from tests.unit.http.reports import partition

KIND = CurrentContext("kind", may_ask=False)
LONG_S = 10.0  # a bound, which no test reaches


def kubeconfig(current: str | None, *, login: object = None, port: int = 1) -> str:
    return yaml.safe_dump(
        {
            **({} if current is None else {"current-context": current}),
            "clusters": [{"name": "kind", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "contexts": [{"name": "kind", "context": {"cluster": "kind", "user": "me", "namespace": "team"}}],
            "users": [{"name": "me", "user": login}],
        }
    )


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets KUBECONFIG to files with these texts."""

    def write(*texts: str) -> None:
        paths = [tmp_path / f"{number}.yaml" for number in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
        monkeypatch.setenv("KUBECONFIG", ":".join(["", *map(str, paths), str(tmp_path / "absent")]))

    return write


def test_the_first_file_with_a_current_context_counts(given):
    given(kubeconfig(None), kubeconfig("kind", login={"token": "t"}), kubeconfig("other"))

    assert current_context() == KIND


@pytest.mark.parametrize("field", ["exec", "auth-provider"])
def test_a_login_that_runs_a_program_is_recognized(given, field: str):
    given(kubeconfig("kind", login={field: {"command": "login"}}))

    assert current_context() == CurrentContext("kind", may_ask=True)


@pytest.mark.parametrize(
    "text", ["", "[", "- a", "current-context: ''", "current-context: [a]", "apiVersion: v1", "\0"]
)
def test_a_file_that_names_no_context_is_no_error(given, text: str):
    given(text)

    assert current_context() is None


def test_a_kubeconfig_with_other_types_is_no_error(given):
    given("{current-context: kind, contexts: {kind: 1}, users: [1, {name: me}]}")

    assert current_context() == KIND


def test_without_a_kubeconfig_there_is_no_context(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    assert current_context() is None


class GatedFlows(FixedFlows):
    """Flows of a cluster that responds while `is_open`."""

    def __init__(self, readings: list[FlowReading]) -> None:
        super().__init__(readings)
        self.is_open = threading.Event()
        self.is_open.set()

    def read(self, detailed, groups, *, is_watched):
        assert self.is_open.wait(LONG_S)
        return super().read(detailed, groups, is_watched=is_watched)


def flow() -> FlowReading:
    return reading(healthy(partition(0)), name="east-to-west", namespace="team")


def read(flows: FlowSource) -> list[FlowReading]:
    return flows.read(frozenset({"a"}), frozenset({"b"}), is_watched=True)


def read_until(flows: FlowSource, is_reached: Callable[[list[FlowReading]], bool]) -> list[FlowReading]:
    """Reads until *is_reached*, as polls do."""
    reached: list[list[FlowReading]] = []

    def is_read() -> bool:
        reached.append(read(flows))
        return is_reached(reached[-1])

    wait_until("the flows are read", is_read)
    return reached[-1]


def test_a_cluster_that_responds_is_read_as_another_source_is():
    """The same objects, by which the poller sees what has not changed."""
    source = GatedFlows([flow()])
    flows = CurrentContextFlows(KIND, lambda _: source, wait_max_s=LONG_S)

    readings = read_until(flows, bool)

    assert readings[0] is source.read(frozenset(), frozenset(), is_watched=True)[0]
    assert source.requests[0] == (frozenset({"a"}), frozenset({"b"}), True)
    assert flows.problem == ""


def test_no_poll_waits_for_a_cluster_that_does_not_respond():
    """Its flows keep what their status had; old figures would look like new ones."""
    source = GatedFlows([flow()])
    flows = CurrentContextFlows(KIND, lambda _: source, wait_max_s=0.05)
    read_until(flows, lambda readings: bool(readings) and readings[0].document is not None)

    source.is_open.clear()
    (late,) = read_until(flows, lambda readings: readings[0].document is None)
    assert late.name == "east-to-west"
    assert flows.problem.startswith(UNANSWERED)
    assert flows.figures == {}

    source.is_open.set()
    read_until(flows, lambda readings: readings[0].document is not None)
    assert flows.problem == ""


def test_a_cluster_with_a_problem_is_read_again_after_a_while():
    source = GatedFlows([])
    source.problem = "The API server cannot be asked."
    now_s = [0.0]
    flows = CurrentContextFlows(KIND, lambda _: source, clock=lambda: now_s[0])

    read_until(flows, lambda _: flows.problem == source.problem)
    read(flows)
    assert source.reads == 1

    now_s[0] = RETRY_S
    read_until(flows, lambda _: source.reads == 2)


def test_a_login_that_fails_is_a_problem_of_its_flows_alone():
    def connect(_: str) -> FixedFlows:
        raise KubernetesLoginError("there is no user me")

    flows = CurrentContextFlows(KIND, connect)

    read_until(flows, lambda _: flows.problem == "Cannot log in: there is no user me.")
    assert read(flows) == []


def test_an_unexpected_error_is_a_problem_of_its_flows_alone():
    def connect(_: str) -> FixedFlows:
        raise ZeroDivisionError

    flows = CurrentContextFlows(KIND, connect)

    read_until(flows, lambda _: flows.problem == FAILED)


def test_a_context_whose_login_runs_a_program_is_not_connected():
    def connect(_: str) -> FixedFlows:
        raise AssertionError("it was run")

    flows = CurrentContextFlows(CurrentContext("prod", may_ask=True), connect)

    assert read(flows) == []
    assert "mirrorflow ui --context prod" in flows.problem


@pytest.fixture
def no_local_flows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.usefixtures("no_local_flows")
def test_the_console_of_a_machine_shows_the_flows_of_the_current_context(given, cluster: ThreadingHTTPServer):  # noqa: F811
    given(kubeconfig("kind", login={"token": "t"}, port=cluster.server_port))

    flows, _ = sources(())

    (flow,) = read_until(flows, bool)
    assert (flow.key, flow.namespace) == ("kind|team~east-to-west", "kind team")


@pytest.mark.usefixtures("no_local_flows")
def test_a_cluster_that_is_off_is_one_sentence(given, caplog: pytest.LogCaptureFixture):
    """And one line of the log, not one for each attempt."""
    with closing(listening_socket(0)) as listener:
        port = listener.getsockname()[1]
    given(kubeconfig("kind", login={"token": "t"}, port=port))

    flows, _ = sources(())

    read_until(flows, lambda _: "cannot be asked" in flows.problem)
    assert flows.problem.startswith("kind: The API server cannot be asked: ")
    assert len(caplog.records) == 1


@pytest.mark.usefixtures("no_local_flows")
def test_a_login_program_of_the_current_context_is_not_run(given, tmp_path: Path):
    ran = tmp_path / "ran"
    program = {"command": "touch", "args": [str(ran)], "apiVersion": "client.authentication.k8s.io/v1"}
    given(kubeconfig("kind", login={"exec": program}))

    flows, _ = sources(())

    assert read(flows) == []
    assert "kind: Its login runs a program" in flows.problem
    assert not ran.exists()
