"""Conflicts between flows: which flow is refused and why, independent of the order of arrival."""

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
    at: tuple[str, str] | None = None,
) -> Resource:
    """From the cluster called *source* to that called *target*, at hosts of these names."""
    hosts = at or (f"{source}.example", f"{target}.example")
    document: dict[str, Any] = {
        "apiVersion": "mirrorflow.io/v1alpha1",
        "kind": "MirrorFlow",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "state": state,
            "source": {"alias": source, "bootstrapServers": [f"{hosts[0]}:9092"]},
            "target": {"alias": target, "bootstrapServers": [f"{hosts[1]}:9092"]},
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
    together = CrossFlowChecks()
    for one in resources:
        together.put(one)
    found = {one.name: together.refusal(one.key) for one in resources}
    return {name: refusal.reason for name, refusal in found.items() if refusal is not None}


def test_the_younger_flow_of_a_loop_is_refused_and_names_the_other() -> None:
    """Names are kept both ways: every record would come back for ever."""
    there = resource("east-to-west", "east", "west", identity=True, age_s=200)
    back = resource("west-to-east", "west", "east", identity=True)
    together = CrossFlowChecks()
    together.put(back)

    assert {back.key} == together.put(there)
    assert together.refusal(there.key) is None
    refusal = together.refusal(back.key)
    assert refusal is not None
    assert Reason.LOOP_FOUND is refusal.reason
    assert "mirrors/east-to-west and mirrors/west-to-east make a loop" in refusal.message
    assert refusal.message.endswith("This flow is the youngest of them and does not run.")


def test_equal_age_ties_break_by_name() -> None:
    """Both were created by one `kubectl apply`, within the second that Kubernetes records."""
    one = resource("a", "east", "west", identity=True)
    other = resource("b", "west", "east", identity=True)

    assert {"b": Reason.LOOP_FOUND} == refused(one, other) == refused(other, one)


def test_two_flows_with_one_alias_and_target_conflict() -> None:
    """Positions and identity are kept there by that name."""
    first = resource("first", "east", "west", age_s=200)
    second = resource("second", "east", "west", namespace="others", include=("orders",))

    assert {"second": Reason.FLOW_EXISTS} == refused(first, second)


def test_two_flows_that_write_one_topic_conflict() -> None:
    """Names are kept, and both sources have it."""
    first = resource("first", "east", "hub", identity=True, include=("orders",), age_s=200)
    second = resource("second", "west", "hub", identity=True, include=("orders",))
    apart = resource("apart", "north", "hub", identity=True, include=("payments",))

    assert {"second": Reason.TOPIC_COLLISION} == refused(first, second, apart)


def test_a_flow_that_keeps_names_within_one_cluster_is_refused() -> None:
    """By the id that both sides report, whatever they are called."""
    ids = ("one", "one")

    assert {"self": Reason.LOOP_FOUND} == refused(resource("self", "east", "west", identity=True, ids=ids))
    assert {} == refused(resource("self", "east", "west", ids=ids))


def test_both_directions_with_prefixes_run_together() -> None:
    """Active-active, as MM2 means it."""
    assert {} == refused(resource("there", "east", "west"), resource("back", "west", "east"))


def test_a_stopped_flow_conflicts_with_none() -> None:
    """Prepared for the way back, or left from before: it copies nothing."""
    there = resource("there", "east", "west", identity=True, age_s=200, state="Stopped")
    back = resource("back", "west", "east", identity=True)

    assert {} == refused(there, back)


def test_a_refused_flow_runs_once_the_other_is_deleted_or_changed() -> None:
    """Flows whose refusal changed are returned, so that they are reconciled again."""
    there = resource("there", "east", "west", identity=True, age_s=200)
    back = resource("back", "west", "east", identity=True, include=("orders",))
    together = CrossFlowChecks()
    together.put(there)
    together.put(back)

    assert {back.key} == together.put(
        resource("there", "east", "west", identity=True, age_s=200, include=("payments",))
    )
    assert together.refusal(back.key) is None
    assert {back.key} == together.put(there)
    assert together.refusal(back.key) is not None
    assert {back.key} == together.remove(there.key)
    assert together.refusal(back.key) is None


def test_a_refused_flow_does_not_block_a_third() -> None:
    """A flow that does not run blocks no other."""
    first = resource("first", "east", "hub", identity=True, age_s=300)
    second = resource("second", "hub", "east", identity=True, age_s=200)
    third = resource("third", "hub", "north", identity=True)

    assert {"second": Reason.LOOP_FOUND} == refused(first, second, third)


def test_an_unreadable_spec_counts_as_the_last_readable_one() -> None:
    """Its pods are left as they are, so they still copy."""
    there = resource("there", "east", "west", identity=True, age_s=200)
    back = resource("back", "west", "east", identity=True)
    together = CrossFlowChecks()
    together.put(there)
    together.put(replace(there, flow=None))
    together.put(back)

    assert together.refusal(back.key) is not None


def test_short_host_names_belong_to_the_namespace() -> None:
    """`kafka:9092` of two namespaces are two clusters, and of one namespace one."""
    hosts = ("kafka", "copy")
    one = resource("one", "east", "west", at=hosts, age_s=200)
    same = resource("same", "east", "north", at=("kafka.mirrors.svc.cluster.local", "copy.mirrors.svc"))
    apart = resource("apart", "east", "west", at=hosts, namespace="others")

    assert {"same": Reason.FLOW_EXISTS} == refused(one, same)
    assert {} == refused(one, apart)


def test_cluster_ids_of_an_earlier_spec_are_ignored() -> None:
    """The spec was changed to end a loop; the status still has the earlier ids."""
    there = resource("there", "east", "west", identity=True, age_s=200, ids=("1", "2"))
    back = resource("back", "west", "east", identity=True, at=("w", "e"), ids=("2", "1"))

    assert {"back": Reason.LOOP_FOUND} == refused(there, back)
    assert {} == refused(there, replace(back, generation=2))


_WAYS = (
    ("east", "north"),
    ("east", "hub"),
    ("east", "west"),
    ("west", "north"),
    ("west", "hub"),
    ("hub", "east"),
)
_RESOURCES = st.lists(
    st.builds(
        lambda name, way, **others: resource(name, *way, **others),
        st.sampled_from("abcdef"),
        st.sampled_from(_WAYS),
        age_s=st.sampled_from((100.0, 200.0, 300.0)),
        identity=st.booleans(),
        state=st.sampled_from(("Running", "Stopped")),
    ),
    max_size=10,
)


@given(_RESOURCES, st.data())
def test_the_order_of_arrival_does_not_matter(resources: list[Resource], data: st.DataObject) -> None:
    """After adding, replacing and removing flows only the rest decides; each step returns the flows whose refusal changed."""
    together, known = CrossFlowChecks(), dict[Key, Resource]()
    refusals: dict[Key, object] = {}
    for one in resources:
        key = one.key
        goes: Key | None = data.draw(st.sampled_from([None, *sorted(known)]))
        if goes is not None:
            key = goes
            told = together.remove(key)
            del known[key]
        else:
            told = together.put(one)
            known[key] = one
        now = {each: together.refusal(each) for each in known}
        assert {each for each in known if each != key and now[each] != refusals.get(each)} == told
        refusals = dict(now)

    again = CrossFlowChecks()
    for one in data.draw(st.permutations(list(known.values()))):
        again.put(one)
    assert refusals == {each: again.refusal(each) for each in known}


def test_flows_with_aliases_of_their_own_need_no_full_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """All copy into one cluster."""
    checked: list[object] = []
    monkeypatch.setattr(cross_flow_checks, "conflicts", checked.append)
    together = CrossFlowChecks()
    for at in range(20):
        assert frozenset() == together.put(resource(f"flow-{at}", f"source-{at}", "hub"))

    assert [] == checked


def test_the_last_flow_of_a_long_ring_is_refused() -> None:
    names = [f"c{at}" for at in range(20)]
    flows = [resource(f"flow-{a}", a, b, identity=True) for a, b in pairwise([*names, names[0]])]

    assert {max(one.name for one in flows): Reason.LOOP_FOUND} == refused(*flows)


@pytest.mark.timing
def test_a_thousand_flows_into_one_cluster_are_checked_quickly() -> None:
    together = CrossFlowChecks()
    flows = [resource(f"flow-{at}", f"source-{at}", "hub") for at in range(1000)]
    began = time.process_time()
    for one in flows:
        assert frozenset() == together.put(one)

    assert time.process_time() - began < 15


@pytest.mark.timing
def test_many_possibly_colliding_flows_are_checked_quickly() -> None:
    """The most that are looked at at once, in a ring."""
    together = CrossFlowChecks()
    names = [f"c{at}" for at in range(FULL_CHECK_MAX)]
    flows = [resource(f"flow-{a}", a, b, identity=True) for a, b in pairwise([*names, names[0]])]
    for one in flows[:-1]:
        together.put(one)
    began = time.process_time()
    together.put(flows[-1])

    assert [max(one.name for one in flows)] == [one.name for one in flows if together.refusal(one.key)]
    assert time.process_time() - began < 10
