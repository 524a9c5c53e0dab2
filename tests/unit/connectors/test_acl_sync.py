"""The sync of ACLs, on clusters in memory."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from mirrorflow_core.errors import InternalTopicUnavailableError, NotAuthorizedError
from mirrorflow_core.topics.topic_acls import (
    TOPIC,
    AclBinding,
    AclPlan,
    Operation,
    PatternType,
    Permission,
    plan_acls,
)
from mirrorflow_kafka.admin import acls, admin
from mirrorflow_kafka.client.metadata import EMPTY
from mirrorflow_kafka.stores.identity_topic import AclMarks
from mirrorflow_replicator.config.plugins import make_selection
from mirrorflow_replicator.connectors import acl_sync
from mirrorflow_replicator.connectors.acl_sync import PROBE_TOPIC, AclSync
from tests.unit.connectors.flow_settings import settings


class ClusterWithAcls:
    """A cluster on which this client may describe ACLs, and has no permission on the identity topic."""

    metadata = EMPTY

    def __init__(self, alias: str, *bindings: AclBinding) -> None:
        self.alias = alias
        self.acls = bindings
        self.has_identity_topic = False

    async def refresh(self, _: object = None) -> None:
        """Does nothing, because metadata is always current."""

    def leader(self, _topic: str, _partition: int) -> int | None:
        return 1 if self.has_identity_topic else None


def acl(topic: str, user: str) -> AclBinding:
    return AclBinding(
        resource_type=TOPIC,
        resource_name=topic,
        pattern_type=int(PatternType.LITERAL),
        principal=f"User:{user}",
        host="*",
        operation=int(Operation.READ),
        permission_type=int(Permission.ALLOW),
    )


def denied(operation: str) -> NotAuthorizedError:
    return NotAuthorizedError(
        cluster="west", operation=operation, resource="topic mm2-identity.east.internal"
    )


@pytest.fixture(autouse=True)
def memory_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    async def describe(cluster: ClusterWithAcls, **_: object) -> tuple[AclBinding, ...]:
        return cluster.acls

    async def refuse_to_create(*_: object) -> None:
        raise denied("Create")

    async def refuse_to_read(_: object) -> frozenset[AclBinding]:
        raise denied("Read")

    async def is_closed(_: object) -> bool:
        return False

    monkeypatch.setattr(admin, "describe_acls", describe)
    monkeypatch.setattr(admin, "create_topic_and_wait", refuse_to_create)
    monkeypatch.setattr(AclMarks, "read", refuse_to_read)
    monkeypatch.setattr(acl_sync, "may_be_open", is_closed)


def reported(target: ClusterWithAcls) -> tuple[str, ...]:
    """Returns the messages of a flow that only reports ACLs."""
    flow = replace(settings(), acls_report_only=True)
    clusters: Any = ClusterWithAcls("east", acl("orders", "alice")), target
    sync = AclSync(*clusters, settings=flow, selection=make_selection(flow))
    return asyncio.run(sync.sync(["orders"]))


def test_report_only_mode_needs_no_identity_topic():
    """`mirrorflow acls` prints no permission on it, and there is nothing to mark."""
    (message,) = reported(ClusterWithAcls("west"))

    assert message.startswith("Allow Read on topic east.orders for User:alice: would be created")


def test_report_only_mode_reports_missing_acls_where_it_may_not_read_the_identity_topic():
    target = ClusterWithAcls("west")
    target.has_identity_topic = True

    created, unknown = reported(target)

    assert created.startswith("Allow Read on topic east.orders for User:alice: would be created")
    assert unknown == f"Which ACLs would be removed is not known: {denied('Read')}"


def test_acls_are_compared_outside_of_the_event_loop(monkeypatch: pytest.MonkeyPatch):
    """Hundreds of thousands take seconds, in which group membership, heartbeats and probes need the loop."""
    threads: list[threading.Thread] = []

    def plan(**facts: Any) -> AclPlan:
        threads.append(threading.current_thread())
        return plan_acls(**facts)

    monkeypatch.setattr(acl_sync, "plan_acls", plan)

    assert reported(ClusterWithAcls("west"))
    assert threads
    assert threading.main_thread() not in threads


def synchronized(target: ClusterWithAcls) -> tuple[str, ...]:
    """Returns the messages of a flow that applies ACLs."""
    flow = settings()
    clusters: Any = ClusterWithAcls("east", acl("orders", "alice")), target
    sync = AclSync(*clusters, settings=flow, selection=make_selection(flow))
    return asyncio.run(sync.sync(["orders"]))


def test_an_identity_topic_without_a_leader_does_not_end_the_discovery_of_topics(
    monkeypatch: pytest.MonkeyPatch,
):
    """The cluster responds, so only the ACLs wait: all topics would be listed again at each attempt."""
    unavailable = InternalTopicUnavailableError(
        cluster="west", topic="mm2-identity.east.internal", leaderless=0
    )

    async def fail(*_: object) -> None:
        raise unavailable

    monkeypatch.setattr(admin, "create_topic_and_wait", fail)

    assert synchronized(ClusterWithAcls("west")) == (f"Topic ACLs are not synchronised: {unavailable}",)


def test_a_target_that_applies_acls_late_does_not_end_the_discovery_of_topics(
    monkeypatch: pytest.MonkeyPatch,
):
    target = ClusterWithAcls("west")
    target.has_identity_topic = True
    accepted: list[AclBinding] = []

    async def read_nothing(_: object) -> frozenset[AclBinding]:
        return frozenset()

    async def accept(_: object, bindings: Sequence[AclBinding]) -> dict[AclBinding, None]:
        accepted.extend(bindings)
        return dict.fromkeys(bindings)

    async def describe(cluster: ClusterWithAcls, **_: object) -> tuple[AclBinding, ...]:
        return cluster.acls

    async def yes(*_: object) -> bool:
        return True

    monkeypatch.setattr(AclMarks, "read", read_nothing)
    monkeypatch.setattr(acl_sync, "may_be_open", yes)
    monkeypatch.setattr(acls, "may_write_topic", yes)
    for name, function in (("describe_acls", describe), ("create_acls", accept), ("delete_acls", accept)):
        monkeypatch.setattr(acls, name, function)
    monkeypatch.setattr(acls, "_node", lambda _: 1)
    monkeypatch.setattr(acls, "APPLIED_TIMEOUT_S", 0.01)

    (message,) = synchronized(target)

    assert message.startswith("Topic ACLs are not synchronised: ")
    assert "was not applied within" in message
    assert {binding.resource_name for binding in accepted} == {f"east.{PROBE_TOPIC}"}
