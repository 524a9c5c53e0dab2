"""Explains the phase of each Spark job, and computes `status.seed` and Seeded. Pure.

Each driver of a seed counts from zero. `status.seed.driver` records the last driver included in the totals and
what the drivers before it had copied, so a restarted operator neither loses nor repeats a part. Drivers are
processed in the order in which their pods were created: one that is older than the recorded one is already
included.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.api.status import (
    ArchiveStatus,
    RunPhase,
    RunStatus,
    SeedDriver,
    SeedStatus,
    Status,
    VerifyStatus,
)
from mirrorflow_operator.api.timestamps import parse_timestamp, timestamp
from mirrorflow_operator.plan.spark_run import (
    EXIT_DIFFERENT,
    EXIT_FAILED,
    EXIT_NOTHING_SELECTED,
    EXIT_USAGE,
    RunKind,
)
from mirrorflow_operator.status.conditions import (
    ConditionType,
    Finding,
    Problem,
    Reason,
    bounded,
    no,
    unknown,
    yes,
)
from mirrorflow_operator.status.cron_schedule import days_between_max
from mirrorflow_operator.status.observation import Observation, ObservedAttempt, ObservedJob, ObservedPod
from mirrorflow_operator.status.pod_failures import QUOTE_MAX, pod_problems
from mirrorflow_operator.status.pod_reports import Report, parse_report

_ENDED: Final = frozenset({RunPhase.SUCCEEDED.value, RunPhase.FAILED.value})
UNFINISHED: Final = frozenset({RunPhase.PENDING.value, RunPhase.RUNNING.value, RunPhase.PAUSED.value})
_FINAL: Final = {"Complete": RunPhase.SUCCEEDED, "Failed": RunPhase.FAILED}
_GIVEN_UP: Final = {
    "BackoffLimitExceeded": "its driver failed repeatedly",
    "DeadlineExceeded": "it exceeded its deadline",
    "PodFailurePolicy": "its driver reported an error that a retry cannot fix",
}
# The meaning of exit statuses; the others have none of their own beside the driver's message.
_EXIT_MEANINGS: Final = {
    EXIT_USAGE: "its settings are invalid",
    EXIT_NOTHING_SELECTED: "the flow selects no topic",
}
# A restore has the pods of the archive.
_JOB_OF: Final = {RunKind.RESTORE: RunKind.ARCHIVE.value}
_MEANINGS_OF_KIND: Final = {
    (RunKind.VERIFY, EXIT_FAILED): "it could not compare",
    (RunKind.ARCHIVE, EXIT_DIFFERENT): "it could not continue some topics",
    (RunKind.RESTORE, EXIT_DIFFERENT): "the target differs from the archive",
}
_KIND: Final = ConditionType.SEEDED
# A Spark operator takes a new SparkApplication within seconds.
UNTAKEN_S: Final = 30.0
DAY_S: Final = 86_400
_UNITS: Final = ((86_400, "day"), (3_600, "hour"), (60, "minute"))
_JOB_DELETED: Final = "Its Job was deleted before it ended; a new one continues from there."
_CONTINUED_IN_ANOTHER_JOB: Final = (
    "It continued in another Job: the previous one was deleted, or the spec was changed."
)
_HOW_TO_SEED_AGAIN: Final = "Set another spec.seed.runId to seed again."


def is_open(kind: RunKind, run_id: str, status: Status, jobs: Iterable[ObservedJob]) -> bool:
    """Whether a run with that id is requested and has not ended."""
    if kind is RunKind.VERIFY:
        is_recorded = status.verify is not None and status.verify.ended_run_id == run_id
    else:
        is_recorded = has_ended(status.restore if kind is RunKind.RESTORE else status.seed, run_id)
    if not run_id or is_recorded:
        return False
    return not any(job.kind is kind and job.run_id == run_id and job.outcome is not None for job in jobs)


def has_ended(status: RunStatus | None, run_id: str) -> bool:
    """Whether *status* belongs to that run and records its end."""
    return status is not None and status.run_id == run_id and status.phase in _ENDED


def is_older(job: ObservedJob, recorded: ArchiveStatus | VerifyStatus) -> bool:
    """Whether *job* ended before the run in the status, which stays reported after its Job is deleted."""
    if job.name == recorded.job or recorded.phase in UNFINISHED:
        return False
    ended_s = parse_timestamp(recorded.completion_time or "") or 0.0
    return job.outcome is not None and (job.ended_s or job.created_s) < ended_s


def newest_job(jobs: Iterable[ObservedJob], kind: RunKind, run_id: str | None = None) -> ObservedJob | None:
    """Returns the newest Job of *kind*; with *run_id*, of that run, preferring a Job that has ended."""
    candidates = [job for job in jobs if job.kind is kind and run_id in {None, job.run_id}]
    return max(
        candidates,
        key=lambda job: (job.outcome is not None and run_id is not None, job.created_s, job.name),
        default=None,
    )


def driver_reports(job: ObservedJob) -> list[tuple[ObservedPod, Report]]:
    """Returns the last report of each driver of *job* that has made one, newest driver first."""
    pods = sorted(job.pods, key=lambda pod: (-pod.created_s, pod.name))
    return [(pod, report) for pod in pods if (report := _report(pod, job.kind)) is not None]


def _report(pod: ObservedPod, kind: RunKind) -> Report | None:
    report = None if pod.terminated_message is None else parse_report(pod.terminated_message)
    if report is None and pod.reading is not None:
        report = pod.reading.report
    return report if report is not None and report.kind is kind else None


def last_report(job: ObservedJob) -> Report | None:
    """Returns the last report of the newest driver that has made one."""
    return next((report for _, report in driver_reports(job)), None)


def live_driver(job: ObservedJob) -> ObservedPod | None:
    """Returns the newest driver that runs or will run; None without one."""
    alive = [pod for pod in job.pods if pod.is_alive]
    return max(alive, key=lambda pod: pod.created_s, default=None)


def has_no_driver(job: ObservedJob) -> bool:
    """Whether *job* is active but has no driver pod."""
    return job.outcome is None and not job.suspended and live_driver(job) is None


def phase_of(job: ObservedJob) -> RunPhase:
    if job.outcome is not None and job.outcome in _FINAL:
        return _FINAL[job.outcome]
    if job.suspended:
        return RunPhase.PAUSED if job.queue is None else RunPhase.PENDING
    pod = live_driver(job)
    return RunPhase.RUNNING if pod is not None and pod.phase == "Running" else RunPhase.PENDING


def driver_problem(job: ObservedJob, *, flow: MirrorFlow | None, now_s: float) -> Problem | None:
    """Returns why an active job does not run; None where no cause is known or the job is not active."""
    if job.suspended and job.queue is not None and job.outcome is None:
        what = "SparkApplication" if job.attempts else "Job"
        return Problem(Reason.QUEUED, f"Kueue has not admitted the {what} yet: it is in queue {job.queue}.")
    if job.outcome is not None or job.suspended:
        return None
    return next(_problems(job, flow, now_s), None)


def job_problem(
    observation: Observation, kind: RunKind, job: ObservedJob | None, flow: MirrorFlow | None
) -> Problem | None:
    """Returns why the job of *kind* does not run, or is not created because the cluster lacks its kind; None as above."""
    if job is not None:
        return driver_problem(job, flow=flow, now_s=observation.now_s)
    return next(
        (
            Problem(Reason.OBJECTS_REFUSED, refused.message)
            for refused in observation.refused
            if refused.is_kind_missing and refused.part == kind.value
        ),
        None,
    )


def _problems(job: ObservedJob, flow: MirrorFlow | None, now_s: float) -> Iterator[Problem]:
    pod = live_driver(job)
    if pod is not None:
        path = f"spec.{_JOB_OF.get(job.kind, job.kind.value)}.driver"
        yield from pod_problems(pod, f"{job.kind.value} driver", path, flow, now_s)
    elif job.attempts:
        yield from _submission_problems(job.attempts[-1], job, now_s)
    elif job.events:
        quote = bounded(job.events[-1].message, QUOTE_MAX)
        yield Problem(Reason.PODS_REFUSED, f"The API server refuses the {job.kind.value}'s driver: {quote}")


def _submission_problems(newest: ObservedAttempt, job: ObservedJob, now_s: float) -> Iterator[Problem]:
    """Yields why a SparkApplication has no driver; nothing where one has run, or is expected."""
    if job.retry_at_s is not None:
        if not newest.pods:
            quote = bounded(newest.message or "", QUOTE_MAX) or "it reports no reason"
            yield Problem(Reason.NOT_SUBMITTED, f"The Spark operator could not start {newest.name}: {quote}")
    elif not newest.state and now_s - newest.created_s >= UNTAKEN_S:
        yield Problem(
            Reason.NOT_SUBMITTED,
            f"No Spark operator has taken SparkApplication {newest.name}: check that one runs and watches this namespace.",
        )
    elif job.events:
        quote = bounded(job.events[-1].message, QUOTE_MAX)
        yield Problem(Reason.NOT_SUBMITTED, f"The Spark operator reports of {newest.name}: {quote}")


def failure_message(job: ObservedJob, report: Report | None) -> str:
    """Returns a sentence without a final stop: why the job failed, and its own message."""
    pod = max(job.pods, key=lambda pod: (pod.created_s, pod.name), default=None)
    meaning = "" if pod is None else _EXIT_MEANINGS.get(pod.exit_code or 0, "")
    if pod is not None:
        meaning = _MEANINGS_OF_KIND.get((job.kind, pod.exit_code or 0), meaning)
    quote = bounded(job.message or "", QUOTE_MAX) or "Kubernetes reports no reason"
    why = quote if job.reason is None else _GIVEN_UP.get(job.reason, quote)
    if meaning and job.reason == "PodFailurePolicy":
        why, meaning = meaning, ""
    causes = [why, meaning, None if report is None else report.message]
    return f"It failed: {': '.join(cause for cause in causes if cause)}"


def log_hint(job: ObservedJob) -> str:
    """Returns a sentence with the command that shows the log of the job's newest driver."""
    if not job.attempts:
        return f"See kubectl logs job/{job.name}."
    if not job.pods:
        return f"See kubectl describe sparkapplication/{job.name}."
    pod = max(job.pods, key=lambda pod: (pod.created_s, pod.name))
    return f"See kubectl logs {pod.name}."


