"""The fence of a switchover and the detection of producers that still write, on real brokers with an authorizer."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TypeVar

import pytest
from confluent_kafka import Producer

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import ClientSettings
from mirrorflow_core.topics.topic_acls import TOPIC, AclBinding, Operation, PatternType, Permission
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.transactions import init_producer_id
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.switchover.acl_fence import CANARY_TOPIC, AclFence, try_fence
from mirrorflow_replicator.switchover.errors import FenceUnavailableError
from mirrorflow_replicator.switchover.quiescence import (
    last_writes,
    open_transactions,
    read_ends,
    shared_producer_ids,
)
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.listeners import User, java_client_properties
from tests.harness.kafka.processes import wait_until
from tests.integration.kafka.flows import call_cluster, producers

T = TypeVar("T")
Names = Callable[[], str]
APP, MIRROR = User(name="app", password="app-secret"), User(name="mirror", password="mirror-secret")
REFUSED = "TOPIC_AUTHORIZATION_FAILED"
MIRROR_MAY_WRITE = ("User:mirror",)
CATCHES_UP_MAX = (
    5  # a broker gets blocks of ids from its controller: one that begins a new block may skip some
)


@pytest.fixture(scope="module")
def walled() -> Iterator[KafkaCluster]:
    """A cluster whose users `app` and `mirror` need ACLs; the harness is a super user."""
    users = (APP, MIRROR)
    with KafkaCluster(name="walled", listeners=("SASL_PLAINTEXT",), authorizer=True, users=users) as cluster:
        cluster.allow("ALL", "TOPIC", CANARY_TOPIC, user="app")
        cluster.allow("ALL", "TRANSACTIONAL_ID", "*", user="app")
        yield cluster


@pytest.fixture
def topic(walled: KafkaCluster, unique_topic: Names) -> str:
    """A topic to which both users may write."""
    name = walled.create_topic(unique_topic())
    for user in ("app", "mirror"):
        walled.allow("ALL", "TOPIC", name, user=user)
    return name


def as_user(cluster: KafkaCluster, user: User) -> dict[str, str]:
    return {"bootstrap.servers": cluster.bootstrap} | java_client_properties(
        "SASL_PLAINTEXT", user=user, mechanism="PLAIN", certificates=None
    )


def call_both(cluster: KafkaCluster, user: User, use: Callable[[Cluster, Cluster], Awaitable[T]]) -> T:
    """Runs *use* with a super user's client and that of *user*."""

    async def main(connected: Cluster) -> T:
        settings = ClientSettings(alias=cluster.name, client_id="probe", properties=as_user(cluster, user))
        probe = await Cluster.connect(settings, resolve=dict)
        try:
            return await use(connected, probe)
        finally:
            await probe.close()

    return call_cluster(cluster, main)


def write(producer: Producer, topic: str) -> str:
    """Returns the name of the error with which one record was refused; "" if it was acknowledged."""
    errors: list[str] = []
    producer.produce(
        topic, b"value", on_delivery=lambda error, _: errors.append(error.name() if error else "")
    )
    producer.flush(30)
    return errors[0]


def producer(cluster: KafkaCluster, user: User, **settings: str) -> Producer:
    own = {key.replace("_", "."): value for key, value in settings.items()}
    return Producer({**cluster.client("SASL_PLAINTEXT", user=user), **own})


def topic_acls(cluster: KafkaCluster, topic: str) -> set[AclBinding]:
    acls = call_cluster(
        cluster, lambda connected: admin.describe_acls(connected, resource_type=TOPIC, resource_name=topic)
    )
    return set(acls)


def deny(topic: str, principal: str) -> AclBinding:
    return AclBinding(
        resource_type=TOPIC,
        resource_name=topic,
        pattern_type=int(PatternType.LITERAL),
        principal=principal,
        host="*",
        operation=int(Operation.WRITE),
        permission_type=int(Permission.DENY),
    )


