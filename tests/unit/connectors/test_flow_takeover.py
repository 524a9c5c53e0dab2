"""The checks before a takeover.

They decide whether source and target are different clusters, whether the process waits, and whether the flow may begin.
"""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.errors import (
    ClusterChangedError,
    FlowEndedError,
    FlowNotStartedError,
    InternalTopicUnavailableError,
    NotAuthorizedError,
)
from mirrorflow_core.settings import PolicyKind, PolicySettings
from mirrorflow_core.wire.error_codes import TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION
from mirrorflow_core.writer.claim import Claim
from mirrorflow_core.writer.flow_lock import Fenced
from mirrorflow_kafka.admin.transaction_log_reader import LogCache
from mirrorflow_kafka.client.metadata import TopicMetadata
from mirrorflow_replicator.connectors import claim_reader, flow_takeover
from mirrorflow_replicator.connectors.flow_takeover import FlowTakeover, must_wait, refuse_changed_clusters
from tests.unit.connectors.flow_settings import settings

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
SHARED = replace(CLAIM, group="group")
SEED = replace(CLAIM, group="seed")
FORMER = replace(CLAIM, flow="former")


@pytest.mark.parametrize(("side", "alias"), [("source_cluster_id", "east"), ("target_cluster_id", "west")])
def test_changed_cluster_id_is_refused(side: str, alias: str):
    changed = replace(CLAIM, **{side: "other"})  # type: ignore[arg-type]

    with pytest.raises(ClusterChangedError, match=f"Cluster {alias} was . and is now other"):
        refuse_changed_clusters(CLAIM, changed, settings())


@pytest.mark.parametrize("current", [CLAIM, replace(CLAIM, source_cluster_id=None)])
def test_same_or_unknown_cluster_id_is_accepted(current: Claim):
    refuse_changed_clusters(CLAIM, current, settings())


@pytest.mark.parametrize(
    ("owner", "newcomer", "flag", "expected"),
    [
        (CLAIM, CLAIM, "", "waits"),
        (SHARED, SHARED, "", "takes"),
        (SHARED, SHARED, "waits_for_group", "waits"),
        (SEED, SHARED, "", "waits"),
        (CLAIM, SHARED, "", "waits"),
        (SHARED, SEED, "preempts", "takes"),
        (FORMER, SEED, "preempts", "waits"),
    ],
)
def test_newcomer_waits_for_owners_outside_its_group_unless_it_preempts(
    owner: Claim, newcomer: Claim, flag: str, expected: str
):
    waits_for_group, preempts = flag == "waits_for_group", flag == "preempts"
    waits = must_wait(owner, newcomer, waits_for_group=waits_for_group, preempts=preempts)
    assert expected == ("waits" if waits else "takes")


class ClaimsOfFlow:
    """A flow whose newest claims are read in this order. The last one is read repeatedly."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *claims: Claim | None) -> None:
        self.claims = list(claims)
        self.begins_with: list[object] = []
        self.runner = self
        self.source = self.target = SimpleNamespace(alias="east", cluster_id=None)
        monkeypatch.setattr(flow_takeover, "newest_claim", self._newest)
        monkeypatch.setattr(flow_takeover, "wait_for_turn", lambda *_: "wait")
        monkeypatch.setattr(flow_takeover, "take_flow", lambda _: "take")
        monkeypatch.setattr(flow_takeover, "note_awaited", lambda _, switchover: f"note {switchover}")
        self.steps: list[str] = []

    async def _newest(self, _: object) -> Claim | None:
        return self.claims.pop(0) if len(self.claims) > 1 else self.claims[0]

    async def run(self, steps: str) -> object:
        self.steps.append(steps)
        return Fenced() if steps == "take" else None

    def begin_with(self, partitions: object) -> None:
        self.begins_with.append(partitions)

    async def topic_ids(self, _: object) -> dict[str, object]:
        return {}

    async def unavailable(self, _: object) -> dict[str, object]:
        return {}

    async def begin_lookup(self, _: object) -> None:
        pass


class Opposite:
    """The claims of the opposite flow, read in this order. The last one is read repeatedly."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *ended: str | None) -> None:
        self.ended = list(ended)
        monkeypatch.setattr(claim_reader, "read_newest_claim", self._newest)
        monkeypatch.setattr(flow_takeover, "POLL_MS", 0)

    async def _newest(self, source: object, topics: Any, logs: object) -> Claim:
        assert isinstance(logs, LogCache)
        assert topics.claims.topic == "mm2-claims.west.internal"
        ended = self.ended.pop(0) if len(self.ended) > 1 else self.ended[0]
        return replace(CLAIM, source_alias="west", ended=ended)


