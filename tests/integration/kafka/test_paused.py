"""`mirrorflow.state=paused` in a standalone process: nothing is copied, and how much there is to copy is still told."""

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

TOLD_WAIT_S = 120.0
Names = Callable[[], str]


def flow(east: KafkaCluster, west: KafkaCluster, topic: str, folder: Path, *, state: str) -> Replicator:
    """A flow of its own for *topic* in one process: paused all three connectors, else the source connector alone."""
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


def told(replicator: Replicator, **expected: Any) -> dict[str, Any]:
    """The summary, once it says so."""

    def found() -> dict[str, Any]:
        summary = replicator.progress()
        return summary if expected == {key: summary[key] for key in expected} else {}

    return wait_until(f"it reports {expected}", found, poll_s=0.2)


def states(replicator: Replicator) -> set[str]:
    """What REST says of each connector, and of its tasks."""
    found = [replicator.rest(f"/connectors/{name}/status")[1] for name in replicator.rest("/connectors")[1]]
    return {part["state"] for one in found for part in (one["connector"], *one["tasks"])}


@pytest.fixture(scope="module")
def fresh() -> Iterator[KafkaCluster]:
    """A target of its own: heartbeats of others are not there, and no other test finds ours."""
    with KafkaCluster(name="fresh") as cluster:
        yield cluster


def test_a_paused_flow_copies_nothing_reports_its_lag_and_continues_where_it_was(
    east: KafkaCluster, fresh: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """Before the first record, in the middle, and after: the pod is ready, the lag grows, each record comes once."""
    topic = east.create_topic(unique_topic(), partitions=2)
    copy = f"{topic.upper()}.{topic}"
    load(east, topic, 200, keys=True)

    with flow(east, fresh, topic, tmp_path, state="paused") as replicator:
        new = told(replicator, lagRecords=200, replicating="Paused")
        ready = wait_until("it is ready", lambda: replicator.rest("/readyz")[0] == 200)
        assert {"PAUSED"} == states(replicator)
        assert 0 == replicator.stop()
    assert {copy, "heartbeats"}.isdisjoint(fresh.topics())

    with flow(east, fresh, topic, tmp_path, state="running") as replicator:
        replicator.wait_until_caught_up(partitions=2)
        assert 0 == replicator.stop()

    with flow(east, fresh, topic, tmp_path, state="paused") as replicator:
        told(replicator, lagRecords=0, replicating="Paused")
        load(east, topic, 300, keys=True, first=200)
        behind = told(replicator, lagRecords=300)
        assert 0 == replicator.stop()
    assert 200 == sum(fresh.end_offsets(copy).values())

    with flow(east, fresh, topic, tmp_path, state="running") as replicator:
        replicator.wait_until_caught_up(partitions=2)

    assert ready
    assert ("PAUSED", 2, False) == (new["state"], new["partitions"]["total"], new["caughtUp"])
    assert {"Reachable"} == {behind[side]["reach"] for side in ("source", "target")}
    assert 0 < behind["lagSeconds"] < TOLD_WAIT_S
    assert_copied(east, topic, fresh, copy, count=500)


def test_a_running_process_follows_the_state_in_its_file(
    east: KafkaCluster, fresh: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """The kubelet updates the file in place: the process pauses and resumes, and each record is copied once."""
    topic = east.create_topic(unique_topic(), partitions=2)
    copy = f"{topic.upper()}.{topic}"
    load(east, topic, 200, keys=True)

    with flow(east, fresh, topic, tmp_path, state="running") as replicator:
        running = replicator.files[1]
        assert not isinstance(running, str)
        replicator.wait_until_caught_up(partitions=2)
        process = replicator.pid
        replicator.rewrite(1, {**running, "mirrorflow.state": "paused", "topics": "no-other-key-is-followed"})
        told(replicator, state="PAUSED", replicating="Paused", lagRecords=0)
        assert {"PAUSED"} == states(replicator)
        load(east, topic, 300, keys=True, first=200)
        told(replicator, lagRecords=300)
        held = sum(fresh.end_offsets(copy).values())
        tasks = replicator.task_pids()
        replicator.rewrite(1, running)
        told(replicator, state="RUNNING", lagRecords=0)
        replicator.wait_until_caught_up(partitions=2)
        assert process == replicator.pid
        assert 0 == replicator.stop()

    assert (200, []) == (held, tasks)
    assert_copied(east, topic, fresh, copy, count=500)
