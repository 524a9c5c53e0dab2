"""Decides which Spark jobs are due: each run starts once, and no connector waits forever."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_operator.admission.due_jobs import HOLD_S, DueJobs, due_jobs
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.api.status import RestoreStatus, SeedStatus, Status, VerifyStatus
from mirrorflow_operator.api.timestamps import parse_timestamp, timestamp
from mirrorflow_operator.plan.spark_run import ARCHIVE_AGAIN_S, ENDED_KEPT, FOLLOWING, RunKind
from mirrorflow_operator.status.cron_schedule import days_between_max, next_time_s
from mirrorflow_operator.status.observation import ObservedJob
from mirrorflow_operator.status.pod_reports import Report, parse_reading, parse_report
from mirrorflow_operator.status.spark_jobs import failure_message
from mirrorflow_seed.job_report import (
    ArchiveReport,
    Cost,
    JobPhase,
    OutcomeCounts,
    SeedReport,
    VerifyReport,
    encode,
)
from tests.unit.operator.observations import NOW_S, driver, job, mirror_flow, seed_reading

SEEDED = Status(seed=SeedStatus(run_id="1", phase="Succeeded"))


def _flow(**spec: Any) -> MirrorFlow:
    return mirror_flow(**{"seed": {"runId": "1"}, **spec})


def _decide(
    *jobs: ObservedJob, flow: MirrorFlow | None = None, status: Status | None = None, now_s: float = NOW_S
) -> DueJobs:
    return due_jobs(flow or _flow(), status or Status(), jobs, None, now_s)


def test_a_run_is_due_until_it_has_ended() -> None:
    """Its end is in the status and in the Job. If one of them is lost, the run does not start again."""
    ended = job(outcome="Complete")
    failed = replace(ended, outcome="Failed")

    assert _decide().runs.seed
    assert _decide(job()).runs.seed
    assert not _decide(ended).runs.seed
    assert not _decide(failed).runs.seed
    assert not _decide(status=SEEDED).runs.seed
    assert _decide(status=SEEDED, flow=_flow(seed={"runId": "2"})).runs.seed
    assert not _decide(flow=_flow(seed={"runId": ""})).runs.seed
    assert not due_jobs(None, Status(), (), None, NOW_S).runs.seed


def test_a_run_whose_job_was_deleted_before_its_end_is_due_again() -> None:
    """The copied records remain, so the new Job continues."""
    running = Status(seed=SeedStatus(run_id="1", phase="Running"))

    assert _decide(status=running).runs.seed


def test_the_connector_waits_for_the_seed_and_continues_after_any_result() -> None:
    """A failed seed does not stop the replication."""
    assert _decide(job()).runs.replaces_source
    for outcome in ("Complete", "Failed"):
        assert not _decide(job(outcome=outcome)).runs.replaces_source


def test_the_connector_does_not_wait_for_a_seed_without_progress() -> None:
    """After ten minutes without progress, for example with a hanging driver, the connector runs too."""
    without_pods = job(pods=())
    first = due_jobs(_flow(), Status(), (without_pods,), None, NOW_S)
    late = due_jobs(_flow(), Status(), (without_pods,), first.seed_stall, NOW_S + HOLD_S)
    progressing = job(reading=seed_reading(records=7))
    again = due_jobs(_flow(), Status(), (progressing,), late.seed_stall, NOW_S + HOLD_S + 1)

    assert (first.runs.replaces_source, first.again_after_s) == (True, HOLD_S)
    assert (late.runs.seed, late.runs.replaces_source) == (True, False)
    assert again.runs.replaces_source


@pytest.mark.parametrize("state", ["Paused", "Stopped"])
def test_a_paused_flow_keeps_its_run_and_its_connector_pods(state: str) -> None:
    """The Job is suspended, and the pods of the paused connector report the lag."""
    runs = _decide(job(suspended=True), flow=_flow(state=state)).runs

    assert (runs.seed, runs.replaces_source) == (True, False)


def test_a_verification_waits_for_the_seed_and_runs_once() -> None:
    flow = _flow(verify={"runId": "v"})
    done = Status(seed=SEEDED.seed, verify=VerifyStatus(ended_run_id="v"))

    assert not _decide(flow=flow).runs.verify
    assert _decide(flow=flow, status=SEEDED).runs.verify
    assert not _decide(flow=flow, status=done).runs.verify
    assert not _decide(
        job(kind=RunKind.VERIFY, run_id="v", outcome="Failed"), flow=flow, status=SEEDED
    ).runs.verify


def test_the_last_ended_jobs_are_kept_except_scheduled_ones() -> None:
    """Their logs have more details than the status."""
    ended = [
        job(name=f"seed-{number}", run_id=str(number), outcome="Complete", ended_s=NOW_S - number)
        for number in range(9)
    ]
    scheduled = job(name="cron", kind=RunKind.VERIFY, run_id="", outcome="Complete")

    kept = due_jobs(None, Status(), [*ended, scheduled], None, NOW_S).runs.kept

    assert kept == {f"seed-{number}" for number in range(ENDED_KEPT)}


URL = "s3://backups/orders"
FOLLOWED: dict[str, Any] = {"seed": {"runId": ""}, "archive": {"url": URL, "follow": True}}


def test_a_following_export_is_always_due_and_starts_again_after_a_failure() -> None:
    """The failed Job stays for ten minutes because of its log.

    Then it is deleted, and the next pass creates a new one.
    """
    flow = _flow(**FOLLOWED)
    running = job(name="archive", kind=RunKind.ARCHIVE, run_id=FOLLOWING)
    failed = replace(running, outcome="Failed", ended_s=NOW_S)
    early = _decide(failed, flow=flow, now_s=NOW_S + 60)
    late = _decide(failed, flow=flow, now_s=NOW_S + ARCHIVE_AGAIN_S)

    assert _decide(flow=flow).runs.archive
    assert _decide(running, flow=flow).runs.archive
    assert early.runs.archive
    assert early.runs.kept == {"archive"}
    assert early.again_after_s == ARCHIVE_AGAIN_S - 60
    assert not late.runs.archive
    assert late.runs.kept == frozenset()
    of_next_spec = replace(running, name="next", created_s=NOW_S)
    with_earlier = _decide(failed, of_next_spec, flow=flow, now_s=NOW_S + ARCHIVE_AGAIN_S)
    assert (with_earlier.runs.archive, "archive" in with_earlier.runs.kept) == (True, False)
    assert not _decide(flow=_flow(archive={"url": URL, "schedule": "0 3 * * *"})).runs.archive
    assert not _decide(flow=_flow(archive={"url": URL})).runs.archive


def test_a_restore_runs_once_after_the_seed_and_replaces_the_source_connector() -> None:
    """Its end is in the status and in the Job. If one of them is lost, the restore does not start again."""
    flow = _flow(restore={"runId": "r", "url": URL}, verify={"runId": "v"})
    restoring = job(name="restore", kind=RunKind.RESTORE, run_id="r")
    done = Status(seed=SEEDED.seed, restore=RestoreStatus(run_id="r", phase="Failed"))
    runs = _decide(flow=flow, status=SEEDED).runs

    assert not _decide(flow=flow).runs.restore
    assert (runs.restore, runs.replaces_source, runs.verify) == (True, True, False)
    assert not _decide(flow=flow, status=done).runs.restore
    assert _decide(flow=flow, status=done).runs.verify
    assert not _decide(replace(restoring, outcome="Complete"), flow=flow, status=SEEDED).runs.restore


@pytest.mark.parametrize(("state", "replaces"), [("Running", True), ("Paused", True), ("Stopped", False)])
def test_a_paused_flow_is_restored(state: str, *, replaces: bool) -> None:
    """Its connector therefore does not copy records after the point in time."""
    flow = _flow(seed={"runId": ""}, restore={"runId": "r", "url": URL}, state=state)

    assert _decide(flow=flow).runs.replaces_source is replaces


jobs = st.builds(
    job,
    name=st.sampled_from(["a", "b", "c"]),
    kind=st.sampled_from(list(RunKind)),
    run_id=st.sampled_from(["", "1", "2"]),
    outcome=st.sampled_from([None, None, "Complete", "Failed"]),
    suspended=st.booleans(),
    created_s=st.floats(NOW_S - 1e5, NOW_S),
)
statuses = st.builds(
    Status,
    seed=st.none()
    | st.builds(
        SeedStatus,
        run_id=st.sampled_from(["", "1", "2"]),
        phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
    ),
    verify=st.none() | st.builds(VerifyStatus, ended_run_id=st.sampled_from(["", "1"])),
)
flows = st.builds(
    _flow,
    seed=st.sampled_from([{"runId": ""}, {"runId": "1"}]),
    verify=st.sampled_from([{}, {"runId": "1"}, {"schedule": "0 3 * * *"}]),
    state=st.sampled_from(["Running", "Paused", "Stopped"]),
)


@given(flows, statuses, st.lists(jobs, max_size=5), st.floats(0, 5_000))
def test_no_run_starts_twice_and_no_connector_waits_forever(
    flow: MirrorFlow, status: Status, existing: list[ObservedJob], later_s: float
) -> None:
    """An ended run does not start again. A seed holds the connector only for a limited time."""
    first = due_jobs(flow, status, existing, None, NOW_S)
    runs = first.runs
    ended = {(ended_job.kind, ended_job.run_id) for ended_job in existing if ended_job.outcome}

    assert not (runs.seed and (RunKind.SEED, "1") in ended)
    assert not (runs.verify and (RunKind.VERIFY, "1") in ended)
    assert runs.replaces_source <= runs.seed
    assert runs == due_jobs(flow, status, existing, first.seed_stall, NOW_S).runs
    afterwards = due_jobs(flow, status, existing, first.seed_stall, NOW_S + HOLD_S + later_s)
    assert not afterwards.runs.replaces_source
    assert (first.again_after_s is not None) == runs.replaces_source


@pytest.mark.parametrize(
    ("reason", "exit_code", "sentence"),
    [
        ("PodFailurePolicy", 2, "its settings are invalid"),
        ("PodFailurePolicy", 5, "the flow selects no topic"),
        ("BackoffLimitExceeded", 4, "its driver failed repeatedly: it could not compare"),
        ("BackoffLimitExceeded", 137, "its driver failed repeatedly"),
    ],
)
def test_the_exit_status_of_a_failed_driver_is_explained_in_the_message(
    reason: str, exit_code: int, sentence: str
) -> None:
    """The exit status is that of the newest driver."""
    earlier = driver(name="earlier", phase="Failed", created_s=NOW_S - 1_000, exit_code=1)
    newest = driver(name="newest", phase="Failed", created_s=NOW_S - 100, exit_code=exit_code)
    failed = job(kind=RunKind.VERIFY, outcome="Failed", reason=reason, pods=(newest, earlier))

    assert failure_message(failed, None) == f"It failed: {sentence}"


def test_a_drivers_report_is_parsed() -> None:
    """The driver's own code encodes the report. It arrives over HTTP or in a termination message."""
    seed = SeedReport(
        run_id="1",
        phase=JobPhase.RUNNING,
        wave=2,
        partitions=16,
        done=3,
        lost=1,
        records=5,
        bytes=6,
        remaining_records=7,
        records_per_second=8.4,
        bytes_per_second=9.0,
        estimated_seconds=61.0,
        gap_records=2,
        cost=Cost(executor_seconds=12.0, bytes_read=13, bytes_written=14),
        message="m",
    )
    verify = VerifyReport(
        run_id="1",
        windows=OutcomeCounts(total=9, equal=5, reordered=1, different=2, undecided=1),
        source_records=3,
        target_records=4,
        differences=2,
    )
    seeded, compared = parse_report(encode(seed).decode()), parse_report(encode(verify).decode())
    polled = parse_reading(encode(seed), read_at_s=NOW_S)

    assert seeded is not None
    assert compared is not None
    assert (seeded.kind, seeded.partitions.total, seeded.partitions.done, seeded.partitions.lost) == (
        RunKind.SEED,
        16,
        3,
        1,
    )
    assert (seeded.records, seeded.bytes, seeded.remaining_records, seeded.gap_records) == (5, 6, 7, 2)
    assert (seeded.records_per_s, seeded.bytes_per_s, seeded.estimated_s) == (8, 9, 61)
    assert (seeded.cost.executor_seconds, seeded.cost.bytes_read, seeded.cost.bytes_written) == (12, 13, 14)
    assert (seeded.guarantee, seeded.message, seeded.wave) == ("exactly-once", "m", 2)
    assert compared.windows.model_dump() == {
        "total": 9,
        "equal": 5,
        "reordered": 1,
        "different": 2,
        "undecided": 1,
    }
    assert (compared.source_records, compared.target_records, compared.differences) == (3, 4, 2)
    assert polled.report == seeded


