"""What the driver knows of its tasks, and what they are told; over real HTTP where it matters."""

import json

from mirrorflow_seed.job_status_server import JobStatusServer
from mirrorflow_seed.report import SeedReport
from mirrorflow_seed.seed.task_messages import Coordinator, TaskInstructions, TaskReport, send_report


def test_the_rate_is_divided_among_those_at_work():
    """Who has ended leaves its part to the others."""
    coordinator = Coordinator(bytes_per_second=900)
    for attempt in "abc":
        coordinator.receive(TaskReport(attempt=attempt))
    shared = coordinator.task_bytes_per_second
    coordinator.receive(TaskReport(attempt="c", ended=True))

    assert (shared, coordinator.task_bytes_per_second) == (300, 450)


def test_an_attempt_counts_once_however_often_it_is_heard_of():
    """By its newest word, and again when the result of its task arrives."""
    coordinator = Coordinator(bytes_per_second=None)
    coordinator.receive(TaskReport(attempt="a", records=5, bytes=50, seconds=1.0))
    coordinator.receive(TaskReport(attempt="a", records=7, bytes=70, seconds=2.0, ended=True))
    coordinator.receive(TaskReport(attempt="a", records=7, bytes=70, seconds=2.0, ended=True))
    coordinator.receive(TaskReport(attempt="a", records=5, bytes=50, seconds=1.0))
    coordinator.receive(TaskReport(attempt="b", records=1, bytes=10, seconds=1.0))

    assert coordinator.totals == (8, 80, 3.0)


def test_attempts_that_never_came_to_an_end_were_cut_off():
    """Who was killed says nothing any more; who is late with its end has one."""
    coordinator = Coordinator(bytes_per_second=None)
    for attempt in "abc":
        coordinator.receive(TaskReport(attempt=attempt))
    coordinator.receive(TaskReport(attempt="b", ended=True))
    coordinator.receive(TaskReport(attempt="b"))

    assert coordinator.unfinished == 2


def test_a_task_is_told_to_stop_and_tells_where_it_is():
    """Over the driver's own server, at a path that only tasks know."""
    coordinator = Coordinator(bytes_per_second=1_000)
    status_server = JobStatusServer(SeedReport(run_id="1"), handler=coordinator)
    try:
        at = f"http://127.0.0.1:{status_server.port}"
        first = send_report(
            at + coordinator.path, TaskReport(attempt="a", next_offsets={3: 17}, reason="R", message="m")
        )
        held_up = coordinator.errors_by_reason
        coordinator.stop = True
        second = send_report(at + coordinator.path, TaskReport(attempt="a", next_offsets={3: 9}))
        elsewhere = send_report(at + "/orders/x", TaskReport(attempt="a"))
    finally:
        status_server.close()

    assert first == TaskInstructions(stop=False, bytes_per_second=1_000)
    assert second == TaskInstructions(stop=True, bytes_per_second=1_000)
    assert elsewhere is None
    assert held_up == {"R": (1, "m")}
    assert coordinator.next_offsets == {3: 17}


def test_what_holds_tasks_up_is_known_by_reason_as_long_as_it_does():
    """With the sentence of one of them; who gets on, or has ended, is held up by nothing."""
    coordinator = Coordinator(bytes_per_second=None)
    for attempt in "abc":
        coordinator.receive(TaskReport(attempt=attempt, reason="Unreachable", message=f"broker {attempt}"))
    coordinator.receive(TaskReport(attempt="a"))
    coordinator.receive(TaskReport(attempt="b", ended=True))

    assert coordinator.errors_by_reason == {"Unreachable": (1, "broker c")}


def test_a_driver_that_cannot_be_reached_changes_nothing():
    """The task goes on with what it was told last."""
    assert send_report("http://127.0.0.1:9/orders/x", TaskReport(attempt="a")) is None


def test_a_report_has_the_agreed_fields_and_no_names():
    """What the operator reads."""
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
