"""A source connector on two real clusters manages topics, partitions, settings and failures, besides copying."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from mirrorflow_core.errors import AuthenticationFailedError, UnreachableError
from mirrorflow_core.partition_assignment import Assignment
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import (
    ClientSettings,
    OffsetStorageSettings,
    OffsetStore,
    PolicySettings,
    SourceSettings,
)
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.connectors.topic_discovery import TopicDiscovery
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import HarnessError, wait_until

WAIT_S = 30.0
SOON_S = 0.3  # the pause between passes, while tests wait for a second one


def settings(source: KafkaCluster | str, target: KafkaCluster, topics: str, **more: object) -> SourceSettings:
    source_bootstrap = source if isinstance(source, str) else source.bootstrap
    east = ClientSettings(alias="east", client_id="t", properties={"bootstrap.servers": source_bootstrap})
    west = ClientSettings(alias="west", client_id="t", properties={"bootstrap.servers": target.bootstrap})
    plain = SourceSettings(
        name="MirrorSourceConnector",
        flow="east->west",
        source_alias="east",
        target_alias="west",
        policy=PolicySettings(),
        topics=(topics,),
        replication_factor=-1,
        refresh_topics_s=SOON_S,
        sync_configs_s=None,
        config_exclude=("min.insync.replicas",),
        tasks_max=2,
        offsets=OffsetStorageSettings(
            store=OffsetStore.KAFKA, topic="mm2-offsets.east.internal", client=west
        ),
        source_consumer=east,
        source_admin=east,
        target_producer=west,
        target_admin=west,
    )
    return replace(plain, **more)  # type: ignore[arg-type]


class RunningConnector:
    """A running connector and its assignments."""

    def __init__(self, connector: TopicDiscovery) -> None:
        self.connector = connector
        self.assignments: list[Assignment] = []
        self.assigned = asyncio.Event()

    async def hand(self, assignment: Assignment) -> None:
        self.assignments.append(assignment)
        self.assigned.set()

    @property
    def partitions(self) -> list[TopicPartition]:
        return sorted(partition for task in (self.assignments or [()])[-1] for partition in task)

    async def until(self, condition: Callable[[], object]) -> None:
        """Waits for *condition*; fails with the connector's state if it never holds."""
        try:
            await asyncio.to_thread(wait_until, "the condition holds", condition)
        except HarnessError as error:
            pytest.fail(f"{error} {self.connector.problem=} {self.connector.warnings=} {self.partitions=}")


@asynccontextmanager
async def running(chosen: SourceSettings) -> AsyncIterator[RunningConnector]:
    process = RunningConnector(TopicDiscovery(chosen, resolve=dict))
    task = asyncio.create_task(process.connector.run(process.hand))
    try:
        yield process
        assert not task.done() or task.result()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def record_requests(cluster: Cluster) -> list[str]:
    """Returns a list that collects the names of the requests sent to *cluster* from now on."""
    names: list[str] = []
    call = cluster.call

    async def recorded(request: Any, **more: Any) -> Any:
        names.append(request.name)
        return await call(request, **more)

    cluster.call = recorded  # type: ignore[method-assign]
    return names


def alter(cluster: KafkaCluster, topic: str, name: str, value: str | None) -> None:
    """Sets a setting of a topic. None removes the override."""
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    resource = ConfigResource(
        ConfigResource.Type.TOPIC,
        topic,
        incremental_configs=[ConfigEntry(name, value, incremental_operation=operation)],
    )
    cluster.admin.incremental_alter_configs([resource])[resource].result(WAIT_S)


