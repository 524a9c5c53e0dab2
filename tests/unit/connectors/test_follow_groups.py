"""Groups that move between two passes are translated and moved by themselves.

They are moved again when the copy has reached their commits.
"""

import asyncio
import itertools
from collections.abc import Collection
from unittest.mock import create_autospec

import pytest

from mirrorflow_core.offsets.checkpoints import Group
from mirrorflow_core.offsets.offset_map import MapStream, OffsetMap, PartitionMap
from mirrorflow_core.offsets.offset_syncs import OffsetSyncStore
from mirrorflow_core.offsets.offset_translation import Committed, Translator
from mirrorflow_core.partitions import OffsetPair, TopicPartition
from mirrorflow_core.wire.records import Record
from mirrorflow_kafka.admin import groups
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores import compacted_topic
from mirrorflow_replicator.config.worker_properties import load_standalone
from mirrorflow_replicator.connectors import group_steps
from mirrorflow_replicator.connectors.checkpoint_passes import CheckpointPasses
from mirrorflow_replicator.connectors.claim_reader import FlowEndWatch
from mirrorflow_replicator.connectors.group_follower import FollowedBy, Moved
from mirrorflow_replicator.connectors.group_steps import GroupSteps
from mirrorflow_replicator.connectors.known_offsets import KnownOffsets, OffsetReaders
from tests.unit.connectors.test_checkpoint_passes import CONNECTOR, Target

ORDERS = TopicPartition("orders", 0)
COPY = TopicPartition("A.orders", 0)


class Source:
    """The commits of groups on the source since the last step, and the offset up to which the copy is known."""

    followed_by = FollowedBy.COMMIT_LOG
    pause_s = 0.25

    def __init__(self, passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch) -> None:
        self.others: set[str] = set()
        self.commits: dict[str, Moved] = {}
        self.checkpoints = 0
        self.has_ended = False  # true if a switchover has ended the flow
        self._passes = passes
        self._known = passes._known
        passes._steps = GroupSteps(self, passes._known)  # type: ignore[arg-type]
        passes._end = create_autospec(FlowEndWatch, instance=True)
        passes._end.has_ended = self._has_ended  # type: ignore[method-assign]
        passes._groups = ("g",)
        passes._translated = {"g": {}}
        known = KnownOffsets
        monkeypatch.setattr(known, "read_syncs", self._read)
        monkeypatch.setattr(known, "read_new_maps", self._read)
        monkeypatch.setattr(known, "translator_of", self._translator)
        monkeypatch.setattr(compacted_topic, "append", self._append)

    async def moved(self, _: Collection[str]) -> dict[str, Moved]:
        commits, self.commits = self.commits, {}
        return commits

    def take_other_groups(self) -> set[str]:
        others, self.others = self.others, set()
        return others

    async def _read(self, *_: object) -> bool:
        return True

    async def _has_ended(self) -> bool:
        return self.has_ended

    async def _translator(self, *_: object) -> Translator:
        return Translator(OffsetSyncStore(must_read_to_end=False), self._known._maps)

    async def _append(self, _: object, __: str, records: list[Record]) -> None:
        self.checkpoints += len(records)

    def commit(self, offset: int | None) -> None:
        """Commits *offset* for the group, or deletes its offset if None; then runs a step."""
        self.commits = {"g": {ORDERS: None if offset is None else Committed(offset=offset)}}
        self.step()

    def copied(self, end: int) -> None:
        """Maps copies up to *end*, then runs a step."""
        self._known._maps[ORDERS] = map_to(end)
        self._known._news = {ORDERS}
        self.step()

    def step(self) -> None:
        asyncio.run(self._passes.follow())


def map_to(end: int) -> OffsetMap:
    partition_map = PartitionMap(MapStream(1, "", ""), OffsetPair(-1, -1, -1))
    partition_map.delivered(0, 0, end, 0)
    return partition_map.kept(OffsetPair(end - 1, end - 1, end - 1))


@pytest.fixture
def passes() -> CheckpointPasses:
    lines = CONNECTOR + "sync.group.offsets.enabled=true\n"
    (settings,) = load_standalone("bootstrap.servers=127.0.0.1:1\n", [lines]).connectors
    assert settings.checkpoint is not None
    cluster = create_autospec(Cluster, instance=True, alias="B")
    readers = OffsetReaders(source=cluster, syncs=cluster, target=cluster, reader=cluster)
    return CheckpointPasses(settings.checkpoint, readers, cluster, follows_groups=True)


def test_a_group_that_moves_gets_a_checkpoint_and_its_offset(
    passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch
):
    target, source = Target(monkeypatch), Source(passes, monkeypatch)
    source.copied(100)

    source.commit(40)
    source.commit(90)
    source.step()

    assert [{COPY: Committed(offset=offset)} for offset in (40, 90)] == target.commits
    assert (2, 2) == (source.checkpoints, passes.report.moved)
    assert "commit-log" == passes.report.followed_by


def test_a_commit_ahead_of_the_copy_is_translated_again_when_the_copy_has_reached_it(
    passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch
):
    target, source = Target(monkeypatch), Source(passes, monkeypatch)
    source.copied(50)

    source.commit(90)
    for end in (70, 95, 99):
        source.copied(end)

    assert [50, 70, 90] == [commit[COPY].offset for commit in target.commits]
    assert passes._steps is not None
    assert not passes._steps._ahead


