"""Connect's config and status topics on a real broker. An Apache worker and MirrorFlow read each other's records."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from mirrorflow_core.connect.session_keys import SessionKey
from mirrorflow_core.connect.worker_records import (
    ConnectorConfig,
    ConnectorTarget,
    RestartRequest,
    TargetState,
    TaskConfig,
    TaskCount,
    TasksCommit,
    WorkerState,
    WorkerStatus,
    decode_config,
    decode_status,
    encode_config,
    encode_status,
)
from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.settings import ClientSettings, StorageTopicSettings
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.worker_topics import ConfigTopic, StatusTopic
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.connect_worker import ConnectWorker
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import records

pytestmark = pytest.mark.more

NAME = "beats-to-west"


def heartbeats(target: KafkaCluster) -> dict[str, str]:
    """Returns the properties of a heartbeat connector of Java's MM2."""
    return {
        "name": NAME,
        "connector.class": "org.apache.kafka.connect.mirror.MirrorHeartbeatConnector",
        "source.cluster.alias": "cafe\u0301 \U0001f600",
        "target.cluster.alias": "west",
        "target.cluster.bootstrap.servers": target.bootstrap,
        "heartbeats.topic.replication.factor": "1",
    }


@asynccontextmanager
async def topics(target: KafkaCluster, group: str) -> AsyncIterator[tuple[ConfigTopic, StatusTopic]]:
    client = ClientSettings(
        alias="west", client_id="test", properties={"bootstrap.servers": target.bootstrap}
    )
    cluster = await Cluster.connect(client, resolve=dict)

    def settings(topic: str, partitions: int) -> StorageTopicSettings:
        return StorageTopicSettings(topic=topic, partitions=partitions, replication_factor=1, client=client)

    try:
        yield (
            ConfigTopic(cluster, settings(f"{group}-configs", 1)),
            StatusTopic(cluster, settings(f"{group}-status", 5)),
        )
    finally:
        await cluster.close()


def with_topics(
    target: KafkaCluster, group: str, use: Callable[[ConfigTopic, StatusTopic], Awaitable[object]]
) -> tuple[ConfigTopic, StatusTopic]:
    """Opens both topics, calls *use*, and returns both in their final state."""

    async def main() -> tuple[ConfigTopic, StatusTopic]:
        async with topics(target, group) as (configs, statuses):
            await configs.open()
            await statuses.open()
            await use(configs, statuses)
            return configs, statuses

    return asyncio.run(main())


async def nothing(configs: ConfigTopic, statuses: StatusTopic) -> None:
    """Writes nothing."""


def now_ms() -> int:
    return int(time.time() * 1000)


class JavaWorker:
    """An Apache worker that has run a connector, with the records of its topics."""

    def __init__(self, worker: ConnectWorker, west: KafkaCluster, group: str) -> None:
        self.configs = records(west, f"{group}-configs")
        self.statuses = records(west, f"{group}-status")
        self.worker, self.group = worker, group


@pytest.fixture(scope="module")
def java(west: KafkaCluster) -> Iterator[JavaWorker]:
    """The connector was created, paused, resumed and restarted with its tasks. A second one was created and deleted."""
    group = f"java-{time.monotonic_ns()}"
    with ConnectWorker(cluster=west, group=group) as worker:

        def wait_for(state: str) -> None:
            wait_until(f"{NAME} is {state}", lambda: worker.state(NAME) == (state, [state]))

        worker.call("PUT", f"/connectors/{NAME}/config", heartbeats(west))
        wait_for("RUNNING")
        worker.call("PUT", f"/connectors/{NAME}/pause")
        wait_for("PAUSED")
        worker.call("PUT", f"/connectors/{NAME}/resume")
        wait_for("RUNNING")
        worker.call("POST", f"/connectors/{NAME}/restart?includeTasks=true&onlyFailed=false")
        wait_for("RUNNING")
        worker.call("PUT", "/connectors/gone/config", {**heartbeats(west), "name": "gone"})
        worker.call("PUT", "/connectors/gone/stop")
        wait_until("gone is stopped", lambda: worker.state("gone") == ("STOPPED", []))
        worker.call("DELETE", "/connectors/gone")
        wait_until("gone is deleted", lambda: worker.state("gone") == ("", []))
        worker.stop()
        yield JavaWorker(worker, west, group)


def test_encoded_records_equal_those_of_java(java: JavaWorker):
    """Each record that can be decoded is encoded to the same bytes, except for the order of properties."""
    configs = [(record, decode_config(record.key, record.value)) for record in java.configs]
    statuses = [(record, decode_status(record.key, record.value)) for record in java.statuses]

    kinds = {type(decoded) for _, decoded in configs if decoded is not None}
    assert {
        ConnectorConfig,
        ConnectorTarget,
        RestartRequest,
        SessionKey,
        TaskConfig,
        TasksCommit,
    } == kinds - {TaskCount}
    for record, decoded in configs:
        assert decoded is not None, record.key
        key, value = encode_config(decoded)
        assert record.key == key
        if (
            isinstance(decoded, ConnectorConfig | TaskConfig)
            and value is not None
            and record.value is not None
        ):
            assert len(value) == len(record.value)
            assert json.loads(record.value) == json.loads(value)
        else:
            assert record.value == value
    assert {"RUNNING", "PAUSED", "RESTARTING", "STOPPED", "DESTROYED"} <= {
        decoded.state.value for _, decoded in statuses if decoded is not None
    }
    for record, status in statuses:
        if status is None:
            assert record.key is not None
            assert record.key.startswith(b"status-topic-")
        else:
            assert (record.key, record.value) == encode_status(status)


