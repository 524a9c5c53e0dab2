"""`mirrorflow run` shows one sentence per cause of a stalled flow, with count and duration."""

from dataclasses import replace
from typing import Any

import pytest

from mirrorflow_cli.flow_runner import late
from mirrorflow_cli.run_causes import CauseAges, causes, notes
from mirrorflow_cli.run_progress import Companion, Progress
from mirrorflow_replicator.connectors.source_connector import STANDBY_WARNING, standby_warning
from mirrorflow_replicator.http.progress_text import duration, summary_line
from tests.unit.connectors.flow_settings import settings
from tests.unit.connectors.test_flow_takeover import CLAIM

REFUSED = "Cluster west cannot be reached at b:9092: Connection refused; check the address."
REACHABLE = {"reach": "Reachable", "reason": "", "sinceSeconds": 90.0, "message": ""}
UNREACHABLE = {"reach": "Unreachable", "reason": "Unreachable", "sinceSeconds": 48.2, "message": REFUSED}


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


def lines(report: Progress) -> list[str]:
    return [cause.line for cause in causes(report)]


def test_an_unreachable_target_is_one_line_with_count_and_duration() -> None:
    """Partitions may report it in different ways. Partitions without lag are not counted."""
    unreachable = {"reason": "Unreachable", "message": REFUSED}
    waiting = {"reason": "StartPending", "message": "The task has waited for 30 s.", "stalledSeconds": 31.0}
    rows = (
        row(0, **unreachable, lagRecords=7),
        row(1, **waiting, lagRecords=2),
        row(2, **unreachable),
        row(3, **waiting),
    )
    report = progress(*rows, target=UNREACHABLE, problem=REFUSED, reason="Unreachable")

    expected = f"{REFUSED.rstrip('.')} (2 partitions, for 48 s)."
    assert [expected] == lines(report)
    assert f"Not caught up within 60 s: {expected}" == late(report, "60 s")
    assert summary_line({"connector": "C", **report.summary}).startswith(
        "C: target Unreachable, 4 partitions, lag 9 (3.0 s)"
    )


def test_a_stopped_partition_is_shown_although_the_target_is_unreachable() -> None:
    stopped = row(0, phase="stopped", reason="RecordTooLarge", message="t-0: too large.")

    assert ["t-0: too large."] == lines(progress(stopped, target=UNREACHABLE))[1:]


def test_partitions_with_the_same_reason_share_one_line() -> None:
    """The line has the message of the partition with the most lag, and the longest duration."""
    stalled = [
        row(number, reason="WritesRefused", message=f"t-{number}: refused {number} writes.", lagRecords=9 - number,
            stalledSeconds=120.0 + number)
        for number in range(7)
    ]  # fmt: skip

    assert ["t-0: refused 0 writes (7 partitions, for 2 min 6 s)."] == lines(progress(*stalled))


def test_a_partition_without_lag_does_not_wait_for_the_target() -> None:
    fields = {"reason": "TargetNotAnswering", "message": "t-0: nothing was copied for more than 30 s."}

    assert [] == lines(progress(row(0, **fields)))
    assert 1 == len(lines(progress(row(0, **fields, lagRecords=None))))


def test_problems_of_a_connector_and_its_tasks_are_shown() -> None:
    """They are shown even if there is no partition, because nothing else explains the state."""
    report = progress(
        problem="Another flow.", reason="FlowExists", task_problems=(("TaskEnded", "It ended."),) * 2
    )

    assert ["Another flow.", "It ended."] == lines(report)


def test_failed_heartbeats_to_an_unreachable_cluster_are_not_a_second_cause() -> None:
    failed = {
        "connector": "H",
        "reason": "Unreachable",
        "message": "Cluster west: no heartbeat.",
        "warnings": ["w"],
    }
    companions = (Companion(received={**failed, "warningsTotal": 1}),)

    assert ["H: w"] == notes(progress(target=UNREACHABLE, companions=companions))
    assert ["H: Cluster west: no heartbeat.", "H: w"] == notes(progress(companions=companions))


def test_a_standby_process_shows_the_owner_and_what_to_do() -> None:
    """The warning is a note. It is also the reason if the time limit ends the run."""
    warning = standby_warning(CLAIM, settings())
    report = progress(is_standby=True, warnings=(warning,))

    assert warning.startswith(STANDBY_WARNING)
    assert "process 1 on host host, which runs flow east->west" in warning
    assert "--from-alias" in warning
    assert STANDBY_WARNING == standby_warning(None, settings())
    assert [warning] == notes(report)
    assert f"Not caught up within 8 s: {warning}" == late(report, "8 s")


def test_a_standby_process_of_an_ended_flow_names_the_switchover() -> None:
    ended = replace(CLAIM, left=True, ended="to-west")

    assert "flow from east to west was ended by switchover to-west" in standby_warning(ended, settings())


def test_a_timed_out_run_without_a_cause_reports_its_progress() -> None:
    assert late(progress(row(0)), "8 s").startswith("Not caught up within 8 s: C: Idle, 1 partition, lag 9")
    assert late(None, "8 s") == "Not caught up within 8 s: the replicator has not answered yet."


def test_age_of_a_cause_is_counted_from_its_first_report() -> None:
    now_s = 0.0
    ages = CauseAges(clock=lambda: now_s)
    report = causes(progress(problem="Another flow.", reason="FlowExists"))
    ages.of(report)
    now_s = 75.0

    assert ["Another flow (for 1 min 15 s)."] == [cause.line for cause in ages.of(report)]
    ages.of(())
    assert ["Another flow."] == [cause.line for cause in ages.of(report)]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.9, "0 s"), (59.9, "59 s"), (60, "1 min"), (3_725, "1 h 2 min"), (180_000, "2 d 2 h")],
)
def test_durations_have_their_two_largest_units(seconds: float, text: str) -> None:
    assert text == duration(seconds)
