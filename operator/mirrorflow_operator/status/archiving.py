"""Computes Archived and `status.archive`, Restored and `status.restore`, from the Jobs of exports and restores. Pure.

An export is started by the schedule, or has no end and follows the source. The newest Job is reported. What the archive
has is known from the reports of drivers, so the last commit stays in the status after its Job is deleted.
"""

from typing import Final

from mirrorflow_operator.api.spark_workloads import Archive
from mirrorflow_operator.api.spec import MirrorFlow, State
from mirrorflow_operator.api.status import ArchiveStatus, RestoreStatus, RunPhase
from mirrorflow_operator.api.timestamps import parse_timestamp, timestamp
from mirrorflow_operator.plan.spark_run import ARCHIVE_AGAIN_S, EXIT_DIFFERENT, RunKind
from mirrorflow_operator.status.conditions import ConditionType, Finding, Reason, no, unknown, yes
from mirrorflow_operator.status.cron_schedule import next_time_s
from mirrorflow_operator.status.observation import Observation, ObservedJob
from mirrorflow_operator.status.spark_jobs import (
    UNFINISHED,
    driver_problem,
    failure_message,
    has_ended,
    is_older,
    job_problem,
    last_report,
    log_hint,
    newest_job,
    phase_of,
    schedule_overdue_in_s,
)

_ARCHIVED: Final = ConditionType.ARCHIVED
_RESTORED: Final = ConditionType.RESTORED
_FAILURES: Final = frozenset({Reason.ARCHIVE_FAILED, Reason.ARCHIVE_INCOMPLETE})
# An export that follows the source is overdue after this time without a complete increment: twenty failures of its
# driver at the default interval, three Jobs, and the time between two of them.
FOLLOW_OVERDUE_S: Final = 7_200.0
_JOB_DELETED: Final = "Its Job was deleted before it ended; the next export continues."
_HOW_TO_RESTORE_AGAIN: Final = "Set another spec.restore.runId to restore again."


def archive_status(observation: Observation, flow: MirrorFlow | None) -> ArchiveStatus | None:
    """Returns `status.archive` for the newest export; unchanged where the spec requests none."""
    before = observation.resource.status.archive
    archive = _requested(flow)
    if flow is None or archive is None:
        return before
    job, current = newest_job(observation.jobs, RunKind.ARCHIVE), before or ArchiveStatus()
    if job is not None and not is_older(job, current):
        current = _exported(job, current, observation)
    elif current.phase in UNFINISHED and current.job:
        current = current.model_copy(update={"phase": RunPhase.LOST.value, "message": _JOB_DELETED})
    is_halted = flow.spec.state is State.STOPPED
    next_s = None if is_halted else next_time_s(archive.schedule, archive.time_zone, observation.now_s)
    current = current.model_copy(update={"next_time": None if next_s is None else timestamp(next_s)})
    return current if current != ArchiveStatus() else None


def _requested(flow: MirrorFlow | None) -> Archive | None:
    """Returns `spec.archive` if it requests exports; None also where it only names the archive of restores."""
    archive = None if flow is None else flow.spec.archive
    return archive if archive is not None and (archive.schedule or archive.follow) else None


def _exported(job: ObservedJob, current: ArchiveStatus, observation: Observation) -> ArchiveStatus:
    phase, report = phase_of(job), last_report(job)
    update: dict[str, object] = {
        "job": job.name,
        "phase": phase.value,
        "start_time": None if phase is RunPhase.PENDING else timestamp(job.started_s or job.created_s),
        "completion_time": None if job.outcome is None else timestamp(job.ended_s or observation.now_s),
        "message": "" if report is None else report.message,
    }
    if report is not None and report.commit:
        update |= {"commit": report.commit, "records": report.archived_records}
    if report is not None and report.archived_s is not None:
        update["success_time"] = timestamp(report.archived_s)
    if phase is RunPhase.FAILED:
        update["message"] = failure_message(job, report)
    return current.model_copy(update=update)


