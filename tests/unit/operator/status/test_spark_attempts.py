"""The SparkApplications of one run are observed as one job, and retried as Kubernetes retries the driver of a Job."""

from dataclasses import replace
from typing import Any

import pytest

from mirrorflow_operator.admission.due_jobs import due_jobs
from mirrorflow_operator.api.status import RunPhase, Status
from mirrorflow_operator.plan.spark_run import Attempt, RunKind
from mirrorflow_operator.status.conditions import Reason
from mirrorflow_operator.status.observation import ObservedAttempt, ObservedJob, ObservedPod
from mirrorflow_operator.status.spark_attempts import due_attempt, job_of_attempts
from mirrorflow_operator.status.spark_jobs import (
    UNTAKEN_S,
    driver_problem,
    failure_message,
    log_hint,
    phase_of,
)
from tests.unit.operator.observations import NOW_S, mirror_flow

RUN = "east-to-west-seed-0a1b2c3d"


def _driver(exit_code: int | None = None, **changes: Any) -> ObservedPod:
    phase = "Running" if exit_code is None else "Failed" if exit_code else "Succeeded"
    return replace(
        ObservedPod(name=f"{RUN}-r1-driver", phase=phase, created_s=NOW_S - 50, exit_code=exit_code),
        **changes,
    )


def _attempt(state: str = "", number: int | None = 1, *pods: ObservedPod, **changes: Any) -> ObservedAttempt:
    return replace(
        ObservedAttempt(
            name=RUN if number is None else f"{RUN}-r{number}",
            kind=RunKind.SEED,
            number=number,
            run_id="1",
            created_s=NOW_S - 60 + (number or 0),
            ended_s=NOW_S if state in {"COMPLETED", "FAILED"} else None,
            state=state,
            pods=pods,
        ),
        **changes,
    )


def _failed(exit_code: int, number: int = 1, **changes: Any) -> ObservedAttempt:
    return _attempt("FAILED", number, _driver(exit_code), **changes)


@pytest.mark.parametrize(
    ("attempt", "phase"),
    [
        (_attempt(""), RunPhase.PENDING),
        (_attempt("SUBMITTED"), RunPhase.PENDING),
        (_attempt("RUNNING", 1, _driver()), RunPhase.RUNNING),
        (_attempt("SUCCEEDING", 1, _driver(0)), RunPhase.PENDING),
        (_attempt("SUSPENDED", suspended=True), RunPhase.PAUSED),
        (_attempt("SUSPENDED", suspended=True, queue="batch"), RunPhase.PENDING),
        (_attempt("COMPLETED", 1, _driver(0)), RunPhase.SUCCEEDED),
        (_failed(2), RunPhase.FAILED),
        (_failed(4), RunPhase.PENDING),
    ],
)
def test_the_state_of_an_application_is_a_phase_of_the_run(attempt: ObservedAttempt, phase: RunPhase) -> None:
    assert phase_of(job_of_attempts([attempt])) is phase


@pytest.mark.parametrize(("started_s", "ended_s"), [(None, NOW_S - 53), (NOW_S - 40, NOW_S - 40)])
def test_an_attempt_that_ended_without_a_time_has_the_same_end_in_each_pass(
    started_s: float | None, ended_s: float
) -> None:
    """The current time would change the status with each pass. The Spark operator reports no end of a failed submission."""
    job = job_of_attempts([_attempt("FAILED", 7, ended_s=None, started_s=started_s, failures=6)])

    assert (job.outcome, job.ended_s) == ("Failed", ended_s)


def test_a_run_has_the_name_of_its_newest_attempt_and_the_drivers_of_each() -> None:
    first, second = _failed(4), _attempt("RUNNING", 2, _driver(name=f"{RUN}-r2-driver"), failures=1)

    job = job_of_attempts([second, first])

    assert (job.name, job.run_name, job.object_names) == (f"{RUN}-r2", RUN, (f"{RUN}-r1", f"{RUN}-r2"))
    assert [pod.name for pod in job.pods] == [f"{RUN}-r1-driver", f"{RUN}-r2-driver"]
    assert job.created_s == first.created_s


def test_a_failure_that_a_retry_repeats_ends_the_run() -> None:
    job = job_of_attempts([_failed(2)])

    assert (job.outcome, job.reason, job.retry_at_s) == ("Failed", "PodFailurePolicy", None)
    assert failure_message(job, None) == "It failed: its settings are invalid"


def test_the_exit_status_of_a_deleted_driver_is_in_the_message_of_its_application() -> None:
    message = "driver container failed with ExitCode: 2, Reason: Error"

    job = job_of_attempts([_attempt("FAILED", message=message)])

    assert (job.outcome, job.reason) == ("Failed", "PodFailurePolicy")


