"""The leader reads pairs and SparkApplications wherever it may, although one of its namespaces may not be read.

Without a pair, a flow that its switchover has ended would start again; without its application, a seed would count as deleted.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mirrorflow_operator import leader as leader_module
from mirrorflow_operator.cluster.cache import ClusterCache, QueueKey
from mirrorflow_operator.cluster.client import MIRROR_FLOW, MIRROR_PAIR, PAIR_KINDS, SPARK_KINDS, ObjectKind
from mirrorflow_operator.cluster.progress_poller import Poller
from mirrorflow_operator.errors import ForbiddenError
from mirrorflow_operator.leader import Leader
from mirrorflow_operator.metrics import Metrics
from mirrorflow_operator.settings import Settings
from mirrorflow_operator.work_queue import WorkQueue
from tests.unit.operator.pairs import KEY, NAMESPACE, mirror_pair

STATUS = {"active": "west", "promotedBy": "east-west/move", "epoch": 1, "runs": "west-to-east"}
OTHER = "gone"
READ_S = 300.0
ALL_KINDS = (MIRROR_FLOW, *PAIR_KINDS, *SPARK_KINDS)
ALWAYS = 1_000_000


class FakeApi:
    """One pair, in NAMESPACE. *forbidden*: how often a list of a kind in a namespace is forbidden still."""

    def __init__(self, forbidden: dict[tuple[str, str], int]) -> None:
        self.forbidden = forbidden

    async def get(self, path: str) -> dict[str, Any]:
        if path.endswith("kube-system"):
            return {"metadata": {"uid": "cluster"}}
        return {"resources": [{"name": MIRROR_FLOW.plural}]}

    async def chunks(
        self, kind: ObjectKind, namespace: str, **_: object
    ) -> AsyncIterator[tuple[int, list[dict[str, Any]]]]:
        left = self.forbidden.get((kind.name, namespace), 0)
        if left:
            self.forbidden[kind.name, namespace] = left - 1
            raise ForbiddenError(f"list {kind.plural}", "forbidden", status=403)
        spec = mirror_pair().spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        metadata = {"name": KEY.name, "namespace": NAMESPACE, "uid": "1", "resourceVersion": "1"}
        is_pair = kind is MIRROR_PAIR and namespace == NAMESPACE
        yield 1, [{"metadata": metadata, "spec": spec, "status": STATUS}] if is_pair else []


class NoWatches:
    """Watches that report nothing."""

    alive = True

    def __init__(self, **_: object) -> None:
        pass

    def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass


def leader_of(forbidden: dict[tuple[str, str], int]) -> Leader:
    return Leader(
        settings=Settings(namespaces=(NAMESPACE, OTHER), workers=0),
        client=FakeApi(forbidden),  # type: ignore[arg-type]
        cache=ClusterCache(),
        queue=WorkQueue(),
        reconciler=None,  # type: ignore[arg-type]  # there is no worker
        pair_reconciler=None,  # type: ignore[arg-type]
        metrics=Metrics(),
        poller=Poller(changed=lambda _: None),
    )


def pairs_read(monkeypatch: pytest.MonkeyPatch, forbidden: dict[tuple[str, str], int]) -> set[QueueKey]:
    """Returns the pairs that a leader of both namespaces knows when it has read the cluster."""

    async def no_update(_: object) -> bool:
        return False

    async def lead() -> set[QueueKey]:
        leader = leader_of(forbidden)
        term = asyncio.create_task(leader.lead())
        async with asyncio.timeout(READ_S):
            while leader.problem is not None:  # noqa: ASYNC110  no event reports it
                await asyncio.sleep(0.01)
        term.cancel()
        await asyncio.gather(term, return_exceptions=True)
        return {*leader.cache.pairs.pairs}

    monkeypatch.setattr(leader_module, "update_definitions", no_update)
    monkeypatch.setattr(leader_module, "Watches", NoWatches)
    monkeypatch.setattr(leader_module, "RETRY_MIN_S", 0.001)
    monkeypatch.setattr(leader_module, "RETRY_MAX_S", 0.001)
    return asyncio.run(lead())


def test_a_namespace_that_may_not_be_read_hides_no_pairs_of_others(monkeypatch: pytest.MonkeyPatch):
    """As of a namespace that was deleted, with the operator's rights in it."""
    assert {KEY} == pairs_read(monkeypatch, {(kind.name, OTHER): ALWAYS for kind in ALL_KINDS})


def test_a_namespace_that_may_not_be_read_hides_no_spark_operator():
    leader = leader_of({(kind.name, OTHER): ALWAYS for kind in ALL_KINDS})

    assert "" == asyncio.run(leader._spark_operator_problem())


def test_a_missing_right_to_read_applications_is_reported():
    leader = leader_of({(kind.name, OTHER): ALWAYS for kind in SPARK_KINDS})

    assert "may not read" in (asyncio.run(leader._spark_operator_problem()) or "")


def test_rights_that_an_api_server_denies_while_it_starts_hide_no_pairs(monkeypatch: pytest.MonkeyPatch):
    """It returns 403 until it has read all roles."""
    assert {KEY} == pairs_read(monkeypatch, {(MIRROR_PAIR.name, NAMESPACE): 3})


def test_without_the_right_to_read_pairs_flows_are_read(monkeypatch: pytest.MonkeyPatch):
    """After an upgrade with the roles of the release before."""
    monkeypatch.setattr(leader_module, "DENIED_S", 0.01)
    forbidden = {(MIRROR_PAIR.name, namespace): ALWAYS for namespace in (NAMESPACE, OTHER)}

    assert set() == pairs_read(monkeypatch, forbidden)


@pytest.mark.parametrize(
    ("denied_s", "denied_pairs", "pairs"),
    [(READ_S, 3, {KEY}), (0.01, ALWAYS, set())],
    ids=["with", "without"],
)
def test_pairs_are_left_out_only_if_flows_can_be_read_and_pairs_cannot(
    monkeypatch: pytest.MonkeyPatch, denied_s: float, denied_pairs: int, pairs: set[QueueKey]
):
    """An API server may deny everything at first. Later, lists of pairs that the role does not allow would always fail."""
    monkeypatch.setattr(leader_module, "DENIED_S", denied_s)
    forbidden = {(MIRROR_FLOW.name, namespace): 50 for namespace in (NAMESPACE, OTHER)}
    forbidden |= {(MIRROR_PAIR.name, namespace): denied_pairs for namespace in (NAMESPACE, OTHER)}

    assert pairs == pairs_read(monkeypatch, forbidden)