def test_the_fence_is_tested_on_a_canary_topic_and_leaves_no_acl(walled: KafkaCluster):
    before = topic_acls(walled, CANARY_TOPIC)

    call_both(walled, APP, try_fence)

    assert before == topic_acls(walled, CANARY_TOPIC)


def test_a_canary_written_by_a_super_user_proves_nothing_and_is_refused(walled: KafkaCluster):
    before = topic_acls(walled, CANARY_TOPIC)

    with pytest.raises(FenceUnavailableError, match=r"spec\.members\.walled\.probe") as caught:
        call_cluster(walled, lambda connected: try_fence(connected, connected))

    assert "is a super user (super.users)" in str(caught.value)
    assert before == topic_acls(walled, CANARY_TOPIC)


def test_a_cluster_without_an_authorizer_is_refused_by_the_name_of_the_setting(
    east: KafkaCluster, unique_topic: Names
):
    name = east.create_topic(unique_topic())

    with pytest.raises(FenceUnavailableError, match=r"no authorizer.*set authorizer\.class\.name"):
        call_cluster(east, lambda connected: AclFence(connected).plan([name], except_principals=()))


def test_without_exceptions_all_principals_are_denied_until_the_fence_is_lifted(
    walled: KafkaCluster, topic: str
):
    own = deny(topic, "User:mallory")
    walled.allow("WRITE", "TOPIC", topic, user="mallory", deny=True)

    def written_by_each() -> list[str]:
        return [write(producer(walled, user), topic) for user in (APP, MIRROR)]

    async def raise_and_lift(connected: Cluster) -> None:
        fence = AclFence(connected)
        acls = await fence.plan([topic], except_principals=())
        await fence.create(acls)
        assert [REFUSED] * 2 == await asyncio.to_thread(written_by_each)
        assert acls == (await fence.listed(acls)).by_all
        await fence.lift(acls)

    call_cluster(walled, raise_and_lift)

    assert ["", ""] == written_by_each()
    assert own in topic_acls(walled, topic)


def test_an_acl_of_an_administrator_is_not_removed_with_the_fence(walled: KafkaCluster, topic: str):
    """The ACL existed before the fence."""
    walled.allow("WRITE", "TOPIC", topic, user="*", deny=True)

    planned = call_cluster(walled, lambda connected: AclFence(connected).plan([topic], except_principals=()))

    assert frozenset() == planned


def test_with_an_exception_each_writer_is_denied_by_name(walled: KafkaCluster, topic: str):
    async def raise_fence(connected: Cluster) -> frozenset[AclBinding]:
        fence = AclFence(connected)
        acls = await fence.plan([topic], except_principals=MIRROR_MAY_WRITE)
        await fence.create(acls)
        return acls

    acls = call_cluster(walled, raise_fence)

    assert {deny(topic, "User:app")} == acls
    assert [REFUSED, ""] == [write(producer(walled, user), topic) for user in (APP, MIRROR)]


def test_a_fence_with_an_exception_is_refused_if_an_acl_allows_all_principals(
    walled: KafkaCluster, topic: str
):
    walled.allow("WRITE", "TOPIC", topic, user="*")

    with pytest.raises(FenceUnavailableError) as caught:
        call_cluster(
            walled, lambda connected: AclFence(connected).plan([topic], except_principals=MIRROR_MAY_WRITE)
        )

    assert f"the ACL Allow Write on topic {topic} for User:* lets writers in" in str(caught.value)
    assert "empty spec.fence.exceptPrincipals" in str(caught.value)


def test_an_open_transaction_outlives_the_fence_and_is_reported(walled: KafkaCluster, topic: str):
    partition = TopicPartition(topic, 0)
    writer = producer(walled, APP, transactional_id=f"payments-{topic}")
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(topic, b"open")
    writer.flush(30)

    def is_decided() -> bool:
        return walled.end_offsets(topic) == walled.end_offsets(topic, isolation="read_committed")

    async def fence_and_observe(connected: Cluster) -> tuple[list[str], bool]:
        fence = AclFence(connected)
        acls = await fence.plan([topic], except_principals=())
        await fence.create(acls)
        ends = await read_ends(connected, [partition])
        names = [transaction.transactional_id for transaction in await open_transactions(connected, ends)]
        await asyncio.to_thread(writer.commit_transaction, 30)
        await asyncio.to_thread(wait_until, "the transaction is decided", is_decided)
        after = await read_ends(connected, [partition])
        return names, after[partition].end > ends[partition].end

    names, has_grown = call_cluster(walled, fence_and_observe)

    assert [f"payments-{topic}"] == names
    assert has_grown, "the marker was written under the fence"