def schedule_overdue_in_s(
    observation: Observation, kind: RunKind, schedule: str, last_s: float | None
) -> float | None:
    """Returns the seconds until a scheduled run is overdue whose last one succeeded at *last_s*, 0 if it is.

    None without a readable schedule, and before its CronJob exists.
    """
    gap_days = days_between_max(schedule) if schedule else None
    created_s = observation.schedules_created_s.get(kind)
    if gap_days is None or created_s is None:
        return None
    # One day more than the longest gap of the schedule, because a run may take that long.
    return max(0.0, max(last_s or 0.0, created_s) + (gap_days + 1) * DAY_S - observation.now_s)


def seed_totals(before: SeedStatus, reports: Iterable[tuple[ObservedPod, Report]]) -> dict[str, object]:
    """Returns the updated totals of the status *before*; *reports*: each with its driver's pod."""
    driver, records, size_bytes = before.driver, before.records, before.bytes
    for pod, report in sorted(reports, key=lambda item: (item[0].created_s, item[0].uid)):
        created = timestamp(pod.created_s)
        if driver is not None and pod.uid != driver.uid and created < driver.creation_time:
            continue
        if driver is None:
            # The first driver. Totals of a release that recorded no driver are attributed to it, too.
            driver = SeedDriver(uid=pod.uid, creation_time=created)
        elif pod.uid != driver.uid:
            driver = SeedDriver(
                uid=pod.uid, creation_time=created, earlier_records=records, earlier_bytes=size_bytes
            )
        records = driver.earlier_records + report.records
        size_bytes = driver.earlier_bytes + report.bytes
    return {"driver": driver, "records": records, "bytes": size_bytes}


