"""The log of group commits is read from a bounded distance before its end, and not when it is a different log."""

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, create_autospec

import pytest

from mirrorflow_core.offsets.group_commits import GROUP_OFFSETS_TOPIC
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores import group_commit_log as module
from mirrorflow_kafka.stores.group_commit_log import (
    REREAD_OFFSETS_MAX,
    GroupCommitLog,
    OffsetsLogChangedError,
)


class Log:
    """A log of one partition that has `end` offsets, of which an open transaction leaves `stable`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, end: int, stable: int) -> None:
        self.end, self.stable = end, stable
        self.topic = SimpleNamespace(error=0, partitions={0: None})
        self.cluster = create_autospec(Cluster, instance=True, alias="A")
        self.cluster.metadata = SimpleNamespace(
            topics={GROUP_OFFSETS_TOPIC: self.topic}, topic_id=lambda _: "id"
        )
        monkeypatch.setattr(admin, "offsets_at", self._offsets_at)
        monkeypatch.setattr(module, "read_once", AsyncMock())

    async def _offsets_at(
        self, _: object, partitions: Iterable[TopicPartition], __: int, **named: Any
    ) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self.stable if named.get("read_committed") else self.end)


@pytest.mark.parametrize(
    ("before_end", "read_again"),
    [(0, 0), (REREAD_OFFSETS_MAX, REREAD_OFFSETS_MAX), (REREAD_OFFSETS_MAX + 1, 0)],
)
def test_commits_since_a_transaction_that_never_ends_are_not_read_again(
    monkeypatch: pytest.MonkeyPatch, before_end: int, read_again: int
):
    log = Log(monkeypatch, end=10_000_000, stable=10_000_000 - before_end)
    commits = GroupCommitLog(log.cluster)

    asyncio.run(commits.open())

    assert [log.end - read_again] == list(commits._next.values())


def test_a_log_that_got_partitions_is_not_followed_any_more(monkeypatch: pytest.MonkeyPatch):
    """Groups are in other partitions then."""
    log = Log(monkeypatch, end=5, stable=5)
    commits = GroupCommitLog(log.cluster)
    asyncio.run(commits.open())
    assert [] == asyncio.run(commits.read_new())

    log.topic.partitions[1] = None

    with pytest.raises(OffsetsLogChangedError):
        asyncio.run(commits.read_new())
