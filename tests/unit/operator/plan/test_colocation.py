"""Connectors that share a pod are planned together, move between pods, and have separate statuses."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.api.status import Phase, Status
from mirrorflow_operator.api.workloads import COLOCATABLE, ConnectorKind, Connectors
from mirrorflow_operator.plan.connector_objects import objects
from mirrorflow_operator.plan.drift import Object
from mirrorflow_operator.plan.pod_sharing import Pods, connectors_by_pod, connectors_in
from mirrorflow_operator.plan.pod_template import WORKER_FILE
from mirrorflow_operator.plan.properties import plan
from mirrorflow_operator.plan.rollouts import (
    ObservedDeployment,
    Shape,
    deployment_of,
    is_moving,
    postponed_connectors,
    reasons_to_roll,
)
from mirrorflow_operator.plan.secret_layout import POD_LAYOUT
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

ALL = COLOCATABLE
BOTH = ["checkpoint", "heartbeat"]
_lists = st.sampled_from([(), *(COLOCATABLE[index:] for index in (0, 1))]) | st.sampled_from(
    [(ConnectorKind.SOURCE, kind) for kind in (ConnectorKind.CHECKPOINT, ConnectorKind.HEARTBEAT)]
)
_running = st.sets(st.sampled_from(ALL), min_size=1)


def _flow(colocate: Sequence[str], **connectors: Any) -> MirrorFlow:
    return mirror_flow(connectors={"colocate": list(colocate), **connectors})


def _objects(flow: MirrorFlow, **options: Any) -> dict[tuple[str, str], Object]:
    planned = objects(flow, plan(flow, POD_LAYOUT), image="replicator:1", **options)
    return {(item["kind"], item["metadata"]["name"].removeprefix("east-to-west-")): item for item in planned}


def _connectors_of_pods(planned: Mapping[tuple[str, str], Object]) -> dict[str, tuple[str, ...]]:
    """Maps each Deployment to the connectors that its pods run."""
    return {
        name: connectors_in(item["spec"]["template"]["spec"]["containers"][0], name)
        for (kind, name), item in planned.items()
        if kind == "Deployment"
    }


@given(listed=_lists, running=_running, seed_replaces_source=st.booleans())
def test_each_active_connector_has_one_pod(
    *, listed: tuple[ConnectorKind, ...], running: set[ConnectorKind], seed_replaces_source: bool
):
    """While a seed replaces the source connector, that connector shares no pod."""
    by_pod = connectors_by_pod(
        Connectors(colocate=listed), running, seed_replaces_source=seed_replaces_source
    )

    assert sorted(kind.value for kinds in by_pod.values() for kind in kinds) == sorted(
        kind.value for kind in running
    )
    assert all(kinds[0] is host for host, kinds in by_pod.items())
    assert not seed_replaces_source or by_pod.get(SOURCE, (SOURCE,)) == (SOURCE,)


def test_two_connectors_share_a_deployment_and_the_third_is_unchanged():
    """One pod that no other pod calls needs no Service, PodDisruptionBudget or NetworkPolicy."""
    separate, shared = _objects(_flow([])), _objects(_flow(BOTH))

    assert separate.keys() - shared.keys() == {("ConfigMap", "heartbeat"), ("Deployment", "heartbeat")}
    assert not shared.keys() - separate.keys()
    assert {key for key in shared if shared[key] != separate[key]} == {
        ("ConfigMap", "checkpoint"),
        ("Deployment", "checkpoint"),
    }
    assert _connectors_of_pods(shared) == {"source": ("source",), "checkpoint": ("checkpoint", "heartbeat")}


def test_the_rollout_reason_names_moved_connectors_instead_of_their_properties():
    separate, shared = _objects(_flow([])), _objects(_flow(BOTH))
    key, files = ("Deployment", "checkpoint"), ("ConfigMap", "checkpoint")

    there = reasons_to_roll(separate[key], shared[key], separate[files]["data"], shared[files]["data"])
    back = reasons_to_roll(shared[key], separate[key], shared[files]["data"], separate[files]["data"])

    assert there == ("connectors checkpoint -> checkpoint and heartbeat",)
    assert back == ("connectors checkpoint and heartbeat -> checkpoint",)


def test_the_replicator_accepts_the_files_of_a_shared_pod():
    """It logs no warning. Each connector has its own name, by which the operator polls it."""
    files = _objects(_flow(["source", *BOTH]))["ConfigMap", "source"]["data"]

    settings = load_standalone(files.pop(WORKER_FILE), list(files.values()))

    assert () == settings.warnings
    assert [connector_settings.name for connector_settings in settings.connectors] == [
        kind.java_class for kind in COLOCATABLE
    ]


def test_the_first_listed_connector_configures_the_pod_even_without_work():
    flow = mirror_flow(
        groups={"include": []},
        connectors={"colocate": BOTH, "checkpoint": {"resources": {"limits": {"memory": "99Mi"}}}},
    )
    planned = _objects(flow)

    container = planned["Deployment", "heartbeat"]["spec"]["template"]["spec"]["containers"][0]
    assert ("Deployment", "checkpoint") not in planned
    assert container["resources"]["limits"]["memory"] == "99Mi"


def test_a_seed_keeps_the_other_connectors_of_a_shared_pod_running():
    flow = _flow(["source", *BOTH], source={"resources": {"limits": {"memory": "99Mi"}}})

    planned = _objects(flow, seed_replaces_source=True)

    assert _connectors_of_pods(planned) == {"source": ("source",), "checkpoint": ("checkpoint", "heartbeat")}
    for key in (("Deployment", "source"), ("Deployment", "checkpoint")):
        container = planned[key]["spec"]["template"]["spec"]["containers"][0]
        assert container["resources"]["limits"]["memory"] == "99Mi"


def test_distributed_pods_run_only_their_own_connector():
    """A distributed node runs all connectors in the config topic.

    The mode therefore changes before connectors share a pod.
    """
    shared = {SOURCE: Shape(is_shared=True, replicas=1)}

    assert _connectors_of_pods(_objects(_flow(["source", *BOTH]), shapes=shared)) == {"source": ("source",)}


def _live(kind: ConnectorKind, *names: str, **changes: Any) -> ObservedDeployment:
    return deployment(kind, connectors=names, **changes)


class _SimulatedDeployments:
    """Deployments that the operator's passes write, and whose rollouts advance one step at a time."""

    def __init__(self) -> None:
        self.live: dict[str, ObservedDeployment] = {}

    def reconcile(self, flow: MirrorFlow, wanted: Pods) -> None:
        """Applies a pass, which writes all Deployments except the postponed ones."""
        postponed = postponed_connectors(flow, wanted, self.live)
        for kind in ALL:
            name = kind.value
            if kind in postponed:
                continue
            if kind not in wanted:
                self.live.pop(name, None)
                continue
            connectors = tuple(connector_kind.value for connector_kind in wanted[kind])
            before = self.live.get(name)
            if before is None:
                self.live[name] = _live(
                    kind, *connectors, observed_generation=0, replicas=0, updated=0, ready=0
                )
            elif before.connectors != connectors:
                changed = replace(before, connectors=connectors, generation=before.generation + 1)
                self.live[name] = changed

    def roll(self, name: str) -> None:
        """Completes the rollout of a Deployment."""
        live = self.live[name]
        self.live[name] = replace(live, observed_generation=live.generation, replicas=1, updated=1, ready=1)