def overrides(cluster: KafkaCluster, topic: str) -> dict[str, str]:
    """Returns the settings that the topic itself overrides."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    entries = cluster.admin.describe_configs([resource])[resource].result(WAIT_S)
    return {name: entry.value for name, entry in entries.items() if entry.source == 1}


def test_topics_are_created_with_settings_and_assigned(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str]
):
    """Partition count and overrides equal those of the source, without excluded ones.

    Partitions are spread over the tasks.
    """
    topic = east.create_topic(
        unique_topic(),
        partitions=3,
        config={"cleanup.policy": "compact", "min.insync.replicas": "1", "retention.ms": "12345678"},
    )

    async def main() -> Assignment:
        async with running(settings(east, west, topic)) as flow:
            await flow.until(lambda: flow.assignments)
            return flow.assignments[0]

    tasks = asyncio.run(main())

    assert ((TopicPartition(topic, 0), TopicPartition(topic, 2)), (TopicPartition(topic, 1),)) == tasks
    assert 3 == west.topics()[f"east.{topic}"]
    assert {"cleanup.policy": "compact", "retention.ms": "12345678"} == overrides(west, f"east.{topic}")


@pytest.mark.timing
def test_the_first_assignment_is_fast(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str]
):
    """The assignment, which includes topic creation, takes much less than the 1.5 seconds until the first record."""
    topic = east.create_topic(unique_topic(), partitions=4)

    async def main() -> float:
        start = time.monotonic()
        async with running(settings(east, west, topic)) as flow:
            await flow.assigned.wait()
            return time.monotonic() - start

    assert asyncio.run(main()) < 1.2


def test_new_partitions_and_topics_move_no_partition(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str]
):
    """The next refresh discovers a grown topic and a new one. Earlier partitions stay with their tasks."""
    stem = unique_topic()
    east.create_topic(f"{stem}-m", partitions=2)

    async def main() -> RunningConnector:
        async with running(settings(east, west, f"{stem}.*")) as flow:
            await flow.until(lambda: len(flow.partitions) == 2)
            east.add_partitions(f"{stem}-m", 4)
            await flow.until(lambda: len(flow.partitions) == 4)
            east.create_topic(f"{stem}-a", partitions=2)
            await flow.until(lambda: len(flow.partitions) == 6)
            return flow

    flow = asyncio.run(main())

    assert 4 == west.topics()[f"east.{stem}-m"]
    for before, after in zip(flow.assignments, flow.assignments[1:], strict=False):
        assert all(set(was) <= set(now) for was, now in zip(before, after, strict=True))


def test_a_deleted_topic_is_unassigned_and_reported(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str]
):
    """The partitions of the topic are removed from the tasks, and its copy stays."""
    stem = unique_topic()
    kept, gone = (east.create_topic(f"{stem}-{name}") for name in ("kept", "gone"))

    async def main() -> tuple[str, ...]:
        async with running(settings(east, west, f"{stem}.*")) as flow:
            await flow.until(lambda: len(flow.partitions) == 2)
            east.delete_topic(gone)
            await flow.until(lambda: flow.partitions == [TopicPartition(kept, 0)])
            return flow.connector.warnings

    warnings = asyncio.run(main())

    assert [True] == [gone in warning for warning in warnings]
    assert west.has_topic(f"east.{gone}")


def test_a_missing_copy_is_created_again(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str]
):
    """The copy exists after the refresh, and no task has lost its partition."""
    topic = east.create_topic(unique_topic())

    async def main() -> int:
        async with running(settings(east, west, topic)) as flow:
            await flow.until(lambda: flow.assignments)
            await asyncio.to_thread(
                west.admin.delete_topics([f"east.{topic}"])[f"east.{topic}"].result, WAIT_S
            )
            await flow.until(lambda: west.has_topic(f"east.{topic}"))
            return len(flow.assignments)

    assert 1 == asyncio.run(main())


def test_settings_are_synced_by_difference(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str]
):
    """A change is synced, an excluded setting is kept, and a removed override reverts. A second pass writes nothing."""
    topic = east.create_topic(unique_topic(), config={"retention.ms": "1000000"})
    copy = f"east.{topic}"

    async def main() -> list[dict[str, str]]:
        observed = []
        async with running(settings(east, west, topic, sync_configs_s=SOON_S)) as flow:
            await flow.until(lambda: flow.assignments)
            alter(west, copy, "min.insync.replicas", "1")
            alter(east, topic, "retention.ms", "2000000")
            alter(east, topic, "segment.ms", "3000000")
            await flow.until(lambda: overrides(west, copy).get("segment.ms"))
            observed.append(overrides(west, copy))
            alter(east, topic, "retention.ms", None)
            await flow.until(lambda: "retention.ms" not in overrides(west, copy))
            observed.append(overrides(west, copy))
            requests = record_requests(flow.connector._clusters["target"])
            topics = (await flow.connector.connect()).topics
            await topics.sync_configs(flow.connector.names)
            assert {"DescribeConfigsRequest"} == {name for name in requests if "Config" in name}
            assert () == flow.connector.warnings
        return observed

    assert [
        {"retention.ms": "2000000", "segment.ms": "3000000", "min.insync.replicas": "1"},
        {"segment.ms": "3000000", "min.insync.replicas": "1"},
    ] == asyncio.run(main())


def test_defaults_of_the_source_are_pinned_if_configured(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str]
):
    """With `use.defaults.from=source`, an override that only the copy has is reset to the source's default."""
    topic = east.create_topic(unique_topic())
    copy = f"east.{topic}"
    default = east.topic_config(topic)["retention.ms"]

    async def main() -> None:
        async with running(
            settings(east, west, topic, sync_configs_s=SOON_S, use_defaults_from_source=True)
        ) as flow:
            await flow.until(lambda: flow.assignments)
            alter(west, copy, "retention.ms", "77")
            await flow.until(lambda: overrides(west, copy).get("retention.ms") == default)

    asyncio.run(main())


