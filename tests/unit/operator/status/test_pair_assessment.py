"""The status of a pair: its active member, the flow that was started, and whether it could be switched over now."""

from dataclasses import replace
from typing import Any

import pytest

from mirrorflow_operator.api.pair_status import (
    NewestSwitchover,
    PairStatus,
    PredictedSwitchover,
    StateTime,
    SwitchoverStatus,
)
from mirrorflow_operator.api.status import Condition, ConditionStatus, VerifyStatus, WindowCounts
from mirrorflow_operator.api.timestamps import timestamp
from mirrorflow_operator.status.pair_assessment import active_member, pair_status
from mirrorflow_operator.status.pair_conditions import PairReason
from mirrorflow_operator.status.pair_observation import PairFlowProgress, PairObservation, SwitchoverResource
from mirrorflow_operator.status.switchover_reports import SwitchoverReport
from tests.unit.operator.pairs import (
    NOW_S,
    SINCE,
    flow_resource,
    job,
    mirror_pair,
    observation,
    pair_resource,
    report,
    switchover_resource,
)

BOTH_RUN = {
    "east-to-west": flow_resource("east", "west"),
    "west-to-east": flow_resource("west", "east"),
}
PROMOTED: dict[str, Any] = {"active": "west", "promoted_by": "east-west/move", "epoch": 1}


def written(seen: PairObservation, **statuses: SwitchoverStatus) -> PairStatus:
    given = {item.name: item.status for item in seen.switchovers} | statuses
    result = pair_status(seen, given)
    assert result is not None
    return result


def ready(status: PairStatus) -> tuple[str, str, str]:
    (condition,) = (item for item in status.conditions if item.type == "Ready")
    return condition.status.value, condition.reason, condition.message


def test_before_the_first_switchover_the_source_of_the_running_flow_is_active():
    status = written(observation())

    assert ("east", "", "Ready") == (status.active, status.runs, status.phase)
    assert ("True", "CanSwitch", "Applications could be moved from east to west.") == ready(status)
    assert status.predicted == PredictedSwitchover(
        lag_seconds=1,
        writes_refused_seconds=3,
        groups=41,
        records_read_again=7,
        checkpoint_age_seconds=6,
    )


@pytest.mark.parametrize(
    ("fields", "reason", "phase"),
    [
        ({"flows": BOTH_RUN}, "ActiveUnknown", "Unknown"),
        ({"progress": {}}, "LagUnknown", "Unknown"),
        ({"progress": {"east-to-west": PairFlowProgress(lag_s=6.0)}}, "LagTooHigh", "NotReady"),
        (
            {"flows": {**observation().flows, "east-to-west": flow_resource("east", "west", ready="False")}},
            "FlowNotReady",
            "NotReady",
        ),
        ({"flows": {"east-to-west": flow_resource("east", "west")}}, "FlowsDoNotMirror", "NotReady"),
    ],
    ids=["both-run", "no-lag", "lag", "flow", "no-flow-back"],
)
def test_a_pair_that_cannot_be_switched_over_reports_the_reason(
    fields: dict[str, Any], reason: str, phase: str
):
    status = written(observation(**fields))

    assert (reason, phase) == (ready(status)[1], status.phase)
    assert ready(status)[2]


def test_a_pair_with_a_running_switchover_has_the_phase_switching_over():
    item = switchover_resource()
    status = written(observation(item), move=SwitchoverStatus(state="Draining"))

    assert "SwitchingOver" == status.phase
    assert status.switchover is not None
    assert ("move", "west", "Draining") == (
        status.switchover.name,
        status.switchover.to,
        status.switchover.state,
    )


def test_the_reverse_flow_runs_only_after_its_positions_are_stored():
    """A reverse flow that starts earlier would copy everything back."""
    promoted = observation(switchover_resource(), jobs={"move": job(report=report("Reversing", **PROMOTED))})
    started = observation(
        switchover_resource(), jobs={"move": job(report=report("Reversing", may_copy_back=True, **PROMOTED))}
    )

    assert ("west", "") == (active_member(promoted).active, active_member(promoted).runs)
    assert ("west", "west-to-east") == (active_member(started).active, active_member(started).runs)


def test_the_active_member_stays_when_the_switchover_and_its_job_are_deleted():
    known = PairStatus(active="west", promoted_by="east-west/move", epoch=1, runs="west-to-east")

    status = written(observation(pair=pair_resource(known)))

    assert ("west", "west-to-east", 1) == (status.active, status.runs, status.epoch)


def test_a_recreated_switchover_does_not_make_its_member_active_again():
    """Its Job reports what the journal has: in the meantime, east was promoted."""
    known = PairStatus(active="east", promoted_by="east-west/return", epoch=2, runs="east-to-west")
    stale = report("Done", active="east", promoted_by="east-west/return", epoch=2, may_copy_back=True)

    member = active_member(
        observation(switchover_resource(), pair=pair_resource(known), jobs={"move": job(report=stale)})
    )

    assert ("east", "east-to-west", "east-west/return") == (member.active, member.runs, member.promoted_by)


