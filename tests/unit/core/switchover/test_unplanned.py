"""The steps of an unplanned switchover: what it reports, refuses and waits for, and what it does not wait for."""

from dataclasses import replace

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.actions import (
    ClampGroups,
    ClearEnd,
    EndFlow,
    LiftFence,
    SwitchEndpoint,
    TryToFence,
    WriteRecord,
)
from mirrorflow_core.switchover.guards import FENCE_TRIED_MS
from mirrorflow_core.switchover.loss import EndEvidence, LossAssessment, PartitionCut, PartitionLoss, cut_off
from mirrorflow_core.switchover.observation import (
    ClusterObservation,
    FenceState,
    FlowEnd,
    GroupClamp,
    PartitionEnd,
    SwitchoverObservation,
    SwitchoverSide,
)
from mirrorflow_core.switchover.record import SwitchoverRecord, decode_record, encode_record
from mirrorflow_core.switchover.state_machine import SwitchoverStep, step
from mirrorflow_core.switchover.states import SwitchoverState, SwitchoverType

S = SwitchoverState
ORDERS = TopicPartition("orders", 0)
SEEN_MS = 1_700_000_000_000
LOSS = LossAssessment(
    partitions=(
        PartitionLoss(
            topic="orders", partition=0, copied=70, source_end=100, evidence=EndEvidence.FLOW, seen_ms=SEEN_MS
        ),
        PartitionLoss(
            topic="orders", partition=1, copied=5, source_end=5, evidence=EndEvidence.FLOW, seen_ms=1
        ),
        PartitionLoss(topic="orders", partition=2, copied=7),
    )
)
CUTS = (
    PartitionCut(
        topic="orders", partition=0, source_topic_id="s", copied=80, target_topic_id="t", target_end=82
    ),
)
REQUEST = SwitchoverRecord(
    id="one",
    pair="east-west",
    type=SwitchoverType.UNPLANNED,
    source="east",
    to="west",
    created_ms=0,
    accepts_loss=True,
)


def at(state: SwitchoverState, **changes) -> SwitchoverRecord:
    """Returns the request in *state*, carried out by `runner`."""
    return replace(REQUEST, state=state, epoch=2, runner="runner", revision=3, **changes)


def seen(
    record: SwitchoverRecord, *others: SwitchoverRecord, fence=None, target_fence=FenceState.ABSENT, **fields
):
    """Returns an observation with the journal of the target alone, which has *record* and *others*."""
    ends = {ORDERS: PartitionEnd(topic_id="t", end=82, last_stable=82)}
    target = ClusterObservation(records=(record, *others), fence=target_fence, ends=ends)
    return SwitchoverObservation(
        runner="runner", source=ClusterObservation(fence=fence), target=target, endpoint="east", **fields
    )


def written(result: SwitchoverStep) -> SwitchoverRecord:
    """Returns the record that *result* announces."""
    (action,) = result.actions
    assert isinstance(action, WriteRecord)
    return action.record


def ended(by: str = "one") -> FlowEnd:
    return FlowEnd(switchover=by)


def test_an_unplanned_switchover_begins_with_only_the_journal_of_the_target():
    observation = SwitchoverObservation(
        runner="runner", endpoint="east", target=ClusterObservation(records=())
    )

    assert S.ASSESSING is written(step(REQUEST, observation, 0)).state


def test_the_new_epoch_skips_one_that_only_the_lost_source_may_have():
    done = replace(REQUEST, id="zero", state=S.LIFTED, epoch=4)

    assert 6 == written(step(REQUEST, seen(done), 0)).epoch


def test_a_switchover_whose_loss_is_not_accepted_is_refused_with_the_loss():
    record = at(S.ASSESSING, accepts_loss=False)

    refused = written(step(record, seen(record, loss=LOSS), 9))

    assert S.REFUSED is refused.state
    assert LOSS == refused.loss
    assert (
        "acceptLoss: At least 30 offsets of 1 partition are lost (orders-0: 30). The end is unknown for 1 partition. "
        "Nothing is known of east since 2023-11-14 22:13:20Z. To switch over and lose that, add --accept-loss."
    ) == refused.reason


def test_the_refusal_suggests_a_planned_switchover_if_the_source_responds():
    record = at(S.ASSESSING, accepts_loss=False)

    refused = written(step(record, seen(record, loss=replace(LOSS, is_source_answering=True)), 9))

    assert (
        "east answers: a planned switchover loses nothing, try it first (leave out --unplanned)."
        in refused.reason
    )


@pytest.mark.parametrize("loss", [LOSS, replace(LOSS, is_source_answering=True)], ids=["lost", "answers"])
def test_an_accepted_loss_is_stored_before_anything_changes(loss: LossAssessment):
    record = at(S.ASSESSING)

    announced = written(step(record, seen(record, loss=loss), 9))

    assert (S.FORWARD_ENDED, loss) == (announced.state, announced.loss)


