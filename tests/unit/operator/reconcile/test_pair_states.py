"""The state of a flow of a pair: its spec decides until a switchover has, and again when the pair is deleted."""

import asyncio
from typing import Any

import pytest

from mirrorflow_operator.cluster.cache import ClusterCache
from mirrorflow_operator.cluster.client import MIRROR_FLOW, MIRROR_PAIR
from mirrorflow_operator.cluster.pod_events import PodEventReader
from mirrorflow_operator.cluster.progress_poller import Poller
from mirrorflow_operator.reconcile.observe import Observer
from tests.unit.operator.pairs import API_VERSION, KEY, NAMESPACE, flow, mirror_pair

SWITCHED = {"active": "west", "promotedBy": "east-west/move", "epoch": 1, "runs": "west-to-east"}
PROMOTED = {**SWITCHED, "runs": ""}


def body(kind: str, name: str, spec: Any, status: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "generation": 1,
        },
        "spec": spec.model_dump(mode="json", by_alias=True, exclude_none=True),
        "status": status or {},
    }


def state_of(name: str, spec_state: str, pair_status: dict[str, Any] | None) -> tuple[str, str | None]:
    """Returns the state in which flow *name* is run, and the pair that has stopped it."""
    cache = ClusterCache()
    source, _, target = name.partition("-to-")
    cache.put(MIRROR_FLOW, body("MirrorFlow", name, flow(source, target, state=spec_state).spec))
    if pair_status is not None:
        cache.put(MIRROR_PAIR, body("MirrorPair", KEY.name, mirror_pair().spec, pair_status))
    observer = Observer(
        cache=cache,
        poller=Poller(changed=lambda _: None),
        pod_events=PodEventReader(client=None),  # type: ignore[arg-type]  # no pod, no request
    )
    observed = asyncio.run(observer.observe((NAMESPACE, name)))
    assert observed is not None
    resource = observed.with_pair().resource
    assert resource.flow is not None
    return resource.flow.spec.state.value, resource.stopped_by


@pytest.mark.parametrize(
    ("name", "spec_state", "pair_status", "expected"),
    [
        ("west-to-east", "Stopped", None, "Stopped"),
        ("west-to-east", "Stopped", {"active": "east"}, "Stopped"),
        ("west-to-east", "Stopped", PROMOTED, "Stopped"),
        ("west-to-east", "Stopped", SWITCHED, "Running"),
        ("west-to-east", "Paused", SWITCHED, "Paused"),
        ("west-to-east", "Running", SWITCHED, "Running"),
        ("east-to-west", "Running", {"active": "east"}, "Running"),
        ("east-to-west", "Running", SWITCHED, "Stopped"),
        ("east-to-west", "Paused", SWITCHED, "Stopped"),
    ],
    ids=[
        "no-pair",
        "never-switched",
        "positions-not-stored",
        "started",
        "paused-by-its-user",
        "spec-changed-to-running",
        "active-before-the-first-switchover",
        "ended",
        "ended-while-paused",
    ],
)
def test_the_active_member_of_a_pair_decides_which_flow_runs(
    name: str, spec_state: str, pair_status: dict[str, Any] | None, expected: str
):
    state, _ = state_of(name, spec_state, pair_status)

    assert expected == state


def test_the_conditions_of_a_stopped_flow_name_its_pair():
    """The spec of the flow says Running, so the conditions must explain what stops it."""
    assert ("Stopped", KEY.name) == state_of("east-to-west", "Running", SWITCHED)
