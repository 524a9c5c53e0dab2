"""The log of group commits is read from a bounded distance before its end, and not if it is a different log.

A partition without a leader does not delay the others.
"""

import asyncio
import math
from collections.abc import Iterable
from types import SimpleNamespace
from unittest.mock import AsyncMock, create_autospec

import pytest

from mirrorflow_core.errors import ClusterError
from mirrorflow_core.offsets.group_commits import GROUP_OFFSETS_TOPIC, GroupCommit
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.error_codes import LEADER_NOT_AVAILABLE, NETWORK_EXCEPTION, raise_for
from mirrorflow_core.wire.fetch import FetchKey, PartitionFetchResponse
from mirrorflow_kafka.admin import admin, log_reader
from mirrorflow_kafka.admin.log_requests import ListedOffset
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores import group_commit_log as module
from mirrorflow_kafka.stores.group_commit_log import (
    OPEN_ROUNDS_MAX,
    REREAD_OFFSETS_MAX,
    GroupCommitLog,
    OffsetsLogChangedError,
    SilentBrokersError,
)


class Log:
    """A log whose partitions end at offset `end`, or at `stable` because of an open transaction.

    Partitions in `leaderless` have no leader.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, end: int, stable: int, partitions: int = 1
    ) -> None:
        self.end, self.stable = end, stable
        self.leaderless: set[int] = set()
        self.frozen: set[int] = set()  # partitions, each with a leader of its own
        self.delayed: set[int] = set()  # partitions whose leaders respond late because of a quota
        self.asked: list[list[int]] = []
        self.topic = SimpleNamespace(error=0, partitions=dict.fromkeys(range(partitions)))
        self.cluster = create_autospec(Cluster, instance=True, alias="A")
        self.cluster.metadata = SimpleNamespace(
            topics={GROUP_OFFSETS_TOPIC: self.topic}, topic_id=lambda _: "id"
        )
        self.cluster.leader.side_effect = lambda _, partition: partition
        self.cluster.raise_for.side_effect = lambda code, request, subject: raise_for(
            code, cluster="A", request=request, subject=subject
        )
        monkeypatch.setattr(admin, "list_offsets", self._list_offsets)
        monkeypatch.setattr(module, "read_once", AsyncMock())
        monkeypatch.setattr(GroupCommitLog, "_read", self._read)

    async def _list_offsets(
        self,
        _: object,
        partitions: Iterable[TopicPartition],
        __: int,
        read_committed: bool = False,  # noqa: FBT001, FBT002 as of `admin.list_offsets`
        *,
        rounds_max: int,
        timeout_s: float = math.inf,
    ) -> dict[TopicPartition, ListedOffset]:
        assert rounds_max <= OPEN_ROUNDS_MAX, "more rounds take seconds"
        wanted = list(partitions)
        self.asked.append([partition.partition for partition in wanted])
        if self.frozen & {partition.partition for partition in wanted}:
            await asyncio.sleep(timeout_s)
            return dict.fromkeys(wanted, ListedOffset(error=NETWORK_EXCEPTION))
        if self.delayed & {partition.partition for partition in wanted}:
            await asyncio.sleep(3 * module.SILENT_S)
        offset = self.stable if read_committed else self.end
        return {
            partition: ListedOffset(error=LEADER_NOT_AVAILABLE)
            if partition.partition in self.leaderless
            else ListedOffset(offset=offset)
            for partition in wanted
        }

    async def _read(self, partition: TopicPartition, end: int) -> list[GroupCommit]:
        own = self.commits
        first, own._next[partition] = own._next[partition], end
        return [GroupCommit(f"g{offset}", partition, None) for offset in range(first, end)]

    def follow(self) -> GroupCommitLog:
        self.commits = GroupCommitLog(self.cluster)
        return self.commits


@pytest.mark.parametrize(
    ("before_end", "read_again"),
    [(0, 0), (REREAD_OFFSETS_MAX, REREAD_OFFSETS_MAX), (REREAD_OFFSETS_MAX + 1, 0)],
)
def test_reading_starts_at_the_last_stable_offset_only_if_it_is_near_the_end(
    monkeypatch: pytest.MonkeyPatch, before_end: int, read_again: int
):
    log = Log(monkeypatch, end=10_000_000, stable=10_000_000 - before_end)
    commits = GroupCommitLog(log.cluster)

    asyncio.run(commits.open())

    assert [log.end - read_again] == list(commits._next.values())


def test_a_log_with_new_partitions_is_no_longer_followed(monkeypatch: pytest.MonkeyPatch):
    """The groups are then in different partitions."""
    log = Log(monkeypatch, end=5, stable=5)
    commits = GroupCommitLog(log.cluster)
    asyncio.run(commits.open())
    assert [] == asyncio.run(commits.read_new())

    log.topic.partitions[1] = None

    with pytest.raises(OffsetsLogChangedError):
        asyncio.run(commits.read_new())


def test_a_partition_without_a_leader_does_not_delay_others_and_is_read_once_it_has_a_leader(
    monkeypatch: pytest.MonkeyPatch,
):
    log = Log(monkeypatch, end=5, stable=5, partitions=2)
    commits = log.follow()

    async def scenario() -> list[list[tuple[int, str]]]:
        await commits.open()
        read = []
        log.leaderless = {1}
        for log.end in (6, 7):
            read.append(await commits.read_new())
        log.leaderless = set()
        commits._ask_away_at = 0.0
        read.append(await commits.read_new())
        return [[(commit.partition.partition, commit.group) for commit in part] for part in read]

    assert [[(0, "g5")], [(0, "g6")], [(1, "g5"), (1, "g6")]] == asyncio.run(scenario())
    assert [[0, 1], [0, 1], [0], [1], [0], [0], [1]] == log.asked, "it is asked once a second"


def test_a_frozen_leader_delays_the_commits_of_other_brokers_once(monkeypatch: pytest.MonkeyPatch):
    """No request is sent to it for some seconds. Its commits are read when it responds."""
    monkeypatch.setattr(module, "SILENT_S", 0.01)
    log = Log(monkeypatch, end=5, stable=5, partitions=2)
    commits = log.follow()

    async def scenario() -> list[list[tuple[int, str]]]:
        await commits.open()
        read = []
        log.frozen = {1}
        for log.end in (6, 7):
            read.append(await commits.read_new())
        log.frozen = set()
        commits._ask_away_at = 0.0
        read.append(await commits.read_new())
        return [[(commit.partition.partition, commit.group) for commit in part] for part in read]

    assert [[(0, "g5")], [(0, "g6")], [(1, "g5"), (1, "g6")]] == asyncio.run(scenario())
    assert [[0, 1], [0, 1], [0], [1], [0], [0], [1]] == log.asked


def test_a_log_is_not_followed_while_all_leaders_are_frozen(monkeypatch: pytest.MonkeyPatch):
    """Groups are then polled. Otherwise their age would be that of an old response."""
    monkeypatch.setattr(module, "SILENT_S", 0.01)
    log = Log(monkeypatch, end=5, stable=5, partitions=2)
    commits = log.follow()

    async def scenario() -> None:
        await commits.open()
        log.frozen = {0, 1}
        await commits.read_new()

    with pytest.raises(SilentBrokersError, match=r"No broker of A answers .* within 0\.01 s"):
        asyncio.run(scenario())


def test_the_next_request_goes_to_the_new_leader_of_the_partitions_of_a_frozen_broker(
    monkeypatch: pytest.MonkeyPatch,
):
    """The frozen broker stays the cached leader until the metadata is read again."""
    monkeypatch.setattr(module, "SILENT_S", 0.01)
    log = Log(monkeypatch, end=5, stable=5, partitions=2)
    commits = log.follow()

    async def refresh(_: object) -> None:
        log.frozen.clear()

    async def scenario() -> list[GroupCommit]:
        await commits.open()
        log.frozen = {1}
        log.cluster.refresh.side_effect = refresh
        await commits.read_new()
        log.cluster.refresh.assert_awaited_with([GROUP_OFFSETS_TOPIC])
        log.end, commits._ask_away_at = 6, 0.0
        return await commits.read_new()

    assert [0, 1] == [commit.partition.partition for commit in asyncio.run(scenario())]


def test_missing_metadata_delays_the_commits_of_other_brokers_only_for_a_limited_time(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(module, "SILENT_S", 0.01)
    log = Log(monkeypatch, end=5, stable=5, partitions=2)
    commits = log.follow()

    async def refresh(_: object) -> None:
        await asyncio.Event().wait()

    async def scenario() -> list[GroupCommit]:
        await commits.open()
        log.frozen, log.end = {1}, 6
        log.cluster.refresh.side_effect = refresh
        return await commits.read_new()

    assert [0] == [commit.partition.partition for commit in asyncio.run(scenario())]


def test_a_leader_whose_response_is_delayed_by_a_quota_does_not_count_as_frozen(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(module, "SILENT_S", 0.01)
    log = Log(monkeypatch, end=5, stable=5, partitions=2)
    commits = log.follow()

    async def scenario() -> list[GroupCommit]:
        await commits.open()
        log.delayed, log.end = {0, 1}, 6
        return await commits.read_new()

    assert [0, 1] == [commit.partition.partition for commit in asyncio.run(scenario())]


def test_a_log_is_not_followed_while_its_only_leader_is_frozen(monkeypatch: pytest.MonkeyPatch):
    """The other partitions have no leader, which is known without a response of a broker."""
    monkeypatch.setattr(module, "SILENT_S", 0.01)
    log = Log(monkeypatch, end=5, stable=5, partitions=2)
    commits = log.follow()

    async def scenario() -> None:
        await commits.open()
        log.frozen, log.leaderless = {1}, {0}
        log.cluster.leader.side_effect = lambda _, partition: partition or None
        await commits.read_new()

    with pytest.raises(SilentBrokersError):
        asyncio.run(scenario())


def test_a_partition_without_a_leader_at_the_start_is_followed_in_a_later_pass(
    monkeypatch: pytest.MonkeyPatch,
):
    """Its groups cannot be read earlier, because they have no coordinator."""
    log = Log(monkeypatch, end=5, stable=5, partitions=2)
    log.leaderless = {1}
    commits = log.follow()

    async def scenario() -> list[tuple[int, str]]:
        await commits.open()
        await commits.open()
        assert [] == await commits.read_new()
        log.leaderless = set()
        await commits.open()
        log.end = 6
        return [(commit.partition.partition, commit.group) for commit in await commits.read_new()]

    assert [(0, "g5"), (1, "g5")] == asyncio.run(scenario())


def test_a_log_without_any_leader_cannot_be_followed(monkeypatch: pytest.MonkeyPatch):
    log = Log(monkeypatch, end=5, stable=5, partitions=2)
    log.leaderless = {0, 1}

    with pytest.raises(ClusterError):
        asyncio.run(log.follow().open())


def test_offsets_that_a_new_leader_does_not_serve_yet_are_read_by_a_later_call(
    monkeypatch: pytest.MonkeyPatch,
):
    """The other partitions do not wait for them."""
    read = GroupCommitLog._read
    log = Log(monkeypatch, end=5, stable=5, partitions=2)
    commits, asked = log.follow(), list[int]()

    async def read_once(
        _: object, partition: TopicPartition, offset: int, **__: object
    ) -> PartitionFetchResponse:
        asked.append(offset)
        key = FetchKey(GROUP_OFFSETS_TOPIC.encode(), partition.partition)
        return PartitionFetchResponse(key, 0, 5, 5, 0, (), -1, memoryview(bytearray()))

    async def scenario() -> None:
        await commits.open()
        log.end = 7
        monkeypatch.setattr(log_reader, "read_once", read_once)
        monkeypatch.setattr(GroupCommitLog, "_read", read)
        for _ in range(2):
            assert [] == await commits.read_new()

    asyncio.run(scenario())

    assert [5, 5, 5, 5] == asked
