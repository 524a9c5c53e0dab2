"""Combines the SparkApplications of one run to the job that they are, and decides which attempt should exist. Pure.

The rules are those of a Job (`plan.job_objects`): an exit status that a retry only repeats ends the run at once; a driver that was
stopped or whose node was drained does not count as a failure; after too many failures the run has failed.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from mirrorflow_operator.plan.spark_run import EXIT_STOPPED, FINAL_EXITS, RETRIES, Attempt
from mirrorflow_operator.status.observation import ObservedAttempt, ObservedJob, ObservedPod

COMPLETED: Final = "COMPLETED"
FAILED: Final = "FAILED"
# As the controller of Jobs: 10 s, 20 s, 40 s ... between two attempts.
BACKOFF_MIN_S: Final = 10.0
BACKOFF_MAX_S: Final = 320.0
SUBMISSION_FAILED: Final = "SubmissionFailed"  # the reason of an attempt that has had no driver
_EXIT: Final = re.compile(r"driver container failed with ExitCode: ([0-9]+)")
_POD_LOST: Final = "driver pod not found"


def job_of_attempts(attempts: Iterable[ObservedAttempt]) -> ObservedJob:
    """Returns the run of *attempts*, of which there is one at least; it is named after the newest."""
    ordered = tuple(sorted(attempts, key=lambda attempt: (attempt.number or 0, attempt.created_s)))
    first, newest = ordered[0], ordered[-1]
    outcome, reason, retry_at_s = _result(newest)
    return ObservedJob(
        name=newest.name,
        kind=newest.kind,
        uid=newest.uid,
        run_id=newest.run_id,
        created_s=first.created_s,
        started_s=newest.started_s,
        ended_s=_ended_s(newest),
        outcome=outcome,
        reason=reason,
        message=newest.message,
        suspended=newest.suspended and newest.state not in {COMPLETED, FAILED},
        queue=newest.queue,
        pods=tuple(pod for attempt in ordered for pod in attempt.pods),
        attempts=ordered,
        retry_at_s=retry_at_s,
    )


def _result(newest: ObservedAttempt) -> tuple[str | None, str | None, float | None]:
    """Returns outcome and reason of the run, as of a Job, and when the next attempt is due."""
    if newest.state == COMPLETED:
        return "Complete", None, None
    if newest.state != FAILED:
        return None, None, None
    if exit_status(newest) in FINAL_EXITS[newest.kind]:
        return "Failed", "PodFailurePolicy", None
    if newest.number is None:
        return "Failed", None, None
    if _failures(newest) > RETRIES[newest.kind]:
        return "Failed", "BackoffLimitExceeded" if newest.pods else SUBMISSION_FAILED, None
    delay_s = min(BACKOFF_MIN_S * 2 ** min(newest.number - 1, 8), BACKOFF_MAX_S)
    return None, None, (_ended_s(newest) or newest.created_s) + delay_s


def _ended_s(newest: ObservedAttempt) -> float | None:
    """Returns when the attempt ended. The Spark operator reports no time for one that has had no driver."""
    if newest.ended_s is None and newest.state in {COMPLETED, FAILED}:
        return newest.started_s or newest.created_s
    return newest.ended_s


def exit_status(attempt: ObservedAttempt) -> int | None:
    """Returns the exit status of the driver, from its pod or from the Spark operator's message; None where neither has it."""
    pod = _newest(attempt.pods)
    if pod is not None and pod.exit_code is not None:
        return pod.exit_code
    match = _EXIT.search(attempt.message or "")
    return int(match[1]) if match else None


def _failures(ended: ObservedAttempt) -> int:
    """Returns how many failures count until the end of the failed attempt *ended*."""
    pod = _newest(ended.pods)
    is_disrupted = (
        exit_status(ended) == EXIT_STOPPED
        or (pod is not None and pod.is_disrupted)
        # An evicted pod is deleted before the Spark operator reads its state.
        or (pod is None and _POD_LOST in (ended.message or ""))
    )
    return ended.failures + (not is_disrupted)


def _newest(pods: Sequence[ObservedPod]) -> ObservedPod | None:
    return max(pods, key=lambda pod: (pod.created_s, pod.name), default=None)


def due_attempt(job: ObservedJob, now_s: float) -> Attempt:
    """Returns the attempt of *job* that should exist: the present one, or the next one once its time has come."""
    newest = job.attempts[-1]
    number = newest.number or 1
    if job.retry_at_s is None or now_s < job.retry_at_s:
        return Attempt(number=number, failures=newest.failures)
    return Attempt(number=number + 1, failures=_failures(newest))
