"""The decisions of the operator about a Switchover, and its status, from the request to the record."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_operator.api.pair_status import CanarySummary, RefusedWrites, SwitchoverStatus
from mirrorflow_operator.status.pair_assessment import why_not_switched
from mirrorflow_operator.status.pair_conditions import PairReason, SwitchoverReason
from mirrorflow_operator.status.pair_observation import BEGIN_WITHIN_S, PairObservation
from mirrorflow_operator.status.switchover_assessment import (
    JobStep,
    SwitchoverDecision,
    decisions,
    switchover_status,
)
from tests.unit.operator.pairs import (
    NOW_S,
    SINCE,
    flow_resource,
    job,
    observation,
    report,
    switchover_resource,
)

FOLLOW = SwitchoverDecision(step=JobStep.FOLLOW_JOB)


def decision(seen: PairObservation, name: str = "move") -> SwitchoverDecision:
    return decisions(seen, why_not_switched(seen))[name]


def status(seen: PairObservation, name: str = "move") -> SwitchoverStatus:
    (resource,) = (item for item in seen.switchovers if item.name == name)
    return switchover_status(resource, decision(seen, name), seen)


def conditions(written: SwitchoverStatus) -> dict[str, tuple[str, str]]:
    return {item.type: (item.status.value, item.reason) for item in written.conditions}


def test_a_new_switchover_gets_a_job():
    seen = observation(switchover_resource())

    assert SwitchoverDecision(step=JobStep.CREATE_JOB) == decision(seen)
    assert {
        "Succeeded": ("Unknown", "Starting"),
        "WritesRefused": ("False", "WritesAccepted"),
        "Reconciling": ("True", "Starting"),
        "Stalled": ("False", "NotStalled"),
    } == conditions(status(seen))
    assert "east-west/move" == status(seen).id


def test_a_running_job_is_followed_and_its_report_is_the_status():
    seen = observation(
        switchover_resource(),
        jobs={"move": job(report=report("Draining", waits_for="Waits for the copy.", fenced=SINCE))},
    )

    written = status(seen)

    assert FOLLOW == decision(seen)
    assert ("Draining", SINCE, "Waits for the copy.") == (written.state, written.since, written.waits_for)
    assert RefusedWrites(since=SINCE) == written.writes_refused
    assert "move-switchover" == written.job
    assert ("True", "Fenced") == conditions(written)["WritesRefused"]
    assert ("Unknown", "UnderWay") == conditions(written)["Succeeded"]


@pytest.mark.parametrize(
    ("state", "succeeded", "stalled"),
    [
        ("Done", ("True", "Moved"), ("False", "NotStalled")),
        ("Rehearsed", ("True", "Rehearsed"), ("False", "NotStalled")),
        ("Lifted", ("False", "RolledBack"), ("True", "RolledBack")),
        ("Refused", ("False", "Refused"), ("True", "Refused")),
    ],
)
def test_the_final_status_stays_after_the_job_is_deleted(
    state: str, succeeded: tuple[str, str], stalled: tuple[str, str]
):
    ended = status(
        observation(switchover_resource(), jobs={"move": job(report=report(state, reason="Because."))})
    )
    later = observation(switchover_resource(status=ended, age_s=1e6))

    assert (succeeded, stalled) == (conditions(ended)["Succeeded"], conditions(ended)["Stalled"])
    assert SINCE == ended.completion_time
    assert SwitchoverDecision() == decision(later)
    assert ended == status(later)


def test_a_second_switchover_is_refused_while_the_first_has_not_ended():
    first = switchover_resource("first", age_s=10.0)
    seen = observation(first, switchover_resource("second", age_s=5.0))

    assert JobStep.CREATE_JOB is decision(seen, "first").step
    assert (
        "spec.pair: Switchover first of east-west has not ended; wait until it has, and create another one."
        == decision(seen, "second").refusal
    )
    assert "Refused" == status(seen, "second").state


def test_a_switchover_is_refused_while_the_job_of_a_deleted_one_runs():
    seen = observation(switchover_resource(), jobs={"gone": job("gone", report=report("Draining", "gone"))})

    assert str(decision(seen).refusal).startswith("spec.pair: Switchover gone of east-west has not ended")


def test_a_switchover_may_follow_one_that_has_ended():
    ended = switchover_resource("first", age_s=10.0, status=SwitchoverStatus(state="Done"))

    assert JobStep.CREATE_JOB is decision(observation(ended, switchover_resource())).step


def test_a_deleted_job_is_created_again_for_a_switchover_of_any_age():
    """Its process continues from the journal: after promotion, the switchover can only be completed."""
    begun = switchover_resource(status=SwitchoverStatus(state="Promoting"), age_s=10 * BEGIN_WITHIN_S)

    assert JobStep.CREATE_JOB is decision(observation(begun)).step


def test_a_job_whose_report_was_lost_is_replaced():
    seen = observation(switchover_resource(), jobs={"move": job(is_complete=True)})

    assert JobStep.REPLACE_JOB is decision(seen).step


def test_a_refusal_without_a_record_does_not_replace_the_known_state():
    """A new process may refuse before it connects, although the switchover has begun."""
    begun = switchover_resource(status=SwitchoverStatus(state="Draining", since=SINCE))
    blind = report("Refused", reason="A setting is wrong.").__class__(id="", state="Refused", reason="x")

    assert "Draining" == status(observation(begun, jobs={"move": job(report=blind)})).state


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"pair": None}, "spec.pair: there is no MirrorPair east-west in this namespace."),
        (
            {"flows": {"east-to-west": flow_resource("east", "west")}},
            "spec.members.west.flow: the namespace has no MirrorFlow named west-to-east (it has east-to-west)",
        ),
    ],
    ids=["pair", "flow"],
)
def test_a_request_waits_a_limited_time_for_a_missing_object(fields: dict[str, Any], sentence: str):
    young = decision(observation(switchover_resource(), **fields))
    old = decision(observation(switchover_resource(age_s=BEGIN_WITHIN_S + 1), **fields))

    assert str(young.waits_for).startswith(sentence)
    assert str(old.refusal).startswith(f"It could not begin within 5 minutes: {sentence}")


def test_a_request_that_is_seen_too_late_is_refused():
    """The operator was down. No user expects that applications are moved now."""
    late = decision(observation(switchover_resource(age_s=BEGIN_WITHIN_S + 1)))

    assert str(late.refusal).startswith(
        "It could not begin within 5 minutes, because the operator did not run."
    )


def test_a_request_whose_objects_were_refused_until_it_was_too_late_reports_the_cause():
    waiting = SwitchoverStatus(waits_for="Its objects could not be written: exceeded quota: jobs.")
    late = decision(observation(switchover_resource(age_s=BEGIN_WITHIN_S + 1, status=waiting)))

    assert str(late.refusal).startswith(
        "It could not begin within 5 minutes: Its objects could not be written: exceeded quota: jobs."
    )


def test_a_request_that_is_being_deleted_does_not_begin():
    """A finalizer of another program may hold it for a long time."""
    deleted = replace(switchover_resource(), is_deleting=True)
    seen = observation(deleted)

    assert SwitchoverDecision(refusal="It was deleted before it began.") == decision(seen)
    assert "Refused" == status(seen).state


def test_a_switchover_that_is_deleted_after_it_began_is_carried_out():
    deleted = replace(switchover_resource(), is_deleting=True)

    assert FOLLOW == decision(observation(deleted, jobs={"move": job()}))


def test_a_switchover_to_an_unknown_member_is_refused():
    refused = decision(observation(switchover_resource(to="north")))

    assert "spec.to: north is no member of east-west; create a Switchover to east or west." == refused.refusal


def test_a_switchover_with_the_name_of_a_different_earlier_request_is_refused():
    """The Job of the earlier request still exists."""
    seen = observation(
        switchover_resource(to="east"), jobs={"move": job(report=report("Done"), is_complete=True)}
    )

    assert "metadata.name: a Switchover of this name was Planned to west before" in str(
        decision(seen).refusal
    )
    assert "Refused" == status(seen).state


def test_a_pod_that_cannot_start_is_reported():
    seen = observation(
        switchover_resource(), jobs={"move": job(problem="The image cannot be pulled.")}, now_s=NOW_S
    )

    assert ("Unknown", "JobNotRunning") == conditions(status(seen))["Succeeded"]
    assert "The image cannot be pulled." == status(seen).waits_for


@pytest.mark.parametrize(
    ("canary", "condition"),
    [
        (None, ("True", "Rehearsed")),
        (CanarySummary(passed=True, message="0 records again."), ("True", "Rehearsed")),
        (CanarySummary(passed=False, message="3 records again."), ("False", "CanaryFailed")),
    ],
    ids=["none", "passed", "failed"],
)
def test_a_rehearsal_succeeds_only_if_its_canary_passes(
    canary: CanarySummary | None, condition: tuple[str, str]
):
    ended = report("Rehearsed", canary=canary)
    wanted = switchover_resource(type="Rehearsal")
    of_job = job(report=ended, request="Rehearsal to west", is_complete=True)

    written = status(observation(wanted, jobs={"move": of_job}))

    assert condition == conditions(written)["Succeeded"]
    assert canary == written.canary
    assert canary is None or canary.passed or canary.message in written.conditions[0].message


def test_each_reason_is_documented():
    text = (Path(__file__).parents[4] / "docs" / "switchover.md").read_text()
    section = text.partition("## In Kubernetes")[2]

    assert {reason.value for reason in (*PairReason, *SwitchoverReason)} <= set(
        re.findall(r"`(\w+)`", section)
    )
