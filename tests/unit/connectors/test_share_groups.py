"""A checkpoint connector moves each share group by itself.

An error of one group is a warning, and the others are moved.
"""

import asyncio
from collections.abc import Mapping
from unittest.mock import create_autospec

import pytest

from mirrorflow_core.errors import (
    BrokerError,
    ClusterError,
    NotAuthorizedError,
    UnreachableError,
    UnsupportedBrokerError,
)
from mirrorflow_core.offsets.checkpoints import Group
from mirrorflow_core.offsets.offset_syncs import Sync
from mirrorflow_core.offsets.share_offsets import ShareStart
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.error_codes import NON_EMPTY_GROUP
from mirrorflow_kafka.admin import admin, groups, share_groups
from mirrorflow_kafka.admin.groups import GroupListing
from mirrorflow_kafka.admin.log_requests import ListedOffset
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.worker_properties import load_standalone
from mirrorflow_replicator.connectors.checkpoint_passes import CheckpointPasses
from mirrorflow_replicator.connectors.known_offsets import KnownOffsets, OffsetReaders

CONNECTOR = """
name=points
connector.class=MirrorCheckpointConnector
source.cluster.alias=A
target.cluster.alias=B
source.cluster.bootstrap.servers=127.0.0.1:1
groups=.*
sync.group.offsets.enabled=true
"""
ORDERS, COPY = TopicPartition("orders", 0), TopicPartition("A.orders", 0)
SYNCED = 40  # this source offset is known to be the same on the target


