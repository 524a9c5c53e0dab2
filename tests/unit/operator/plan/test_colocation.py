"""Connectors that share a pod: their plan, moves without a gap, and the status of each."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.api.status import Phase, Status
from mirrorflow_operator.api.workloads import ConnectorKind, Connectors
from mirrorflow_operator.plan.connector_objects import objects
from mirrorflow_operator.plan.drift import Object
from mirrorflow_operator.plan.pod_sharing import Pods, connectors_by_pod, connectors_in
from mirrorflow_operator.plan.pod_template import WORKER_FILE
from mirrorflow_operator.plan.properties import POD_LAYOUT, plan
from mirrorflow_operator.plan.rollouts import (
    ObservedDeployment,
    Shape,
    deployment_of,
    is_moving,
    postponed_connectors,
    reasons_to_roll,
)
from mirrorflow_operator.status.observation import Observation, has_outdated_pods, is_rolling
from mirrorflow_operator.status.pod_failures import workload_name
from mirrorflow_operator.status.pod_reports import SideReachability, SideSummary
from mirrorflow_replicator.config.worker_properties import load_standalone
from tests.unit.operator.observations import (
    CHECKPOINT,
    HEARTBEAT,
    SOURCE,
    connector,
    deployment,
    mirror_flow,
    observed,
    pod,
    reading,
    settled,
)

ALL = tuple(ConnectorKind)
BOTH = ["checkpoint", "heartbeat"]
_lists = st.sampled_from([(), *(tuple(ConnectorKind)[at:] for at in (0, 1))]) | st.sampled_from(
    [(ConnectorKind.SOURCE, one) for one in (ConnectorKind.CHECKPOINT, ConnectorKind.HEARTBEAT)]
)
_running = st.sets(st.sampled_from(ALL), min_size=1)


def _flow(colocate: Sequence[str], **connectors: Any) -> MirrorFlow:
    return mirror_flow(connectors={"colocate": list(colocate), **connectors})


def _objects(flow: MirrorFlow, **how: Any) -> dict[tuple[str, str], Object]:
    found = objects(flow, plan(flow, POD_LAYOUT), image="replicator:1", **how)
    return {(one["kind"], one["metadata"]["name"].removeprefix("east-to-west-")): one for one in found}


def _words(found: Mapping[tuple[str, str], Object]) -> dict[str, tuple[str, ...]]:
    """By Deployment, what its pods run."""
    return {
        name: connectors_in(one["spec"]["template"]["spec"]["containers"][0], name)
        for (kind, name), one in found.items()
        if kind == "Deployment"
    }


@given(listed=_lists, running=_running, seed_replaces_source=st.booleans())
def test_each_active_connector_has_one_pod(
    *, listed: tuple[ConnectorKind, ...], running: set[ConnectorKind], seed_replaces_source: bool
):
    """Whatever is listed; the source connector's is its own while a seed does its work."""
    found = connectors_by_pod(Connectors(colocate=listed), running, seed_replaces_source=seed_replaces_source)

    assert sorted(kind.value for kinds in found.values() for kind in kinds) == sorted(
        kind.value for kind in running
    )
    assert all(kinds[0] is host for host, kinds in found.items())
    assert not seed_replaces_source or found.get(SOURCE, (SOURCE,)) == (SOURCE,)


def test_two_connectors_share_a_deployment_and_the_third_is_unchanged():
    """No Service, PodDisruptionBudget or policy of its own: it is one pod, which no other pod calls."""
    apart, shared = _objects(_flow([])), _objects(_flow(BOTH))

    assert apart.keys() - shared.keys() == {("ConfigMap", "heartbeat"), ("Deployment", "heartbeat")}
    assert not shared.keys() - apart.keys()
    assert {key for key in shared if shared[key] != apart[key]} == {
        ("ConfigMap", "checkpoint"),
        ("Deployment", "checkpoint"),
    }
    assert _words(shared) == {"source": ("source",), "checkpoint": ("checkpoint", "heartbeat")}


def test_the_event_names_the_connectors_that_move_and_not_their_properties():
    apart, shared = _objects(_flow([])), _objects(_flow(BOTH))
    key, files = ("Deployment", "checkpoint"), ("ConfigMap", "checkpoint")

    there = reasons_to_roll(apart[key], shared[key], apart[files]["data"], shared[files]["data"])
    back = reasons_to_roll(shared[key], apart[key], shared[files]["data"], apart[files]["data"])

    assert there == ("connectors checkpoint -> checkpoint and heartbeat",)
    assert back == ("connectors checkpoint and heartbeat -> checkpoint",)


