"""Tests the progress report of a seed."""

from mirrorflow_seed.job_report import JobPhase
from mirrorflow_seed.seed.seed_plan import SeedRange
from mirrorflow_seed.seed.seed_progress import SeedProgress, StallTimer
from mirrorflow_seed.seed.seed_task_attempt import PartitionOutcome, PartitionResult


def test_remaining_time_uses_the_newest_rate():
    """100 of 300 records took ten seconds, so the rest needs twenty."""
    progress = SeedProgress("1")
    progress.begin_wave([_range(0, 150), _range(1, 150)])
    progress.report(JobPhase.RUNNING, (0, 0, 0.0), active=1, now_s=0.0)
    progress.note_offset(0, 50)
    progress.note_offset(1, 50)

    report = progress.report(JobPhase.RUNNING, (100, 1_000, 10.0), active=1, now_s=10.0)

    assert (report.remaining_records, report.records_per_second, report.estimated_seconds) == (
        200,
        10.0,
        20.0,
    )


def test_largest_partition_sets_the_minimum_time():
    """Only one task copies it."""
    progress = SeedProgress("1")
    progress.begin_wave([_range(0, 1_000), _range(1, 10)])
    progress.report(JobPhase.RUNNING, (0, 0, 0.0), active=2, now_s=0.0)
    progress.note_offset(1, 10)

    report = progress.report(JobPhase.RUNNING, (100, 1_000, 10.0), active=2, now_s=10.0)

    assert report.estimated_seconds == 200.0


def test_a_partition_is_done_at_the_end_of_the_first_wave():
    """Later records only increase the number of remaining records."""
    progress = SeedProgress("1")
    progress.begin_wave([_range(0, 100)])
    progress.note_offset(0, 100)
    progress.begin_wave([_range(0, 500)])

    report = progress.report(JobPhase.RUNNING, (100, 1, 1.0), active=0, now_s=1.0)

    assert (report.wave, report.done, report.remaining_records) == (2, 1, 400)


def test_stopped_partitions_are_counted_by_reason_and_have_no_remaining_records():
    """The message does not contain topic names."""
    progress = SeedProgress("1")
    progress.begin_wave([_range(0, 100), _range(1, 100)])
    progress.add_results(
        [
            PartitionResult(
                index=0,
                outcome=PartitionOutcome.FAILED,
                gap_records=9,
                reason="SourceDataLost",
                message="t-0",
            )
        ]
    )
    progress.add_results([PartitionResult(index=1, outcome=PartitionOutcome.DONE, next_offset=100)])

    report = progress.report(JobPhase.FAILED, (100, 1, 1.0), active=0, now_s=1.0)

    assert (report.lost, report.gap_records, report.remaining_records) == (1, 9, 0)
    assert report.message == "1 partition has stopped: SourceDataLost"


def test_errors_that_block_tasks_are_reported_with_stopped_partitions():
    progress = SeedProgress("1")
    progress.begin_wave([_range(0, 100), _range(1, 100)])
    progress.add_results(
        [PartitionResult(index=0, outcome=PartitionOutcome.FAILED, reason="RecordTooLarge", message="t-0")]
    )

    report = progress.report(
        JobPhase.RUNNING, (0, 0, 0.0), active=2, now_s=1.0, blocked={"NotAuthorized": 1, "Unreachable": 2}
    )

    assert report.message == (
        "1 partition has stopped: RecordTooLarge; 1 task is held up: NotAuthorized; 2 tasks are held up: Unreachable"
    )


def test_a_job_is_stalled_while_tasks_run_without_progress():
    """The time without progress restarts with each step, and while no task is active."""
    timer = StallTimer(0.0)

    assert timer.stalled_for_s(100, active=1, now_s=5.0) == 0.0
    assert timer.stalled_for_s(100, active=1, now_s=60.0) == 55.0
    assert timer.stalled_for_s(99, active=1, now_s=61.0) == 0.0
    assert timer.stalled_for_s(99, active=0, now_s=200.0) == 0.0
    assert timer.stalled_for_s(99, active=1, now_s=230.0) == 30.0


def _range(index: int, end: int) -> SeedRange:
    return SeedRange(index=index, topic="t", partition=index, start=0, end=end, bytes=end)


def test_a_paused_run_counts_only_records_with_stored_offsets() -> None:
    """Cancelled tasks had reported records of transactions that were aborted afterwards."""
    progress = SeedProgress("1")
    progress.begin_wave([_range(0, 800)])
    progress.note_offset(0, 250)

    paused = progress.report(JobPhase.PAUSED, (400, 1, 1.0), active=0, now_s=1.0)
    running = progress.report(JobPhase.RUNNING, (400, 1, 1.0), active=1, now_s=2.0)

    assert (paused.records, paused.remaining_records, running.records) == (250, 550, 400)
