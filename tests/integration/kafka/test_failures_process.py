"""Our own processes killed and ended: nothing stays behind, nothing is lost or repeated, and the end is said."""

import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load, records
from tests.harness.replicator import Replicator
from tests.integration.kafka.comparing import assert_copied

pytestmark = pytest.mark.faults

SLOW_BYTES_PER_S = "3000000"
GRACE_S = 5.0  # MM2's task.shutdown.graceful.timeout.ms

Names = Callable[[], str]


def flow(east: KafkaCluster, west: KafkaCluster, topic: str, folder: Path) -> Replicator:
    """A flow of its own for *topic*, in two tasks, slow enough to be met in the middle."""
    lines = {
        "source.cluster.alias": topic.upper(),
        "tasks.max": "2",
        "mirrorflow.bytes.per.second": SLOW_BYTES_PER_S,
    }
    return Replicator.standalone(east, west, topics=topic, folder=folder, connector=lines)


def _has_another_task(replicator: Replicator, before: set[int]) -> bool:
    return len(set(replicator.task_pids()) - before) == 1


def ends(pid: int) -> bool:
    """Whether no process has that id any more (a zombie has ended)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_task_that_is_killed_is_started_again_by_its_worker(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """kill -9 of a task, twice: the other continues, a new process takes its place, every record comes once."""
    topic = east.create_topic(unique_topic(), partitions=4)
    load(east, topic, 20_000, size_bytes=600, keys=True, content="random")

    with flow(east, west, topic, tmp_path) as replicator:
        for part in (1, 2):
            replicator.wait_for_copy(west, f"{topic.upper()}.{topic}", part * 4000)
            before = set(replicator.task_pids())
            killed = replicator.kill_task(0)
            wait_until("a new task runs", partial(_has_another_task, replicator, before))
            assert ends(killed)
        replicator.wait_until_caught_up(partitions=4)
        assert replicator.progress()["tasks"] == {"total": 2, "running": 2, "failed": 0}

    assert_copied(east, topic, west, f"{topic.upper()}.{topic}", count=20_000)


def test_no_task_outlives_its_worker(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """kill -9 of the worker alone: its tasks are gone at once, and the next run continues without loss or repeat."""
    topic = east.create_topic(unique_topic(), partitions=2)
    load(east, topic, 12_000, size_bytes=600, keys=True, content="random")

    with flow(east, west, topic, tmp_path) as replicator:
        replicator.wait_for_copy(west, f"{topic.upper()}.{topic}", 3000)
        tasks = replicator.task_pids()
        os.kill(replicator.pid, 9)
        wait_until("the tasks are gone", lambda: all(ends(pid) for pid in tasks))
        wait_until("the worker is gone", lambda: not replicator.running)
        replicator.start()
        replicator.wait_until_caught_up(partitions=2)

    assert len(tasks) == 2
    assert_copied(east, topic, west, f"{topic.upper()}.{topic}", count=12_000)


def positions(west: KafkaCluster, alias: str) -> dict[int, dict[str, object]]:
    """The newest position of each partition in the offsets topic."""
    found = {}
    for record in records(west, f"mm2-offsets.{alias}.internal", isolation="read_committed"):
        name, key = json.loads(record.key or b"")
        assert name == "MirrorSourceConnector"
        found[key["partition"]] = json.loads(record.value or b"{}")
    return found


def test_sigterm_ends_it_in_time_with_its_positions_written(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """Stopped in the middle it exits with 0 within the grace period, and its positions say how far and that it left."""
    topic = east.create_topic(unique_topic(), partitions=2)
    load(east, topic, 12_000, size_bytes=600, keys=True, content="random")

    with flow(east, west, topic, tmp_path) as replicator:
        replicator.wait_for_copy(west, f"{topic.upper()}.{topic}", 3000)
        tasks = replicator.task_pids()
        began = time.monotonic()
        status = replicator.stop()
        took_s = time.monotonic() - began
        written = positions(west, topic.upper())
        ended = west.end_offsets(f"{topic.upper()}.{topic}")
        replicator.start()
        began = time.monotonic()
        replicator.wait_for_copy(west, f"{topic.upper()}.{topic}", sum(ended.values()) + 1)
        resumed_s = time.monotonic() - began
        replicator.wait_until_caught_up(partitions=2)

    assert status == 0
    assert all(ends(pid) for pid in tasks)
    assert took_s < GRACE_S + 5  # a loaded machine takes seconds to end three processes
    copied = {part: end - 1 for part, end in ended.items() if end}
    assert copied == {part: written[part]["offset"] for part in copied}
    assert {True} == {at["mirrorflow.left"] for at in written.values()}
    assert resumed_s < 15  # it need not wait until the claim of the last process is old
    assert_copied(east, topic, west, f"{topic.upper()}.{topic}", count=12_000)
