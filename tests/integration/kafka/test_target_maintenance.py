"""Administrators upgrade a target's brokers or move its replicas while a flow copies old and new records.

The target has three brokers, replication factor 3 and min.insync.replicas=2.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, repeat
from pathlib import Path

import pytest
from kafka.protocol.admin.cluster import UpdateFeaturesRequest

from mirrorflow_kafka.client.cluster import Cluster
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.installation import OLD_VERSION, VERSION
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import FOREVER, load
from tests.integration.kafka.flows import DAY_MS, Flow, call_cluster, now_ms, reassign
from tests.integration.kafka.test_target_leaders import all_in_sync

pytestmark = pytest.mark.faults

PARTITIONS = 4
RECORDS = 500
REPLICATED = {"replication.factor": "3"}
BROKERS = {"min.insync.replicas": "2"}
# Metadata.version 4.1 and transaction.version 2 (KIP-890), which 3.9 lacks.
FEATURES = {"metadata.version": 27, "transaction.version": 2}


@pytest.fixture
def upgraded() -> Iterator[KafkaCluster]:
    with KafkaCluster(name="upgraded", brokers=3, version=OLD_VERSION, config=BROKERS) as cluster:
        yield cluster


@pytest.fixture
def moved() -> Iterator[KafkaCluster]:
    with KafkaCluster(name="moved", brokers=3, config=BROKERS) as cluster:
        yield cluster


def test_a_rolling_upgrade_of_the_target_loses_and_repeats_nothing(
    east: KafkaCluster, upgraded: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
) -> None:
    steps = [
        *(lambda id_=id_: _upgrade(upgraded, id_) for id_ in upgraded.nodes),
        lambda: _finalize(upgraded),
    ]

    _assert_exact_while(east, upgraded, unique_topic(), tmp_path, steps)


def test_replicas_that_move_during_transactions_lose_and_repeat_nothing(
    east: KafkaCluster, moved: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
) -> None:
    """Copies, positions and claims move from leader to leader."""
    topic = unique_topic()

    def move(brokers: list[int]) -> None:
        internal = [name for name in moved.topics() if name.startswith(("mm2-claims.", "mm2-offsets."))]
        for name in (*internal, *(name for name in moved.topics() if name.endswith(topic))):
            for partition in range(moved.partition_count(name)):
                reassign(moved, name, brokers, partition)

    steps = [partial(move, brokers) for brokers in ([2, 3], [3, 1], [1, 2, 3])]

    _assert_exact_while(east, moved, topic, tmp_path, steps)


def _assert_exact_while(
    east: KafkaCluster,
    target: KafkaCluster,
    topic: str,
    folder: Path,
    steps: Sequence[Callable[[], None]],
) -> None:
    """Copies *topic* while *steps* run and old and recent records arrive.

    Compares it for readers of committed records.
    """
    flow = Flow.new(
        east, target, folder, connector=REPLICATED, worker={"offset.storage.replication.factor": "3"}
    )
    east.create_topic(topic, partitions=PARTITIONS, config=FOREVER)
    with flow.replicator(topic) as process, ThreadPoolExecutor(1) as thread:
        load(east, topic, RECORDS)
        process.wait_until_caught_up(partitions=PARTITIONS)
        done = thread.submit(lambda: [step() for step in steps])
        ages_ms = chain.from_iterable(repeat((0, 40 * DAY_MS)))
        written = RECORDS
        while not done.done():
            load(east, topic, RECORDS, first=written, timestamp_ms=now_ms() - next(ages_ms), rate=1_000)
            written += RECORDS
        done.result()
        process.wait_until_caught_up(partitions=PARTITIONS)
        flow.assert_committed(topic)
        process.kill()
        process.start()
        load(east, topic, RECORDS, first=written)
        process.wait_until_caught_up(partitions=PARTITIONS)
        flow.assert_committed(topic)


def _upgrade(cluster: KafkaCluster, id_: int) -> None:
    broker = cluster.broker(id_)
    broker.stop()
    broker.version = VERSION
    broker.start()
    wait_until("all replicas are in sync", lambda: all_in_sync(cluster), poll_s=0.2)


def _finalize(cluster: KafkaCluster) -> None:
    key = UpdateFeaturesRequest.FeatureUpdateKey
    updates = [key(feature=name, max_version_level=level, upgrade_type=1) for name, level in FEATURES.items()]

    async def update(connected: Cluster) -> None:
        request = UpdateFeaturesRequest(timeout_ms=30_000, feature_updates=updates, validate_only=False)
        response = await connected.call(request, controller=True)
        assert not response.error_code, response
        assert not any(result.error_code for result in response.results), response

    call_cluster(cluster, update)
