"""Which groups a checkpoint connector follows where an expression takes too long, and how refusals of the target end."""

import asyncio
from collections.abc import Iterable
from typing import Any
from unittest.mock import create_autospec

import pytest

from mirrorflow_core.errors import ClusterError, InvalidSettingError, UnreachableError
from mirrorflow_core.offsets.checkpoints import Group, Point
from mirrorflow_core.offsets.offset_translation import Committed, TranslatedOffset
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.admin import admin, groups
from mirrorflow_kafka.admin.groups import GroupListing
from mirrorflow_kafka.admin.log_requests import ListedOffset
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.worker_properties import load_standalone
from mirrorflow_replicator.connectors.checkpoint_passes import CheckpointPasses
from mirrorflow_replicator.connectors.known_offsets import OffsetReaders

CONNECTOR = """
name=points
connector.class=MirrorCheckpointConnector
source.cluster.alias=A
target.cluster.alias=B
source.cluster.bootstrap.servers=127.0.0.1:1
groups=g-(a|a)*
"""
SLOW = "g-" + "a" * 60 + "-1"


@pytest.fixture
def passes() -> CheckpointPasses:
    worker = load_standalone("bootstrap.servers=127.0.0.1:1\n", [CONNECTOR])
    (settings,) = worker.connectors
    assert settings.checkpoint is not None
    cluster = create_autospec(Cluster, instance=True)
    cluster.alias = "B"
    return CheckpointPasses(
        settings.checkpoint,
        OffsetReaders(source=cluster, syncs=cluster, target=cluster, reader=cluster),
        cluster,
    )


def refresh(
    passes: CheckpointPasses,
    monkeypatch: pytest.MonkeyPatch,
    *names: str,
    problem: ClusterError | None = None,
) -> int:
    """The number of groups that are followed after the source lists *names*."""

    async def listed(_: Cluster) -> GroupListing:
        return GroupListing({name: Group(name=name, protocol_type="consumer") for name in names}, problem)

    monkeypatch.setattr(groups, "list_reachable_groups", listed)
    asyncio.run(passes.refresh())
    return passes.report.selected


def test_known_groups_are_still_followed(passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch):
    assert refresh(passes, monkeypatch, "g-a") == 1

    assert refresh(passes, monkeypatch, "g-a", SLOW) == 1

    (warning,) = passes.warnings
    assert warning.startswith(
        f"The list of groups is not refreshed: groups: 'g-(a|a)*' cannot be matched against '{SLOW[:60]}"
    )