def test_a_newer_commit_replaces_one_that_is_ahead_of_the_copy(
    passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch
):
    """The group was reset on the source. The target's group never moves back."""
    target, source = Target(monkeypatch), Source(passes, monkeypatch)
    source.copied(50)

    source.commit(90)
    source.commit(20)
    source.copied(95)

    assert [50] == [commit[COPY].offset for commit in target.commits]
    assert 20 == passes._store.of("g")[COPY].upstream_offset


def test_an_offset_that_the_group_has_deleted_is_no_longer_moved(
    passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch
):
    target, source = Target(monkeypatch), Source(passes, monkeypatch)
    source.copied(50)

    source.commit(90)
    source.commit(None)
    source.copied(95)

    assert [50] == [commit[COPY].offset for commit in target.commits]
    assert [] == list(passes.explain("g"))


def test_a_group_with_members_on_the_target_waits_for_the_next_pass(
    passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch
):
    """The coordinator refuses the first commit. No further commit is sent before a pass has found the group idle."""
    target, source = Target(monkeypatch, error_codes={COPY: 25}), Source(passes, monkeypatch)
    source.copied(100)
    for offset in (40, 50):
        source.commit(offset)
    attempts, active = len(target.commits), passes.report.active

    target._error_codes = {}
    target.listed_groups = {"g": Group(name="g", protocol_type="consumer", state="Empty")}
    asyncio.run(passes.sync_groups())

    assert (1, 1) == (attempts, active)
    assert {COPY: Committed(offset=50)} == target.offsets


def test_no_group_is_moved_in_a_flow_that_a_switchover_has_ended(
    passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch
):
    target, source = Target(monkeypatch), Source(passes, monkeypatch)
    source.copied(100)

    source.has_ended = True
    source.commit(40)

    assert ([], 0) == (target.commits, source.checkpoints)


@pytest.mark.parametrize(("ends_after_reads", "writes_before"), [(1, 0), (2, 1), (3, 1), (4, 2)])
def test_no_group_is_written_after_a_switchover_has_ended_the_flow(
    passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch, ends_after_reads: int, writes_before: int
):
    """It may end while the offsets of many groups are translated, checkpoints are written, or groups are moved.

    A step reads whether the flow has ended when it begins, before it writes checkpoints, and for each group before its
    requests and its commit.
    """
    target, source = Target(monkeypatch), Source(passes, monkeypatch)
    source.copied(100)
    passes._translated = {"a": {}, "b": {}}
    monkeypatch.setattr(groups, "GROUPS_AT_ONCE", 1)
    responses = itertools.chain([False] * ends_after_reads, itertools.repeat(True))

    async def has_ended() -> bool:
        return next(responses)

    assert passes._end is not None
    passes._end.has_ended = has_ended  # type: ignore[method-assign]
    source.commits = {name: {ORDERS: Committed(offset=40)} for name in ("a", "b")}
    source.step()

    # Both checkpoints are one write, and each group is a further write.
    assert writes_before == bool(source.checkpoints) + len(target.commits)
    assert writes_before <= 1 or passes._checkpoints.unwritten == {}


def test_groups_that_exceed_a_step_are_moved_in_later_steps(
    passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(group_steps, "FOLLOWED_AT_ONCE", 2)
    monkeypatch.setattr(groups, "GROUPS_AT_ONCE", 1)
    Target(monkeypatch)
    source = Source(passes, monkeypatch)
    source.copied(100)
    names = ("a", "b", "c")
    passes._translated = {name: {} for name in names}
    source.commits = {name: {ORDERS: Committed(offset=30)} for name in names}

    source.step()
    first = {name for name in names if passes._store.of(name)}
    source.step()

    assert {"a", "b"} == first
    assert all(passes._store.of(name) for name in names)


def lists_after_commits_of(passes: CheckpointPasses, source: Source, *names: str) -> bool:
    source.others = set(names)
    return passes.lists_new_groups


def test_commits_of_excluded_groups_cause_no_listing(
    passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch
):
    source = Source(passes, monkeypatch)

    assert not lists_after_commits_of(passes, source, "console-consumer-1", "h-1")
    assert lists_after_commits_of(passes, source, "console-consumer-2", "g-a")


def test_a_recreated_group_causes_a_listing_again(passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch):
    """The connector drops the names of deleted groups."""
    target, source = Target(monkeypatch), Source(passes, monkeypatch)
    existing = {"g-a": Group(name="g-a", protocol_type="consumer"), "other": Group(name="other")}
    first = lists_after_commits_of(passes, source, "g-a", "other", "console-consumer-1")
    target.listed_groups = existing
    asyncio.run(passes.refresh())
    kept = set(passes._other_groups)
    target.listed_groups = {"other": existing["other"]}
    asyncio.run(passes.refresh())

    again = lists_after_commits_of(passes, source, "g-a", "other")

    assert (first, {"g-a", "other"}, True) == (True, kept, again)
