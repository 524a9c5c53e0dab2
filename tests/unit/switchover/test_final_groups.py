"""The outcome of each group at the end of a switchover: exact, within a bound, or refused with a reason."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.errors import BrokerError, ClusterError, NotAuthorizedError, UnreachableError
from mirrorflow_core.offsets.checkpoints import HAS_MEMBERS, Group, GroupOffset, Point
from mirrorflow_core.offsets.offset_translation import Committed
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from mirrorflow_kafka.admin import admin, groups
from mirrorflow_kafka.admin.log_requests import LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.worker_properties import load_standalone
from mirrorflow_replicator.connectors.known_offsets import KnownOffsets
from mirrorflow_replicator.switchover.final_groups import (
    FinalGroup,
    GroupOutcome,
    clamp_groups,
    clamped,
    summarised,
)
from tests.unit.switchover.test_group_pass import CONNECTOR

EXACT_ROW = GroupOffset(
    group="billing",
    topic="orders",
    partition=0,
    target_topic="orders",
    source_offset=100,
    target_offset=90,
    at_most=90,
    checkpoint_offset=90,
    checkpoint_written_ms=1,
    group_offset=90,
    written=True,
    why=None,
    has_members_on_source=False,
)
BOUND_ROW = replace(EXACT_ROW, partition=1, at_most=97)
UNKNOWN_ROW = replace(EXACT_ROW, partition=2, at_most=None)
REFUSED_ROW = replace(EXACT_ROW, partition=3, written=False, group_offset=80, why=HAS_MEMBERS)
AHEAD_ROW = replace(EXACT_ROW, partition=4, group_offset=95)
COPY = TopicPartition("orders", 0)


@pytest.mark.parametrize(
    ("rows", "outcome", "repeats_max"),
    [
        ([EXACT_ROW], GroupOutcome.EXACT, 0),
        ([EXACT_ROW, AHEAD_ROW], GroupOutcome.EXACT, 0),
        ([EXACT_ROW, BOUND_ROW, replace(BOUND_ROW, partition=5)], GroupOutcome.BOUND, 14),
        ([EXACT_ROW, UNKNOWN_ROW], GroupOutcome.BOUND, None),
        ([BOUND_ROW, REFUSED_ROW], GroupOutcome.REFUSED, None),
    ],
    ids=["exact", "ahead on the target", "bound", "bound that is not known", "refused"],
)
def test_the_outcome_of_a_group_is_that_of_its_worst_partition(
    rows: list[GroupOffset], outcome: GroupOutcome, repeats_max: int | None
):
    (group,) = summarised(rows)

    assert (group.outcome, group.repeats_max) == (outcome, repeats_max)
    assert bool(group.why) == (outcome is GroupOutcome.REFUSED)


def test_a_refusal_names_the_partition_and_the_reason():
    (group,) = summarised([EXACT_ROW, REFUSED_ROW])

    assert group.why == f"orders-3: {HAS_MEMBERS}"


def test_each_group_is_listed_once_and_shows_whether_it_has_members_on_the_old_cluster():
    rows = [
        replace(EXACT_ROW, group="shipping", has_members_on_source=True),
        BOUND_ROW,
        replace(BOUND_ROW, group="shipping"),
        EXACT_ROW,
    ]

    assert summarised(rows) == (
        FinalGroup(group="billing", outcome=GroupOutcome.BOUND, repeats_max=7),
        FinalGroup(group="shipping", outcome=GroupOutcome.BOUND, repeats_max=7, is_active=True),
    )
    assert summarised([]) == ()


@given(offset=st.integers(0, 50), begin=st.integers(0, 50), length=st.integers(0, 50))
def test_a_clamped_offset_is_inside_the_copy_and_moves_only_if_it_was_outside(
    *, offset: int, begin: int, length: int
):
    point = Point(upstream_offset=7, downstream_offset=offset, metadata="m")

    placed = clamped({COPY: point}, {COPY: begin}, {COPY: begin + length})[COPY]

    assert begin <= placed.downstream_offset <= begin + length
    assert placed.downstream_offset == offset or not begin <= offset <= begin + length
    assert replace(placed, downstream_offset=offset) == point


def test_a_group_is_not_moved_in_a_copy_whose_log_cannot_be_read():
    point = Point(upstream_offset=7, downstream_offset=7)

    assert clamped({COPY: point}, {COPY: 0}, {}) == {}
    assert clamped({COPY: point}, {}, {COPY: 9}) == {}


@pytest.mark.parametrize(("code", "is_empty"), [(UNKNOWN_TOPIC_OR_PARTITION, True), (14, False)])
def test_a_lost_flow_without_a_checkpoints_topic_has_no_group_to_move(
    monkeypatch: pytest.MonkeyPatch, code: int, *, is_empty: bool
):
    """It was lost before its checkpoint connector had created the topic. Any other error is tried again."""

    async def read_checkpoints(_: object) -> bool:
        raise BrokerError(
            cluster="east", request="ListOffsets", code=code, name="E", subject="west.checkpoints.internal-0"
        )

    async def list_nothing(*_: object) -> dict[str, object]:
        return {}

    monkeypatch.setattr(KnownOffsets, "read_checkpoints", read_checkpoints)
    monkeypatch.setattr(groups, "list_groups", list_nothing)
    monkeypatch.setattr(admin, "list_offsets", list_nothing)
    (connector,) = load_standalone("bootstrap.servers=127.0.0.1:1\n", [CONNECTOR]).connectors
    assert connector.checkpoint is not None
    target = create_autospec(Cluster, instance=True, alias="east")

    if is_empty:
        assert asyncio.run(clamp_groups(connector.checkpoint, target)) == ()
    else:
        with pytest.raises(BrokerError):
            asyncio.run(clamp_groups(connector.checkpoint, target))


class GroupsOfTarget:
    """Three groups with a checkpoint, and a target that has none of their offsets. It refuses group legacy by *refusal* in *request*."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, request: str, refusal: ClusterError) -> None:
        self.committed: list[str] = []
        self._request, self._refusal = request, refusal
        monkeypatch.setattr(KnownOffsets, "read_checkpoints", GroupsOfTarget._read_checkpoints)
        monkeypatch.setattr(KnownOffsets, "read_new_maps", self._read_no_maps)
        monkeypatch.setattr(groups, "list_groups", self._list_groups)
        monkeypatch.setattr(groups, "fetch_offsets", self._fetch_offsets)
        monkeypatch.setattr(groups, "commit_offsets", self._commit_offsets)
        monkeypatch.setattr(admin, "list_offsets", self._list_offsets)

    @staticmethod
    async def _read_checkpoints(known: Any) -> bool:
        points = {COPY: Point(upstream_offset=7, downstream_offset=7)}
        known.checkpoints = dict.fromkeys(("billing", "legacy", "shipping"), points)
        return True

    async def _read_no_maps(self) -> None:
        raise NotAuthorizedError(cluster="east", operation="Read", resource="the offset map")

    async def _list_groups(self, _: object) -> dict[str, object]:
        return {}

    async def _list_offsets(
        self, _: object, partitions: set[TopicPartition], position: int
    ) -> dict[TopicPartition, object]:
        offset = 9 if position == LATEST else 0
        return dict.fromkeys(partitions, SimpleNamespace(offset=offset, error=0))

    async def _fetch_offsets(self, _: object, group: str) -> dict[TopicPartition, Committed]:
        self._refuse(group, "OffsetFetch")
        return {}

    async def _commit_offsets(
        self, _: object, group: str, offsets: dict[TopicPartition, Committed]
    ) -> dict[TopicPartition, int]:
        self._refuse(group, "OffsetCommit")
        self.committed.append(group)
        return dict.fromkeys(offsets, 0)

    def _refuse(self, group: str, request: str) -> None:
        if (group, request) == ("legacy", self._request):
            raise self._refusal

    def clamp(self) -> tuple[FinalGroup, ...]:
        (connector,) = load_standalone("bootstrap.servers=127.0.0.1:1\n", [CONNECTOR]).connectors
        assert connector.checkpoint is not None
        target = create_autospec(Cluster, instance=True, alias="east")
        return asyncio.run(clamp_groups(connector.checkpoint, target))


