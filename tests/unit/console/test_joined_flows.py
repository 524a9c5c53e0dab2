"""Flows of this machine and of kubeconfig contexts are shown on one page."""

from mirrorflow_console.joined_flows import JoinedFlows
from tests.unit.console.flow_readings import FixedFlows, healthy, reading
from tests.unit.http.reports import partition


def source(name: str, problem: str = "") -> FixedFlows:
    fixed = FixedFlows([reading(healthy(partition(0)), name=name, namespace="team")])
    fixed.problem = problem
    return fixed


def test_flows_of_a_context_have_the_context_in_their_key():
    joined = JoinedFlows({"": source("here"), "kind": source("there")})

    readings = joined.read(frozenset(), frozenset(), is_watched=True)

    assert [(flow.key, flow.namespace) for flow in readings] == [
        ("here", "team"),
        ("kind|there", "kind team"),
    ]


def test_each_source_receives_only_the_keys_of_its_flows():
    local, remote = source("here"), source("there")
    joined = JoinedFlows({"": local, "kind": remote})

    joined.read(frozenset({"here", "kind|there"}), frozenset(), is_watched=False)

    assert remote.requests == [(frozenset({"there"}), frozenset(), False)]
    assert "here" in local.requests[0][0]


def test_a_problem_has_the_name_of_its_context():
    assert JoinedFlows({"": source("a"), "kind": source("b", "No response.")}).problem == "kind: No response."
