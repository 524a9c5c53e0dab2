"""Computes the condition Seeded and `status.seed` (progress, rates, result) for `spec.seed.runId`. Pure.

Each driver counts from zero. `status.seed.driver` records the last driver included in the totals and what the
drivers before it had copied, so a restarted operator neither loses nor repeats a part. Drivers are processed
in the order in which their pods were created: one that is older than the recorded one is already included.
"""

from collections.abc import Iterable
from typing import Final

from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.api.status import RunPhase, SeedDriver, SeedStatus, seconds, timestamp
from mirrorflow_operator.plan.jobs import RunKind
from mirrorflow_operator.status.conditions import ConditionType, Finding, Reason, bounded, no, unknown, yes
from mirrorflow_operator.status.observation import JobSeen, Observation, PodSeen
from mirrorflow_operator.status.progress import Report
from mirrorflow_operator.status.spark_jobs import (
    failure,
    has_ended,
    last_report,
    newest,
    phase_of,
    reports,
    see,
    trouble_of,
)


def totals(before: SeedStatus, reports: Iterable[tuple[PodSeen, Report]]) -> dict[str, object]:
    """Returns the fields of the status *before* that *reports*, each with its driver's pod, update."""
    driver, records, size_bytes = before.driver, before.records, before.bytes
    for pod, report in sorted(reports, key=lambda one: (one[0].created_s, one[0].uid)):
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


_KIND: Final = ConditionType.SEEDED
_UNITS: Final = ((86_400, "day"), (3_600, "hour"), (60, "minute"))
_DELETED: Final = "Its Job was deleted before it ended; a new one continues from there."
_ANOTHER: Final = "It continued in another Job: the previous one was deleted, or the spec was changed."
_AGAIN: Final = "Set another spec.seed.runId to seed again."


def seed_status(observation: Observation, flow: MirrorFlow | None) -> SeedStatus | None:
    """Returns `status.seed`; unchanged where the spec requests no seed."""
    before = observation.resource.status.seed
    run_id = "" if flow is None or flow.spec.seed is None else flow.spec.seed.run_id
    if not run_id:
        return before
    job = newest(observation.jobs, RunKind.SEED, run_id)
    same = before if before is not None and before.run_id == run_id else None
    if job is None:
        return same if has_ended(same, run_id) else _without_job(run_id, same)
    return _with_job(job, run_id, same, observation)


def _without_job(run_id: str, same: SeedStatus | None) -> SeedStatus:
    """Returns the status of a seed whose Job is not created yet or was deleted before it ended."""
    pending = RunPhase.PENDING.value
    if same is None:
        return SeedStatus(run_id=run_id, phase=pending)
    message = same.message
    if same.start_time is not None:
        message = _DELETED
    return same.model_copy(update={"phase": pending, "message": message, "estimated_seconds": None})


def _with_job(job: JobSeen, run_id: str, same: SeedStatus | None, observation: Observation) -> SeedStatus:
    phase = phase_of(job)
    report = last_report(job)
    found = same or SeedStatus(run_id=run_id)
    # A seed's start time stays, however often it is paused or its Job re-created.
    started_s = job.started_s or job.created_s
    update: dict[str, object] = {
        "phase": phase.value,
        "start_time": found.start_time or (None if phase is RunPhase.PENDING else timestamp(started_s)),
        "completion_time": timestamp(job.ended_s or observation.now_s) if job.outcome else None,
        "message": _message(job, report, found),
        "estimated_seconds": None,
    }
    if report is not None:
        update |= _figures(report) | totals(found, reports(job))
    if phase is RunPhase.RUNNING and report is not None:
        update["estimated_seconds"] = report.estimated_s
    if phase is not RunPhase.RUNNING:
        update |= {"records_per_second": 0, "bytes_per_second": 0}
    return found.model_copy(update=update)


def _message(job: JobSeen, report: Report | None, found: SeedStatus) -> str:
    if job.outcome == "Failed":
        return failure(job, report)
    if report is None:
        return found.message
    # A re-created Job has the same name as the previous one, whose driver may still be terminating.
    drivers = sum(pod.created_s >= job.created_s for pod in job.pods)
    began_s = seconds(found.start_time or "")
    is_another = began_s is not None and job.created_s > began_s
    said = (
        _ANOTHER if is_another else "",
        f"It took {drivers} drivers; cost and rates are those of the last one." if drivers > 1 else "",
        report.message,
    )
    return bounded(" ".join(one for one in said if one))


def _figures(report: Report) -> dict[str, object]:
    return {
        "partitions": report.partitions,
        "remaining_records": report.remaining_records,
        "gap_records": report.gap_records,
        "records_per_second": report.records_per_s,
        "bytes_per_second": report.bytes_per_s,
        "guarantee": report.guarantee,
        "cost": report.cost,
    }


def seeded(observation: Observation, flow: MirrorFlow | None, status: SeedStatus | None) -> Finding | None:
    """Returns Seeded: whether the target was filled; None where the spec requests no seed."""
    run_id = "" if flow is None or flow.spec.seed is None else flow.spec.seed.run_id
    if not run_id or status is None:
        return None
    job = newest(observation.jobs, RunKind.SEED, run_id)
    match status.phase:
        case RunPhase.SUCCEEDED.value:
            return _succeeded(status)
        case RunPhase.FAILED.value:
            hint = "" if job is None else f" {see(job.name)}"
            return no(
                _KIND,
                Reason.SEED_FAILED,
                f"{status.message.rstrip('.')}. The connector continues. {_AGAIN}{hint}",
            )
        case RunPhase.PAUSED.value:
            return no(
                _KIND, Reason.PAUSED, f"The flow is not Running, so its seed is suspended{_left(status)}."
            )
    trouble = None if job is None else trouble_of(job, flow=flow, now_s=observation.now_s)
    if trouble is not None:
        beside = "" if observation.runs.holds_connector else " The connector continues."
        return no(_KIND, trouble.reason, f"{trouble.message.rstrip('.')}.{beside}")
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
    ends = "" if status.estimated_seconds is None else _more(status.estimated_seconds)
    beside = (
        ""
        if observation.runs.holds_connector
        else " It makes no progress, so the connector continues beside it."
    )
    told = (
        f" {status.message.rstrip('.')}." if status.message else ""
    )  # the stopped partitions, and what delays tasks
    return no(_KIND, Reason.SEEDING, f"The seed fills the target{_left(status)}{rate}{ends}.{told}{beside}")


def _left(status: SeedStatus) -> str:
    if status.partitions is None:
        return ""
    done = f"{status.partitions.done:,} of {status.partitions.total:,} partitions done"
    return f": {done}, {status.remaining_records:,} offsets left"


def _more(estimated_s: int) -> str:
    for size_s, unit in _UNITS:
        if estimated_s >= size_s:
            count = round(estimated_s / size_s)
            return f", about {count} {unit}{'' if count == 1 else 's'} more"
    return ", less than a minute more"