@pytest.mark.parametrize("request_name", ["OffsetFetch", "OffsetCommit"])
@pytest.mark.parametrize(
    "refusal",
    [
        NotAuthorizedError(cluster="east", operation="Describe", resource="group legacy"),
        BrokerError(cluster="east", request="OffsetFetch", code=24, name="INVALID_GROUP_ID"),
    ],
    ids=["not authorized", "another refusal"],
)
def test_a_refused_group_is_reported_and_the_others_are_placed(
    monkeypatch: pytest.MonkeyPatch, request_name: str, refusal: ClusterError
):
    """An unplanned switchover continues: applications cannot write to either side meanwhile."""
    target = GroupsOfTarget(monkeypatch, request_name, refusal)

    billing, legacy, shipping = target.clamp()

    assert ["billing", "shipping"] == sorted(target.committed)
    assert [GroupOutcome.BOUND] * 2 == [billing.outcome, shipping.outcome]
    assert ("legacy", GroupOutcome.REFUSED, str(refusal)) == (legacy.group, legacy.outcome, legacy.why)


@pytest.mark.parametrize("state", ["Empty", "Stable"])
def test_groups_are_described_that_brokers_list_without_a_state(monkeypatch: pytest.MonkeyPatch, state: str):
    """Those before Kafka 2.6. A group without members is placed: otherwise its auto.offset.reset would decide."""
    target = GroupsOfTarget(monkeypatch, "", UnreachableError(cluster="east", addresses="", problem=""))

    async def list_groups(_: object) -> dict[str, Group]:
        return {"billing": Group(name="billing", protocol_type="consumer")}

    async def describe_group(_: object, group: str) -> Group:
        return Group(name=group, protocol_type="consumer", state=state)

    monkeypatch.setattr(groups, "list_groups", list_groups)
    monkeypatch.setattr(groups, "describe_group", describe_group)

    billing, *_ = target.clamp()

    assert (state == "Empty") == ("billing" in target.committed)
    assert ("" if state == "Empty" else HAS_MEMBERS) == billing.why


def test_groups_are_placed_again_after_an_error_that_a_retry_may_cure(monkeypatch: pytest.MonkeyPatch):
    lost = UnreachableError(cluster="east", addresses="east:9092", problem="no response")
    target = GroupsOfTarget(monkeypatch, "OffsetCommit", lost)

    with pytest.raises(UnreachableError):
        target.clamp()