@pytest.mark.parametrize(("number", "wait_s"), [(1, 10), (2, 20), (6, 320), (40, 320)])
def test_a_failed_attempt_is_followed_by_another_one_after_a_backoff(number: int, wait_s: float) -> None:
    job = job_of_attempts([_failed(4, number)])

    assert job.outcome is None
    assert job.retry_at_s == NOW_S + wait_s
    assert due_attempt(job, NOW_S + wait_s - 1) == Attempt(number=number, failures=0)
    assert due_attempt(job, NOW_S + wait_s) == Attempt(number=number + 1, failures=1)


@pytest.mark.parametrize(
    "attempt",
    [
        _failed(3, failures=2),
        _attempt("FAILED", 1, _driver(137, is_disrupted=True), failures=2),
        _attempt("FAILED", message="driver pod not found", failures=2),
    ],
    ids=["stopped", "disrupted", "evicted"],
)
def test_a_disruption_does_not_count_as_a_failure(attempt: ObservedAttempt) -> None:
    assert due_attempt(job_of_attempts([attempt]), NOW_S + 60) == Attempt(number=2, failures=2)


@pytest.mark.parametrize(("kind", "retries"), [(RunKind.SEED, 6), (RunKind.VERIFY, 2)])
def test_a_run_has_failed_after_as_many_failures_as_a_job(kind: RunKind, retries: int) -> None:
    last = job_of_attempts([_failed(4, kind=kind, failures=retries - 1)])
    ended = job_of_attempts([_failed(4, kind=kind, failures=retries)])

    assert last.outcome is None
    assert (ended.outcome, ended.reason) == ("Failed", "BackoffLimitExceeded")
    assert failure_message(ended, None).startswith("It failed: its driver failed repeatedly")


def test_the_run_of_a_schedule_is_not_retried() -> None:
    """The next scheduled time continues."""
    job = job_of_attempts([_attempt("FAILED", None, _driver(4))])

    assert (job.outcome, job.retry_at_s) == ("Failed", None)


def test_the_last_failed_submission_is_reported_with_the_message_of_the_spark_operator() -> None:
    message = "failed to submit spark application: forbidden"

    job = job_of_attempts([_attempt("FAILED", message=message, failures=6)])

    assert failure_message(job, None) == f"It failed: {message}"


def _problem(job: ObservedJob, now_s: float = NOW_S) -> tuple[Reason, str] | None:
    problem = driver_problem(job, flow=None, now_s=now_s)
    return None if problem is None else (problem.reason, problem.message)


def test_an_application_that_no_spark_operator_takes_is_a_problem_after_half_a_minute() -> None:
    job = job_of_attempts([_attempt("", created_s=NOW_S)])

    assert _problem(job, NOW_S + UNTAKEN_S - 1) is None
    assert _problem(job, NOW_S + UNTAKEN_S) == (
        Reason.NOT_SUBMITTED,
        f"No Spark operator has taken SparkApplication {RUN}-r1: check that one runs and watches this namespace.",
    )


def test_a_failed_submission_is_a_problem_until_the_next_attempt() -> None:
    job = job_of_attempts([_attempt("FAILED", message="failed to run spark-submit: no image")])

    assert _problem(job) == (
        Reason.NOT_SUBMITTED,
        f"The Spark operator could not start {RUN}-r1: failed to run spark-submit: no image",
    )


def test_the_log_is_that_of_the_newest_driver() -> None:
    assert log_hint(job_of_attempts([_failed(4)])) == f"See kubectl logs {RUN}-r1-driver."
    assert (
        log_hint(job_of_attempts([_attempt("FAILED")])) == f"See kubectl describe sparkapplication/{RUN}-r1."
    )


def test_the_next_attempt_is_due_after_its_backoff_and_the_operator_returns_then() -> None:
    flow, job = mirror_flow(seed={"runId": "1"}), job_of_attempts([_failed(4)])

    early = due_jobs(flow, Status(), [job], None, NOW_S + 4)
    in_time = due_jobs(flow, Status(), [job], None, NOW_S + 10)

    assert (early.runs.seed, early.runs.attempts, early.again_after_s) == (True, {RUN: Attempt()}, 6)
    assert in_time.runs.attempts == {RUN: Attempt(number=2, failures=1)}


def test_the_attempts_of_an_ended_run_are_kept() -> None:
    job = job_of_attempts([_failed(4), _attempt("COMPLETED", 2, _driver(0))])

    runs = due_jobs(mirror_flow(seed={"runId": "1"}), Status(), [job], None, NOW_S).runs

    assert not runs.seed
    assert runs.kept == {RUN}