def seed_status(observation: Observation, flow: MirrorFlow | None) -> SeedStatus | None:
    """Returns `status.seed`; unchanged where the spec requests no seed."""
    before = observation.resource.status.seed
    run_id = "" if flow is None or flow.spec.seed is None else flow.spec.seed.run_id
    if not run_id:
        return before
    job = newest_job(observation.jobs, RunKind.SEED, run_id)
    recorded = before if before is not None and before.run_id == run_id else None
    if job is None:
        return recorded if has_ended(recorded, run_id) else _without_job(run_id, recorded)
    return _with_job(job, run_id, recorded, observation)


def _without_job(run_id: str, recorded: SeedStatus | None) -> SeedStatus:
    """Returns the status of a seed whose Job is not created yet or was deleted before it ended."""
    pending = RunPhase.PENDING.value
    if recorded is None:
        return SeedStatus(run_id=run_id, phase=pending)
    message = recorded.message
    if recorded.start_time is not None:
        message = _JOB_DELETED
    return recorded.model_copy(update={"phase": pending, "message": message, "estimated_seconds": None})


def _with_job(
    job: ObservedJob, run_id: str, recorded: SeedStatus | None, observation: Observation
) -> SeedStatus:
    phase = phase_of(job)
    report = last_report(job)
    status = recorded or SeedStatus(run_id=run_id)
    # A seed's start time stays, however often it is paused or its Job re-created.
    started_s = job.started_s or job.created_s
    update: dict[str, object] = {
        "phase": phase.value,
        "start_time": status.start_time or (None if phase is RunPhase.PENDING else timestamp(started_s)),
        "completion_time": None if job.outcome is None else timestamp(job.ended_s or observation.now_s),
        "message": _message(job, report, status),
        "estimated_seconds": None,
    }
    if report is not None:
        update |= _figures(report) | seed_totals(status, driver_reports(job))
    if phase is RunPhase.RUNNING and report is not None:
        update["estimated_seconds"] = report.estimated_s
    if phase is not RunPhase.RUNNING:
        update |= {"records_per_second": 0, "bytes_per_second": 0}
    return status.model_copy(update=update)


