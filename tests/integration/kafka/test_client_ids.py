"""Brokers receive the client ids of Java's MM2, so that quotas for these ids apply to MirrorFlow."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kafka.protocol.admin.configs import IncrementalAlterConfigsRequest

from mirrorflow_kafka.client.cluster import Cluster
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.mm2 import MirrorMaker
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.harness.replicator import Replicator
from tests.integration.kafka.flows import Flow, call_cluster
from tests.integration.kafka.quotas import client_quota, throttle_ms

pytestmark = pytest.mark.more

Names = Callable[[], str]
Resource = IncrementalAlterConfigsRequest.AlterConfigsResource
BROKER_LOGGER = 8
LOGGED = re.compile(r'"clientId":"([^"]*)","requestApiKeyName":"(FETCH|PRODUCE)"')
# These are the connectors' own clients. The worker's clients (configs, statuses, offsets) are tested with the worker.
OF_TASKS = re.compile(r"connector-producer-.*|A->B\|.*")


@pytest.fixture(scope="module")
def source() -> Iterator[KafkaCluster]:
    with KafkaCluster(name="A") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def target() -> Iterator[KafkaCluster]:
    with KafkaCluster(name="B") as cluster:
        yield cluster


@contextmanager
def logged_requests(cluster: KafkaCluster) -> Iterator[Callable[[], set[tuple[str, str]]]]:
    """Makes the broker log each request.

    Yields a function that returns the logged pairs of FETCH or PRODUCE and the client id.
    """
    log = cluster.broker(1).log
    begin = log.stat().st_size
    _set_level(cluster, "DEBUG")

    def seen() -> set[tuple[str, str]]:
        with log.open(encoding="utf-8", errors="replace") as lines:
            lines.seek(begin)
            matches = LOGGED.findall(lines.read())
        return {(request, client) for client, request in matches if OF_TASKS.fullmatch(client)}

    try:
        yield seen
    finally:
        _set_level(cluster, "WARN")


def _set_level(cluster: KafkaCluster, level: str) -> None:
    change = Resource.AlterableConfig(name="kafka.request.logger", config_operation=0, value=level)
    resource = Resource(resource_type=BROKER_LOGGER, resource_name="1", configs=[change])
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)

    async def alter(connected: Cluster) -> None:
        response = await connected.call(request, node_id=1)
        assert [0] == [result.error_code for result in response.responses], response

    call_cluster(cluster, alter)


def test_tasks_use_the_client_ids_of_javas_tasks(
    source: KafkaCluster, target: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """Java and then MirrorFlow run the same mm2.properties. Brokers log the same ids for the same kinds of request."""
    topic = source.create_topic(unique_topic(), partitions=4)
    load(source, topic, 400, keys=True)
    more = {
        "tasks.max": "2",
        "A->B.emit.heartbeats.interval.seconds": "1",
        "sync.topic.acls.enabled": "false",
    }
    java = MirrorMaker(source=source, target=target, topics=topic, properties=more)
    kinds = 7  # for each task, the source consumer and the producers of copies and of offset syncs; and for heartbeats

    with logged_requests(source) as on_source, logged_requests(target) as on_target:
        with java:
            java.wait_until_replicated(topic, 400)
            wait_until("each kind of client is logged", lambda: len(on_source() | on_target()) >= kinds)
            java.stop()
        of_java = on_source() | on_target()
    load(source, topic, 400, keys=True, first=400)
    with logged_requests(source) as on_source, logged_requests(target) as on_target:
        with Replicator.mm2(java.all_properties(), folder=tmp_path) as mirrorflow:
            mirrorflow.wait_for_copy(target, java.remote(topic), 800)
            wait_until("each client id of Java is logged", lambda: of_java <= on_source() | on_target())
        of_mirrorflow = on_source() | on_target()

    assert [] == [client for _, client in of_mirrorflow if "?" in client]


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_quota_for_javas_client_id_applies_to_mirrorflow(
    side: str, source: KafkaCluster, target: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """The quota is 100 kB/s for 3 MB. A broker allows the bytes of the first ten seconds at once."""
    flow = Flow.new(source, target, tmp_path)
    topic = source.create_topic(unique_topic())
    load(source, topic, 3_000, size_bytes=1000, content="random")
    reader = f"{flow.alias}->{target.name}|MirrorSourceConnector-0|replication-consumer"
    writer = "connector-producer-MirrorSourceConnector-0"
    quota = (
        client_quota(source, reader, consumer_byte_rate=100_000)
        if side == "source"
        else client_quota(target, writer, producer_byte_rate=100_000)
    )

    with quota, flow.replicator(topic) as replicator:
        wait_until("the flow is throttled", lambda: throttle_ms(replicator) > 0)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()

    flow.assert_exact(topic)
