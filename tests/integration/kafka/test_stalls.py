"""A partition that stalls reports its reason after 30 s in all places until it continues.

The test controls how long the causes last. They are replicas that are out of sync, and partitions without a leader.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.harness.replicator import Replicator
from tests.integration.kafka.flows import Flow, reassign

pytestmark = pytest.mark.faults

REPORT_WAIT_S = 150.0  # 30 s, a check each second, a report each half second; longer on a busy machine
FOREIGN = b"0000009"  # the values of foreign records begin with it

SOURCE_AWAY = ("SourceNotAnswering", "ConnectionLost", "Unreachable")

Names = Callable[[], str]


@pytest.fixture(scope="module")
def three() -> Iterator[KafkaCluster]:
    """A target with three brokers, one of which may be down."""
    with KafkaCluster(name="three", brokers=3) as cluster:
        yield cluster


def wait_until_stalled(
    replicator: Replicator, topic: str, *reasons: str, meanwhile: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Waits until partition 0 of *topic* is stalled for one of *reasons*, and returns its status.

    On a busy machine, the reason may first be a broker that does not respond. *meanwhile* is called before each check.
    """

    def stalled_status() -> dict[str, Any]:
        meanwhile()
        status = replicator.partition(topic)
        return status if status.get("stalledSeconds") is not None and status["reason"] in reasons else {}

    return wait_until(f"{topic} is reported as stalled", stalled_status, poll_s=0.2)


def stalled_count(replicator: Replicator, reason: str) -> float:
    """Returns the gauge of partitions that are stalled for *reason*."""
    lines = replicator.metrics().splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("mirrorflow_partitions_stalled{") and f'reason="{reason}"' in line
    )


def test_a_target_with_too_few_replicas_in_sync_is_the_stall_reason_until_they_return(
    east: KafkaCluster, three: KafkaCluster, unique_topic: Names, tmp_path: Path
):
    """The reason is in the status, the log, the metrics and Connect's REST API. Meanwhile, other topics are copied.

    The reason depends on the leader. It refuses writes once it has removed its follower from the ISR. A batch that it
    accepted before is not replicated, and the flow cannot decide where to continue.
    """
    flow = Flow.new(
        east,
        three,
        tmp_path,
        connector={"replication.factor": "3", "offset-syncs.topic.replication.factor": "3"},
        worker={"offset.storage.replication.factor": "3"},
    )
    stem = unique_topic()
    held, free = (east.create_topic(f"{stem}-{name}") for name in ("held", "free"))
    three.create_topic(flow.remote(held), replication_factor=2, config={"min.insync.replicas": "2"})
    metadata = three.admin.list_topics(flow.remote(held), timeout=30).topics[flow.remote(held)].partitions[0]
    follower = next(broker for broker in metadata.replicas if broker != metadata.leader)
    for topic in (held, free):
        load(east, topic, 100)
    with flow.replicator(f"{stem}-.*") as replicator:
        replicator.wait_until_caught_up(partitions=2)
        three.broker(follower).kill()
        three.wait_for_brokers(2)
        for topic in (held, free):
            load(east, topic, 100, first=100)
        stalled_status = wait_until_stalled(replicator, held, "WritesRefused", "NoDecision")
        load(east, free, 100, first=200)
        replicator.wait_for_copy(three, flow.remote(free), 300)

        summary = replicator.progress()
        _, status = replicator.rest("/connectors/MirrorSourceConnector/status")
        reason = stalled_status["reason"]
        phrase = "NOT_ENOUGH_REPLICAS" if reason == "WritesRefused" else "not replicated yet"
        gauge = stalled_count(replicator, reason)
        assert stalled_status["phase"] == "copying"
        assert phrase in stalled_status["message"]
        assert "in sync" in stalled_status["message"]
        assert 30 <= stalled_status["stalledSeconds"] < REPORT_WAIT_S
        assert summary["partitions"]["stalled"] == 1
        (summary_reason,) = summary["reasons"]
        assert (summary_reason["reason"], summary_reason["count"]) == (reason, 1)
        assert summary_reason["example"].startswith(f"{held}-0: ")
        assert stalled_status["message"] in status["tasks"][0]["trace"]
        assert gauge == 1
        log = [
            line
            for line in replicator.log_text().splitlines()
            if "nothing was copied for more than 30 s" in line
        ]
        assert sum(phrase in line for line in log) == 1

        three.broker(follower).start()
        replicator.wait_until_caught_up(partitions=2)
        wait_until("the reason is cleared", lambda: not replicator.partition(held).get("reason"))
        assert replicator.partition(held)["stalledSeconds"] is None
        assert stalled_count(replicator, reason) == 0

    for topic in (held, free):
        flow.assert_exact(topic)


def test_an_idle_source_partition_without_a_leader_stalls(
    three: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
):
    """Its only broker is down, so it is unknown whether there are more records. The other topic is copied."""
    flow, stem = Flow.new(three, west, tmp_path), unique_topic()
    lost, kept = (three.create_topic(f"{stem}-{name}") for name in ("lost", "kept"))
    leader = three.leader(lost, 0)
    others = [broker for broker in three.nodes if broker != leader]
    reassign(three, kept, others[:1])
    for topic in (lost, kept):
        load(three, topic, 100)
    with flow.replicator(f"{stem}-.*") as replicator:
        replicator.wait_until_caught_up(partitions=2)
        three.broker(leader).kill()
        stalled_status = wait_until_stalled(replicator, lost, *SOURCE_AWAY)
        load(three, kept, 100, first=100)
        replicator.wait_for_copy(west, flow.remote(kept), 200)
        other_status = replicator.partition(kept)
        three.broker(leader).start()
        wait_until("the reason is cleared", lambda: not replicator.partition(lost).get("reason"))
        load(three, lost, 100, first=100)
        replicator.wait_until_caught_up(partitions=2)

    assert stalled_status["reason"] in SOURCE_AWAY
    assert other_status["reason"] == ""
    for topic in (lost, kept):
        flow.assert_exact(topic)
