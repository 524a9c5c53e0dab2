"""Groups that have moved are found in the commit log, or by polling groups that have moved recently."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import wraps
from typing import Any
from unittest.mock import create_autospec

import pytest

from mirrorflow_core.errors import ClusterError, CorruptRecordsError, NotAuthorizedError
from mirrorflow_core.offsets.group_commits import GroupCommit
from mirrorflow_core.offsets.offset_translation import Committed
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.admin import groups
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.group_commit_log import OffsetsLogChangedError
from mirrorflow_replicator.connectors import group_follower as module
from mirrorflow_replicator.connectors.group_follower import FollowedBy, GroupFollower

ORDERS = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)
UNREADABLE = NotAuthorizedError(cluster="A", operation="Read", resource="topic __consumer_offsets")


def in_event_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


class Source:
    """The log of commits, which is unreadable if `open_error` is set, and the committed offsets by group."""

    def __init__(self) -> None:
        self.commits: list[GroupCommit] = []
        self.open_error: ClusterError | None = None
        self.read_error: Exception | None = None
        self.offsets: dict[str, dict[TopicPartition, Committed]] = {}
        self.polled: list[list[str]] = []

    async def open(self) -> None:
        if self.open_error is not None:
            raise self.open_error

    async def read_new(self) -> list[GroupCommit]:
        if self.read_error is not None:
            raise self.read_error
        commits, self.commits = self.commits, []
        return commits

    async def fetch(self, _: object, names: Iterable[str]) -> dict[str, dict[TopicPartition, Committed]]:
        self.polled.append(sorted(names))
        return {name: dict(self.offsets[name]) for name in self.polled[-1]}


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    source = Source()
    monkeypatch.setattr(module, "GroupCommitLog", lambda _: source)
    monkeypatch.setattr(groups, "fetch_offsets_of", source.fetch)
    monkeypatch.setattr(module, "POLL_EVERY_S", 0.0)
    monkeypatch.setattr(module, "POLLED_PER_S_MAX", 10**9)
    return source


def follower() -> GroupFollower:
    return GroupFollower(create_autospec(Cluster, instance=True, alias="A"))


def at(offset: int) -> Committed:
    return Committed(offset=offset)


@in_event_loop
async def test_the_commit_log_returns_moved_groups_with_their_newest_commits(source: Source):
    following = follower()
    await following.open()
    await following.rebase({"g": {ORDERS: at(1)}, "h": {}})

    source.commits = [GroupCommit("g", ORDERS, at(offset)) for offset in (2, 3)]
    source.commits += [GroupCommit("g", OTHER, None), GroupCommit("new", ORDERS, at(4))]

    assert {"g": {ORDERS: at(3), OTHER: None}} == await following.moved({"g", "h"})
    assert {"new"} == following.take_other_groups()
    assert FollowedBy.COMMIT_LOG is following.followed_by


@in_event_loop
async def test_a_group_whose_offsets_are_deleted_is_not_new(source: Source):
    """An expired group has no offsets that could be moved."""
    following = follower()
    await following.open()

    source.commits = [GroupCommit("expired", ORDERS, None)]

    assert {} == await following.moved({"g"})
    assert set() == following.take_other_groups()


@in_event_loop
async def test_commits_made_during_a_pass_replace_the_offsets_that_it_has_read(source: Source):
    """Otherwise a pass could overwrite a newer offset from the log."""
    following = follower()
    await following.open()
    source.commits = [GroupCommit("g", ORDERS, at(6)), GroupCommit("g", OTHER, None)]
    unread = ClusterError("x", cluster="A")

    offsets = await following.rebase({"g": {ORDERS: at(5), OTHER: at(5)}, "h": unread})

    assert {"g": {ORDERS: at(6)}, "h": unread} == offsets


@in_event_loop
async def test_groups_that_moved_recently_are_polled_without_the_commit_log(source: Source):
    """Idle groups are read only by passes."""
    source.open_error = UNREADABLE
    following = follower()
    await following.open()
    await following.rebase({"g": {ORDERS: at(1), OTHER: at(1)}, "h": {ORDERS: at(1)}})
    assert {} == await following.moved({"g", "h"})

    await following.rebase({"g": {ORDERS: at(2), OTHER: at(1)}, "h": {ORDERS: at(1)}})
    source.offsets = {"g": {ORDERS: at(3)}}

    assert {"g": {ORDERS: at(3), OTHER: None}} == await following.moved({"g", "h"})
    assert {} == await following.moved({"g", "h"})
    assert [["g"], ["g"]] == source.polled
    assert FollowedBy.POLLS is following.followed_by
    assert "Read" in following.why_polled


@in_event_loop
async def test_the_commit_log_is_followed_once_the_permission_is_granted(source: Source):
    source.open_error = UNREADABLE
    following = follower()
    await following.open()
    source.open_error = None

    await following.open()

    assert FollowedBy.COMMIT_LOG is following.followed_by


@pytest.mark.parametrize(
    ("error", "then"),
    [
        (OffsetsLogChangedError(cluster="A"), FollowedBy.COMMIT_LOG),
        (CorruptRecordsError("its version 9 is not known"), FollowedBy.POLLS),
    ],
)
def test_polls_replace_a_commit_log_that_cannot_be_followed(
    source: Source, error: Exception, then: FollowedBy
):
    """A recreated log is opened in the next pass. A log of an unknown version is never opened."""

    async def main() -> None:
        following = follower()
        await following.open()
        await following.rebase({"g": {}})
        source.read_error = error
        assert {} == await following.moved({"g"})
        assert FollowedBy.POLLS is following.followed_by

        source.read_error = None
        await following.open()

        assert then is following.followed_by

    asyncio.run(main())
