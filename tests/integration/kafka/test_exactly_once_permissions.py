"""Flows that may do little: no transactional id on the target, so no copier can be fenced; only Read and Describe on the source."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.listeners import User
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.integration.kafka.flows import Flow

pytestmark = pytest.mark.more

MIRROR = User(name="mirror", password="secret")
READER = User(name="reader", password="secret")
NEVER = {"offset.flush.interval.ms": "3600000"}
COMMITTED = {"consumer.isolation.level": "read_committed"}
RECORDS = 56_000
RECORDS_PER_S = 8_000
BOTH_RECORDS = 16_000  # copied while both are there: two seconds


@pytest.fixture(scope="module")
def guarded() -> Iterator[KafkaCluster]:
    """For *mirror* a target without a transactional id, for *reader* a source with the rights that the documentation names."""
    with KafkaCluster(
        name="guarded", authorizer=True, listeners=("SASL_PLAINTEXT",), users=(MIRROR, READER)
    ) as cluster:
        for operation in ("READ", "WRITE", "CREATE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"):
            cluster.allow(operation, "TOPIC", "*", user=MIRROR.name)
        for operation in ("READ", "DESCRIBE"):
            cluster.allow(operation, "TOPIC", "*", user=READER.name)
        yield cluster


def client_of(cluster: KafkaCluster, user: User, *, side: str = "") -> Mapping[str, str]:
    return {side + key: value for key, value in cluster.java_client("SASL_PLAINTEXT", user=user).items()}


@pytest.mark.parametrize("records", ["as they are written", "from a backlog"])
def test_settings_rolled_without_a_transactional_id_repeat_nothing(
    east: KafkaCluster, guarded: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path, records: str
):
    """The newcomer has another isolation level and starts while the old process copies, which is stopped a little later."""
    connector = client_of(guarded, MIRROR, side="target.cluster.")
    flow = Flow.new(east, guarded, tmp_path, connector=connector, worker=client_of(guarded, MIRROR))
    topic = east.create_topic(unique_topic())
    is_backlog = records == "from a backlog"
    pace = {"mirrorflow.bytes.per.second": "2Mi"} if is_backlog else {}
    rate = {} if is_backlog else {"rate": RECORDS_PER_S}
    writer = threading.Thread(target=load, args=(east, topic, RECORDS), kwargs={"size_bytes": 200, **rate})
    writer.start()
    with ExitStack() as stack:
        old = stack.enter_context(flow.replicator(topic, pace))
        old.wait_for_copy(guarded, flow.remote(topic), RECORDS_PER_S)
        new = stack.enter_context(flow.replicator(topic, {**pace, **COMMITTED}))

        def is_there() -> bool:
            """It reports the partition; or it does not as long as another is at work, and has had seconds to."""
            return bool(new.partition(topic)) or guarded.end_offsets(flow.remote(topic))[0] > RECORDS // 2

        wait_until("the newcomer is there", is_there)
        at = guarded.end_offsets(flow.remote(topic))[0]

        def had_its_time() -> bool:
            """The old process copies on, or has noticed the newcomer and made way."""
            is_gone = old.partition(topic).get("phase") == "stopped"
            return is_gone or guarded.end_offsets(flow.remote(topic))[0] >= at + BOTH_RECORDS

        wait_until("the old process copies on, or makes way", had_its_time)
        assert old.stop() == 0
        writer.join()
        new.wait_until_caught_up()

    flow.assert_exact(topic)


def test_read_and_describe_on_the_source_suffice_to_resume_after_kill_9(
    guarded: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """Without a position, the source is walked from its beginning; its settings may not be read."""
    connector = client_of(guarded, READER, side="source.cluster.")
    flow = Flow.new(guarded, west, tmp_path, connector={**connector, **NEVER})
    topic = guarded.create_topic(unique_topic())
    load(guarded, topic, 1_000)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        replicator.kill()
        load(guarded, topic, 500, first=1_000)
        replicator.start()
        replicator.wait_until_caught_up()

    flow.assert_exact(topic)