def copying() -> FlowTakeover:
    """Returns the takeovers of a flow whose topics keep their names."""
    identity = PolicySettings(kind=PolicyKind.IDENTITY, source_alias="east")
    return FlowTakeover(replace(settings(), policy=identity), None)


def test_a_reverse_flow_waits_until_its_switchover_has_started_it(monkeypatch: pytest.MonkeyPatch):
    """The target of the reverse flow was lost, so the flow could not be held there.

    The end of the opposite flow is stored on its source.
    """
    takeover, opposite = copying(), Opposite(monkeypatch, "to-east")
    started = replace(CLAIM, started="to-east", left=True, source_cluster_id=None, target_cluster_id=None)
    noted = replace(RELEASED, released="to-east")
    flow = ClaimsOfFlow(monkeypatch, None, noted, started)

    assert isinstance(take(takeover, flow, is_to_copy=True), Fenced)
    assert ["note to-east", "take"] == flow.steps
    assert not flow.claims[1:]
    assert opposite.ended == ["to-east"]
    assert not takeover.is_first


def test_a_reverse_flow_that_does_not_wait_is_refused_unless_it_copies_nothing(
    monkeypatch: pytest.MonkeyPatch,
):
    """A seed would copy, and is refused. A request that resets the offsets of the flow copies nothing."""
    Opposite(monkeypatch, "to-east")
    flow: Any = ClaimsOfFlow(monkeypatch, None)

    with pytest.raises(
        FlowEndedError,
        match="to-east has ended the flow from west to east, and has not started the one from east to west",
    ):
        asyncio.run(copying().take(flow, (), is_owner=False, is_to_copy=True))
    assert isinstance(asyncio.run(copying().take(flow, (), is_owner=False)), Fenced)
    prefixed = FlowTakeover(settings(), None)
    assert isinstance(asyncio.run(prefixed.take(flow, (), is_owner=False, is_to_copy=True)), Fenced)


def test_a_reverse_flow_whose_switchover_was_rolled_back_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
):
    Opposite(monkeypatch, "to-east", "to-east", None)
    takeover, flow = copying(), ClaimsOfFlow(monkeypatch, None)

    with pytest.raises(FlowNotStartedError, match="Switchover to-east"):
        take(takeover, flow, is_to_copy=True)
    assert not takeover.is_waiting


HELD = replace(
    CLAIM, process=None, left=True, ended="to-west", source_cluster_id=None, target_cluster_id=None
)
RELEASED = replace(HELD, ended=None, released="to-west")


def take(takeover: FlowTakeover, flow: Any, *, is_to_copy: bool = False) -> object:
    return asyncio.run(takeover.take(flow, (), is_owner=False, waits_for_end=True, is_to_copy=is_to_copy))


def test_a_flow_held_by_an_earlier_version_begins_like_one_that_never_ran(
    monkeypatch: pytest.MonkeyPatch,
):
    """That has not stored which switchover was rolled back."""
    takeover, flow = (
        FlowTakeover(settings(), None),
        ClaimsOfFlow(monkeypatch, replace(RELEASED, released=None)),
    )

    assert isinstance(take(takeover, flow), Fenced)
    assert takeover.is_first
    assert flow.begins_with == [[]]


