"""MirrorFlow's processes are killed or stopped.

No process remains, no record is lost or repeated, and positions are stored.
"""

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
    """Returns a flow for *topic* in two tasks that is slow enough to be interrupted."""
    lines = {
        "source.cluster.alias": topic.upper(),
        "tasks.max": "2",
        "mirrorflow.bytes.per.second": SLOW_BYTES_PER_S,
    }
    return Replicator.standalone(east, west, topics=topic, folder=folder, connector=lines)


def _has_one_new_task(replicator: Replicator, before: set[int]) -> bool:
    return len(set(replicator.task_pids()) - before) == 1


def has_ended(pid: int) -> bool:
    """Returns whether the process has ended. A zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_task_that_is_killed_is_started_again_by_its_worker(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """The task is killed twice with kill -9.

    The other task continues, a new process replaces it, and each record is copied once.
    """
    topic = east.create_topic(unique_topic(), partitions=4)
    load(east, topic, 20_000, size_bytes=600, keys=True, content="random")

    with flow(east, west, topic, tmp_path) as replicator:
        for part in (1, 2):
            replicator.wait_for_copy(west, f"{topic.upper()}.{topic}", part * 4000)
            before = set(replicator.task_pids())
            killed = replicator.kill_task(0)
            wait_until("a new task runs", partial(_has_one_new_task, replicator, before))
            assert has_ended(killed)
        replicator.wait_until_caught_up(partitions=4)
        assert replicator.progress()["tasks"] == {"total": 2, "running": 2, "failed": 0}

    assert_copied(east, topic, west, f"{topic.upper()}.{topic}", count=20_000)


def test_no_task_outlives_its_worker(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """Only the worker is killed with kill -9. Its tasks end, and the next run continues without loss or repeats."""
    topic = east.create_topic(unique_topic(), partitions=2)
    load(east, topic, 12_000, size_bytes=600, keys=True, content="random")

    with flow(east, west, topic, tmp_path) as replicator:
        replicator.wait_for_copy(west, f"{topic.upper()}.{topic}", 3000)
        tasks = replicator.task_pids()
        os.kill(replicator.pid, 9)
        wait_until("the tasks are gone", lambda: all(has_ended(pid) for pid in tasks))
        wait_until("the worker is gone", lambda: not replicator.running)
        replicator.start()
        replicator.wait_until_caught_up(partitions=2)

    assert len(tasks) == 2
    assert_copied(east, topic, west, f"{topic.upper()}.{topic}", count=12_000)


def positions(west: KafkaCluster, alias: str) -> dict[int, dict[str, object]]:
    """Returns the latest position of each partition in the offsets topic."""
    latest = {}
    for record in records(west, f"mm2-offsets.{alias}.internal", isolation="read_committed"):
        name, key = json.loads(record.key or b"")
        assert name == "MirrorSourceConnector"
        latest[key["partition"]] = json.loads(record.value or b"{}")
    return latest


def test_sigterm_stops_the_process_in_time_with_positions_stored(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """The process is stopped while it copies, and exits with 0.

    The stored positions have the last offsets and mark a graceful stop.
    """
    topic = east.create_topic(unique_topic(), partitions=2)
    load(east, topic, 12_000, size_bytes=600, keys=True, content="random")

    with flow(east, west, topic, tmp_path) as replicator:
        replicator.wait_for_copy(west, f"{topic.upper()}.{topic}", 3000)
        # A task that has not begun to copy stores no mark.
        wait_until(
            "both partitions have records", lambda: all(west.end_offsets(f"{topic.upper()}.{topic}").values())
        )
        tasks = replicator.task_pids()
        began = time.monotonic()
        exit_status = replicator.stop()
        took_s = time.monotonic() - began
        written = positions(west, topic.upper())
        ended = west.end_offsets(f"{topic.upper()}.{topic}")
        replicator.start()
        began = time.monotonic()
        replicator.wait_for_copy(west, f"{topic.upper()}.{topic}", sum(ended.values()) + 1)
        resumed_s = time.monotonic() - began
        replicator.wait_until_caught_up(partitions=2)

    assert exit_status == 0
    assert all(has_ended(pid) for pid in tasks)
    assert took_s < GRACE_S + 5  # a loaded machine needs seconds to end three processes
    copied = {partition: end - 1 for partition, end in ended.items() if end}
    assert copied == {partition: written[partition]["offset"] for partition in copied}
    assert {True} == {position["mirrorflow.left"] for position in written.values()}
    assert resumed_s < 15  # the claim of the previous process was released
    assert_copied(east, topic, west, f"{topic.upper()}.{topic}", count=12_000)
