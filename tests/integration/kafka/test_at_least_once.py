"""If a flow's producers cannot be fenced, no record is lost, and the status reports what may be repeated."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirrorflow_core.writer.transactional_ids import TransactionalIds
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import FOREVER, load, records
from tests.harness.replicator import Replicator
from tests.integration.kafka.flows import DAY_MS, Flow, now_ms
from tests.integration.kafka.test_failures_access import client

ALIAS = "unfenced"


@pytest.fixture(scope="module")
def secured() -> Iterator[KafkaCluster]:
    """A target that requires a password and grants nothing by default."""
    with KafkaCluster(name="guarded", listeners=("SASL_PLAINTEXT",), authorizer=True) as cluster:
        yield cluster


def allow_topics(cluster: KafkaCluster) -> None:
    """Allows everything except the use of transactional ids."""
    for operation in ("READ", "WRITE", "CREATE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"):
        cluster.allow(operation, "TOPIC", "*")


def guarantees(replicator: Replicator) -> dict[str, int]:
    """Returns how many partitions have each guarantee."""
    return {guarantee: count for guarantee, count in replicator.progress()["guarantee"].items() if count}


def first_occurrences(cluster: KafkaCluster, topic: str) -> list[bytes | None]:
    return list(dict.fromkeys(record.value for record in records(cluster, topic)))


def test_positions_in_a_file_lose_nothing_across_kills(
    east: KafkaCluster, west: KafkaCluster, tmp_path: Path, unique_topic: Callable[[], str]
):
    worker = {
        "offset.storage.store": "file",
        "offset.storage.file.filename": str(tmp_path / "positions"),
    }
    flow, topic = Flow.new(east, west, tmp_path, worker=worker), east.create_topic(unique_topic())
    load(east, topic, 10_000)
    with flow.replicator(topic) as replicator:
        replicator.wait_for_copy(west, flow.remote(topic), 1)
        replicator.kill()
        replicator.start()
        replicator.wait_until_caught_up()
        (warning,) = replicator.progress()["firstWarnings"]
        guarantee_counts = guarantees(replicator)
        assert replicator.stop() == 0
        load(east, topic, 1_000, first=10_000)
        replicator.start()
        replicator.wait_until_caught_up()

    copied = records(west, flow.remote(topic))
    assert first_occurrences(west, flow.remote(topic)) == [record.value for record in records(east, topic)]
    assert len(copied[-1_000:]) == len({record.value for record in copied[-1_000:]}), (
        "a clean stop repeats nothing"
    )
    assert guarantee_counts == {"at-least-once": 1}
    assert warning.startswith("Records are copied at-least-once, because positions in a file")


@pytest.mark.parametrize(
    "age_ms", [pytest.param(0, id="young"), pytest.param(2 * DAY_MS, id="old", marks=pytest.mark.more)]
)
def test_without_transactional_ids_nothing_is_lost_across_kills(
    secured: KafkaCluster, east: KafkaCluster, tmp_path: Path, unique_topic: Callable[[], str], age_ms: int
):
    """Records after the last position are copied again, after their first copies.

    The leader may have expired old producers.
    """
    flow = Flow.new(
        east,
        secured,
        tmp_path,
        connector={
            "mirrorflow.bytes.per.second": "1Mi",
            "offset.flush.interval.ms": "500",
            **{f"target.cluster.{key}": value for key, value in client(secured).items()},
        },
        worker=client(secured),
    )
    allow_topics(secured)
    topic = east.create_topic(unique_topic(), config=FOREVER)
    load(east, topic, 40_000, size_bytes=100, timestamp_ms=now_ms() - age_ms)
    with flow.replicator(topic) as replicator:
        for copied in (3_000, 15_000):
            replicator.wait_for_copy(secured, flow.remote(topic), copied)
            replicator.kill()
            replicator.start()
        replicator.wait_until_caught_up()
        guarantee_counts = guarantees(replicator)

    assert first_occurrences(secured, flow.remote(topic)) == [record.value for record in records(east, topic)]
    assert guarantee_counts == {"at-least-once": 1}


def test_a_flow_becomes_exactly_once_when_its_transactional_ids_are_granted(
    secured: KafkaCluster, east: KafkaCluster, tmp_path: Path, unique_topic: Callable[[], str]
):
    allow_topics(secured)
    topic = east.create_topic(unique_topic())
    load(east, topic, 1_000)
    connector = {"source.cluster.alias": ALIAS} | {
        f"target.cluster.{key}": value for key, value in client(secured).items()
    }
    with Replicator.standalone(
        east, secured, topics=topic, folder=tmp_path, connector=connector, worker=client(secured)
    ) as replicator:
        replicator.wait_until_caught_up()
        before = guarantees(replicator)
        (warning,) = replicator.progress()["firstWarnings"]
        prefix = TransactionalIds(ALIAS).prefix
        for operation in ("WRITE", "DESCRIBE"):
            secured.allow(operation, "TRANSACTIONAL_ID", prefix, prefixed=True)
        wait_until("the flow is exactly-once", lambda: guarantees(replicator) == {"exactly-once": 1})
        load(east, topic, 1_000, first=1_000)
        replicator.wait_until_caught_up()
        after = replicator.progress()["firstWarnings"]

    assert before == {"at-least-once": 1}
    assert f"does not grant Write on transactional ids that begin with {prefix}" in warning
    assert after == []
    assert [record.value for record in records(secured, f"{ALIAS}.{topic}")] == [
        record.value for record in records(east, topic)
    ]