@given(st.text() | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists).map(repr))
def test_any_driver_output_is_a_report_or_none(text: str) -> None:
    """A termination message may have any content."""
    report = parse_report(text)

    assert report is None or isinstance(report, Report)


@pytest.mark.parametrize("estimate", ["NaN", "Infinity", "true", "null", '"soon"'])
def test_an_invalid_estimate_is_none(estimate: str) -> None:
    """Zero would be shown as less than a minute."""
    report = parse_report(f'{{"version": 1, "job": "seed", "estimatedSeconds": {estimate}}}')

    assert report is not None
    assert report.estimated_s is None


@pytest.mark.parametrize(
    ("schedule", "days"),
    [
        ("0 3 * * *", 1),
        ("*/5 * * * *", 1),
        ("0 3 * * 1-5", 3),
        ("0 3 * * sun", 7),
        ("0 3 1 * *", 31),
        ("0 3 1,15 * *", 17),
        ("0 3 29 2 *", 8 * 365 + 1),
        ("0 3 1 jan *", 366),
        ("0 3 1 * mon", 7),
        ("0 3 30 2 *", None),
        ("0 3 * *", None),
        ("0 3 */0 * *", None),
        ("0 3 * * 9", None),
        ("not a schedule at all", None),
    ],
)
def test_the_longest_interval_of_a_schedule_is_calculated(schedule: str, days: int | None) -> None:
    """A verification counts as overdue after this interval."""
    assert days == days_between_max(schedule)


