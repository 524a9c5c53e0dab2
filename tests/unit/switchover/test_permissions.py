"""The rights of later states: each is checked by name before anything happens."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import OffsetStore
from mirrorflow_core.switchover.states import SwitchoverState as S
from mirrorflow_core.topics.topic_acls import Operation
from mirrorflow_kafka.admin import admin, groups
from mirrorflow_replicator.switchover import permissions
from mirrorflow_replicator.switchover.pair_settings import FenceKind
from mirrorflow_replicator.switchover.permissions import NeededRight, missing_rights, sentence_of

ALL = frozenset(map(int, Operation))
ORDERS = TopicPartition("orders", 0)


def flow(source: str, target: str) -> SimpleNamespace:
    offsets = SimpleNamespace(store=OffsetStore.KAFKA, topic=f"mm2-offsets.{source}.internal")
    return SimpleNamespace(source_alias=source, target_alias=target, offsets=offsets)


def missing(
    monkeypatch: pytest.MonkeyPatch,
    *,
    lacking: dict[tuple[str, str], Operation] | None = None,
    fence: FenceKind = FenceKind.DENY_ACL,
) -> list[NeededRight]:
    """Returns what is missing of users that have all rights but *lacking*: cluster and resource, with the operation."""
    refused = lacking or {}

    def operations(alias: str, resource: str) -> frozenset[int]:
        return ALL - ({int(refused[alias, resource])} if (alias, resource) in refused else set())

    async def cluster_operations(cluster: Any) -> frozenset[int]:
        return operations(cluster.alias, "the cluster")

    async def topic_operations(cluster: Any, topics: list[str]) -> dict[str, frozenset[int]]:
        return {topic: operations(cluster.alias, topic) for topic in topics}

    async def is_allowed(cluster: Any, name: str) -> bool:
        return (cluster.alias, name) not in refused

    monkeypatch.setattr(admin, "cluster_operations", cluster_operations)
    monkeypatch.setattr(admin, "topic_operations", topic_operations)
    monkeypatch.setattr(permissions, "may_write_as", is_allowed)
    monkeypatch.setattr(groups, "may_read", is_allowed)
    settings: Any = SimpleNamespace(
        source="east",
        to="west",
        fence=fence,
        forward=flow("east", "west"),
        back=flow("west", "east"),
        forward_groups=None,
    )
    clusters: Any = SimpleNamespace(
        source=SimpleNamespace(alias="east"), target=SimpleNamespace(alias="west")
    )
    ids = ["mirrorflow:east:task-0"]
    return asyncio.run(missing_rights(settings, clusters, {ORDERS: ORDERS}, ids, ["billing"]))


def test_users_with_all_rights_lack_nothing(monkeypatch: pytest.MonkeyPatch):
    assert [] == missing(monkeypatch)


@pytest.mark.parametrize(
    ("alias", "resource", "operation", "state"),
    [
        ("east", "the cluster", Operation.ALTER, S.FENCING),
        ("east", "the cluster", Operation.DESCRIBE, S.FENCING),
        ("west", "the cluster", Operation.ALTER, S.PROMOTING),
        ("east", "mm2-switchovers.internal", Operation.WRITE, S.FENCING),
        ("east", "orders", Operation.READ, S.VERIFYING),
        ("west", "orders", Operation.DESCRIBE_CONFIGS, S.VERIFYING),
        ("west", "orders", Operation.WRITE, S.FORWARD_ENDED),
        ("west", "mm2-claims.east.internal", Operation.WRITE, S.FORWARD_ENDED),
        ("west", "mm2-offsets.east.internal", Operation.WRITE, S.FORWARD_ENDED),
        ("east", "mm2-claims.west.internal", Operation.WRITE, S.REVERSING),
        ("east", "mm2-offsets.west.internal", Operation.WRITE, S.REVERSING),
        ("west", "mirrorflow:east:lock", Operation.WRITE, S.FORWARD_ENDED),
        ("west", "mirrorflow:east:task-0", Operation.WRITE, S.FORWARD_ENDED),
        ("east", "mirrorflow:west:lock", Operation.WRITE, S.REVERSING),
        ("west", "billing", Operation.READ, S.GROUPS_FINAL),
    ],
)
def test_each_right_of_a_later_state_is_found_missing(
    alias: str, resource: str, operation: Operation, state: S, monkeypatch: pytest.MonkeyPatch
):
    (right,) = missing(monkeypatch, lacking={(alias, resource): operation})

    assert (state, alias, operation) == (right.state, right.alias, right.operation)
    assert right.resource.endswith(resource)


def test_a_fence_without_acls_needs_no_right_on_the_cluster(monkeypatch: pytest.MonkeyPatch):
    lacking = {("east", "the cluster"): Operation.ALTER}

    assert [] == missing(monkeypatch, lacking=lacking, fence=FenceKind.HOOK)


def test_the_sentence_names_states_operations_resources_and_the_cure(monkeypatch: pytest.MonkeyPatch):
    lacking = {
        ("east", "the cluster"): Operation.ALTER,
        ("west", "billing"): Operation.READ,
        ("west", "mirrorflow:east:lock"): Operation.WRITE,
        ("west", "mirrorflow:east:task-0"): Operation.WRITE,
    }
    assert sentence_of(missing(monkeypatch, lacking=lacking)) == (
        "permissions: Fencing needs Alter on the cluster of east; GroupsFinal needs Read on group billing of west; ForwardEnded needs Write on "
        "transactional id mirrorflow:east:lock, transactional id mirrorflow:east:task-0 of west. Add these ACLs: `mirrorflow acls` with the "
        "file of the pair prints them."
    )
    assert sentence_of([]) == ""
