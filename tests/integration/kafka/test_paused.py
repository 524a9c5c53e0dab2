"""A standalone process with `mirrorflow.state=paused` copies nothing and still reports its lag."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.harness.replicator import Replicator
from tests.integration.kafka.comparing import assert_copied

pytestmark = pytest.mark.more

REPORT_WAIT_S = 120.0
Names = Callable[[], str]


def flow(east: KafkaCluster, west: KafkaCluster, topic: str, folder: Path, *, state: str) -> Replicator:
    """Returns a process for *topic*. It has all three connectors if paused, otherwise only the source connector."""
    alias = topic.upper()
    lines = {"source.cluster.alias": alias, "mirrorflow.state": state}
    source = Replicator.standalone(east, west, topics=topic, folder=folder, connector=lines)
    process, connector = source.files
    assert not isinstance(connector, str)
    if state == "running":
        return source
    names = ("MirrorCheckpointConnector", "MirrorHeartbeatConnector")
    others = [{**connector, "name": name, "connector.class": name} for name in names]
    return Replicator(form="standalone", files=(process, connector, *others), folder=folder, source=east)


def wait_for_summary(replicator: Replicator, **expected: Any) -> dict[str, Any]:
    """Waits until the summary has the *expected* values, and returns the summary."""

    def matching_summary() -> dict[str, Any]:
        summary = replicator.progress()
        return summary if expected == {key: summary[key] for key in expected} else {}

    return wait_until(f"it reports {expected}", matching_summary, poll_s=0.2)


def states(replicator: Replicator) -> set[str]:
    """Returns the states that REST reports for all connectors and their tasks."""
    statuses = [
        replicator.rest(f"/connectors/{name}/status")[1] for name in replicator.rest("/connectors")[1]
    ]
    return {part["state"] for status in statuses for part in (status["connector"], *status["tasks"])}


@pytest.fixture(scope="module")
def fresh() -> Iterator[KafkaCluster]:
    """A target without the heartbeats and topics of other tests."""
    with KafkaCluster(name="fresh") as cluster:
        yield cluster


def test_a_paused_flow_copies_nothing_reports_its_lag_and_continues_at_its_position(
    east: KafkaCluster, fresh: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """It is paused before the first record, and later while it copies.

    The pod is ready, the lag grows, and each record is copied once.
    """
    topic = east.create_topic(unique_topic(), partitions=2)
    copy = f"{topic.upper()}.{topic}"
    load(east, topic, 200, keys=True)

    with flow(east, fresh, topic, tmp_path, state="paused") as replicator:
        new = wait_for_summary(replicator, lagRecords=200, replicating="Paused")
        ready = wait_until("the process is ready", lambda: replicator.rest("/readyz")[0] == 200)
        assert {"PAUSED"} == states(replicator)
        assert 0 == replicator.stop()
    assert {copy, "heartbeats"}.isdisjoint(fresh.topics())

    with flow(east, fresh, topic, tmp_path, state="running") as replicator:
        replicator.wait_until_caught_up(partitions=2)
        assert 0 == replicator.stop()

    with flow(east, fresh, topic, tmp_path, state="paused") as replicator:
        wait_for_summary(replicator, lagRecords=0, replicating="Paused")
        load(east, topic, 300, keys=True, first=200)
        paused_with_lag = wait_for_summary(replicator, lagRecords=300)
        assert 0 == replicator.stop()
    assert 200 == sum(fresh.end_offsets(copy).values())

    with flow(east, fresh, topic, tmp_path, state="running") as replicator:
        replicator.wait_until_caught_up(partitions=2)

    assert ready
    assert ("PAUSED", 2, False) == (new["state"], new["partitions"]["total"], new["caughtUp"])
    assert {"Reachable"} == {paused_with_lag[side]["reach"] for side in ("source", "target")}
    assert 0 < paused_with_lag["lagSeconds"] < REPORT_WAIT_S
    assert_copied(east, topic, fresh, copy, count=500)


def test_a_running_process_follows_the_state_in_its_file(
    east: KafkaCluster, fresh: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """The kubelet updates the file in place. The process pauses and resumes, and each record is copied once."""
    topic = east.create_topic(unique_topic(), partitions=2)
    copy = f"{topic.upper()}.{topic}"
    load(east, topic, 200, keys=True)

    with flow(east, fresh, topic, tmp_path, state="running") as replicator:
        running = replicator.files[1]
        assert not isinstance(running, str)
        replicator.wait_until_caught_up(partitions=2)
        process = replicator.pid
        replicator.rewrite(1, {**running, "mirrorflow.state": "paused", "topics": "no-other-key-is-followed"})
        wait_for_summary(replicator, state="PAUSED", replicating="Paused", lagRecords=0)
        assert {"PAUSED"} == states(replicator)
        load(east, topic, 300, keys=True, first=200)
        wait_for_summary(replicator, lagRecords=300)
        held = sum(fresh.end_offsets(copy).values())
        tasks = replicator.task_pids()
        replicator.rewrite(1, running)
        wait_for_summary(replicator, state="RUNNING", lagRecords=0)
        replicator.wait_until_caught_up(partitions=2)
        assert process == replicator.pid
        assert 0 == replicator.stop()

    assert (200, []) == (held, tasks)
    assert_copied(east, topic, fresh, copy, count=500)
