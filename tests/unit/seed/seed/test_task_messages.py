"""Tests the reports that tasks send to the driver of a seed."""

import json

from mirrorflow_seed.job_report import SeedReport
from mirrorflow_seed.job_status_server import JobStatusServer
from mirrorflow_seed.seed.task_messages import Coordinator, SeedTaskReport, send_report


def test_only_the_newest_report_of_an_attempt_counts():
    """Its final report may arrive twice, and an older report may arrive late."""
    coordinator = Coordinator()
    coordinator.receive(SeedTaskReport(attempt="a", records=5, bytes=50, seconds=1.0))
    coordinator.receive(SeedTaskReport(attempt="a", records=7, bytes=70, seconds=2.0, ended=True))
    coordinator.receive(SeedTaskReport(attempt="a", records=7, bytes=70, seconds=2.0, ended=True))
    coordinator.receive(SeedTaskReport(attempt="a", records=5, bytes=50, seconds=1.0))
    coordinator.receive(SeedTaskReport(attempt="b", records=1, bytes=10, seconds=1.0))

    assert coordinator.totals == (8, 80, 3.0)


def test_attempts_without_a_final_report_are_unfinished():
    """A killed task sends no final report. A report that arrives after the final one changes nothing."""
    coordinator = Coordinator()
    for attempt in "abc":
        coordinator.receive(SeedTaskReport(attempt=attempt))
    coordinator.receive(SeedTaskReport(attempt="b", ended=True))
    coordinator.receive(SeedTaskReport(attempt="b"))

    assert coordinator.unfinished == 2


def test_task_reports_progress_over_http():
    """The path contains a token that only the tasks of the job have."""
    coordinator = Coordinator()
    status_server = JobStatusServer(SeedReport(run_id="1"), handler=coordinator)
    try:
        url = status_server.url_for_tasks("127.0.0.1", "127.0.0.1")
        first = send_report(url, SeedTaskReport(attempt="a", next_offsets={3: 17}, reason="R", message="m"))
        errors = coordinator.errors_by_reason
        second = send_report(url, SeedTaskReport(attempt="a", next_offsets={3: 9}))
        with_wrong_token = send_report(f"{url}x", SeedTaskReport(attempt="a"))
    finally:
        status_server.close()

    assert (first, second, with_wrong_token) == (True, True, False)
    assert errors == {"R": (1, "m")}
    assert coordinator.next_offsets == {3: 17}


def test_a_seed_without_a_listener_for_tasks_has_no_progress():
    """For example, the driver has the address of a load balancer."""
    status_server = JobStatusServer(SeedReport(run_id="1"), handler=Coordinator())
    try:
        url = status_server.url_for_tasks("203.0.113.1", "203.0.113.1")
    finally:
        status_server.close()

    assert url is None
    assert send_report(url, SeedTaskReport(attempt="a")) is False


def test_errors_are_counted_by_reason_while_they_last():
    """The count has the message of one error. Tasks that make progress or have ended have none."""
    coordinator = Coordinator()
    for attempt in "abc":
        coordinator.receive(
            SeedTaskReport(attempt=attempt, reason="Unreachable", message=f"broker {attempt}")
        )
    coordinator.receive(SeedTaskReport(attempt="a"))
    coordinator.receive(SeedTaskReport(attempt="b", ended=True))

    assert coordinator.errors_by_reason == {"Unreachable": (1, "broker c")}


def test_a_report_to_an_unreachable_driver_is_dropped():
    """The task continues to copy."""
    assert send_report("http://127.0.0.1:9/task-reports/x", SeedTaskReport(attempt="a")) is False


def test_the_report_has_the_documented_fields():
    """The operator reads this report."""
    report = json.loads(json.dumps(SeedReport(run_id="7").as_json()))

    assert set(report) == {
        *("version", "job", "runId", "phase", "wave", "partitions", "records", "bytes", "remainingRecords"),
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
    assert set(report["cost"]) == {"executorSeconds", "bytesRead", "bytesWritten"}
