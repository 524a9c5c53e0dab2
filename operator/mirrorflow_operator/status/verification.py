"""Computes the condition Verified and `status.verify` from verifications by runId or by schedule. Pure.

The newest run is reported. While a scheduled run is in progress, the condition keeps the previous verdict.
While a run requested by runId is in progress, the condition is Unknown, because the user waits for its
verdict.
"""

from typing import Final

from mirrorflow_core.switchover.last_verification import LastVerification
from mirrorflow_operator.api.spark_workloads import Verify
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.api.status import (
    Condition,
    ConditionStatus,
    RunPhase,
    Status,
    VerifyStatus,
)
from mirrorflow_operator.api.timestamps import parse_timestamp, timestamp
from mirrorflow_operator.plan.spark_run import RunKind
from mirrorflow_operator.status.conditions import ConditionType, Finding, Reason, no, unknown, yes
from mirrorflow_operator.status.observation import Observation, ObservedJob
from mirrorflow_operator.status.spark_jobs import (
    UNFINISHED,
    driver_problem,
    failure_message,
    is_older,
    is_open,
    job_problem,
    last_report,
    log_hint,
    newest_job,
    phase_of,
    schedule_overdue_in_s,
)

_KIND: Final = ConditionType.VERIFIED
_VERDICTS: Final = frozenset({Reason.EQUAL, Reason.DIFFERENCES_FOUND, Reason.UNDECIDED})
_NOTHING_COMPARED: Final = "No window was compared: the topics have no records, or the sample selects none."


def verify_status(observation: Observation, flow: MirrorFlow | None) -> VerifyStatus | None:
    """Returns `status.verify` for the newest verification; unchanged where the spec requests none."""
    before = observation.resource.status.verify
    verify = None if flow is None else flow.spec.verify
    if verify is None or not (verify.run_id or verify.schedule):
        return before
    job = newest_job(observation.jobs, RunKind.VERIFY)
    current = before or VerifyStatus()
    if job is not None and (before is None or not is_older(job, before)):
        current = _with_job(job, current, observation)
    elif current.phase in UNFINISHED and current.job:
        message = "Its Job was deleted before it reported a result."
        current = current.model_copy(update={"phase": RunPhase.LOST.value, "message": message})
    requested = newest_job(observation.jobs, RunKind.VERIFY, verify.run_id) if verify.run_id else None
    if requested is not None and requested.outcome is not None:
        current = current.model_copy(update={"ended_run_id": verify.run_id})
    return current if current != VerifyStatus() else None


def _with_job(job: ObservedJob, current: VerifyStatus, observation: Observation) -> VerifyStatus:
    same = (
        current
        if current.job == job.name
        else VerifyStatus(ended_run_id=current.ended_run_id, verdict_time=current.verdict_time)
    )
    phase, report = phase_of(job), last_report(job)
    if job.outcome is not None and report is not None and report.is_done:
        # A run that found differences exits with a non-zero status, which Kubernetes counts as a failure.
        phase = RunPhase.SUCCEEDED
    ended = None if job.outcome is None else timestamp(job.ended_s or observation.now_s)
    update: dict[str, object] = {
        "run_id": job.run_id,
        "job": job.name,
        "phase": phase.value,
        "start_time": None if phase is RunPhase.PENDING else timestamp(job.started_s or job.created_s),
        "completion_time": ended,
        "message": "" if report is None else report.message or "",
    }
    if report is not None:
        update |= {
            "windows": report.windows,
            "source_records": report.source_records,
            "target_records": report.target_records,
            "differences": report.differences,
            "cost": report.cost,
        }
    if phase is RunPhase.FAILED:
        update["message"] = failure_message(job, report)
    new = same.model_copy(update=update)
    if job.outcome is not None and _verdict(new) is not None:
        new = new.model_copy(update={"verdict_time": ended})
    return new


def _verdict(status: VerifyStatus, hint: str = "") -> Finding | None:
    """Returns the verdict of a finished run on the two clusters; None where it has none. *hint*: where its log is."""
    windows = status.windows
    if windows is None:
        return None
    if status.differences or windows.different or windows.reordered:
        text = f"{windows.different:,} of {windows.total:,} windows differ, {windows.reordered:,} are in another order"
        count = f": {status.differences:,} records" if status.differences else ""
        return no(_KIND, Reason.DIFFERENCES_FOUND, f"{text}{count}.{hint}")
    if status.phase != RunPhase.SUCCEEDED.value:
        return None
    if not windows.total:
        return unknown(_KIND, Reason.UNDECIDED, _NOTHING_COMPARED)
    compared = f"{windows.equal:,} of {windows.total:,} windows are equal, {status.source_records:,} records"
    undecided = max(windows.undecided, windows.total - windows.equal)
    if undecided:
        return unknown(_KIND, Reason.UNDECIDED, f"{compared}; {undecided:,} could not be compared.")
    return yes(_KIND, Reason.EQUAL, f"{compared}.")


