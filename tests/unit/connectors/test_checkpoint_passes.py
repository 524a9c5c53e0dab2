"""A checkpoint connector keeps its groups when a filter takes too long. It moves groups despite refused partitions."""

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
from mirrorflow_replicator.connectors.claim_reader import FlowEndWatch
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
    """Returns the number of selected groups after the source has listed *names*."""

    async def list_groups(_: Cluster) -> GroupListing:
        return GroupListing({name: Group(name=name, protocol_type="consumer") for name in names}, problem)

    monkeypatch.setattr(groups, "list_reachable_groups", list_groups)
    asyncio.run(passes.refresh())
    return passes.report.selected


def test_selected_groups_are_kept_when_an_expression_takes_too_long(
    passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch
):
    assert refresh(passes, monkeypatch, "g-a") == 1

    assert refresh(passes, monkeypatch, "g-a", SLOW) == 1

    (warning,) = passes.warnings
    assert warning.startswith(
        f"The list of groups is not refreshed: groups: 'g-(a|a)*' cannot be matched against '{SLOW[:60]}"
    )


def test_slow_expression_fails_the_connector_before_groups_are_selected(
    passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(InvalidSettingError, match=r"^groups: "):
        refresh(passes, monkeypatch, SLOW)


LIMIT = 4096
TARGET_PARTITIONS = [TopicPartition("A.orders", number) for number in range(3)]


class Target:
    """The target's group g without members. It records the committed offsets and each attempted commit."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, error_codes: dict[TopicPartition, int] | None = None
    ) -> None:
        self.offsets: dict[TopicPartition, Committed] = {}
        self.commits: list[dict[TopicPartition, Committed]] = []
        self.listed_groups: dict[str, Group] = {}
        self.problem: ClusterError | None = None
        self.description = Group(name="g", state="Dead")
        self._error_codes = error_codes or {}
        monkeypatch.setattr(groups, "list_reachable_groups", self._list)
        monkeypatch.setattr(groups, "describe_group", self._describe)
        monkeypatch.setattr(groups, "fetch_offsets", self._fetch)
        monkeypatch.setattr(groups, "fetch_offsets_of", self._fetch_of)
        monkeypatch.setattr(groups, "commit_offsets", self._commit)
        monkeypatch.setattr(admin, "list_offsets", self._list_offsets)

    async def _list(self, _: object) -> GroupListing:
        return GroupListing(self.listed_groups, self.problem)

    async def _describe(self, *_: object) -> Group:
        return self.description

    async def _fetch(self, *_: object) -> dict[TopicPartition, Committed]:
        return dict(self.offsets)

    async def _fetch_of(self, _: object, names: Iterable[str]) -> dict[str, dict[TopicPartition, Committed]]:
        return {name: dict(self.offsets) for name in names}

    async def _list_offsets(
        self, _: object, partitions: Iterable[TopicPartition], *__: object
    ) -> dict[TopicPartition, ListedOffset]:
        return {partition: ListedOffset(offset=1000) for partition in partitions}

    async def _commit(self, *arguments: Any) -> dict[TopicPartition, int]:
        _, _, offsets = arguments
        self.commits.append(dict(offsets))
        codes = {
            partition: 12 if len(committed.metadata) > LIMIT else self._error_codes.get(partition, 0)
            for partition, committed in offsets.items()
        }
        self.offsets |= {
            partition: committed for partition, committed in offsets.items() if not codes[partition]
        }
        return codes


def sync(passes: CheckpointPasses, *metadata: str, offset: int = 90) -> None:
    """Runs a pass after group g has committed *offset* with each of *metadata* in its own partition."""
    metadata_of = dict(zip(TARGET_PARTITIONS, metadata, strict=False))
    passes._groups = ("g",)
    passes._translated["g"] = {
        partition: TranslatedOffset(
            upstream_offset=offset, downstream_offset=offset, metadata=text, at_most=offset
        )
        for partition, text in metadata_of.items()
    }
    points = {
        partition: Point(upstream_offset=offset, downstream_offset=offset, metadata=text)
        for partition, text in metadata_of.items()
    }
    passes._store.take("g", points)
    asyncio.run(passes.sync_groups())


def test_group_is_moved_without_the_metadata_that_the_target_refuses(
    passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch
):
    target = Target(monkeypatch)

    sync(passes, "m" * 5000, "kept", "m" * 5000)

    assert target.offsets == {
        TARGET_PARTITIONS[0]: Committed(offset=90),
        TARGET_PARTITIONS[1]: Committed(offset=90, metadata="kept"),
        TARGET_PARTITIONS[2]: Committed(offset=90),
    }
    assert [len(commit) for commit in target.commits] == [3, 2]
    assert passes.report.failing == 0
    assert passes.report.moved == 3
    (warning,) = passes.warnings
    assert warning == (
        "Group g was moved on B without the metadata of its offsets, because B refuses it (OFFSET_METADATA_TOO_LARGE): 5000 "
        "characters for A.orders-0 and 1 more; raise offset.metadata.max.bytes of its brokers (4096 by default)."
    )


def test_metadata_warning_lasts_until_an_offset_is_committed_with_metadata(
    passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch
):
    target = Target(monkeypatch)
    sync(passes, "m" * 5000)

    sync(passes, "m" * 5000)
    warnings = passes.warnings
    sync(passes, "fits", offset=95)

    assert (len(warnings), passes.warnings) == (1, ())
    # No offset is committed twice.
    assert [len(commit) for commit in target.commits] == [1, 1, 1]


def test_metadata_warning_ends_when_the_group_consumes_on_the_target(
    passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch
):
    target = Target(monkeypatch)
    sync(passes, "m" * 5000)

    target.listed_groups = {"g": Group(name="g", protocol_type="consumer", state="Stable")}
    asyncio.run(passes.sync_groups())

    assert passes.warnings == ()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (29, "TOPIC_AUTHORIZATION_FAILED (Describe and Read on its topic are needed)"),
        (3, "UNKNOWN_TOPIC_OR_PARTITION (its topic is missing; the source connector's warnings say why)"),
        (28, "INVALID_COMMIT_OFFSET_SIZE"),
    ],
)
def test_refused_partition_has_a_warning_and_the_others_are_moved(
    passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch, code: int, reason: str
):
    target = Target(monkeypatch, error_codes={TARGET_PARTITIONS[1]: code})

    sync(passes, "a", "b", "m" * 5000)

    assert target.offsets.keys() == {TARGET_PARTITIONS[0], TARGET_PARTITIONS[2]}
    (warning,) = (text for text in passes.warnings if "not synchronised" in text)
    assert f"A.orders-1: {reason}" in warning
    assert passes.report.failing == 1


UNREACHABLE = UnreachableError(cluster="B", addresses="b:9092", problem="timed out")


def test_group_is_moved_even_if_a_broker_lists_no_groups(
    passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch
):
    """The connector has the coordinator describe a group that no broker listed."""
    target = Target(monkeypatch)
    target.problem = UNREACHABLE

    sync(passes, "a")

    assert target.offsets == {TARGET_PARTITIONS[0]: Committed(offset=90, metadata="a")}
    (warning,) = passes.warnings
    assert warning.startswith("Not every broker of B lists its groups: Cluster B cannot be reached at b:9092")


def test_unlisted_group_is_not_moved_while_it_has_members(
    passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch
):
    target = Target(monkeypatch)
    target.problem = UNREACHABLE
    target.description = Group(name="g", protocol_type="consumer", state="Stable")

    sync(passes, "a")

    assert target.commits == []
    assert passes.report.active == 1


def test_groups_stay_selected_while_their_broker_does_not_list_them(
    passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch
):
    assert refresh(passes, monkeypatch, "g-a", "g-aa") == 2

    assert refresh(passes, monkeypatch, "g-a", "g-aaa", problem=UNREACHABLE) == 3
    warnings_during_failure = len(passes.warnings)
    assert refresh(passes, monkeypatch, "g-a", "g-aaa") == 2

    assert (warnings_during_failure, passes.warnings) == (1, ())


@pytest.mark.parametrize(("ends_at", "metadata", "commits"), [("list", "a", 0), ("commit", "m" * 5000, 1)])
def test_no_group_is_moved_if_a_switchover_ends_the_flow_during_the_pass(
    passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch, ends_at: str, metadata: str, commits: int
):
    """The flow ends after the pass has read the newest claim, while another request for the same group is in flight."""
    target, ended = Target(monkeypatch), list[str]()

    async def has_ended() -> bool:
        return ends_at in ended

    async def list_offsets(*arguments: Any) -> dict[TopicPartition, ListedOffset]:
        ended.append("list")
        return await target._list_offsets(*arguments)

    async def commit(*arguments: Any) -> dict[TopicPartition, int]:
        ended.append("commit")
        return await target._commit(*arguments)

    passes._end = create_autospec(FlowEndWatch, instance=True)
    passes._end.has_ended = has_ended  # type: ignore[method-assign]
    monkeypatch.setattr(admin, "list_offsets", list_offsets)
    monkeypatch.setattr(groups, "commit_offsets", commit)

    sync(passes, metadata)

    assert commits == len(target.commits)
    assert not target.offsets