def archived(
    observation: Observation, flow: MirrorFlow | None, status: ArchiveStatus | None
) -> Finding | None:
    """Returns Archived: whether the archive has what the source has; None where the spec requests no export."""
    archive = _requested(flow)
    if archive is None:
        return None
    if status is None or not status.job:
        missing = job_problem(observation, RunKind.ARCHIVE, None, flow)
        if missing is not None:
            return unknown(_ARCHIVED, missing.reason, missing.message)
        return unknown(_ARCHIVED, Reason.NOT_ARCHIVED_YET, "No export has started yet.")
    job = newest_job(observation.jobs, RunKind.ARCHIVE)
    if status.phase == RunPhase.FAILED.value:
        return _failed_export(job, archive, status)
    if status.phase == RunPhase.PAUSED.value:
        return unknown(_ARCHIVED, Reason.STOPPED, "spec.state is Stopped: the export is suspended.")
    problem = None if job is None else driver_problem(job, flow=flow, now_s=observation.now_s)
    if problem is not None and not (problem.reason is Reason.QUEUED and status.success_time):
        return no(_ARCHIVED, problem.reason, problem.message)
    failure = _failure_before(observation, job, archive, status)
    if failure is not None:
        return failure
    if archive_overdue_in_s(observation, archive, status) == 0:
        why = f" {status.message}" if status.message and status.phase == RunPhase.RUNNING.value else ""
        allowed = "the schedule allows" if archive.schedule else f"{FOLLOW_OVERDUE_S / 3600:g} hours"
        return unknown(
            _ARCHIVED,
            Reason.ARCHIVE_OVERDUE,
            f"The last complete export ended longer ago than {allowed}.{why}",
        )
    if status.success_time is None:
        return unknown(_ARCHIVED, Reason.ARCHIVING, "The first export has not ended yet.")
    how = f"every {archive.interval_seconds} s" if archive.follow else "by its schedule"
    return yes(_ARCHIVED, Reason.ARCHIVED, f"The last export is complete; what is new is added {how}.")


def _failure_before(
    observation: Observation, job: ObservedJob | None, archive: Archive, status: ArchiveStatus
) -> Finding | None:
    """Returns the failure of the export before the present one; None without one, or once the present one has a success.

    It is known from its Job, or from the reported condition where that Job is deleted, as with `follow` before the next one.
    """
    success_s = parse_timestamp(status.success_time or "")
    has_success = job is not None and success_s is not None and success_s >= job.created_s
    if has_success or status.phase == RunPhase.SUCCEEDED.value:
        return None
    ended = newest_job((other for other in observation.jobs if other.outcome is not None), RunKind.ARCHIVE)
    if ended is not None and archive.schedule:
        if phase_of(ended) is not RunPhase.FAILED:
            return None
        message = failure_message(ended, last_report(ended))
        return _failed_export(
            ended, archive, status.model_copy(update={"job": ended.name, "message": message})
        )
    reported = next(
        (
            condition
            for condition in observation.resource.status.conditions
            if condition.type == _ARCHIVED.value
        ),
        None,
    )
    reason = next(
        (failure for failure in _FAILURES if reported is not None and failure.value == reported.reason), None
    )
    return None if reported is None or reason is None else no(_ARCHIVED, reason, reported.message)


def _failed_export(job: ObservedJob | None, archive: Archive, status: ArchiveStatus) -> Finding:
    is_job = job is not None and job.name == status.job
    pods = job.pods if job is not None and is_job else ()
    newest = max(pods, key=lambda pod: (pod.created_s, pod.name), default=None)
    is_incomplete = newest is not None and newest.exit_code == EXIT_DIFFERENT
    again = (
        "The next scheduled export continues."
        if archive.schedule
        else f"A new Job continues {ARCHIVE_AGAIN_S / 60:g} minutes later."
    )
    hint = f" {log_hint(job)}" if job is not None and is_job else ""
    return no(
        _ARCHIVED,
        Reason.ARCHIVE_INCOMPLETE if is_incomplete else Reason.ARCHIVE_FAILED,
        f"{status.message.rstrip('.')}. {again}{hint}",
    )