def _is_rolled(live: ObservedDeployment) -> bool:
    return live.observed_generation == live.generation and live.ready == 1


@given(st.lists(_lists, min_size=2, max_size=4), st.data())
def test_each_connector_keeps_a_ready_pod_while_connectors_move(
    lists: list[tuple[ConnectorKind, ...]], data: st.DataObject
):
    """The list changes in any way, and pods become ready in any order. Finally, all Deployments are as planned."""
    cluster = _SimulatedDeployments()
    ready: dict[str, tuple[str, ...]] = {}  # connectors that the ready pods of a Deployment run
    for number, listed in enumerate(lists):
        flow = _flow([kind.value for kind in listed])
        wanted = connectors_by_pod(flow.spec.connectors, ALL)
        for _ in range(20):
            cluster.reconcile(flow, wanted)
            ready = {name: names for name, names in ready.items() if name in cluster.live}
            if number:
                assert {name for names in ready.values() for name in names} == {kind.value for kind in ALL}
            rolling = [name for name, live in cluster.live.items() if not _is_rolled(live)]
            if rolling:
                rolled = data.draw(st.sampled_from(rolling))
                cluster.roll(rolled)
                ready[rolled] = cluster.live[rolled].connectors
        assert {name: live.connectors for name, live in cluster.live.items()} == {
            pod_kind.value: tuple(kind.value for kind in kinds) for pod_kind, kinds in wanted.items()
        }