def test_a_held_flow_is_taken_after_its_start(monkeypatch: pytest.MonkeyPatch):
    takeover = FlowTakeover(settings(), None)
    flow = ClaimsOfFlow(monkeypatch, HELD, replace(RELEASED, started="to-west"))

    assert isinstance(take(takeover, flow), Fenced)
    assert not takeover.is_first


def test_a_process_that_waits_for_a_held_flow_does_not_copy_after_a_rollback(
    monkeypatch: pytest.MonkeyPatch,
):
    """It would copy everything back, at a moment that no user has chosen: also when a supervisor starts it again."""
    takeover, flow = FlowTakeover(settings(), None), ClaimsOfFlow(monkeypatch, HELD, RELEASED)

    with pytest.raises(FlowNotStartedError, match="Switchover to-west"):
        take(takeover, flow)
    with pytest.raises(FlowNotStartedError):
        take(takeover, flow)
    assert not takeover.is_waiting
    with pytest.raises(FlowNotStartedError, match=r"delete the topic mm2-claims\.east\.internal of west"):
        take(FlowTakeover(settings(), None), flow)
    assert isinstance(take(FlowTakeover(settings(), None), ClaimsOfFlow(monkeypatch, None)), Fenced)


class LeaderlessSource:
    """A source on which the claims of the opposite flow have no leader.

    *error* is the error of their topic.
    """

    alias, cluster_id = "east", None

    def __init__(self, error: int = 0) -> None:
        topic = "mm2-claims.west.internal"
        self.metadata = SimpleNamespace(topics={topic: TopicMetadata(name=topic, error=error)})

    async def refresh(self, topics: object) -> None:
        pass

    def leader(self, *_: object) -> None:
        return None


def test_a_reverse_flow_is_not_taken_without_a_leader_of_the_opposite_claims(
    monkeypatch: pytest.MonkeyPatch,
):
    """The unread claims may include the end of the opposite flow by a switchover."""
    flow: Any = ClaimsOfFlow(monkeypatch, None)
    flow.source = LeaderlessSource()

    with pytest.raises(InternalTopicUnavailableError, match="has no leader for partition 0"):
        take(copying(), flow, is_to_copy=True)
    assert not flow.steps


def test_an_earlier_read_of_the_opposite_claims_is_not_reused_while_they_have_no_leader(
    monkeypatch: pytest.MonkeyPatch,
):
    """A switchover may have ended the opposite flow since that read."""
    flow: Any = ClaimsOfFlow(monkeypatch, None)
    takeover = copying()
    opposite = replace(CLAIM, source_alias="west")
    leaderless = InternalTopicUnavailableError(cluster="east", topic="mm2-claims.west.internal", leaderless=0)
    reads: list[Claim | Exception] = [opposite, leaderless]

    async def read(*_: object) -> Claim:
        outcome = reads.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(claim_reader, "read_newest_claim", read)

    assert isinstance(take(takeover, flow, is_to_copy=True), Fenced)
    with pytest.raises(InternalTopicUnavailableError):
        take(takeover, flow, is_to_copy=True)
    assert ["take"] == flow.steps


@pytest.mark.parametrize("error", [UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED])
def test_a_flow_is_taken_if_its_source_has_no_claims(monkeypatch: pytest.MonkeyPatch, error: int):
    flow: Any = ClaimsOfFlow(monkeypatch, None)
    flow.source = LeaderlessSource(error)

    assert isinstance(take(copying(), flow, is_to_copy=True), Fenced)
    assert ["take"] == flow.steps


