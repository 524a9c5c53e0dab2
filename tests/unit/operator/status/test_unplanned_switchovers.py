"""The status of unplanned switchovers: the loss, the switchovers that they overtake, and how they end."""

from dataclasses import replace
from typing import Any

from mirrorflow_operator.api.pair_status import (
    RefusedWrites,
    StateTime,
    SwitchoverLoss,
    SwitchoverStatus,
    TopicLoss,
)
from mirrorflow_operator.status.pair_assessment import pair_status, why_not_switched
from mirrorflow_operator.status.pair_observation import BEGIN_WITHIN_S, PairObservation, SwitchoverResource
from mirrorflow_operator.status.switchover_assessment import (
    JobStep,
    SwitchoverDecision,
    decisions,
    switchover_status,
)
from tests.unit.operator.pairs import (
    SINCE,
    job,
    observation,
    pair_resource,
    report,
    switchover_resource,
)

LOSS = SwitchoverLoss(
    lost_offsets_at_least=25,
    partitions_with_loss=1,
    known_until="2026-11-30T09:59:00Z",
    topics=(TopicLoss(topic="orders", lost_offsets_at_least=25),),
)
REQUEST = "Unplanned to west"


def unplanned(name: str = "lost-east", **fields: Any) -> SwitchoverResource:
    return switchover_resource(name, **{"type": "Unplanned", "acceptLoss": True, "age_s": 0.5, **fields})


def decision(seen: PairObservation, name: str = "lost-east") -> SwitchoverDecision:
    return decisions(seen, why_not_switched(seen))[name]


def status(seen: PairObservation, name: str = "lost-east") -> SwitchoverStatus:
    (resource,) = (item for item in seen.switchovers if item.name == name)
    return switchover_status(resource, decision(seen, name), seen)


def condition(written: SwitchoverStatus, kind: str = "Succeeded") -> tuple[str, str, str]:
    (current,) = (item for item in written.conditions if item.type == kind)
    return current.status.value, current.reason, current.message


def degraded() -> SwitchoverStatus:
    seen = report("Degraded", "lost-east", loss=LOSS, active="west", promoted_by="east-west/lost-east")
    return status(
        observation(unplanned(), jobs={"lost-east": job("lost-east", report=seen, request=REQUEST)})
    )


def test_the_status_has_the_loss_while_the_switchover_runs():
    seen = report("ForwardEnded", "lost-east", loss=LOSS, waits_for="Waits until the flow has ended.")

    written = status(
        observation(unplanned(), jobs={"lost-east": job("lost-east", report=seen, request=REQUEST)})
    )

    assert LOSS == written.loss
    assert ("Unknown", "UnderWay", "Waits until the flow has ended.") == condition(written)


def test_writes_count_as_refused_from_the_beginning_to_the_end_of_an_unplanned_switchover():
    """The metric counts from the beginning of the switchover. The alert is that of a fence that stays too long."""
    states = (StateTime(state="Assessing", entered=SINCE),)
    under_way = SwitchoverStatus(state="Promoting", states=states)
    fenced = SwitchoverStatus(state="Draining", writes_refused=RefusedWrites(since=SINCE))

    assert SINCE == unplanned(status=under_way).refuses_writes_since
    assert SINCE == switchover_resource(status=fenced).refuses_writes_since
    assert unplanned(status=degraded()).refuses_writes_since is None
    assert (
        switchover_resource(status=SwitchoverStatus(state="Checking", states=states)).refuses_writes_since
        is None
    )


def test_a_degraded_switchover_is_complete_and_reports_the_loss():
    written = degraded()
    known = "At least 25 offsets are lost (orders: 25). Nothing is known of east since 2026-11-30T09:59:00Z."

    assert ("Degraded", SINCE, LOSS) == (written.state, written.completion_time, written.loss)
    assert (
        "True",
        "Degraded",
        f"west has become the active member of east-west, without east. {known} Reconcile both before east is used again.",
    ) == condition(written)
    assert "False" == condition(written, "Reconciling")[0]


