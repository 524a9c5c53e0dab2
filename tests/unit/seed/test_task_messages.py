"""Tests the messages between driver and tasks, some over real HTTP."""

import json

from mirrorflow_seed.job_report import SeedReport
from mirrorflow_seed.job_status_server import JobStatusServer
from mirrorflow_seed.seed.task_messages import Coordinator, SeedTaskReport, send_report


def test_attempt_counts_once_however_often_it_reports():
    """Its newest report counts, also when the result of its task arrives again."""
    coordinator = Coordinator()
    coordinator.receive(SeedTaskReport(attempt="a", records=5, bytes=50, seconds=1.0))
    coordinator.receive(SeedTaskReport(attempt="a", records=7, bytes=70, seconds=2.0, ended=True))
    coordinator.receive(SeedTaskReport(attempt="a", records=7, bytes=70, seconds=2.0, ended=True))
    coordinator.receive(SeedTaskReport(attempt="a", records=5, bytes=50, seconds=1.0))
    coordinator.receive(SeedTaskReport(attempt="b", records=1, bytes=10, seconds=1.0))

    assert coordinator.totals == (8, 80, 3.0)


def test_attempts_without_a_final_report_are_unfinished():
    """A killed task sends no final report; a late final report still counts."""
    coordinator = Coordinator()
    for attempt in "abc":
        coordinator.receive(SeedTaskReport(attempt=attempt))
    coordinator.receive(SeedTaskReport(attempt="b", ended=True))
    coordinator.receive(SeedTaskReport(attempt="b"))

    assert coordinator.unfinished == 2


def test_task_reports_progress_over_http():
    """To a path that only the job's tasks have."""
    coordinator = Coordinator()
    status_server = JobStatusServer(SeedReport(run_id="1"), handler=coordinator)
    try:
        url = status_server.url_for_tasks("127.0.0.1", "127.0.0.1")
        first = send_report(url, SeedTaskReport(attempt="a", next_offsets={3: 17}, reason="R", message="m"))
        held_up = coordinator.errors_by_reason
        second = send_report(url, SeedTaskReport(attempt="a", next_offsets={3: 9}))
        elsewhere = send_report(f"{url}x", SeedTaskReport(attempt="a"))
    finally:
        status_server.close()

    assert (first, second, elsewhere) == (True, True, False)
    assert held_up == {"R": (1, "m")}
    assert coordinator.next_offsets == {3: 17}


def test_address_that_cannot_be_listened_on_costs_only_the_progress():
    """As of a driver behind a load balancer."""
    status_server = JobStatusServer(SeedReport(run_id="1"), handler=Coordinator())
    try:
        url = status_server.url_for_tasks("203.0.113.1", "203.0.113.1")
    finally:
        status_server.close()

    assert url == ""
    assert send_report(url, SeedTaskReport(attempt="a")) is False


def test_errors_are_counted_by_reason_while_they_last():
    """With the message of one of them; tasks that make progress or have ended have no error."""
    coordinator = Coordinator()
    for attempt in "abc":
        coordinator.receive(
            SeedTaskReport(attempt=attempt, reason="Unreachable", message=f"broker {attempt}")
        )
    coordinator.receive(SeedTaskReport(attempt="a"))
    coordinator.receive(SeedTaskReport(attempt="b", ended=True))

    assert coordinator.errors_by_reason == {"Unreachable": (1, "broker c")}


def test_unreachable_driver_changes_nothing():
    """The task copies all the same."""
    assert send_report("http://127.0.0.1:9/task-reports/x", SeedTaskReport(attempt="a")) is False


def test_report_has_the_documented_fields_and_no_names():
    """The operator reads it."""
    said = json.loads(json.dumps(SeedReport(run_id="7").as_json()))

    assert set(said) == {
        *("version", "job", "runId", "phase", "partitions", "records", "bytes", "remainingRecords"),
        *(
            "recordsPerSecond",
            "bytesPerSecond",
            "estimatedSeconds",
            "gapRecords",
            "guarantee",
            "cost",
            "message",
        ),
    }
    assert set(said["cost"]) == {"executorSeconds", "bytesRead", "bytesWritten"}
