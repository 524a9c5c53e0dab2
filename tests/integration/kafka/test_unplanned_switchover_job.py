"""The source of a pair is killed, and the process of a Job moves applications without it; later it reports the reconciliation."""

import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_operator.status.source_ends import parse_source_ends
from tests.harness.kafka.processes import wait_until
from tests.integration.kafka.groups import group_offsets
from tests.integration.kafka.lost_sources import COPIED, LOST, READ, lost_source
from tests.integration.kafka.mirror_pairs import Sides, all_numbers
from tests.integration.kafka.running_switchover_job import RunningJob
from tests.integration.kafka.test_unplanned_switchover import sides  # noqa: F401 a fixture


def last_seen(url: str) -> dict[str, Any]:
    """Returns what the operator reads from a pod of the flow, and writes into the Job's files."""
    with urllib.request.urlopen(f"{url}/progress/partitions?limit=100", timeout=5) as response:
        ends = parse_source_ends(response.read(), now_s=time.time())
    assert ends is not None
    return ends.document()


@pytest.mark.faults
def test_a_job_moves_applications_without_a_source_and_reports_when_the_clusters_are_reconciled(
    sides: Sides,  # noqa: F811
    tmp_path: Path,
):
    """The process that reads the journal again is that of a Job which its user has deleted."""
    east, west = sides["east"], sides["west"]
    seen: dict[str, Any] = {}
    with lost_source(sides, tmp_path, before=lambda url: seen.update(last_seen(url))) as lost:
        pair = lost.pair
        request: dict[str, Any] = {"type": "Unplanned", "acceptLoss": True}
        moved = RunningJob(pair, "lost-east", last_seen=seen, **request).ended()
        assert "west" == pair.endpoint.read_text()
        assert all_numbers(pair, "west") == [*range(COPIED)]

    assert ("Degraded", "west", "east", False) == (
        moved.state,
        moved.active,
        moved.source,
        moved.may_copy_back,
    ), moved
    assert moved.loss is not None
    (topic,) = moved.loss.topics
    assert (LOST, LOST, pair.topic) == (
        moved.loss.lost_offsets_at_least,
        topic.lost_offsets_at_least,
        topic.topic,
    )
    assert moved.loss.known_until is not None
    assert f"At least {LOST} offsets of 1 partition are lost" in moved.notes[0]
    assert group_offsets(west, pair.group)[pair.topic, 0] <= READ

    asked = RunningJob(pair, "lost-east", **request).ended()
    assert ("Degraded", moved.loss, moved.states) == (asked.state, asked.loss, asked.states)

    east.broker(1).start()
    wait_until("east responds again", lambda: east.total_end_offset(pair.topic) >= COPIED + LOST)
    early = RunningJob(pair, "too-early", to="east").ended()
    assert "Refused" == early.state
    assert "reconcile east first" in early.reason
    kept = pair.command("keep", "--left", "east", name="diverged")
    assert f"{LOST} records are kept" in kept.stdout, kept.stdout + kept.stderr
    started = pair.command("start-back", "--left", "east", name="diverged")
    assert 0 == started.returncode, started.stdout + started.stderr

    reconciled = RunningJob(pair, "lost-east", **request).ended()

    assert ("Done", "west", True) == (reconciled.state, reconciled.active, reconciled.may_copy_back)
    assert moved.loss == reconciled.loss