@pytest.mark.parametrize(
    ("state", "postponed"), [("Running", {HEARTBEAT}), ("Paused", {HEARTBEAT}), ("Stopped", set())]
)
def test_an_old_deployment_stays_until_the_new_pod_is_ready_unless_the_flow_is_stopped(
    state: str, postponed: set[ConnectorKind]
):
    flow = mirror_flow(state=state, connectors={"colocate": BOTH})
    live = {
        "source": _live(SOURCE, "source"),
        "checkpoint": _live(CHECKPOINT, "checkpoint", "heartbeat", replicas=2, updated=1, ready=1),
        "heartbeat": _live(HEARTBEAT, "heartbeat"),
    }

    assert postponed_connectors(flow, connectors_by_pod(flow.spec.connectors, ALL), live) == postponed


def test_a_moving_connector_is_rolling_until_its_old_deployment_is_deleted():
    flow = _flow(BOTH)
    wanted = connectors_by_pod(flow.spec.connectors, ALL)
    new = _live(CHECKPOINT, "checkpoint", "heartbeat")
    old = _live(HEARTBEAT, "heartbeat")
    before = {"checkpoint": new, "heartbeat": old}

    assert deployment_of(HEARTBEAT, wanted, before) == new
    assert is_moving(HEARTBEAT, new, before)
    assert not is_moving(CHECKPOINT, new, before)
    assert not is_moving(HEARTBEAT, new, {"checkpoint": new})
    moving = connector(HEARTBEAT, deployment=new, is_moving=True)
    assert is_rolling(moving)
    assert has_outdated_pods(moving)
    assert workload_name("east-to-west", moving) == "deploy/east-to-west-checkpoint"


def _shared(*, ready: bool, **heartbeat_summary: Any) -> Observation:
    shared = _live(CHECKPOINT, "checkpoint", "heartbeat", ready=int(ready))
    fields: dict[str, Any] = {"connectors": ("checkpoint", "heartbeat"), "ready": ready}
    checkpoint = connector(CHECKPOINT)
    first = replace(checkpoint, deployment=shared, pods=(replace(checkpoint.pods[0], **fields),))
    second = connector(
        HEARTBEAT,
        deployment=shared,
        host=CHECKPOINT,
        pods=(replace(pod(reading=reading(**heartbeat_summary)), **fields),),
    )
    return replace(observed(flow=_flow(BOTH)), connectors=(connector(), first, second))


def _phases(status: Status) -> dict[str, tuple[Phase, int]]:
    assert status.connectors is not None
    statuses = ((name, getattr(status.connectors, name)) for name in ("source", *BOTH))
    return {name: (connector.phase, connector.replicas) for name, connector in statuses}


def test_each_connector_of_a_shared_pod_has_its_own_phase():
    """A pod may not be ready because heartbeats cannot start. Checkpoints are then still running."""
    lost = SideSummary(reach=SideReachability.UNREACHABLE, reason="Unreachable", since_s=300.0)

    healthy = _phases(settled(_shared(ready=True)))
    failed = _phases(settled(_shared(ready=False, state="FAILED", source=lost)))

    assert healthy == dict.fromkeys(("source", *BOTH), (Phase.RUNNING, 1))
    assert failed == dict.fromkeys(("source", "checkpoint"), (Phase.RUNNING, 1)) | {
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
    pods_ = tuple(replace(observed_pod, reading=None, **killed) for observed_pod in heartbeats.pods)

    status = settled(replace(observation, connectors=(*others, replace(heartbeats, pods=pods_))))

    ready = next(condition for condition in status.conditions if condition.type == "Ready")
    assert "spec.connectors.checkpoint.resources.limits.memory" in ready.message