def test_the_replicator_reads_every_connector_of_a_shared_pod():
    """Without a warning, and each by its own name, which is what it is asked for by."""
    files = _objects(_flow(["source", *BOTH]))["ConfigMap", "source"]["data"]

    settings = load_standalone(files.pop(WORKER_FILE), list(files.values()))

    assert () == settings.warnings
    assert [one.name for one in settings.connectors] == [kind.java_class for kind in ConnectorKind]


def test_the_first_listed_connector_configures_the_pod_even_without_work():
    flow = mirror_flow(
        groups={"include": []},
        connectors={"colocate": BOTH, "checkpoint": {"resources": {"limits": {"memory": "99Mi"}}}},
    )
    found = _objects(flow)

    container = found["Deployment", "heartbeat"]["spec"]["template"]["spec"]["containers"][0]
    assert ("Deployment", "checkpoint") not in found
    assert container["resources"]["limits"]["memory"] == "99Mi"


def test_a_seed_keeps_the_other_connectors_of_the_shared_pod():
    flow = _flow(["source", *BOTH], source={"resources": {"limits": {"memory": "99Mi"}}})

    found = _objects(flow, seed_replaces_source=True)

    assert _words(found) == {"source": ("source",), "checkpoint": ("checkpoint", "heartbeat")}
    for key in (("Deployment", "source"), ("Deployment", "checkpoint")):
        container = found[key]["spec"]["template"]["spec"]["containers"][0]
        assert container["resources"]["limits"]["memory"] == "99Mi"


def test_distributed_pods_run_only_their_own_connector():
    """On the way back from several pods the form comes first: what is in a config topic every node runs."""
    shared = {SOURCE: Shape(is_shared=True, replicas=1)}

    assert _words(_objects(_flow(["source", *BOTH]), shapes=shared)) == {"source": ("source",)}


def _live(kind: ConnectorKind, *words: str, **changes: Any) -> ObservedDeployment:
    return deployment(kind, connectors=words, **changes)


class _Cluster:
    """Deployments as the operator's passes and the controller make them, one step at a time."""

    def __init__(self) -> None:
        self.live: dict[str, ObservedDeployment] = {}

    def pass_over(self, flow: MirrorFlow, wanted: Pods) -> None:
        """What a pass writes: all that is not left alone."""
        left = postponed_connectors(flow, wanted, self.live)
        for kind in ALL:
            word = kind.value
            if kind in left:
                continue
            if kind not in wanted:
                self.live.pop(word, None)
                continue
            words = tuple(one.value for one in wanted[kind])
            before = self.live.get(word)
            if before is None:
                self.live[word] = _live(kind, *words, observed_generation=0, replicas=0, updated=0, ready=0)
            elif before.connectors != words:
                changed = replace(before, connectors=words, generation=before.generation + 1)
                self.live[word] = changed

    def roll(self, word: str) -> None:
        """The controller brings one Deployment to where it should be."""
        one = self.live[word]
        self.live[word] = replace(one, observed_generation=one.generation, replicas=1, updated=1, ready=1)


def _is_rolled(one: ObservedDeployment) -> bool:
    return one.observed_generation == one.generation and one.ready == 1


@given(st.lists(_lists, min_size=2, max_size=4), st.data())
def test_no_connector_is_without_a_ready_pod_while_they_move(
    lists: list[tuple[ConnectorKind, ...]], data: st.DataObject
):
    """However the list changes, and in whatever order pods become ready; in the end all is as it is wanted."""
    cluster = _Cluster()
    old: dict[str, tuple[str, ...]] = {}  # what ready pods of a Deployment run, until it has rolled
    for number, listed in enumerate(lists):
        flow = _flow([one.value for one in listed])
        wanted = connectors_by_pod(flow.spec.connectors, ALL)
        for _ in range(20):
            cluster.pass_over(flow, wanted)
            old = {word: runs for word, runs in old.items() if word in cluster.live}
            if number:
                assert {word for runs in old.values() for word in runs} == {kind.value for kind in ALL}
            rolling = [word for word, one in cluster.live.items() if not _is_rolled(one)]
            if rolling:
                word = data.draw(st.sampled_from(rolling))
                cluster.roll(word)
                old[word] = cluster.live[word].connectors
        assert {word: one.connectors for word, one in cluster.live.items()} == {
            kind.value: tuple(one.value for one in kinds) for kind, kinds in wanted.items()
        }