def test_a_switchover_without_any_copied_topic_is_refused():
    record = at(S.ASSESSING)

    refused = written(step(record, seen(record, loss=LossAssessment(partitions=())), 9))

    assert "spec.topics: the flow from east has copied no topic to west that it selects." == refused.reason


def test_a_rollback_request_during_the_assessment_refuses_the_switchover():
    record = at(S.ASSESSING)

    assert S.REFUSED is written(step(record, seen(record, loss=LOSS, rollback_requested=True), 9)).state


def test_a_source_that_responds_is_fenced_before_the_flow_ends():
    record = at(S.FORWARD_ENDED, loss=LOSS)

    result = step(record, seen(record, can_fence_source=True, flow_end=ended("")), 9)

    assert (TryToFence(), EndFlow("one")) == result.actions


def test_the_wait_for_the_fence_is_limited():
    record = at(S.FORWARD_ENDED, loss=LOSS)
    observation = seen(record, can_fence_source=True, fence=FenceState.PARTIAL, flow_end=ended())

    assert (TryToFence(),) == step(record, observation, FENCE_TRIED_MS - 1).actions
    assert S.GROUPS_CLAMPED is written(step(record, observation, FENCE_TRIED_MS)).state


def test_a_switchover_does_not_wait_for_an_unresponsive_source():
    record = at(S.FORWARD_ENDED, loss=LOSS)

    assert S.GROUPS_CLAMPED is written(step(record, seen(record, flow_end=ended()), 0)).state


def test_groups_are_clamped_before_the_promotion_stores_the_cuts():
    record = at(S.GROUPS_CLAMPED, loss=LOSS)

    assert (ClampGroups(),) == step(record, seen(record, flow_end=ended(), cuts=CUTS), 9).actions
    promoting = written(step(record, seen(record, flow_end=ended(), cuts=CUTS, clamp=GroupClamp()), 9))

    assert (S.PROMOTING, CUTS, [82]) == (
        promoting.state,
        promoting.cuts,
        [start.offset for start in promoting.reverse_starts],
    )


def test_a_flow_end_that_was_cleared_is_set_again_before_promotion():
    record = at(S.GROUPS_CLAMPED, loss=LOSS)
    observation = seen(record, flow_end=ended(""), cuts=CUTS, clamp=GroupClamp())

    assert (EndFlow("one"),) == step(record, observation, 9).actions


@pytest.mark.parametrize("state", [S.FORWARD_ENDED, S.GROUPS_CLAMPED], ids=lambda state: state.value)
def test_each_state_before_promotion_rolls_back_on_request(state: SwitchoverState):
    record = at(state, loss=LOSS)

    assert S.ROLLING_BACK is written(step(record, seen(record, rollback_requested=True), 9)).state


def test_a_rollback_clears_the_flow_end_and_lifts_the_fence():
    record = at(S.ROLLING_BACK, loss=LOSS, reason="A rollback was requested.")

    restoring = step(record, seen(record, fence=FenceState.COMPLETE, flow_end=ended()), 9)
    lifted = written(step(record, seen(record, fence=FenceState.ABSENT, flow_end=ended("")), 9))

    assert (LiftFence(SwitchoverSide.SOURCE), ClearEnd("one")) == restoring.actions
    assert S.LIFTED is lifted.state


def test_a_source_that_returns_is_fenced_before_the_endpoint_is_switched():
    record = at(S.PROMOTING, loss=LOSS, cuts=CUTS)
    observation = seen(
        record, can_fence_source=True, fence=FenceState.ABSENT, target_fence=FenceState.COMPLETE
    )

    assert (TryToFence(), LiftFence(SwitchoverSide.TARGET), SwitchEndpoint("west")) == step(
        record, observation, 9
    ).actions


def test_a_degraded_switchover_has_no_further_actions_and_warns_of_an_unfenced_source():
    record = at(S.PROMOTING, loss=LOSS, cuts=CUTS)

    degraded = written(step(record, replace(seen(record), endpoint="west"), 9))
    done = step(degraded, seen(degraded), 10)

    assert (S.DEGRADED, True, False) == (degraded.state, degraded.is_at_rest, degraded.is_final)
    assert degraded.reason.startswith("It is not known that east is fenced")
    assert ((), degraded) == (done.actions, done.record)


def test_a_degraded_switchover_has_no_warning_if_the_source_is_fenced():
    record = at(S.PROMOTING, loss=LOSS, cuts=CUTS)

    degraded = written(step(record, replace(seen(record, fence=FenceState.COMPLETE), endpoint="west"), 9))

    assert "" == degraded.reason


