"""Archived while an export runs after one that failed, and when an archive is overdue."""

from dataclasses import replace
from typing import Any

import pytest

from mirrorflow_operator.api.status import (
    ArchiveStatus,
    Condition,
    ConditionStatus,
    RunPhase,
    Status,
)
from mirrorflow_operator.api.timestamps import parse_timestamp, timestamp
from mirrorflow_operator.plan.spark_run import RunKind
from mirrorflow_operator.status.archiving import (
    FOLLOW_OVERDUE_S,
    archive_overdue_in_s,
    archive_status,
    archived,
)
from mirrorflow_operator.status.assess import assess
from mirrorflow_operator.status.conditions import ConditionType, Finding, Reason
from mirrorflow_operator.status.observation import Observation
from tests.unit.operator.observations import NOW_S, driver, job, mirror_flow, observed, resource

URL = "s3://backups/orders"
SCHEDULED: dict[str, Any] = {"archive": {"url": URL, "schedule": "0 * * * *"}}
FOLLOWED: dict[str, Any] = {"archive": {"url": URL, "follow": True}}
FAILED = Condition(
    type=ConditionType.ARCHIVED.value,
    status=ConditionStatus.FALSE,
    reason=Reason.ARCHIVE_FAILED.value,
    message="It failed: its driver failed repeatedly.",
    last_transition_time=timestamp(NOW_S - 900),
    observed_generation=1,
)
INCOMPLETE = FAILED.model_copy(update={"reason": Reason.ARCHIVE_INCOMPLETE.value})
UNSCHEDULABLE = FAILED.model_copy(update={"reason": Reason.PODS_REFUSED.value})
SPECS = pytest.mark.parametrize("spec", [SCHEDULED, FOLLOWED], ids=["scheduled", "followed"])


def running(spec: dict[str, Any], condition: Condition | None, *, success_s: float | None) -> Observation:
    """A Job that began a minute ago; *condition*: reported before."""
    flow = mirror_flow(**spec)
    before = ArchiveStatus(
        job="east-to-west-archive-29393940",
        phase=RunPhase.FAILED.value,
        completion_time=timestamp(NOW_S - 600),
        success_time=None if success_s is None else timestamp(success_s),
    )
    status = Status(archive=before, conditions=[] if condition is None else [condition])
    export = job(
        name="east-to-west-archive-29394000",
        kind=RunKind.ARCHIVE,
        run_id="following" if spec is FOLLOWED else "",
        created_s=NOW_S - 60,
        pods=(driver(phase="Running"),),
    )
    return replace(
        observed(flow=flow, jobs=(export,), schedules_created_s={RunKind.ARCHIVE: NOW_S - 9e5}),
        resource=resource(flow, status=status),
    )


def finding(observation: Observation, spec: dict[str, Any]) -> Finding:
    flow = mirror_flow(**spec)
    result = archived(observation, flow, archive_status(observation, flow))
    assert result is not None
    return result


@SPECS
@pytest.mark.parametrize("condition", [FAILED, INCOMPLETE], ids=["failed", "incomplete"])
def test_a_failure_stays_reported_while_the_next_export_runs(spec: dict[str, Any], condition: Condition):
    result = finding(running(spec, condition, success_s=NOW_S - 3_600), spec)

    assert (condition.status, condition.reason, condition.message) == (
        result.status,
        result.reason.value,
        result.message,
    )


@SPECS
def test_a_failure_stays_reported_while_the_first_export_is_tried_again(spec: dict[str, Any]):
    result = finding(running(spec, FAILED, success_s=None), spec)

    assert (ConditionStatus.FALSE, Reason.ARCHIVE_FAILED) == (result.status, result.reason)


def test_a_complete_increment_of_the_running_export_ends_the_failure():
    result = finding(running(FOLLOWED, FAILED, success_s=NOW_S - 20), FOLLOWED)

    assert (ConditionStatus.TRUE, Reason.ARCHIVED) == (result.status, result.reason)


@SPECS
def test_a_problem_of_a_driver_that_runs_by_now_is_not_kept(spec: dict[str, Any]):
    result = finding(running(spec, UNSCHEDULABLE, success_s=NOW_S - 3_600), spec)

    assert (ConditionStatus.TRUE, Reason.ARCHIVED) == (result.status, result.reason)


@pytest.mark.parametrize("condition", [None, FAILED], ids=["lost-condition", "failed"])
def test_a_new_job_does_not_make_the_last_success_recent(condition: Condition | None):
    """The failed Jobs of an export that follows the source are replaced, each within less than two hours."""
    observation = running(FOLLOWED, condition, success_s=NOW_S - 86_400)
    flow = mirror_flow(**FOLLOWED)
    status = archive_status(observation, flow)

    assert flow.spec.archive is not None
    assert 0.0 == archive_overdue_in_s(observation, flow.spec.archive, status)
    assert ConditionStatus.TRUE is not finding(observation, FOLLOWED).status


def test_an_archive_without_a_success_is_overdue_by_the_age_of_its_job():
    observation = running(FOLLOWED, None, success_s=None)
    flow = mirror_flow(**FOLLOWED)

    assert flow.spec.archive is not None
    assert FOLLOW_OVERDUE_S - 60 == archive_overdue_in_s(
        observation, flow.spec.archive, archive_status(observation, flow)
    )


def test_a_failed_job_that_exists_is_reported_after_a_problem_of_the_next_driver():
    """The condition has had the problem meanwhile, and no longer the failure."""
    observation = running(SCHEDULED, UNSCHEDULABLE, success_s=NOW_S - 3_600)
    failed = job(
        name="east-to-west-archive-29393940",
        kind=RunKind.ARCHIVE,
        run_id="",
        created_s=NOW_S - 1_200,
        ended_s=NOW_S - 600,
        outcome="Failed",
        reason="BackoffLimitExceeded",
    )

    result = finding(replace(observation, jobs=(failed, *observation.jobs)), SCHEDULED)

    assert (ConditionStatus.FALSE, Reason.ARCHIVE_FAILED) == (result.status, result.reason)
    assert "It failed: its driver failed repeatedly" in result.message
    assert failed.name in result.message


def test_an_older_scheduled_export_does_not_hide_the_failure_of_one_that_follows_the_source():
    observation = running(FOLLOWED, FAILED, success_s=NOW_S - 3_600)
    complete = job(
        name="east-to-west-archive-29393000",
        kind=RunKind.ARCHIVE,
        run_id="",
        created_s=NOW_S - 9e4,
        ended_s=NOW_S - 8e4,
        outcome="Complete",
    )

    result = finding(replace(observation, jobs=(complete, *observation.jobs)), FOLLOWED)

    assert (ConditionStatus.FALSE, Reason.ARCHIVE_FAILED) == (result.status, result.reason)


def test_the_status_is_computed_again_when_the_next_time_has_passed() -> None:
    """No event reports it where the export before still runs: the schedule skips a time then."""
    flow = mirror_flow(**SCHEDULED)
    seen = observed(flow=flow)

    assessment = assess(seen)

    assert assessment.status.archive is not None
    next_s = parse_timestamp(assessment.status.archive.next_time or "")
    assert next_s is not None
    assert assessment.again_after_s == next_s - NOW_S