def test_without_known_groups_it_is_the_connectors_problem(
    passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(InvalidSettingError, match=r"^groups: "):
        refresh(passes, monkeypatch, SLOW)


LIMIT = 4096
COPY = [TopicPartition("A.orders", number) for number in range(3)]


class Target:
    """The target's group g, without members: where it stands, and each commit that was tried."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, codes: dict[TopicPartition, int] | None = None
    ) -> None:
        self.own: dict[TopicPartition, Committed] = {}
        self.commits: list[dict[TopicPartition, Committed]] = []
        self.listed: dict[str, Group] = {}
        self.problem: ClusterError | None = None
        self.described = Group(name="g", state="Dead")
        self._codes = codes or {}
        monkeypatch.setattr(groups, "list_reachable_groups", self._list)
        monkeypatch.setattr(groups, "describe_group", self._describe)
        monkeypatch.setattr(groups, "fetch_offsets", self._fetch)
        monkeypatch.setattr(groups, "commit_offsets", self._commit)
        monkeypatch.setattr(admin, "list_offsets", self._ends)

    async def _list(self, _: object) -> GroupListing:
        return GroupListing(self.listed, self.problem)

    async def _describe(self, *_: object) -> Group:
        return self.described

    async def _fetch(self, *_: object) -> dict[TopicPartition, Committed]:
        return dict(self.own)

    async def _ends(
        self, _: object, partitions: Iterable[TopicPartition], *__: object
    ) -> dict[TopicPartition, ListedOffset]:
        return {partition: ListedOffset(offset=1000) for partition in partitions}

    async def _commit(self, *given: Any) -> dict[TopicPartition, int]:
        _, _, offsets = given
        self.commits.append(dict(offsets))
        codes = {
            partition: 12 if len(one.metadata) > LIMIT else self._codes.get(partition, 0)
            for partition, one in offsets.items()
        }
        self.own |= {partition: one for partition, one in offsets.items() if not codes[partition]}
        return codes


def sync(passes: CheckpointPasses, *metadata: str, offset: int = 90) -> None:
    """A pass after group g has committed *metadata* in as many partitions, at *offset* on both sides."""
    pairs = dict(zip(COPY, metadata, strict=False))
    passes._groups = ("g",)
    passes._translated["g"] = {
        at: TranslatedOffset(upstream_offset=offset, downstream_offset=offset, metadata=one, at_most=offset)
        for at, one in pairs.items()
    }
    points = {
        at: Point(upstream_offset=offset, downstream_offset=offset, metadata=one) for at, one in pairs.items()
    }
    passes._store.take("g", points)
    asyncio.run(passes.sync_groups())


def test_a_group_is_moved_without_metadata_that_the_target_refuses(
    passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch
):
    target = Target(monkeypatch)

    sync(passes, "m" * 5000, "kept", "m" * 5000)

    assert target.own == {
        COPY[0]: Committed(offset=90),
        COPY[1]: Committed(offset=90, metadata="kept"),
        COPY[2]: Committed(offset=90),
    }
    assert [len(one) for one in target.commits] == [3, 2]
    assert passes.report.failing == 0
    assert passes.report.moved == 3
    (warning,) = passes.warnings
    assert warning == (
        "Group g was moved on B without the metadata of its offsets, because B refuses it (OFFSET_METADATA_TOO_LARGE): 5000 "
        "characters for A.orders-0 and 1 more; raise offset.metadata.max.bytes of its brokers (4096 by default)."
    )


def test_the_warning_lasts_while_the_group_stands_there_without_metadata(
    passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch
):
    target = Target(monkeypatch)
    sync(passes, "m" * 5000)

    sync(passes, "m" * 5000)
    still = passes.warnings
    sync(passes, "fits", offset=95)

    assert (len(still), passes.warnings) == (1, ())
    assert [len(one) for one in target.commits] == [1, 1, 1]  # nothing is committed again at the same offset


def test_the_warning_ends_when_the_group_consumes_on_the_target(
    passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch
):
    target = Target(monkeypatch)
    sync(passes, "m" * 5000)

    target.listed = {"g": Group(name="g", protocol_type="consumer", state="Stable")}
    asyncio.run(passes.sync_groups())

    assert passes.warnings == ()


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (29, "TOPIC_AUTHORIZATION_FAILED (Describe and Read on its topic are needed)"),
        (3, "UNKNOWN_TOPIC_OR_PARTITION (its topic is missing; the source connector's warnings say why)"),
        (28, "INVALID_COMMIT_OFFSET_SIZE"),
    ],
)
def test_a_partition_that_is_refused_is_named_and_the_others_are_moved(
    passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch, code: int, why: str
):
    target = Target(monkeypatch, codes={COPY[1]: code})

    sync(passes, "a", "b", "m" * 5000)

    assert target.own.keys() == {COPY[0], COPY[2]}
    (named,) = (one for one in passes.warnings if "not synchronised" in one)
    assert f"A.orders-1: {why}" in named
    assert passes.report.failing == 1


AWAY = UnreachableError(cluster="B", addresses="b:9092", problem="timed out")


def test_a_broker_that_lists_no_groups_holds_no_other_group_back(
    passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch
):
    """A group that was not listed is described by its coordinator."""
    target = Target(monkeypatch)
    target.problem = AWAY

    sync(passes, "a")

    assert target.own == {COPY[0]: Committed(offset=90, metadata="a")}
    (warning,) = passes.warnings
    assert warning.startswith("Not every broker of B lists its groups: Cluster B cannot be reached at b:9092")


def test_a_group_that_was_not_listed_is_not_moved_while_it_has_members(
    passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch
):
    target = Target(monkeypatch)
    target.problem = AWAY
    target.described = Group(name="g", protocol_type="consumer", state="Stable")

    sync(passes, "a")

    assert target.commits == []
    assert passes.report.active == 1


def test_groups_of_a_broker_that_does_not_list_them_are_still_followed(
    passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch
):
    assert refresh(passes, monkeypatch, "g-a", "g-aa") == 2

    assert refresh(passes, monkeypatch, "g-a", "g-aaa", problem=AWAY) == 3
    during = len(passes.warnings)
    assert refresh(passes, monkeypatch, "g-a", "g-aaa") == 2

    assert (during, passes.warnings) == (1, ())