@pytest.mark.parametrize(
    ("schedule", "time_zone", "after"),
    [
        ("0 3 * * *", "UTC", "2026-11-23T03:00:00Z"),
        ("17 * * * *", "UTC", "2026-11-22T13:17:00Z"),
        ("*/20 9-17 * * mon-fri", "Europe/Berlin", "2026-11-23T08:00:00Z"),
        ("0 0 29 2 *", "UTC", "2028-02-29T00:00:00Z"),
        ("0 0 30 2 *", "UTC", None),
        ("often", "UTC", None),
        ("", "UTC", None),
        ("0 3 * * *", "Nowhere/Town", None),
        ("0 3 * * *", "../etc/passwd", None),
        ("0 3 * * *", "Europe", None),
    ],
)
def test_the_next_time_of_a_schedule_is_calculated(schedule: str, time_zone: str, after: str | None) -> None:
    """The current time is a Sunday, 13:00."""
    now_s = parse_timestamp("2026-11-22T13:00:00Z")
    assert now_s is not None

    next_s = next_time_s(schedule, time_zone, now_s)

    assert after == (None if next_s is None else timestamp(next_s))


def test_the_report_of_an_export_is_parsed() -> None:
    export = ArchiveReport(
        job="export", run_id="1", phase=JobPhase.SUCCEEDED, records=3, commit=7, archived_records=40,
        archived_time="2026-11-22T13:00:00+00:00", message="m",
    )  # fmt: skip
    report = parse_report(encode(export).decode())

    assert report is not None
    assert (report.kind, report.commit, report.archived_records) == (RunKind.ARCHIVE, 7, 40)
    assert report.archived_s == parse_timestamp("2026-11-22T13:00:00Z")