def test_a_reverse_flow_that_has_run_before_keeps_waiting_while_its_source_is_unreadable(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(flow_takeover, "POLL_MS", 0)
    earlier = replace(CLAIM, left=True, started="earlier", source_cluster_id=None, target_cluster_id=None)
    flow: Any = ClaimsOfFlow(monkeypatch, earlier)
    opposite = replace(CLAIM, source_alias="west", ended="to-east")
    reads: list[Claim | Exception] = [
        opposite,
        InternalTopicUnavailableError(cluster="east", topic="mm2-claims.west.internal", leaderless=0),
        opposite,
    ]
    steps_while_awaited: list[int] = []

    async def read(*_: object) -> Claim:
        steps_while_awaited.append(len(flow.steps))
        if not reads:
            flow.claims = [replace(earlier, started="to-east")]
            return opposite
        outcome = reads.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(claim_reader, "read_newest_claim", read)

    assert isinstance(take(copying(), flow, is_to_copy=True), Fenced)
    assert [0] * 5 == steps_while_awaited
    assert ["take"] == flow.steps


@pytest.mark.parametrize("is_hidden", [False, True], ids=["refused", "hidden"])
def test_a_waiting_reverse_flow_reports_the_permission_that_it_has_lost(
    monkeypatch: pytest.MonkeyPatch, *, is_hidden: bool
):
    """Without Read the request is refused; without Describe the topic is hidden.

    Neither response means that the switchover has started the flow.
    """
    monkeypatch.setattr(flow_takeover, "POLL_MS", 0)
    takeover, topic = copying(), "mm2-claims.west.internal"
    earlier = replace(CLAIM, left=True, started="earlier", source_cluster_id=None, target_cluster_id=None)
    flow: Any = ClaimsOfFlow(monkeypatch, earlier)
    opposite = replace(CLAIM, source_alias="west", ended="to-east")
    warned: list[str | None] = []

    async def read(*_: object) -> Claim | None:
        warned.append(takeover.unread)
        if len(warned) in {1, 4}:
            return opposite
        if len(warned) == 7:
            flow.claims = [replace(earlier, started="to-east")]
        if is_hidden:
            return None
        raise NotAuthorizedError(cluster="east", operation="Read", resource=f"topic {topic}")

    monkeypatch.setattr(claim_reader, "read_newest_claim", read)

    assert isinstance(take(takeover, flow, is_to_copy=True), Fenced)
    assert ["take"] == flow.steps
    missing = f"Topic {topic} of east is hidden" if is_hidden else f"does not authorize Read on topic {topic}"
    assert [missing in (warning or "") for warning in warned] == [
        False,
        False,
        True,
        True,
        False,
        True,
        True,
        True,
    ]
    assert takeover.unread is None


def test_a_failed_target_clears_the_source_warning_of_a_waiting_reverse_flow(
    monkeypatch: pytest.MonkeyPatch,
):
    """The error reports that the flow's own claims are unreadable.

    The claims on the source may be readable again by then.
    """
    monkeypatch.setattr(flow_takeover, "POLL_MS", 0)
    takeover = copying()
    earlier = replace(CLAIM, left=True, started="earlier", source_cluster_id=None, target_cluster_id=None)
    flow: Any = ClaimsOfFlow(monkeypatch, earlier)
    warned: list[str | None] = []

    async def read(*_: object) -> Claim:
        if not warned:
            warned.append("")
            return replace(CLAIM, source_alias="west", ended="to-east")
        raise NotAuthorizedError(cluster="east", operation="Read", resource="topic mm2-claims.west.internal")

    async def newest(_: object) -> Claim:
        if takeover.unread:
            warned.append(takeover.unread)
            raise InternalTopicUnavailableError(
                cluster="west", topic="mm2-claims.east.internal", leaderless=0
            )
        return earlier

    monkeypatch.setattr(claim_reader, "read_newest_claim", read)
    monkeypatch.setattr(flow_takeover, "newest_claim", newest)

    with pytest.raises(InternalTopicUnavailableError, match=r"mm2-claims\.east\.internal"):
        take(takeover, flow, is_to_copy=True)
    assert "does not authorize Read" in (warned[-1] or "")
    assert takeover.unread is None
