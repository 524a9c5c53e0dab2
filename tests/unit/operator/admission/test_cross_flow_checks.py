"""Conflicts between flows decide which flow is refused and why, regardless of the order of arrival."""

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_operator.admission import cross_flow_checks
from mirrorflow_operator.admission.cross_flow_checks import FULL_CHECK_MAX, CrossFlowChecks
from mirrorflow_operator.api.load import parse_flow
from mirrorflow_operator.api.status import ClusterIds, Status
from mirrorflow_operator.status.conditions import Reason
from mirrorflow_operator.status.observation import Key, Resource
from tests.unit.operator.observations import NOW_S


def resource(
    name: str,
    source: str,
    target: str,
    *,
    age_s: float = 100.0,
    identity: bool = False,
    state: str = "Running",
    namespace: str = "mirrors",
    ids: tuple[str, str] | None = None,
    include: Sequence[str] = (".*",),
    hosts: tuple[str, str] | None = None,
) -> Resource:
    """Returns a flow between the clusters *source* and *target*, by default at hosts with these names."""
    source_host, target_host = hosts or (f"{source}.example", f"{target}.example")
    document: dict[str, Any] = {
        "apiVersion": "mirrorflow.io/v1alpha1",
        "kind": "MirrorFlow",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "state": state,
            "source": {"alias": source, "bootstrapServers": [f"{source_host}:9092"]},
            "target": {"alias": target, "bootstrapServers": [f"{target_host}:9092"]},
            "topics": {
                "include": list(include),
                "naming": {"policy": "Identity" if identity else "Prefix"},
            },
        },
    }
    status = Status(observed_generation=1)
    if ids is not None:
        status = Status(observed_generation=1, cluster_ids=ClusterIds(source=ids[0], target=ids[1]))
    return Resource(
        namespace=namespace,
        name=name,
        uid=name,
        generation=1,
        created_s=NOW_S - age_s,
        flow=parse_flow(document),
        status=status,
    )


def refused(*resources: Resource) -> dict[str, Reason]:
    checks = CrossFlowChecks()
    for flow in resources:
        checks.put(flow)
    refusals = {flow.name: checks.refusal(flow.key) for flow in resources}
    return {name: refusal.reason for name, refusal in refusals.items() if refusal is not None}


def test_the_younger_flow_of_a_loop_is_refused_with_the_name_of_the_other() -> None:
    """With identity naming in both directions each record would be copied forever."""
    there = resource("east-to-west", "east", "west", identity=True, age_s=200)
    back = resource("west-to-east", "west", "east", identity=True)
    checks = CrossFlowChecks()
    checks.put(back)

    assert {back.key} == checks.put(there)
    assert checks.refusal(there.key) is None
    refusal = checks.refusal(back.key)
    assert refusal is not None
    assert Reason.LOOP_FOUND is refusal.reason
    assert "mirrors/east-to-west and mirrors/west-to-east make a loop" in refusal.message
    assert refusal.message.endswith("This flow is the youngest of them and does not run.")


def test_equal_age_ties_break_by_name() -> None:
    """One `kubectl apply` creates both in the same second, and Kubernetes has a precision of one second."""
    first = resource("a", "east", "west", identity=True)
    second = resource("b", "west", "east", identity=True)

    assert {"b": Reason.LOOP_FOUND} == refused(first, second) == refused(second, first)


def test_two_flows_with_the_same_alias_and_target_conflict() -> None:
    """The target stores offsets and the claim under that alias."""
    first = resource("first", "east", "west", age_s=200)
    second = resource("second", "east", "west", namespace="others", include=("orders",))

    assert {"second": Reason.FLOW_EXISTS} == refused(first, second)


def test_two_flows_that_write_the_same_topic_conflict() -> None:
    """Both sources have the topic, and naming is Identity."""
    first = resource("first", "east", "hub", identity=True, include=("orders",), age_s=200)
    second = resource("second", "west", "hub", identity=True, include=("orders",))
    independent = resource("independent", "north", "hub", identity=True, include=("payments",))

    assert {"second": Reason.TOPIC_COLLISION} == refused(first, second, independent)


def test_identity_naming_within_one_cluster_is_refused() -> None:
    """Both sides report the same cluster id, although their aliases differ."""
    ids = ("same", "same")

    assert {"self": Reason.LOOP_FOUND} == refused(resource("self", "east", "west", identity=True, ids=ids))
    assert {} == refused(resource("self", "east", "west", ids=ids))


def test_both_directions_with_prefixes_run_together() -> None:
    """This is MM2's active/active setup."""
    assert {} == refused(resource("there", "east", "west"), resource("back", "west", "east"))


def test_a_stopped_flow_conflicts_with_no_other_flow() -> None:
    """It copies nothing, so it may be prepared for a failback."""
    there = resource("there", "east", "west", identity=True, age_s=200, state="Stopped")
    back = resource("back", "west", "east", identity=True)

    assert {} == refused(there, back)


def test_a_refused_flow_is_accepted_after_the_other_is_deleted_or_changed() -> None:
    """`put` and `remove` return the flows whose refusal changed, so that they are reconciled again."""
    there = resource("there", "east", "west", identity=True, age_s=200)
    back = resource("back", "west", "east", identity=True, include=("orders",))
    checks = CrossFlowChecks()
    checks.put(there)
    checks.put(back)

    assert {back.key} == checks.put(
        resource("there", "east", "west", identity=True, age_s=200, include=("payments",))
    )
    assert checks.refusal(back.key) is None
    assert {back.key} == checks.put(there)
    assert checks.refusal(back.key) is not None
    assert {back.key} == checks.remove(there.key)
    assert checks.refusal(back.key) is None