def last_verification(status: Status) -> LastVerification | None:
    """Returns the last verification of a flow with the verdict equal or different, by its *status*; None if that is not known.

    A scheduled run in progress keeps the verdict of the one before it. A run that was requested, has failed or could not compare
    everything leaves none.
    """
    verify = status.verify
    if verify is None or (ended_s := parse_timestamp(verify.verdict_time or "")) is None:
        return None
    is_running = verify.phase in UNFINISHED
    verdict = _reported_verdict(status) if is_running else _verdict(verify)
    if verdict is None or verdict.reason is Reason.UNDECIDED:
        return None
    return LastVerification(
        run="before the running one" if is_running else verify.run_id or verify.job,
        ended_ms=int(ended_s * 1000),
        is_equal=verdict.reason is Reason.EQUAL,
    )


def verified(
    observation: Observation, flow: MirrorFlow | None, status: VerifyStatus | None
) -> Finding | None:
    """Returns Verified: whether the last run found both sides equal; None where the spec requests no run."""
    verify = None if flow is None else flow.spec.verify
    if verify is None or not (verify.run_id or verify.schedule):
        return None
    if is_open(RunKind.VERIFY, verify.run_id, observation.resource.status, observation.jobs):
        return _finding_while_running(observation, flow, verify)
    finding = _last_run(observation, flow, status)
    if (
        finding.reason in _VERDICTS
        and finding.status is not ConditionStatus.FALSE
        and overdue_in_s(observation, verify, status) == 0
    ):
        return unknown(
            _KIND,
            Reason.VERIFICATION_OVERDUE,
            f"The last verification ended {'' if status is None else status.verdict_time}, longer ago than spec.verify.schedule"
            " allows.",
        )
    return finding


def _finding_while_running(observation: Observation, flow: MirrorFlow | None, verify: Verify) -> Finding:
    """Returns the finding while the run of runId has not ended."""
    if observation.runs.seed:
        return unknown(_KIND, Reason.SEEDING, "The verification starts when the seed has ended.")
    if observation.runs.restore:
        return unknown(_KIND, Reason.RESTORING, "The verification starts when the restore has ended.")
    job = newest_job(observation.jobs, RunKind.VERIFY, verify.run_id)
    problem = job_problem(observation, RunKind.VERIFY, job, flow)
    if problem is not None:
        return unknown(_KIND, problem.reason, problem.message)
    if job is not None and job.suspended:
        return unknown(_KIND, Reason.STOPPED, "spec.state is Stopped: the verification is suspended.")
    return unknown(_KIND, Reason.VERIFYING, f"Both clusters are being compared{_progress(job)}.")


def _progress(job: ObservedJob | None) -> str:
    report = None if job is None else last_report(job)
    if report is None or not report.windows.total:
        return ""
    windows = report.windows
    done = windows.equal + windows.reordered + windows.different + windows.undecided
    differing = windows.different + windows.reordered
    return f": {done:,} of {windows.total:,} windows, {differing:,} of them differ"


def _last_run(observation: Observation, flow: MirrorFlow | None, status: VerifyStatus | None) -> Finding:
    """Returns the finding of the last run; while a scheduled run is in progress, the reported verdict."""
    if status is None or not status.job:
        problem = job_problem(observation, RunKind.VERIFY, None, flow)
        if problem is not None:
            return unknown(_KIND, problem.reason, problem.message)
        return unknown(_KIND, Reason.NOT_VERIFIED_YET, "No verification has started yet.")
    if status.phase in UNFINISHED:
        before = _reported_verdict(observation.resource.status)
        if before is not None:
            return before
        job = newest_job(observation.jobs, RunKind.VERIFY)
        problem = None if job is None else driver_problem(job, flow=flow, now_s=observation.now_s)
        if problem is not None:
            return unknown(_KIND, problem.reason, problem.message)
        return unknown(_KIND, Reason.VERIFYING, f"Both clusters are being compared{_progress(job)}.")
    if status.phase == RunPhase.LOST.value:
        return unknown(_KIND, Reason.JOB_DELETED, status.message)
    job = newest_job(observation.jobs, RunKind.VERIFY)
    hint = "" if job is None or job.name != status.job else f" {log_hint(job)}"
    verdict = _verdict(status, hint)
    if verdict is not None:
        return verdict
    return unknown(_KIND, Reason.VERIFICATION_FAILED, f"{status.message.rstrip('.')}.{hint}")


def _reported_verdict(status: Status) -> Finding | None:
    """Returns the verdict that *status* reports; None without one."""
    reported: Condition | None = next(
        (condition for condition in status.conditions if condition.type == _KIND.value),
        None,
    )
    reason = next(
        (verdict for verdict in _VERDICTS if reported is not None and verdict.value == reported.reason), None
    )
    if reported is None or reason is None:
        return None
    return Finding(kind=_KIND, status=reported.status, reason=reason, message=reported.message)


def overdue_in_s(observation: Observation, verify: Verify, status: VerifyStatus | None) -> float | None:
    """Returns the seconds until a verification is overdue, 0 if it is; None without a readable schedule."""
    verdict_s = None if status is None else parse_timestamp(status.verdict_time or "")
    return schedule_overdue_in_s(observation, RunKind.VERIFY, verify.schedule, verdict_s)
