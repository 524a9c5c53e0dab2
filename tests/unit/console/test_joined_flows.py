"""Flows of this machine and of contexts of a kubeconfig, on one page."""

from mirrorflow_console.joined_flows import JoinedFlows
from tests.unit.console.worlds import FixedFlows, healthy, reading
from tests.unit.http.reports import partition


def source(name: str, problem: str = "") -> FixedFlows:
    found = FixedFlows([reading(healthy(partition(0)), name=name, namespace="team")])
    found.problem = problem
    return found


def test_flows_of_a_context_have_its_name():
    joined = JoinedFlows({"": source("here"), "kind": source("there")})

    found = joined.read(frozenset(), frozenset(), is_watched=True)

    assert [(one.key, one.namespace) for one in found] == [("here", "team"), ("kind|there", "kind team")]


def test_each_source_is_asked_for_its_own_flows():
    here, there = source("here"), source("there")
    joined = JoinedFlows({"": here, "kind": there})

    joined.read(frozenset({"here", "kind|there"}), frozenset(), is_watched=False)

    assert there.asked == [(frozenset({"there"}), frozenset(), False)]
    assert "here" in here.asked[0][0]


def test_problem_names_its_context():
    assert JoinedFlows({"": source("a"), "kind": source("b", "No answer.")}).problem == "kind: No answer."