def test_a_refused_flow_does_not_block_a_third() -> None:
    first = resource("first", "east", "hub", identity=True, age_s=300)
    second = resource("second", "hub", "east", identity=True, age_s=200)
    third = resource("third", "hub", "north", identity=True)

    assert {"second": Reason.LOOP_FOUND} == refused(first, second, third)


def test_a_flow_with_an_invalid_spec_is_checked_by_its_last_valid_one() -> None:
    """Its pods are unchanged, so they still copy."""
    there = resource("there", "east", "west", identity=True, age_s=200)
    back = resource("back", "west", "east", identity=True)
    checks = CrossFlowChecks()
    checks.put(there)
    checks.put(replace(there, flow=None))
    checks.put(back)

    assert checks.refusal(back.key) is not None


def test_short_host_names_are_resolved_in_the_namespace() -> None:
    """`kafka:9092` in two namespaces means two clusters."""
    hosts = ("kafka", "copy")
    first = resource("first", "east", "west", hosts=hosts, age_s=200)
    same = resource("same", "east", "north", hosts=("kafka.mirrors.svc.cluster.local", "copy.mirrors.svc"))
    different = resource("different", "east", "west", hosts=hosts, namespace="others")

    assert {"same": Reason.FLOW_EXISTS} == refused(first, same)
    assert {} == refused(first, different)


def test_cluster_ids_of_an_earlier_spec_are_ignored() -> None:
    """The spec was changed to end a loop; the status still has the earlier ids."""
    there = resource("there", "east", "west", identity=True, age_s=200, ids=("1", "2"))
    back = resource("back", "west", "east", identity=True, hosts=("w", "e"), ids=("2", "1"))

    assert {"back": Reason.LOOP_FOUND} == refused(there, back)
    assert {} == refused(there, replace(back, generation=2))


_DIRECTIONS = (
    ("east", "north"),
    ("east", "hub"),
    ("east", "west"),
    ("west", "north"),
    ("west", "hub"),
    ("hub", "east"),
)
_RESOURCES = st.lists(
    st.builds(
        lambda name, direction, **fields: resource(name, *direction, **fields),
        st.sampled_from("abcdef"),
        st.sampled_from(_DIRECTIONS),
        age_s=st.sampled_from((100.0, 200.0, 300.0)),
        identity=st.booleans(),
        state=st.sampled_from(("Running", "Stopped")),
    ),
    max_size=10,
)


@given(_RESOURCES, st.data())
def test_refusals_do_not_depend_on_the_order_of_arrival(
    resources: list[Resource], data: st.DataObject
) -> None:
    """Refusals depend only on the existing flows. Each step returns the flows whose refusal changed."""
    checks, known = CrossFlowChecks(), dict[Key, Resource]()
    refusals: dict[Key, object] = {}
    for flow in resources:
        key = flow.key
        removed: Key | None = data.draw(st.sampled_from([None, *sorted(known)]))
        if removed is not None:
            key = removed
            changed = checks.remove(key)
            del known[key]
        else:
            changed = checks.put(flow)
            known[key] = flow
        current = {other: checks.refusal(other) for other in known}
        assert {other for other in known if other != key and current[other] != refusals.get(other)} == changed
        refusals = dict(current)

    rebuilt = CrossFlowChecks()
    for flow in data.draw(st.permutations(list(known.values()))):
        rebuilt.put(flow)
    assert refusals == {key: rebuilt.refusal(key) for key in known}


def test_flows_with_different_aliases_into_one_cluster_need_no_full_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[object] = []
    monkeypatch.setattr(cross_flow_checks, "conflicts", checked.append)
    checks = CrossFlowChecks()
    for number in range(20):
        assert frozenset() == checks.put(resource(f"flow-{number}", f"source-{number}", "hub"))

    assert [] == checked


def test_the_last_flow_of_a_long_ring_is_refused() -> None:
    names = [f"c{number}" for number in range(20)]
    flows = [resource(f"flow-{a}", a, b, identity=True) for a, b in pairwise([*names, names[0]])]

    assert {max(flow.name for flow in flows): Reason.LOOP_FOUND} == refused(*flows)


@pytest.mark.timing
def test_a_thousand_flows_into_one_cluster_are_checked_quickly() -> None:
    checks = CrossFlowChecks()
    flows = [resource(f"flow-{number}", f"source-{number}", "hub") for number in range(1000)]
    began = time.process_time()
    for flow in flows:
        assert frozenset() == checks.put(flow)

    assert time.process_time() - began < 15


@pytest.mark.timing
def test_many_possibly_colliding_flows_are_checked_quickly() -> None:
    """The flows form a ring of the maximum size for a full check."""
    checks = CrossFlowChecks()
    names = [f"c{number}" for number in range(FULL_CHECK_MAX)]
    flows = [resource(f"flow-{a}", a, b, identity=True) for a, b in pairwise([*names, names[0]])]
    for flow in flows[:-1]:
        checks.put(flow)
    began = time.process_time()
    checks.put(flows[-1])

    assert [max(flow.name for flow in flows)] == [flow.name for flow in flows if checks.refusal(flow.key)]
    assert time.process_time() - began < 10
