"""What an owner of a flow checks before it takes the flow over."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrorflow_core.errors import BrokerError, ClusterChangedError, FlowUnfencedError, UnreachableError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.writer.claim import Claim
from mirrorflow_replicator.connectors import flow_owner
from mirrorflow_replicator.connectors.flow_clusters import FlowClusters
from mirrorflow_replicator.connectors.flow_owner import FlowOwner, refuse_changed_clusters
from mirrorflow_replicator.connectors.task_messages import Assign

SETTINGS = cast(
    "Any",
    SimpleNamespace(
        name="source", source_alias="east", target_alias="west", offsets=SimpleNamespace(store=None)
    ),
)
CLUSTERS = cast("Any", (object(), object()))
ASSIGNMENT = ((TopicPartition("orders", 0),),)
NO_ACL = "west does not grant Write on transactional ids that begin with mirrorflow:east:"
CLAIM = Claim(
    flow="east->west",
    process="host/1/a",
    source_alias="east",
    tasks=1,
    lock_epoch=16,
    source_cluster_id="a",
    target_cluster_id="b",
    time_ms=0,
)


@pytest.mark.parametrize(("side", "alias"), [("source_cluster_id", "east"), ("target_cluster_id", "west")])
def test_another_cluster_behind_a_known_address_is_refused(side: str, alias: str):
    changed = replace(CLAIM, **{side: "other"})  # type: ignore[arg-type]

    with pytest.raises(ClusterChangedError, match=f"Cluster {alias} was . and is now other"):
        refuse_changed_clusters(CLAIM, changed, SETTINGS)


@pytest.mark.parametrize("now", [CLAIM, replace(CLAIM, source_cluster_id="")])
def test_the_same_or_an_unknown_cluster_is_not(now: Claim):
    refuse_changed_clusters(CLAIM, now, SETTINGS)


async def _opened(*_: object, **__: object) -> Any:
    return object()


async def _no_positions(*_: object) -> Any:
    return {}


class Owner(FlowOwner):
    """An owner on a target that grants what it needs only when *why* is empty; notes what it takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
        super().__init__(SETTINGS, on_lost=lambda: self.done.append("finish the tasks"))
        self.why = why
        self.done: list[str] = []
        monkeypatch.setattr(flow_owner, "why_unfenced", self._why)
        monkeypatch.setattr(FlowClusters, "open", _opened)
        monkeypatch.setattr(FlowClusters, "stored_positions", _no_positions)

    async def _why(self, *_: object) -> str:
        return self.why

    async def _take(self, *_: object, **__: object) -> None:
        self.done.append("take the flow")


def test_what_could_not_be_opened_is_opened_at_the_next_attempt(monkeypatch: pytest.MonkeyPatch):
    """The offsets topic may have no leader while a broker is away."""
    owner = Owner(monkeypatch, why="")
    attempts: list[bool] = []

    async def open_topics(*_: object, **__: object) -> object:
        attempts.append(True)
        if len(attempts) == 1:
            raise UnreachableError(cluster="west", addresses="a:1", problem="no leader")
        raise BrokerError(cluster="west", request="Metadata", code=3, name="UNKNOWN_TOPIC_OR_PARTITION")

    monkeypatch.setattr(FlowClusters, "open", open_topics)
    with pytest.raises(UnreachableError):
        asyncio.run(owner.own(CLUSTERS, ()))
    with pytest.raises(BrokerError):
        asyncio.run(owner.own(CLUSTERS, ()))


def test_a_flow_that_cannot_be_fenced_has_no_owner_and_a_warning(monkeypatch: pytest.MonkeyPatch):
    owner = Owner(monkeypatch, NO_ACL)

    asyncio.run(owner.own(CLUSTERS, ASSIGNMENT))

    assert owner.done == []
    assert owner.warnings == (
        f"Records are copied at-least-once, because {NO_ACL}: after a failure some are copied again.",
    )


def test_a_job_that_must_own_the_flow_is_refused_where_it_cannot_be_fenced(monkeypatch: pytest.MonkeyPatch):
    owner = Owner(monkeypatch, NO_ACL)

    with pytest.raises(FlowUnfencedError, match="Write on transactional ids"):
        asyncio.run(owner.own(CLUSTERS, ASSIGNMENT, preempts=True))


def test_the_flow_is_taken_when_the_target_allows_it(monkeypatch: pytest.MonkeyPatch):
    """Its tasks finish before: they store how far they have copied."""
    owner = Owner(monkeypatch, NO_ACL)

    async def run() -> None:
        await owner.own(CLUSTERS, ASSIGNMENT)
        await owner._try_to_fence()
        assert owner.done == []
        owner.why = ""
        await owner._try_to_fence()

    asyncio.run(run())

    assert owner.done == ["finish the tasks", "take the flow"]
    assert owner.warnings == ()


def test_a_flow_that_was_never_copied_begins_where_the_settings_say(monkeypatch: pytest.MonkeyPatch):
    """Only with the partitions that it begins with, also where it has no owner."""
    owner = Owner(monkeypatch, NO_ACL)

    async def run() -> None:
        await owner.own(CLUSTERS, ASSIGNMENT)
        await owner.own(CLUSTERS, (*ASSIGNMENT, (TopicPartition("later", 0),)))

    asyncio.run(run())

    assert owner._initial == {TopicPartition("orders", 0)}


def test_tasks_of_a_group_that_start_at_once_all_begin_where_the_settings_say(
    monkeypatch: pytest.MonkeyPatch,
):
    """A task must not replace the partitions of another, which would then begin at the earliest record."""
    partitions = [TopicPartition("orders", number) for number in range(3)]

    async def message_alone(_owner: FlowOwner, _task: int, message: Assign, **_: object) -> Assign:
        return message

    async def run() -> Owner:
        owner = Owner(monkeypatch, why="")
        monkeypatch.setattr(FlowOwner, "start_of", message_alone)
        messages = [Assign(partitions=(one,), initial=True) for one in partitions]
        await asyncio.gather(
            *(owner.start_in_group(CLUSTERS, task, one) for task, one in enumerate(messages))
        )
        return owner

    assert asyncio.run(run())._initial == {*partitions}