def test_a_topic_that_cannot_be_created_is_reported_and_others_continue(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str]
):
    """A topic whose name is too long with the alias causes a warning. The other topic is assigned."""
    stem = unique_topic()
    long = east.create_topic(f"{stem}-".ljust(249, "x"))
    short = east.create_topic(f"{stem}-short")

    async def main() -> RunningConnector:
        async with running(settings(east, west, f"{stem}.*")) as flow:
            await flow.until(lambda: flow.assignments)
            return flow

    flow = asyncio.run(main())

    assert [TopicPartition(short, 0)] == flow.partitions
    assert [True] == [f"east.{long} cannot be created" in warning for warning in flow.connector.warnings]
    assert flow.connector.warnings == flow.connector.uncopied
    assert "RUNNING" == flow.connector.state


@pytest.mark.more
def test_a_slow_pattern_is_reported_as_an_error_of_its_setting_and_copying_continues(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str]
):
    """Matching the name of a new topic against `topics` takes too long.

    No topic is removed, and the error ends when the new topic is deleted.
    """
    stem = unique_topic()
    kept, slow = east.create_topic(f"{stem}-aa"), f"{stem}-{'a' * 60}-1"

    async def main() -> tuple[str, list[TopicPartition]]:
        async with running(settings(east, west, f"{stem}-(a|a)*")) as flow:
            await flow.until(lambda: flow.assignments)
            east.create_topic(slow)
            await flow.until(lambda: flow.connector.problem)
            problem, partitions = str(flow.connector.problem), flow.partitions
            await asyncio.to_thread(east.admin.delete_topics([slow])[slow].result, WAIT_S)
            await flow.until(lambda: flow.connector.problem is None)
            return problem, partitions

    problem, partitions = asyncio.run(main())

    assert problem.startswith(f"topics: '{stem}-(a|a)*' cannot be matched against '{stem}-aaa")
    assert [TopicPartition(kept, 0)] == partitions


def test_an_unreachable_source_is_reported_and_retried(west: KafkaCluster):
    """The problem has the source's address."""

    async def main() -> RunningConnector:
        async with running(settings("127.0.0.1:1", west, ".*")) as flow:
            await flow.until(lambda: flow.connector._failures >= 2)
            return flow

    flow = asyncio.run(main())

    assert isinstance(flow.connector.problem, UnreachableError)
    assert ("FAILED", [], True) == (
        flow.connector.state,
        flow.assignments,
        "127.0.0.1:1" in str(flow.connector.problem),
    )


def test_a_wrong_password_is_reported_without_showing_it(west: KafkaCluster):
    """The message has the cluster and the mechanism."""
    with KafkaCluster(name="safe", listeners=("SASL_PLAINTEXT",)) as safe:
        wrong = settings(safe, west, ".*")
        client = replace(
            wrong.source_admin,
            properties={
                **safe.java_client("SASL_PLAINTEXT"),
                "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
                'username="mirror" password="s3cretwrong";',
            },
        )

        async def main() -> RunningConnector:
            async with running(replace(wrong, source_admin=client)) as flow:
                await flow.until(lambda: flow.connector.problem)
                return flow

        flow = asyncio.run(main())

    assert isinstance(flow.connector.problem, AuthenticationFailedError)
    assert "s3cretwrong" not in str(flow.connector.problem)


def test_a_missing_acl_is_reported(east: KafkaCluster, unique_topic: Callable[[], str]):
    """Without Create on the target, the message has the operation, the topic and the cluster.

    The connector waits for the ACL, and retries long before the next refresh of all topics.
    """
    topic = east.create_topic(unique_topic())
    with KafkaCluster(name="strict", listeners=("SASL_PLAINTEXT",), authorizer=True) as strict:
        plain = settings(east, strict, topic, refresh_topics_s=600.0)
        client = replace(plain.target_admin, properties=strict.java_client("SASL_PLAINTEXT"))

        async def main() -> tuple[tuple[str, ...], list[TopicPartition], list[TopicPartition]]:
            async with running(replace(plain, target_admin=client)) as flow:
                await flow.until(lambda: flow.connector.uncopied)
                warnings, partitions = flow.connector.uncopied, flow.partitions
                for operation in ("CREATE", "DESCRIBE"):
                    await asyncio.to_thread(strict.allow, operation, "TOPIC", f"east.{topic}")
                await flow.until(lambda: not flow.connector.uncopied)
                return warnings, partitions, flow.partitions

        warnings, partitions, granted = asyncio.run(main())

    assert ([], [TopicPartition(topic, 0)]) == (partitions, granted)
    assert [True] == [
        f"west does not authorize Create on topic east.{topic}" in warning for warning in warnings
    ]