def test_the_producer_that_still_writes_is_reported(walled: KafkaCluster, topic: str):
    assert "" == write(producer(walled, APP, enable_idempotence="true"), topic)

    writers = call_cluster(walled, lambda connected: last_writes(connected, [TopicPartition(topic, 0)]))

    assert [TopicPartition(topic, 0)] == [write.partition for write in writers]
    assert {writers[0].producer_id} == producers(walled, topic)


def test_producer_ids_that_both_clusters_know_are_reported(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names
):
    """Each cluster counts its ids from 0, so clients of two clusters have the same ones."""
    name = unique_topic()
    for cluster in (east, west):
        cluster.create_topic(name)
    partition = TopicPartition(name, 0)

    def write_with_next_id(cluster: KafkaCluster) -> int:
        properties = {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": "true"}
        assert "" == write(Producer(properties), name)
        listed = call_cluster(cluster, lambda connected: last_writes(connected, [partition]))
        return max(writer.producer_id for writer in listed)

    async def take_ids(behind: Cluster, count: int) -> None:
        for _ in range(count):
            await init_producer_id(behind, None, timeout_ms=60_000)

    def write_with_shared_id() -> int:
        ids = {cluster.name: write_with_next_id(cluster) for cluster in (east, west)}
        for _ in range(CATCHES_UP_MAX):
            behind, ahead = sorted((east, west), key=lambda cluster: ids[cluster.name])
            missing = ids[ahead.name] - ids[behind.name]
            if not missing:
                return ids[ahead.name]
            call_cluster(behind, partial(take_ids, count=missing - 1))
            ids[behind.name] = write_with_next_id(behind)
        raise AssertionError(ids)

    shared_id = write_with_shared_id()

    async def compare(source: Cluster) -> list[tuple[int, bool]]:
        settings = ClientSettings(
            alias="west", client_id="check", properties={"bootstrap.servers": west.bootstrap}
        )
        target = await Cluster.connect(settings, resolve=dict)
        try:
            shared = await shared_producer_ids(source, target, {partition: partition})
            return [(item.producer_id, item.loses_silently) for item in shared]
        finally:
            await target.close()

    shared = call_cluster(east, compare)

    assert shared_id in {producer_id for producer_id, _ in shared}
    assert all(loses_silently for _, loses_silently in shared)


@pytest.mark.parametrize("except_principals", [(), MIRROR_MAY_WRITE], ids=["everybody", "by name"])
def test_writes_to_a_topic_created_after_the_fence_are_refused(
    walled: KafkaCluster, unique_topic: Names, except_principals: tuple[str, ...]
):
    """The flow selects every topic with this prefix."""
    prefix = unique_topic()
    fenced, later, other = f"{prefix}-1", f"{prefix}-2", f"other-{prefix}"
    walled.create_topic(fenced)
    for name in (fenced, later, other):
        walled.allow("ALL", "TOPIC", name, user="app")

    async def raise_fence(connected: Cluster) -> frozenset[AclBinding]:
        fence = AclFence(connected)
        acls = await fence.plan([fenced], except_principals=except_principals, prefixes=[prefix])
        await fence.create(acls)
        return acls

    acls = call_cluster(walled, raise_fence)
    for name in (later, other):
        walled.create_topic(name)
    refused = [write(producer(walled, APP), name) for name in (fenced, later, other)]
    call_cluster(walled, lambda connected: AclFence(connected).lift(acls))

    assert [REFUSED, REFUSED, ""] == refused
    assert not write(producer(walled, APP), later)