class Brokers:
    """Both clusters.

    `on_source` and `on_target` have start offsets or an error by group; `set` has the offsets that were set.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on_source: dict[str, int | ClusterError] = {}
        self.on_target: dict[str, int | ClusterError] = {}
        self.listed_on_target: dict[str, Group] = {}
        self.set: dict[str, int] = {}
        self.refusal: ClusterError | None = None
        self.copy_end = 100
        self.source, self.target = (create_autospec(Cluster, instance=True, alias=name) for name in "AB")
        for module, name in (
            (groups, "list_reachable_groups"),
            (groups, "fetch_offsets_of"),
            (share_groups, "fetch_start_offsets"),
            (share_groups, "set_start_offsets"),
            (admin, "list_offsets"),
        ):
            monkeypatch.setattr(module, name, getattr(self, f"_{name}"))
        for name in ("read_syncs", "read_maps", "read_opposite_maps"):
            monkeypatch.setattr(KnownOffsets, name, self._nothing)

    async def _nothing(self, *_: object) -> None:
        pass

    async def _list_reachable_groups(self, cluster: Cluster) -> GroupListing:
        if cluster is self.target:
            return GroupListing(self.listed_on_target)
        return GroupListing({name: Group(name=name, type="Share", state="Empty") for name in self.on_source})

    async def _fetch_offsets_of(self, *_: object) -> dict[str, object]:
        return {}

    async def _fetch_start_offsets(self, cluster: Cluster, group: str) -> dict[TopicPartition, ShareStart]:
        is_source = cluster is self.source
        start = (self.on_source if is_source else self.on_target).get(group)
        if isinstance(start, ClusterError):
            raise start
        return {} if start is None else {ORDERS if is_source else COPY: ShareStart(offset=start)}

    async def _set_start_offsets(
        self, _: Cluster, group: str, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        if self.refusal is not None:
            raise self.refusal
        self.set[group] = offsets[COPY]
        return dict.fromkeys(offsets, 0)

    async def _list_offsets(
        self, _: Cluster, partitions: object, *__: object
    ) -> dict[TopicPartition, ListedOffset]:
        assert isinstance(partitions, Mapping | frozenset)
        return {partition: ListedOffset(offset=self.copy_end) for partition in partitions}


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    return Brokers(monkeypatch)


@pytest.fixture
def passes(brokers: Brokers) -> CheckpointPasses:
    (settings,) = load_standalone("bootstrap.servers=127.0.0.1:1\n", [CONNECTOR]).connectors
    assert settings.checkpoint is not None
    readers = OffsetReaders(
        source=brokers.source, syncs=brokers.target, target=brokers.target, reader=brokers.target
    )
    passes = CheckpointPasses(settings.checkpoint, readers, brokers.target)
    passes._known._syncs.add(ORDERS, Sync(SYNCED - 1, SYNCED - 1))
    passes._known._has_history = True
    passes._known._syncs.mark_read_to_end()
    return passes


def move(passes: CheckpointPasses) -> None:
    async def steps() -> None:
        await passes.refresh()
        await passes.translate_groups()
        await passes.sync_groups()

    asyncio.run(steps())


def test_each_share_group_is_moved_and_reported(passes: CheckpointPasses, brokers: Brokers):
    brokers.on_source = {"g": SYNCED, "h": SYNCED}
    brokers.on_target = {"h": SYNCED + 5}

    move(passes)

    assert brokers.set == {"g": SYNCED}
    assert passes.warnings == ()
    lines = {line.group: (line.group_offset, line.written) for line in passes.explain(None)}
    assert lines == {"g": (SYNCED, True), "h": (SYNCED + 5, True)}
    assert (passes.report.selected, passes.report.moved, passes.report.unlike) == (2, 1, 0)


def test_a_share_group_that_cannot_be_moved_does_not_delay_the_others(
    passes: CheckpointPasses, brokers: Brokers
):
    """Its warning has the failure, and its report lines have the reason."""
    refused = NotAuthorizedError(cluster="A", operation="Describe", resource="group g")
    brokers.on_source = {"g": refused, "h": SYNCED, "i": SYNCED, "j": SYNCED}
    brokers.listed_on_target = {
        "i": Group(name="i", type="Consumer", protocol_type="consumer", state="Empty")
    }

    move(passes)

    assert brokers.set == {"h": SYNCED, "j": SYNCED}
    assert len(passes.unread) == 1
    assert "share group g cannot be read on A" in passes.unread[0]
    assert "share group i are not synchronised on B" in str(passes.warnings)
    (line,) = passes.explain("i")
    assert "a group of another kind" in str(line.why)


def test_unreachable_coordinators_of_share_groups_do_not_fail_the_pass(
    passes: CheckpointPasses, brokers: Brokers
):
    """Consumer groups of other coordinators are moved by the same pass."""
    away = UnreachableError(cluster="A", addresses="a:9092", problem="no answer")
    brokers.on_source = {"g": away}

    move(passes)

    assert "share group g cannot be read on A" in passes.unread[0]


def test_a_target_without_share_groups_is_reported(passes: CheckpointPasses, brokers: Brokers):
    error = UnsupportedBrokerError(
        cluster="B", feature="DescribeShareGroupOffsets", needs="a later version of Kafka"
    )
    brokers.on_source, brokers.on_target = {"g": SYNCED}, {"g": error}

    move(passes)

    assert "The brokers of cluster B do not offer DescribeShareGroupOffsets" in passes.unread_on_target[0]
    (line,) = passes.explain("g")
    assert not line.written
    assert "do not offer DescribeShareGroupOffsets" in str(line.why)


@pytest.mark.parametrize("is_listed", [True, False], ids=["listed", "joined since"])
def test_a_share_group_with_members_on_the_target_is_not_moved(
    passes: CheckpointPasses, brokers: Brokers, *, is_listed: bool
):
    """If members have joined since the listing, the coordinator refuses the change."""
    brokers.on_source = {"g": SYNCED}
    if is_listed:
        brokers.listed_on_target = {"g": Group(name="g", type="Share", state="Stable")}
    else:
        brokers.refusal = BrokerError(
            cluster="B",
            request="AlterShareGroupOffsets",
            code=NON_EMPTY_GROUP,
            name="NON_EMPTY_GROUP",
            subject="g",
        )

    move(passes)

    assert not brokers.set
    assert passes.warnings == ()
    (line,) = passes.explain("g")
    assert "has members" in str(line.why)


def test_a_start_offset_is_not_set_after_the_end_of_the_copy(passes: CheckpointPasses, brokers: Brokers):
    """Members would apply share.auto.offset.reset at such an offset."""
    brokers.on_source, brokers.copy_end = {"g": SYNCED}, SYNCED - 1

    move(passes)

    assert not brokers.set
    assert f"its copy ends at {SYNCED - 1}, before {SYNCED}" in str(passes.warnings)