@pytest.mark.parametrize(
    ("state", "left"), [("Running", {HEARTBEAT}), ("Paused", {HEARTBEAT}), ("Stopped", set())]
)
def test_a_pod_that_never_starts_removes_nothing_and_a_stopped_flow_waits_for_none(
    state: str, left: set[ConnectorKind]
):
    flow = mirror_flow(state=state, connectors={"colocate": BOTH})
    live = {
        "source": _live(SOURCE, "source"),
        "checkpoint": _live(CHECKPOINT, "checkpoint", "heartbeat", replicas=2, updated=1, ready=1),
        "heartbeat": _live(HEARTBEAT, "heartbeat"),
    }

    assert postponed_connectors(flow, connectors_by_pod(flow.spec.connectors, ALL), live) == left


def test_a_moving_connector_is_rolling_until_its_old_pod_has_ended():
    flow = _flow(BOTH)
    wanted = connectors_by_pod(flow.spec.connectors, ALL)
    home = _live(CHECKPOINT, "checkpoint", "heartbeat")
    alone = _live(HEARTBEAT, "heartbeat")
    before = {"checkpoint": home, "heartbeat": alone}

    assert deployment_of(HEARTBEAT, wanted, before) == home
    assert is_moving(HEARTBEAT, home, before)
    assert not is_moving(CHECKPOINT, home, before)
    assert not is_moving(HEARTBEAT, home, {"checkpoint": home})
    moving = connector(HEARTBEAT, deployment=home, is_moving=True)
    assert is_rolling(moving)
    assert has_outdated_pods(moving)
    assert workload_name("east-to-west", moving) == "deploy/east-to-west-checkpoint"


def _shared(*, ready: bool, **of_heartbeats: Any) -> Observation:
    home = _live(CHECKPOINT, "checkpoint", "heartbeat", ready=int(ready))
    one: dict[str, Any] = {"connectors": ("checkpoint", "heartbeat"), "ready": ready}
    checkpoint = connector(CHECKPOINT)
    first = replace(checkpoint, deployment=home, pods=(replace(checkpoint.pods[0], **one),))
    second = connector(
        HEARTBEAT,
        deployment=home,
        host=CHECKPOINT,
        pods=(replace(pod(reading=reading(**of_heartbeats)), **one),),
    )
    return replace(observed(flow=_flow(BOTH)), connectors=(connector(), first, second))


def _phases(status: Status) -> dict[str, tuple[Phase, int]]:
    assert status.connectors is not None
    found = ((word, getattr(status.connectors, word)) for word in ("source", *BOTH))
    return {word: (one.phase, one.replicas) for word, one in found}


def test_each_connector_of_a_shared_pod_has_its_own_phase():
    """A pod that is not ready because heartbeats cannot begin says nothing of checkpoints."""
    lost = SideSummary(reach=SideReachability.UNREACHABLE, reason="Unreachable", since_s=300.0)

    well = _phases(settled(_shared(ready=True)))
    ill = _phases(settled(_shared(ready=False, state="FAILED", source=lost)))

    assert well == dict.fromkeys(("source", *BOTH), (Phase.RUNNING, 1))
    assert ill == dict.fromkeys(("source", "checkpoint"), (Phase.RUNNING, 1)) | {
        "heartbeat": (Phase.FAILED, 1)
    }


def test_the_message_names_the_connector_that_configures_the_shared_pod():
    observation = _shared(ready=True)
    *others, heartbeats = observation.connectors
    killed: dict[str, Any] = {
        "ready": False,
        "terminated_reason": "OOMKilled",
        "exit_code": 137,
        "restarts": 3,
    }
    pods_ = tuple(replace(one, reading=None, **killed) for one in heartbeats.pods)

    status = settled(replace(observation, connectors=(*others, replace(heartbeats, pods=pods_))))

    ready = next(one for one in status.conditions if one.type == "Ready")
    assert "spec.connectors.checkpoint.resources.limits.memory" in ready.message