def archive_overdue_in_s(
    observation: Observation, archive: Archive, status: ArchiveStatus | None
) -> float | None:
    """Returns the seconds until the archive is overdue, 0 if it is; None where no export is requested or known."""
    success_s = None if status is None else parse_timestamp(status.success_time or "")
    if archive.schedule:
        return schedule_overdue_in_s(observation, RunKind.ARCHIVE, archive.schedule, success_s)
    job = newest_job(observation.jobs, RunKind.ARCHIVE)
    if not archive.follow or job is None:
        return None
    allowed_s = max(FOLLOW_OVERDUE_S, 2.0 * archive.interval_seconds)
    # A failed Job is replaced by a new one, so its age says nothing on an archive that has had a success.
    since_s = job.created_s if success_s is None else success_s
    return max(0.0, since_s + allowed_s - observation.now_s)


def restore_status(observation: Observation, flow: MirrorFlow | None) -> RestoreStatus | None:
    """Returns `status.restore`; unchanged where the spec requests no restore."""
    before = observation.resource.status.restore
    run_id = "" if flow is None or flow.spec.restore is None else flow.spec.restore.run_id
    if not run_id:
        return before
    job = newest_job(observation.jobs, RunKind.RESTORE, run_id)
    recorded = before if before is not None and before.run_id == run_id else RestoreStatus(run_id=run_id)
    if job is None:
        pending = recorded.model_copy(update={"phase": RunPhase.PENDING.value})
        return recorded if has_ended(recorded, run_id) else pending
    phase, report = phase_of(job), last_report(job)
    started_s = job.started_s or job.created_s
    update: dict[str, object] = {
        "phase": phase.value,
        "start_time": recorded.start_time or (None if phase is RunPhase.PENDING else timestamp(started_s)),
        "completion_time": None if job.outcome is None else timestamp(job.ended_s or observation.now_s),
    }
    if report is not None:
        update |= {
            "partitions": report.partitions,
            "records": report.records,
            "bytes": report.bytes,
            "message": report.message,
        }
    if phase is RunPhase.FAILED:
        update["message"] = failure_message(job, report)
    return recorded.model_copy(update=update)


def restored(
    observation: Observation, flow: MirrorFlow | None, status: RestoreStatus | None
) -> Finding | None:
    """Returns Restored: whether the archive is on the target; None where the spec requests no restore."""
    run_id = "" if flow is None or flow.spec.restore is None else flow.spec.restore.run_id
    if not run_id or status is None:
        return None
    job = newest_job(observation.jobs, RunKind.RESTORE, run_id)
    if status.phase == RunPhase.SUCCEEDED.value:
        return yes(_RESTORED, Reason.RESTORED, status.message or "The archive is on the target.")
    if status.phase == RunPhase.FAILED.value:
        hint = "" if job is None else f" {log_hint(job)}"
        message = f"{status.message.rstrip('.')}. The connector continues. {_HOW_TO_RESTORE_AGAIN}{hint}"
        return no(_RESTORED, Reason.RESTORE_FAILED, message)
    if observation.runs.seed:
        return unknown(_RESTORED, Reason.SEEDING, "The restore starts when the seed has ended.")
    if status.phase == RunPhase.PAUSED.value:
        return no(_RESTORED, Reason.STOPPED, "spec.state is Stopped: the restore is suspended.")
    problem = job_problem(observation, RunKind.RESTORE, job, flow)
    if problem is not None:
        return no(_RESTORED, problem.reason, problem.message)
    if status.phase != RunPhase.RUNNING.value:
        return unknown(_RESTORED, Reason.STARTING, "The restore's driver has not started yet.")
    beside = (
        ""
        if observation.runs.replaces_source
        else " It makes no progress. The connector's pod starts and waits until the restore releases the flow."
    )
    return no(_RESTORED, Reason.RESTORING, f"The restore fills the target{_progress(status)}.{beside}")


def _progress(status: RestoreStatus) -> str:
    if status.partitions is None or not status.partitions.total:
        return ""
    return f": {status.partitions.done:,} of {status.partitions.total:,} partitions done"