def test_an_older_report_does_not_change_the_active_member():
    known = PairStatus(active="east", promoted_by="east-west/return", epoch=2, runs="east-to-west")
    older = report("Done", may_copy_back=True, **PROMOTED)

    member = active_member(observation(pair=pair_resource(known), jobs={"move": job(report=older)}))

    assert "east" == member.active


ROLLED_BACK = report("Lifted", "lost", active="east", promoted_by="east-west/old", epoch=7)
MOVED = report("Done", "a-move", active="west", promoted_by="east-west/a-move", epoch=7, may_copy_back=True)


@pytest.mark.parametrize("names", [("a-move", "lost"), ("lost", "a-move")], ids="-".join)
def test_a_promotion_counts_in_any_order_of_the_jobs(names: tuple[str, str]):
    """Both journals have the same newest switchover: it was rolled back before the other one promoted."""
    jobs = {"a-move": job("a-move", report=MOVED), "lost": job("lost", report=ROLLED_BACK)}
    known = PairStatus(active="east", promoted_by="east-west/old", epoch=7, runs="east-to-west")

    member = active_member(observation(pair=pair_resource(known), jobs={name: jobs[name] for name in names}))

    assert ("west", "west-to-east", "east-west/a-move") == (member.active, member.runs, member.promoted_by)


def test_a_recorded_promotion_stays_when_a_report_of_the_same_epoch_does_not_have_it():
    known = PairStatus(active="west", promoted_by="east-west/a-move", epoch=7, runs="west-to-east")

    member = active_member(
        observation(pair=pair_resource(known), jobs={"lost": job("lost", report=ROLLED_BACK)})
    )

    assert ("west", "west-to-east") == (member.active, member.runs)


def promotion(name: str, active: str, minute: int) -> SwitchoverReport:
    entered = f"2026-11-30T10:{minute:02}:00.000Z"
    states = (StateTime(state="Promoting", entered=entered),)
    return report("Done", name, active=active, promoted_by=f"east-west/{name}", epoch=8, states=states)


@pytest.mark.parametrize("names", [("a-return", "lost"), ("lost", "a-return")], ids="-".join)
def test_the_later_one_of_two_promotions_counts(names: tuple[str, str]):
    """The Job of the earlier one has read the journal again while the later one was under way."""
    reports = {"a-return": promotion("a-return", "east", 40), "lost": promotion("lost", "west", 10)}

    member = active_member(observation(jobs={name: job(name, report=reports[name]) for name in names}))

    assert ("east", "east-west/a-return") == (member.active, member.promoted_by)


def test_the_later_promotion_stays_when_its_switchover_and_job_are_deleted():
    newest = NewestSwitchover(
        name="a-return", type="Restore", to="east", state="Done", completion_time="2026-11-30T10:41:00.000Z"
    )
    known = PairStatus(active="east", promoted_by="east-west/a-return", epoch=8, switchover=newest)
    jobs = {"lost": job("lost", report=promotion("lost", "west", 10))}

    assert "east" == active_member(observation(pair=pair_resource(known), jobs=jobs)).active


def test_a_refused_request_restores_the_active_member_after_the_status_was_lost():
    lost = observation(
        switchover_resource("again"),
        jobs={"again": job("again", report=report("Refused", "again", **PROMOTED))},
    )

    assert ("west", "") == (active_member(lost).active, active_member(lost).runs)


def test_the_status_of_a_pair_keeps_its_newest_switchover_after_it_is_deleted():
    seen = observation(switchover_resource())
    before = written(seen, move=SwitchoverStatus(state="Done", completion_time=SINCE))

    after = written(replace(seen, switchovers=(), pair=pair_resource(before)))

    assert after.switchover == before.switchover
    assert after.switchover is not None
    assert "Done" == after.switchover.state


def test_a_pair_is_switched_over_although_a_later_switchover_was_refused():
    later = switchover_resource("later", status=SwitchoverStatus(state="Refused"), age_s=0.5)
    status = written(observation(switchover_resource(status=SwitchoverStatus(state="Draining")), later))

    assert ("SWITCHING_OVER", "Draining") == newest_of(status)


NEWEST = {"name": "move", "type": "Planned", "to": "west"}
EARLIER = switchover_resource("earlier", status=SwitchoverStatus(state="Done"), age_s=9 * 86_400.0)