def test_a_switchover_back_begins_once_the_clusters_are_reconciled():
    done = at(S.DEGRADED).reconciled(9)
    request = replace(REQUEST, id="two", type=SwitchoverType.PLANNED, source="west", to="east")
    journal = ClusterObservation(records=(done,))

    begun = step(
        request, SwitchoverObservation(runner="b", endpoint="west", source=journal, target=journal), 10
    )

    assert (S.DONE, S.CHECKING) == (done.state, begun.record.state)


PLANNED_BEFORE = replace(at(S.DONE), id="planned", type=SwitchoverType.PLANNED)


@pytest.mark.parametrize(
    ("last", "endpoint", "state"),
    [
        (at(S.DEGRADED).reconciled(9), "west", S.CHECKING),
        (PLANNED_BEFORE, "west", S.REFUSED),
        (None, "west", S.REFUSED),
    ],
    ids=["unplanned and reconciled", "planned", "none"],
)
def test_a_restore_begins_only_to_a_member_that_an_unplanned_switchover_has_left(
    last: SwitchoverRecord | None, endpoint: str, state: S
):
    request = replace(REQUEST, id="two", type=SwitchoverType.RESTORE, source="west", to="east")
    journal = ClusterObservation(records=() if last is None else (last,))

    begun = step(
        request, SwitchoverObservation(runner="b", endpoint=endpoint, source=journal, target=journal), 10
    )

    assert state is begun.record.state
    if state is S.REFUSED:
        assert begun.record.reason.startswith("type: Restore makes the member active again")
        assert "use Planned" in begun.record.reason


@pytest.mark.parametrize("kind", SwitchoverType)
def test_no_switchover_begins_before_the_clusters_are_reconciled(kind: SwitchoverType):
    degraded = at(S.DEGRADED)
    request = replace(REQUEST, id="two", type=kind, source="west", to="east")
    journal = ClusterObservation(records=(degraded,))

    refused = step(
        request, SwitchoverObservation(runner="b", endpoint="west", source=journal, target=journal), 9
    )

    assert S.REFUSED is refused.record.state
    assert (
        "pair: the unplanned switchover one has made west the active member of east-west, and east may have records that never "
        "crossed; reconcile east first (mirrorflow diverged --left east)."
    ) == refused.record.reason


def test_an_unplanned_switchover_overtakes_a_stuck_planned_one_and_replaces_its_flow_end():
    stuck = replace(at(S.FORWARD_ENDED), id="zero", type=SwitchoverType.PLANNED, epoch=1)
    record = at(S.FORWARD_ENDED, loss=LOSS)

    assert S.ASSESSING is written(step(REQUEST, seen(stuck), 9)).state
    assert (ClearEnd("zero"), EndFlow("one")) == step(
        record, seen(record, stuck, flow_end=ended("zero")), 9
    ).actions
    assert step(stuck, seen(record, stuck), 9).is_superseded


def test_a_planned_switchover_continues_after_the_unplanned_one_was_refused():
    stuck = replace(at(S.SEALED), id="zero", type=SwitchoverType.PLANNED, epoch=1)
    given_up = at(S.REFUSED, reason="acceptLoss")

    assert not step(stuck, seen(given_up, stuck), 9).is_superseded


@pytest.mark.parametrize(
    ("state", "kind"),
    [(S.PROMOTING, SwitchoverType.PLANNED), (S.FORWARD_ENDED, SwitchoverType.UNPLANNED)],
    ids=["promoted", "another-unplanned"],
)
def test_promoted_and_unplanned_switchovers_are_not_overtaken(state: SwitchoverState, kind: SwitchoverType):
    other = replace(at(state), id="zero", type=kind, epoch=1)

    refused = step(REQUEST, seen(other), 9).record

    assert S.REFUSED is refused.state
    assert refused.reason.startswith(f"pair: switchover zero of east-west is in state {state.value}")


def test_records_copied_after_the_assessment_do_not_count_as_lost():
    assert 30 == LOSS.lost_offsets
    assert 20 == cut_off(LOSS, CUTS).lost_offsets
    assert 20 == at(S.PROMOTING, loss=LOSS, cuts=CUTS).known_loss.lost_offsets  # type: ignore[union-attr]


def test_a_loss_without_evidence_is_reported_as_unknown():
    unknown = LossAssessment(partitions=(PartitionLoss(topic="orders", partition=0, copied=7),))

    assert (
        "No offset is known to be lost. The end is unknown for 1 partition. It is not known when east was seen last."
    ) == unknown.sentence("east")


def test_the_journal_keeps_loss_and_cuts():
    record = at(S.PROMOTING, loss=LOSS, cuts=CUTS)

    assert record == decode_record(*encode_record(record))