def test_the_topics_of_a_stopped_java_worker_are_read(west: KafkaCluster, java: JavaWorker):
    """They have one started connector with its task, no part of the deleted connector, and both statuses."""
    configs, statuses = with_topics(west, java.group, nothing)

    assert {NAME: heartbeats(west)} == configs.configs.connectors
    assert TargetState.STARTED is configs.configs.target(NAME)
    assert (1, set()) == (len(configs.configs.tasks[NAME]), configs.configs.inconsistent)
    assert {NAME} == statuses.statuses.connectors()
    connector = statuses.statuses.connector(NAME)
    assert connector is not None
    # When it ends, the worker writes that they are unassigned.
    assert {WorkerState.UNASSIGNED} == {
        connector.state,
        *(status.state for status in statuses.statuses.tasks(NAME).values()),
    }
    assert () == configs.warnings + statuses.warnings


def test_java_runs_the_connectors_that_mirrorflow_has_written(west: KafkaCluster):
    """On an Apache worker, a paused connector with its task, a stopped one and a deleted one have these states."""
    group = f"own-{time.monotonic_ns()}"
    properties = heartbeats(west)
    stopped, gone = {**properties, "name": "stopped"}, {**properties, "name": "gone"}
    tasks = [{**properties, "task.class": "org.apache.kafka.connect.mirror.MirrorHeartbeatTask"}]

    async def write(configs: ConfigTopic, statuses: StatusTopic) -> None:
        await configs.put(
            ConnectorConfig(connector=NAME, properties=properties),
            ConnectorTarget(connector=NAME, state=TargetState.PAUSED),
            *(TaskConfig(connector=NAME, task=n, properties=task) for n, task in enumerate(tasks)),
            TasksCommit(connector=NAME, tasks=len(tasks)),
            ConnectorConfig(connector="stopped", properties=stopped),
            ConnectorTarget(connector="stopped", state=TargetState.STOPPED),
            ConnectorConfig(connector="gone", properties=gone),
            ConnectorConfig(connector="gone", properties=None),
            ConnectorTarget(connector="gone", state=None),
            now_ms=now_ms(),
        )
        await statuses.put(
            WorkerStatus(
                connector="stopped", state=WorkerState.STOPPED, worker_id="127.0.0.1:1", generation=1
            ),
            WorkerStatus(
                connector="left", state=WorkerState.FAILED, worker_id="127.0.0.1:1", trace="it\nfailed"
            ),
            WorkerStatus(
                connector="left", task=0, state=WorkerState.FAILED, worker_id="127.0.0.1:1", trace="it"
            ),
            now_ms=now_ms(),
        )

    with_topics(west, group, write)
    with ConnectWorker(cluster=west, group=group) as worker:
        assert {NAME, "stopped"} == set(worker.call("GET", "/connectors"))
        assert properties == worker.call("GET", f"/connectors/{NAME}/config")
        assert tasks == [task["config"] for task in worker.call("GET", f"/connectors/{NAME}/tasks")]
        wait_until("the connector is paused", lambda: worker.state(NAME) == ("PAUSED", ["PAUSED"]))
        wait_until("the second connector is stopped", lambda: worker.state("stopped") == ("STOPPED", []))
        # A leader deletes statuses of connectors that do not exist. The worker has therefore decoded MirrorFlow's
        # statuses.
        deleted = {b"status-connector-left", b"status-task-left-0"}
        wait_until(
            "Java has deleted the statuses of a connector without a config",
            lambda: deleted == {task.key for task in records(west, f"{group}-status") if task.value is None},
        )


def test_a_follower_reads_each_new_record_once(west: KafkaCluster):
    """It reads its own records and those of others in order and once. Records from before it was opened are not new."""
    group = f"follow-{time.monotonic_ns()}"

    async def main() -> tuple[object, ...]:
        async with topics(west, group) as (own, _), topics(west, group) as (other, _):
            await own.open()
            await own.put(RestartRequest(connector="early"), now_ms=1)
            await other.open()
            await own.put(RestartRequest(connector="a"), now_ms=2)
            await other.put(RestartRequest(connector="b"), RestartRequest(connector="c"), now_ms=3)
            new = await other.read_new()
            first = [record.connector for record in new if isinstance(record, RestartRequest)]
            return first, await other.read_new(), other.offset, len(await own.read_new())

    assert (["a", "b", "c"], (), 4, 4) == asyncio.run(main())


def test_worker_topics_are_created_as_by_connect(west: KafkaCluster):
    """The config topic has one partition and the status topic five, and both are compacted."""
    group = f"made-{time.monotonic_ns()}"
    with_topics(west, group, nothing)
    topics = west.topics()

    assert (1, 5) == (topics[f"{group}-configs"], topics[f"{group}-status"])
    for topic in (f"{group}-configs", f"{group}-status"):
        assert "compact" == west.topic_config(topic)["cleanup.policy"]


def test_a_config_topic_of_two_partitions_is_refused(west: KafkaCluster):
    """A commit could be read before its task configs."""
    group = f"two-{time.monotonic_ns()}"
    west.create_topic(f"{group}-configs", partitions=2, config={"cleanup.policy": "compact"})

    with pytest.raises(InvalidSettingError, match=r"config\.storage\.topic.*2 partitions"):
        with_topics(west, group, nothing)
