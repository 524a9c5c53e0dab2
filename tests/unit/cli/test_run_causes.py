"""Why a flow stands: one sentence for each cause, with its count and time, and the reason in the last line."""

from typing import Any

import pytest

from mirrorflow_cli.flow_runner import late
from mirrorflow_cli.run_causes import CauseAges, causes, notes
from mirrorflow_cli.run_progress import Companion, Progress
from mirrorflow_replicator.connectors.source_connector import STANDBY_WARNING, standby_warning
from mirrorflow_replicator.http.progress_text import duration, summary_line
from tests.unit.connectors.test_flow_takeover import CLAIM

REFUSED = "Cluster west cannot be reached at b:9092: Connection refused; check the address."
REACHABLE = {"reach": "Reachable", "reason": "", "sinceSeconds": 90.0, "message": ""}
AWAY = {"reach": "Unreachable", "reason": "Unreachable", "sinceSeconds": 48.2, "message": REFUSED}


def row(number: int, **more: object) -> dict[str, Any]:
    plain = {
        "topic": "t",
        "partition": number,
        "phase": "copying",
        "lagRecords": 0,
        "reason": "",
        "message": "",
    }
    return {**plain, "stalledSeconds": None, **more}


def progress(*rows: dict[str, Any], target: dict[str, Any] = REACHABLE, **more: Any) -> Progress:
    sides = {"source": REACHABLE, "target": target}
    summary = {"replicating": "Idle", "partitions": {"total": len(rows)}, "lagRecords": 9, "lagSeconds": 3.0}
    return Progress(connector="C", summary={**summary, **sides}, partitions=rows, sides=sides, **more)


def lines(seen: Progress) -> list[str]:
    return [one.line for one in causes(seen)]


def test_target_that_is_away_is_one_line_with_its_count_and_time() -> None:
    """However its partitions report it; those that have nothing to copy are not counted."""
    away = {"reason": "Unreachable", "message": REFUSED}
    waiting = {"reason": "StartPending", "message": "The task has waited for 30 s.", "stalledSeconds": 31.0}
    rows = (row(0, **away, lagRecords=7), row(1, **waiting, lagRecords=2), row(2, **away), row(3, **waiting))
    seen = progress(*rows, target=AWAY, problem=REFUSED, reason="Unreachable")

    expected = f"{REFUSED.rstrip('.')} (2 partitions, for 48 s)."
    assert [expected] == lines(seen)
    assert f"Not caught up within 60 s: {expected}" == late(seen, "60 s")
    assert summary_line({"connector": "C", **seen.summary}).startswith(
        "C: target Unreachable, 4 partitions, lag 9 (3.0 s)"
    )


def test_stopped_partition_is_named_although_the_target_is_away() -> None:
    stopped = row(0, phase="stopped", reason="RecordTooLarge", message="t-0: too large.")

    assert ["t-0: too large."] == lines(progress(stopped, target=AWAY))[1:]


def test_partitions_with_one_reason_are_one_line() -> None:
    """With the partition that has most to copy, and the longest time."""
    stalled = [
        row(number, reason="WritesRefused", message=f"t-{number}: refused {number} writes.", lagRecords=9 - number,
            stalledSeconds=120.0 + number)
        for number in range(7)
    ]  # fmt: skip

    assert ["t-0: refused 0 writes (7 partitions, for 2 min 6 s)."] == lines(progress(*stalled))


def test_partition_with_nothing_to_copy_does_not_wait_for_the_target() -> None:
    waits = {"reason": "TargetNotAnswering", "message": "t-0: nothing was copied for more than 30 s."}

    assert [] == lines(progress(row(0, **waits)))
    assert 1 == len(lines(progress(row(0, **waits, lagRecords=None))))


def test_failed_connector_and_failed_tasks_say_why() -> None:
    """Without a partition, too: nothing else would explain it."""
    seen = progress(
        problem="Another flow.", reason="FlowExists", task_problems=(("TaskEnded", "It ended."),) * 2
    )

    assert ["Another flow.", "It ended."] == lines(seen)


def test_heartbeats_that_miss_the_same_cluster_are_no_second_cause() -> None:
    failed = {
        "connector": "H",
        "reason": "Unreachable",
        "message": "Cluster west: no heartbeat.",
        "warnings": ["w"],
    }
    companions = (Companion(received={**failed, "warningsTotal": 1}),)

    assert ["H: w"] == notes(progress(target=AWAY, companions=companions))
    assert ["H: Cluster west: no heartbeat.", "H: w"] == notes(progress(companions=companions))


def test_waiting_process_names_the_owner_and_what_to_do() -> None:
    """In its line, and where it ends before its turn."""
    warning = standby_warning(CLAIM)
    seen = progress(is_standby=True, warnings=(warning,))

    assert warning.startswith(STANDBY_WARNING)
    assert "process 1 on host host, which runs flow east->west" in warning
    assert "--from-alias" in warning
    assert STANDBY_WARNING == standby_warning(None)
    assert [warning] == notes(seen)
    assert f"Not caught up within 8 s: {warning}" == late(seen, "8 s")


def test_late_run_without_a_cause_says_how_far_it_is() -> None:
    assert late(progress(row(0)), "8 s").startswith("Not caught up within 8 s: C: Idle, 1 partition, lag 9")
    assert late(None, "8 s") == "Not caught up within 8 s: the replicator has not answered yet."


def test_age_of_a_cause_is_counted_from_its_first_report() -> None:
    now_s = 0.0
    ages = CauseAges(clock=lambda: now_s)
    seen = causes(progress(problem="Another flow.", reason="FlowExists"))
    ages.of(seen)
    now_s = 75.0

    assert ["Another flow (for 1 min 15 s)."] == [one.line for one in ages.of(seen)]
    ages.of(())
    assert ["Another flow."] == [one.line for one in ages.of(seen)]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.9, "0 s"), (59.9, "59 s"), (60, "1 min"), (3_725, "1 h 2 min"), (180_000, "2 d 2 h")],
)
def test_durations_have_their_two_largest_units(seconds: float, text: str) -> None:
    assert text == duration(seconds)
