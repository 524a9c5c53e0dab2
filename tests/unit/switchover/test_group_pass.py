"""The final pass over groups: a group that cannot be read is unknown, not ready."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pytest

from mirrorflow_core.errors import BrokerError, ClusterError, UnreachableError, UnsupportedBrokerError
from mirrorflow_core.offsets.checkpoints import Group
from mirrorflow_core.offsets.offset_translation import Committed
from mirrorflow_core.offsets.share_offsets import ShareStart
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.observation import GroupPass
from mirrorflow_kafka.admin import groups, share_groups
from mirrorflow_kafka.admin.groups import GroupListing
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.worker_properties import load_standalone
from mirrorflow_replicator.connectors.known_offsets import KnownOffsets
from mirrorflow_replicator.switchover.group_pass import FinalGroupPass, ImmovableGroups
from mirrorflow_replicator.switchover.pair_settings import PairClusters

CONNECTOR = """
name=points
connector.class=MirrorCheckpointConnector
source.cluster.alias=east
target.cluster.alias=west
source.cluster.bootstrap.servers=127.0.0.1:1
groups=.*
sync.group.offsets.enabled=true
emit.checkpoints.enabled=false
"""
NAMES = ("billing", "orders")


@pytest.fixture
def last_pass(monkeypatch: pytest.MonkeyPatch) -> FinalGroupPass:
    (connector,) = load_standalone("bootstrap.servers=127.0.0.1:1\n", [CONNECTOR]).connectors
    assert connector.checkpoint is not None
    clusters = []
    for alias in ("east", "west"):
        cluster = create_autospec(Cluster, instance=True)
        cluster.alias = alias
        clusters.append(cluster)
    source, target = clusters

    async def nothing(*_: Any, **__: Any) -> None:
        return None

    for name in ("open_syncs", "read_syncs", "read_maps", "read_checkpoints"):
        monkeypatch.setattr(KnownOffsets, name, nothing)
    pair = PairClusters(source=source, target=target, probe=source)
    return FinalGroupPass(connector.checkpoint, pair)


def listing(monkeypatch: pytest.MonkeyPatch, *, problem: ClusterError | None = None) -> None:
    async def listed(_: Cluster) -> GroupListing:
        names = NAMES if problem is None else NAMES[:1]
        return GroupListing({name: Group(name=name, protocol_type="consumer") for name in names}, problem)

    monkeypatch.setattr(groups, "list_reachable_groups", listed)


def fetching(monkeypatch: pytest.MonkeyPatch, *, refused: str = "") -> None:
    async def fetch(_: Cluster, group: str) -> dict[TopicPartition, Committed]:
        if group == refused:
            raise BrokerError(
                cluster="east",
                request="OffsetFetch",
                code=14,
                name="COORDINATOR_LOAD_IN_PROGRESS",
                subject=group,
            )
        return {}

    monkeypatch.setattr(groups, "fetch_offsets", fetch)


def test_the_pass_succeeds_if_all_groups_can_be_read(
    last_pass: FinalGroupPass, monkeypatch: pytest.MonkeyPatch
):
    listing(monkeypatch)
    fetching(monkeypatch)
    assert GroupPass() == asyncio.run(last_pass.observe())


def test_the_pass_fails_if_a_coordinator_refuses_a_group(
    last_pass: FinalGroupPass, monkeypatch: pytest.MonkeyPatch
):
    listing(monkeypatch)
    fetching(monkeypatch, refused="orders")
    with pytest.raises(ClusterError, match="orders"):
        asyncio.run(last_pass.observe())


def test_the_pass_fails_if_a_broker_does_not_list_its_groups(
    last_pass: FinalGroupPass, monkeypatch: pytest.MonkeyPatch
):
    listing(monkeypatch, problem=UnreachableError(cluster="east", addresses="b2", problem="no response"))
    fetching(monkeypatch)
    with pytest.raises(ClusterError, match="Not every broker of east"):
        asyncio.run(last_pass.observe())


@pytest.mark.parametrize(
    ("on_target", "immovable"),
    [
        (None, ImmovableGroups()),
        (Group(name="billing", protocol_type="consumer", state="Empty"), ImmovableGroups()),
        (
            Group(name="billing", protocol_type="consumer", state="Stable"),
            ImmovableGroups(with_members=("billing",)),
        ),
        (
            Group(name="billing", protocol_type="connect", state="Empty"),
            ImmovableGroups(of_another_kind=("billing",)),
        ),
    ],
    ids=["absent", "idle", "with members", "of another kind"],
)
def test_groups_in_use_on_the_target_are_listed_as_immovable(
    last_pass: FinalGroupPass,
    monkeypatch: pytest.MonkeyPatch,
    on_target: Group | None,
    immovable: ImmovableGroups,
):
    listing(monkeypatch)
    fetching(monkeypatch)
    asyncio.run(last_pass.observe())
    listed = {} if on_target is None else {on_target.name: on_target}

    async def list_groups(cluster: Cluster) -> GroupListing:
        names = {name: Group(name=name, protocol_type="consumer") for name in NAMES}
        return GroupListing(names if cluster.alias == "east" else listed, None)

    monkeypatch.setattr(groups, "list_reachable_groups", list_groups)
    monkeypatch.setattr(FinalGroupPass, "offsets", lambda _: [SimpleNamespace(group="billing")])

    assert immovable == asyncio.run(last_pass.immovable())


@pytest.mark.parametrize(
    ("on_target", "immovable"),
    [
        (None, ImmovableGroups()),
        (Group(name="jobs", type="Share", state="Empty"), ImmovableGroups()),
        (Group(name="jobs", type="Share", state="Stable"), ImmovableGroups(with_members=("jobs",))),
        (
            Group(name="jobs", type="Classic", protocol_type="consumer", state="Empty"),
            ImmovableGroups(of_another_kind=("jobs",)),
        ),
        (
            UnsupportedBrokerError(cluster="west", feature="share groups", needs="Kafka 4.1"),
            ImmovableGroups(
                unread=(
                    (
                        "The start offsets of share group jobs are not synchronised on west: The brokers of cluster west do not offer share "
                        "groups; it needs Kafka 4.1."
                    ),
                )
            ),
        ),
    ],
    ids=["absent", "idle", "with members", "of another kind", "unsupported"],
)
def test_share_groups_that_cannot_be_moved_are_listed_before_writes_are_refused(
    last_pass: FinalGroupPass,
    monkeypatch: pytest.MonkeyPatch,
    on_target: Group | ClusterError | None,
    immovable: ImmovableGroups,
):
    listed = {"jobs": on_target} if isinstance(on_target, Group) else {}

    async def list_groups(cluster: Cluster) -> GroupListing:
        return GroupListing(
            {"jobs": Group(name="jobs", type="Share", state="Empty")} if cluster.alias == "east" else listed
        )

    async def fetch(cluster: Cluster, _: str) -> dict[TopicPartition, ShareStart]:
        if cluster.alias == "west" and isinstance(on_target, ClusterError):
            raise on_target
        return {}

    monkeypatch.setattr(groups, "list_reachable_groups", list_groups)
    monkeypatch.setattr(share_groups, "fetch_start_offsets", fetch)
    monkeypatch.setattr(FinalGroupPass, "offsets", lambda _: [SimpleNamespace(group="jobs")])

    assert immovable == asyncio.run(last_pass.immovable())