@pytest.mark.parametrize("others", [(), (EARLIER,)], ids=["alone", "beside-an-earlier-one"])
def test_a_deleted_switchover_is_the_newest_until_its_job_has_reported_its_end(
    others: tuple[SwitchoverResource, ...],
):
    """Its Job still carries it out, so applications cannot be moved meanwhile, and can be afterwards."""
    stored = pair_resource(PairStatus(switchover=NewestSwitchover(**NEWEST, state="Draining")))
    running = observation(*others, pair=stored, jobs={"move": job(report=report("Verifying"))})
    ended = replace(running, jobs={"move": job(report=report("Lifted"), is_complete=True)})
    meanwhile, afterwards = written(running), written(ended)
    gone = written(replace(ended, pair=pair_resource(afterwards), jobs={}))

    assert ("SWITCHING_OVER", "Verifying") == newest_of(meanwhile)
    assert ("CAN_SWITCH", "Lifted") == newest_of(afterwards) == newest_of(gone)
    assert afterwards.switchover is not None
    assert SINCE == afterwards.switchover.completion_time


def newest_of(status: PairStatus) -> tuple[str, str | None]:
    """Returns the reason of Ready, and the state of the newest switchover."""
    assert status.switchover is not None
    return PairReason(ready(status)[1]).name, status.switchover.state


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        ([], ("NOT_RECONCILED", "Degraded")),
        (["Refused"], ("NOT_RECONCILED", "Degraded")),
        (["Draining"], ("SWITCHING_OVER", "Draining")),
    ],
    ids=["alone", "beside-a-refused-one", "beside-one-that-has-begun"],
)
def test_a_pair_waits_to_be_reconciled_after_its_degraded_switchover_was_deleted(
    later: list[str], expected: tuple[str, str]
):
    lost = NewestSwitchover(name="move", type="Unplanned", to="west", state="Degraded", completion_time=SINCE)
    others = [
        switchover_resource("next", status=SwitchoverStatus(state=state), age_s=-86_400.0, to="east")
        for state in later
    ]
    status = written(observation(*others, pair=pair_resource(PairStatus(**PROMOTED, switchover=lost))))

    assert expected == newest_of(status)
    assert later == ["Draining"] or "create Switchover move again" in ready(status)[2]


def verified_observation(
    hours_ago: float | None, *, phase: str = "Succeeded", reported: str = "Equal", **fields: Any
) -> PairObservation:
    """A pair that requires a verification within a day, of which one has ended so long ago; None: none has."""
    pair = replace(pair_resource(), pair=mirror_pair(readiness={"verifiedWithinSeconds": 86_400}))
    seen = observation(pair=pair)
    flow = seen.flows["east-to-west"]
    if hours_ago is not None:
        windows = WindowCounts(total=4, equal=4) if phase == "Succeeded" else None
        verify = VerifyStatus(
            run_id="nightly",
            job="verify-1",
            phase=phase,
            verdict_time=timestamp(NOW_S - hours_ago * 3_600),
            **{"windows": windows, **fields},
        )
        condition = Condition(
            type="Verified",
            status=ConditionStatus.TRUE,
            last_transition_time=SINCE,
            reason=reported,
            message="-",
        )
        conditions = (*flow.status.conditions, condition)
        flow = replace(
            flow, status=flow.status.model_copy(update={"verify": verify, "conditions": conditions})
        )
    return replace(seen, flows={**seen.flows, "east-to-west": flow})


@pytest.mark.parametrize(
    ("hours_ago", "part"),
    [
        (None, "it is unknown when a verification of flow east-to-west"),
        (25, "verification nightly of flow east-to-west ended at 2026-11-28T23:53:20Z, longer than 24 h ago"),
    ],
    ids=["none", "old"],
)
def test_a_pair_whose_last_verification_is_not_recent_is_not_ready(hours_ago: float | None, part: str):
    status = written(verified_observation(hours_ago))

    assert ("NotVerified", "NotReady") == (ready(status)[1], status.phase)
    assert part in ready(status)[2]


def test_time_alone_does_not_change_the_status_of_a_pair_that_is_not_verified():
    """A message with an age would be written again each minute."""
    seen = verified_observation(25)
    before = written(seen)
    assert seen.pair is not None
    later = replace(seen, now_s=NOW_S + 7_200, pair=replace(seen.pair, status=before))

    assert before == written(later)


def test_a_pair_with_a_recent_equal_verification_is_ready():
    assert "CanSwitch" == ready(written(verified_observation(23)))[1]


def test_a_scheduled_run_in_progress_keeps_the_verdict_of_the_one_before():
    assert "CanSwitch" == ready(written(verified_observation(23, phase="Running")))[1]
    assert "NotVerified" == ready(written(verified_observation(23, phase="Running", reported="Verifying")))[1]


@pytest.mark.parametrize("windows", [WindowCounts(total=4, equal=3, undecided=1), None])
def test_a_run_without_a_verdict_leaves_the_last_one_unknown(windows: WindowCounts | None):
    status = written(verified_observation(1, windows=windows))

    assert "it is unknown when" in ready(status)[2]