def _message(job: ObservedJob, report: Report | None, status: SeedStatus) -> str:
    if job.outcome == "Failed":
        return failure_message(job, report)
    if report is None:
        return status.message
    # A re-created Job has the same name as the previous one, whose driver may still be terminating.
    drivers = sum(pod.created_s >= job.created_s for pod in job.pods)
    began_s = parse_timestamp(status.start_time or "")
    is_another = began_s is not None and job.created_s > began_s
    sentences = (
        _CONTINUED_IN_ANOTHER_JOB if is_another else "",
        f"It took {drivers} drivers; cost and rates are those of the last one." if drivers > 1 else "",
        report.message,
    )
    return bounded(" ".join(sentence for sentence in sentences if sentence))


def _figures(report: Report) -> dict[str, object]:
    return {
        "partitions": report.partitions,
        "wave": report.wave,
        "remaining_records": report.remaining_records,
        "gap_records": report.gap_records,
        "records_per_second": report.records_per_s,
        "bytes_per_second": report.bytes_per_s,
        "guarantee": report.guarantee or "",
        "cost": report.cost,
    }


def seeded(observation: Observation, flow: MirrorFlow | None, status: SeedStatus | None) -> Finding | None:
    """Returns Seeded: whether the target was filled; None where the spec requests no seed."""
    run_id = "" if flow is None or flow.spec.seed is None else flow.spec.seed.run_id
    if not run_id or status is None:
        return None
    job = newest_job(observation.jobs, RunKind.SEED, run_id)
    match status.phase:
        case RunPhase.SUCCEEDED.value:
            return _succeeded(status)
        case RunPhase.FAILED.value:
            hint = "" if job is None else f" {log_hint(job)}"
            return no(
                _KIND,
                Reason.SEED_FAILED,
                f"{status.message.rstrip('.')}. The connector continues. {_HOW_TO_SEED_AGAIN}{hint}",
            )
        case RunPhase.PAUSED.value:
            return no(
                _KIND, Reason.PAUSED, f"The flow is not Running, so its seed is suspended{_progress(status)}."
            )
    problem = job_problem(observation, RunKind.SEED, job, flow)
    if problem is not None:
        beside = "" if observation.runs.replaces_source else " The connector continues."
        return no(_KIND, problem.reason, f"{problem.message.rstrip('.')}.{beside}")
    if status.phase == RunPhase.RUNNING.value:
        return _running(observation, status)
    return unknown(_KIND, Reason.STARTING, status.message or "The seed's driver has not started yet.")


def _succeeded(status: SeedStatus) -> Finding:
    gap, lost = status.gap_records, 0 if status.partitions is None else status.partitions.lost
    done = f"{status.records:,} records were copied to {0 if status.partitions is None else status.partitions.total:,} partitions"
    if gap or lost:
        return yes(
            _KIND,
            Reason.SOURCE_DATA_LOST,
            f"{done}; the source had deleted {gap:,} offsets of {lost:,} partitions before they could be copied.",
        )
    return yes(_KIND, Reason.SEEDED, f"{done}; the connector continues from there. {status.message}".rstrip())


def _running(observation: Observation, status: SeedStatus) -> Finding:
    if status.partitions is None:
        return no(_KIND, Reason.SEEDING, "The seed examines both clusters.")
    rate = f", {status.records_per_second:,} records a second" if status.records_per_second else ""
    ends = "" if status.estimated_seconds is None else _remaining_time(status.estimated_seconds)
    beside = (
        ""
        if observation.runs.replaces_source
        else " It makes no progress. The connector's pod starts and waits until the seed releases the flow."
    )
    # The stopped partitions, and the causes of delays.
    details = f" {status.message.rstrip('.')}." if status.message else ""
    return no(
        _KIND, Reason.SEEDING, f"The seed fills the target{_progress(status)}{rate}{ends}.{details}{beside}"
    )


def _progress(status: SeedStatus) -> str:
    if status.partitions is None:
        return ""
    done = f"{status.partitions.done:,} of {status.partitions.total:,} partitions done"
    return f": {done}, {status.remaining_records:,} offsets left"


def _remaining_time(estimated_s: int) -> str:
    for size_s, unit in _UNITS:
        if estimated_s >= size_s:
            count = round(estimated_s / size_s)
            return f", about {count} {unit}{'' if count == 1 else 's'} more"
    return ", less than a minute more"