def test_a_degraded_switchover_whose_job_is_deleted_reads_the_journal_and_becomes_done():
    """The user has reconciled the clusters, so the reverse flow may run."""
    known = degraded()
    asked = observation(unplanned(status=known, age_s=1e6))
    done = report(
        "Done", "lost-east", may_copy_back=True, active="west", promoted_by="east-west/lost-east", epoch=2
    )
    reported = observation(
        unplanned(status=known, age_s=1e6),
        jobs={"lost-east": job("lost-east", report=done, request=REQUEST, is_complete=True)},
    )

    written = status(reported)
    pair = pair_status(reported, {"lost-east": written})

    assert JobStep.CREATE_JOB is decision(asked).step
    assert "Degraded" == status(asked).state
    assert ("Done", LOSS) == (written.state, written.loss)
    assert pair is not None
    assert ("west", "west-to-east") == (pair.active, pair.runs)


def test_a_degraded_switchover_is_unchanged_without_its_pair_or_with_its_job():
    known = degraded()
    without_pair = observation(unplanned(status=known), pair=None)
    with_job = observation(
        unplanned(status=known), jobs={"lost-east": job("lost-east", request=REQUEST, is_complete=True)}
    )

    assert SwitchoverDecision() == decision(without_pair) == decision(with_job)
    assert known == status(without_pair)


def test_a_pair_is_not_ready_until_the_clusters_are_reconciled():
    known = degraded()
    seen = observation(
        unplanned(status=known),
        jobs={
            "lost-east": job(
                "lost-east",
                request=REQUEST,
                report=report(
                    "Degraded", "lost-east", active="west", promoted_by="east-west/lost-east", epoch=2
                ),
            )
        },
        pair=pair_resource(),
    )

    pair = pair_status(seen, {"lost-east": known})

    assert pair is not None
    (ready,) = (item for item in pair.conditions if item.type == "Ready")
    assert ("False", "NotReconciled") == (ready.status.value, ready.reason)
    assert "Switchover lost-east has made west the active member" in ready.message
    assert ("west", "", "NotReady") == (pair.active, pair.runs, pair.phase)
    assert replace(pair_resource(), status=pair).waits_to_be_reconciled
    assert not pair_resource().waits_to_be_reconciled


def test_an_unplanned_switchover_overtakes_an_unfinished_planned_one():
    """The process of the planned switchover ends first, because both need the lock of the pair on the target."""
    planned = switchover_resource(status=SwitchoverStatus(state="RollingBack"))
    both = {"move": job(report=report("RollingBack"))}
    before = observation(planned, unplanned(), jobs=both)
    after = observation(planned, unplanned())

    assert JobStep.END_JOB is decision(before, "move").step
    assert "Waits until the Job of Switchover move is deleted." == decision(before).waits_for
    assert JobStep.NOTHING is decision(after, "move").step
    assert JobStep.CREATE_JOB is decision(after).step
    assert ("RollingBack", "Waiting") == (status(after, "move").state, condition(status(after, "move"))[1])


def test_an_overtaken_switchover_ends_with_the_promotion_and_continues_after_a_rollback():
    planned = switchover_resource(status=SwitchoverStatus(state="RollingBack"))
    promoted = observation(planned, unplanned(status=SwitchoverStatus(state="Promoting")))
    given_up = observation(planned, unplanned(status=SwitchoverStatus(state="Lifted")))

    ended = status(promoted, "move")

    assert "Overtaken" == ended.state
    assert (
        "False",
        "Overtaken",
        "The unplanned Switchover lost-east was carried out in its place.",
    ) == condition(ended)
    assert JobStep.CREATE_JOB is decision(given_up, "move").step


def test_promoted_switchovers_and_those_to_the_other_member_are_not_overtaken():
    for state, to in (("Promoting", "west"), ("Draining", "east")):
        seen = observation(switchover_resource(status=SwitchoverStatus(state=state), to=to), unplanned())

        assert str(decision(seen).refusal).startswith("spec.pair: Switchover move of east-west has not ended")
        assert JobStep.CREATE_JOB is decision(seen, "move").step


def test_an_unplanned_switchover_that_cannot_begin_does_not_end_a_planned_one():
    """The request was seen too late."""
    planned = switchover_resource(status=SwitchoverStatus(state="Draining"), age_s=2 * BEGIN_WITHIN_S)
    late = observation(planned, unplanned(age_s=BEGIN_WITHIN_S + 1), jobs={"move": job()})

    assert JobStep.FOLLOW_JOB is decision(late, "move").step
