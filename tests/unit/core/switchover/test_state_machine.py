"""Messages, time limits and failures of the state machine. `tests.model.switchover` explores the order of states."""

from dataclasses import replace
from typing import Any

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.actions import (
    EndFlow,
    FenceCluster,
    HoldReverse,
    LiftFence,
    ReleaseReverse,
    StartReverse,
    SwitchEndpoint,
    TryFence,
    VerifySeal,
    WriteRecord,
)
from mirrorflow_core.switchover.observation import (
    ClusterObservation,
    FenceState,
    FlowEnd,
    GroupPass,
    LastWrite,
    PartitionEnd,
    ReadinessCheck,
    ReverseFlow,
    SealVerification,
    SwitchoverObservation,
    SwitchoverSide,
    TailDigest,
    TailDigests,
)
from mirrorflow_core.switchover.record import ReverseStart, SwitchoverLimits, SwitchoverRecord
from mirrorflow_core.switchover.seal import PartitionSeal, Seal
from mirrorflow_core.switchover.state_machine import step
from mirrorflow_core.switchover.states import FENCED, SwitchoverState, SwitchoverType

S = SwitchoverState
FENCED_STATES = [state for state in SwitchoverState if state in FENCED]
ORDERS = TopicPartition("orders", 0)
SEAL = Seal(
    pair="east-west",
    switchover="drill",
    epoch=1,
    attempt=1,
    partitions=(
        PartitionSeal(topic="orders", partition=0, topic_id="id", end=120, last_stable=120, copied=100),
    ),
)
REQUEST = SwitchoverRecord(
    id="drill",
    pair="east-west",
    type=SwitchoverType.PLANNED,
    source="east",
    to="west",
    created_ms=0,
    limits=SwitchoverLimits(checking_ms=300_000, refused_ms=60_000, quiet_ms=500),
)
BEGUN = replace(REQUEST, epoch=1, runner="me", revision=3, attempt=1)
CHECKING = replace(BEGUN, state=S.CHECKING, attempt=0)
ENDS = {ORDERS: PartitionEnd(topic_id="id", end=120, last_stable=120)}
TAILS = TailDigests(key="ab12", partitions={ORDERS: TailDigest(records=100, digest="cd34")})
READY = SwitchoverObservation(
    runner="me",
    checks=dict.fromkeys(ReadinessCheck, ""),
    endpoint="east",
    flow_end=FlowEnd(switchover="drill"),
    source=ClusterObservation(
        records=(), fence=FenceState.COMPLETE, ends=ENDS, unchanged_ms=500, tails=TAILS
    ),
    copied={ORDERS: 120},
    verification=SealVerification(seal_sha256=SEAL.sha256),
    groups=GroupPass(),
    target=ClusterObservation(records=(), fence=FenceState.ABSENT, ends=ENDS),
    reverse=ReverseFlow(started_by=""),
)


def in_state(state, **changes):
    """The record of a switchover in *state*, whose source is sealed if it is past that."""
    sealed = state not in {S.ACCEPTED, S.CHECKING, S.FENCING, S.QUIESCING}
    return replace(BEGUN, state=state, seal=SEAL if sealed else None, **changes)


def stored(record, observation=READY):
    """The observation in which both journals have *record*."""
    return replace(
        observation,
        source=replace(observation.source, records=(record,)),
        target=replace(observation.target, records=(record,)),
    )


def next_step(record, now_ms=0, *, observation=READY, source=None, target=None, **changes):
    seen = stored(record, observation)
    seen = replace(seen, source=replace(seen.source, **(source or {})), **changes)
    return step(record, replace(seen, target=replace(seen.target, **(target or {}))), now_ms)


# -- admission


def test_a_request_is_stored_with_the_next_epoch_before_any_other_action():
    last = replace(BEGUN, id="last", epoch=7, state=S.LIFTED)
    decided = step(REQUEST, stored(last), 5)

    assert (decided.record.state, decided.record.epoch, decided.record.runner) == (S.CHECKING, 8, "me")
    assert decided.actions == (WriteRecord(decided.record),)


@pytest.mark.parametrize(
    ("record", "observation", "sentence"),
    [
        (
            REQUEST,
            stored(replace(BEGUN, id="other", state=S.DRAINING)),
            "pair: switchover other of east-west is in state Draining",
        ),
        (replace(REQUEST, to="east"), READY, "to: east is the active member of east-west already"),
        (
            REQUEST,
            stored(replace(BEGUN, id="last", state=S.DONE)),
            "to: west is the active member of east-west already",
        ),
        (
            REQUEST,
            replace(READY, endpoint="south"),
            "pair: clients of east-west are led to south, but east is its active member",
        ),
    ],
)
def test_a_request_that_contradicts_the_pair_is_refused_with_the_field_and_changes_nothing(
    record, observation, sentence
):
    observation = replace(
        observation,
        source=replace(observation.source, records=observation.source.records or ()),
        target=replace(observation.target, records=observation.target.records or ()),
    )
    refused = step(record, observation, 5)

    assert refused.record.state is S.REFUSED
    assert refused.record.reason.startswith(sentence)
    assert refused.actions == ()
    assert step(refused.record, observation, 6).actions == ()


def test_a_switchover_begins_although_one_journal_lacks_the_end_of_the_previous_switchover():
    last = replace(BEGUN, id="last", state=S.REVERSING)
    seen = stored(last.moved_to(S.DONE, 5), replace(READY, endpoint="west"))
    back = replace(REQUEST, id="back", source="west", to="east")
    decided = step(back, replace(seen, target=replace(seen.target, records=(last,))), 10)

    assert (decided.record.state, decided.record.epoch) == (S.CHECKING, 2)


def test_a_request_that_has_already_ended_returns_its_stored_record():
    ended = in_state(S.LIFTED, reason="A rollback was requested.")

    assert step(REQUEST, stored(ended), 5).record == ended


@pytest.mark.parametrize("unknown", ["source", "target", "endpoint"])
def test_a_request_waits_until_both_journals_and_the_endpoint_are_known(unknown):
    value: Any = None if unknown == "endpoint" else ClusterObservation()
    waiting = step(REQUEST, replace(READY, **{unknown: value}), 5)

    assert waiting.record == REQUEST
    assert waiting.actions == ()
    assert waiting.waits_for.startswith("Waits until the")


# -- checks


def test_a_request_is_refused_with_the_messages_of_its_failed_checks():
    checks = dict(READY.checks) | {
        ReadinessCheck.LAG: "readiness.maxLagSeconds: the lag is 9 s; wait.",
        ReadinessCheck.GROUPS: "groups.include: group g is not copied; add it.",
    }
    refused = next_step(CHECKING, checks=checks)

    assert refused.record.state is S.REFUSED
    assert refused.record.reason == (
        "readiness.maxLagSeconds: the lag is 9 s; wait. groups.include: group g is not copied; add it."
    )


def test_a_waiting_request_names_the_checks_without_a_result():
    checks = {
        check: "" for check in ReadinessCheck if check not in {ReadinessCheck.LAG, ReadinessCheck.FENCE}
    }
    waiting = next_step(CHECKING, 100_000, checks=checks)

    assert waiting.actions == (TryFence(),)
    assert waiting.waits_for == "Waits for the checks lag, fence; refused in 200 s without their results."


def test_a_request_is_refused_if_checks_have_no_result_within_the_time_limit():
    refused = next_step(CHECKING, 300_000, checks={})

    assert refused.record.state is S.REFUSED
    assert refused.record.reason.startswith("No result within 300 s of the checks permissions, flows,")


def test_a_rollback_request_during_the_checks_refuses_the_switchover():
    assert next_step(CHECKING, rollback_requested=True).record.state is S.REFUSED


# -- while writes are refused


@pytest.mark.parametrize("state", FENCED_STATES)
def test_each_fenced_state_rolls_back_on_request_and_at_the_time_limit(state):
    record = in_state(state, fenced_ms=1_000)

    assert next_step(record, 2_000, rollback_requested=True).record.reason == "A rollback was requested."
    assert next_step(record, 61_000).record.state is S.ROLLING_BACK
    assert next_step(record, 60_999).record.state is not S.ROLLING_BACK


def test_a_rollback_at_the_time_limit_reports_what_was_missing():
    rolled_back = next_step(in_state(S.DRAINING), 60_000, copied={ORDERS: 110})

    assert rolled_back.record.reason == (
        "Writes were refused for 60 s, the limit, in state Draining. "
        "Waits for the copy of 10 offsets up to the seal, in orders-0."
    )


@pytest.mark.parametrize("state", FENCED_STATES)
def test_a_new_process_sets_the_fence_again_and_keeps_the_time_limit(state):
    record = in_state(state, fenced_ms=1_000)
    resumed = next_step(record, 2_000, runner="next")

    assert resumed.record.state is S.FENCING
    assert (resumed.record.attempt, resumed.record.seal, resumed.record.fenced_ms) == (2, None, 1_000)
    assert resumed.actions == (WriteRecord(resumed.record),)


def test_a_fence_time_in_the_future_does_not_extend_the_time_limit():
    resumed = next_step(in_state(S.DRAINING, fenced_ms=9_000_000), 2_000, runner="next")

    assert resumed.record.fenced_ms == 2_000


@pytest.mark.parametrize("state", [S.CHECKING, S.PROMOTING, S.REVERSING, S.ROLLING_BACK])
def test_a_new_process_keeps_a_state_that_is_not_fenced(state):
    assert next_step(in_state(state), runner="next").record.state is state


def test_a_seal_has_the_digests_of_the_newest_records_and_their_numbers():
    decided = next_step(in_state(S.QUIESCING))

    assert decided.record.seal is not None
    (partition,) = decided.record.seal.partitions
    assert (decided.record.seal.digest_key, partition.records, partition.digest) == ("ab12", 100, "cd34")


@pytest.mark.parametrize(
    "tails", [None, TailDigests(key="ab12", partitions={})], ids=["unread", "of other partitions"]
)
def test_nothing_is_sealed_before_the_newest_records_are_read(tails):
    waiting = next_step(in_state(S.QUIESCING), source={"tails": tails})

    assert waiting.record.state is S.QUIESCING
    assert waiting.waits_for.startswith(
        "Waits until the newest records on east are read, for the digests of the seal."
    )


def test_a_rollback_names_the_producers_that_bypass_the_fence():
    grown = {ORDERS: PartitionEnd(topic_id="id", end=121, last_stable=121)}
    writes = tuple(
        LastWrite(partition=ORDERS, producer_id=number, written_ms=number) for number in (4_000, 4_001)
    )
    rolled_back = next_step(in_state(S.VERIFYING), source={"ends": grown, "last_writes": writes})

    assert rolled_back.record.reason == (
        "Partitions of east have changed behind the fence: orders-0 by producer 4001, producer 4000; "
        "stop what writes there (super users bypass ACLs)."
    )


@pytest.mark.parametrize(
    "ends",
    [
        {},
        {ORDERS: PartitionEnd(topic_id="other", end=120, last_stable=120)},
        {ORDERS: PartitionEnd(topic_id="id", end=120, last_stable=110)},
        ENDS | {TopicPartition("new", 0): PartitionEnd(topic_id="id", end=0, last_stable=0)},
    ],
    ids=["deleted", "created again", "open transaction", "new partition"],
)
def test_a_switchover_rolls_back_if_the_source_differs_from_its_seal(ends):
    assert next_step(in_state(S.FORWARD_ENDED), source={"ends": ends}).record.state is S.ROLLING_BACK


def test_a_rollback_reports_the_differences_between_the_clusters():
    differing = SealVerification(seal_sha256=SEAL.sha256, differences=("orders-0: 3 records differ",))
    rolled_back = next_step(in_state(S.VERIFYING), verification=differing)

    assert rolled_back.record.reason == "The clusters differ: orders-0: 3 records differ"


def test_a_seal_is_compared_if_the_last_comparison_was_for_an_earlier_seal():
    other = SealVerification(seal_sha256=replace(SEAL, attempt=0).sha256)

    assert next_step(in_state(S.VERIFYING), verification=other).actions == (VerifySeal(SEAL),)


def test_a_seal_is_compared_again_if_its_result_is_missing_before_promotion():
    assert next_step(in_state(S.FORWARD_ENDED), verification=None).actions == (VerifySeal(SEAL),)


def test_active_groups_block_a_switchover_unless_the_user_allows_them():
    active = GroupPass(active=("billing",))
    record = in_state(S.GROUPS_FINAL)
    waiting = next_step(record, 48_051, groups=active)

    assert waiting.waits_for == (
        "Waits until the consumers of these groups are stopped at east: billing. Rolled back in 12 s otherwise."
    )
    assert next_step(replace(record, allows_live_groups=True), groups=active).record.state is S.FORWARD_ENDED


@pytest.mark.parametrize(
    "changes",
    [
        {"flow_end": FlowEnd(switchover="")},
        {"flow_end": FlowEnd(switchover="other")},
        {"flow_end": None},
    ],
)
def test_a_switchover_does_not_promote_before_the_flow_has_ended(changes):
    assert next_step(in_state(S.FORWARD_ENDED), **changes).actions == (EndFlow("drill"),)


@pytest.mark.parametrize(
    "changes",
    [
        {"copied": None},
        {"copied": {ORDERS: 119}},
        {"groups": None},
        {"source": {"fence": None}},
        {"source": {"ends": None}},
        {"target": {"ends": None}},
    ],
    ids=str,
)
def test_a_switchover_does_not_promote_while_any_final_check_is_unknown(changes):
    assert next_step(in_state(S.FORWARD_ENDED), **changes).record.state is S.FORWARD_ENDED


def test_the_reverse_flow_starts_at_the_ends_of_the_copies():
    promoting = next_step(in_state(S.FORWARD_ENDED))

    assert promoting.record.state is S.PROMOTING
    assert promoting.record.reverse_starts == (
        ReverseStart(topic="orders", partition=0, topic_id="id", offset=120),
    )


def test_a_rehearsal_is_rolled_back_instead_of_promoted():
    record = in_state(S.FORWARD_ENDED, type=SwitchoverType.REHEARSAL)
    rolled_back = next_step(record)
    lifted = next_step(
        rolled_back.record, source={"fence": FenceState.ABSENT}, flow_end=FlowEnd(switchover="")
    )

    assert (rolled_back.record.state, rolled_back.record.reason) == (S.ROLLING_BACK, "")
    assert lifted.record.state is S.REHEARSED


def test_a_switchover_rolls_back_without_a_target_that_is_lost_before_promotion():
    record = in_state(S.DRAINING)
    rolled_back = step(record, replace(stored(record), target=ClusterObservation()), 60_000).record
    unfenced = step(
        rolled_back, replace(stored(rolled_back), target=ClusterObservation(), flow_end=None), 60_100
    )

    assert rolled_back.state is S.ROLLING_BACK
    assert rolled_back.written_first == "east"
    assert unfenced.actions[0] == LiftFence(SwitchoverSide.SOURCE)


@pytest.mark.parametrize("unread", ["source", "target"])
def test_a_new_process_waits_until_it_has_read_both_journals(unread):
    record = in_state(S.FORWARD_ENDED)
    unknown: dict[str, Any] = {unread: ClusterObservation()}
    seen = replace(stored(record), runner="next", **unknown)
    waiting = step(record, seen, 90_000)

    assert waiting.record is record
    assert waiting.actions == ()
    assert waiting.waits_for == "Waits until the journals of both clusters can be read."


def test_a_rollback_lifts_the_rest_of_a_partly_lifted_fence():
    rolling_back = next_step(
        in_state(S.ROLLING_BACK), source={"fence": FenceState.PARTIAL}, flow_end=FlowEnd(switchover="")
    )

    assert rolling_back.actions == (LiftFence(SwitchoverSide.SOURCE),)


def test_the_reverse_flow_is_held_before_the_source_is_fenced():
    """The fence admits the reverse flow. If a user starts it now, it would copy the records of the forward flow back."""
    unfenced = {"fence": FenceState.ABSENT}
    free = FlowEnd(switchover="")
    record = in_state(S.FENCING)

    held_first = next_step(record, source=unfenced, flow_end=free).actions
    already_held = replace(READY, reverse=ReverseFlow(started_by="", held_by="an earlier one"))

    assert held_first == (HoldReverse("drill"), FenceCluster(SwitchoverSide.SOURCE))
    assert next_step(record, flow_end=free, reverse=None).actions == (HoldReverse("drill"),)
    assert next_step(record, observation=already_held, flow_end=free).record.state is S.QUIESCING


def test_a_switchover_rolls_back_if_the_reverse_flow_is_already_copying():
    running = ReverseFlow(started_by="", is_copying=True)
    rolled_back = next_step(in_state(S.FENCING), flow_end=FlowEnd(switchover=""), reverse=running).record

    assert rolled_back.state is S.ROLLING_BACK
    assert rolled_back.reason == "The flow from west to east was started, and copies records back; stop it."


@pytest.mark.parametrize(
    ("held_by", "actions"), [("drill", (ReleaseReverse("drill"),)), ("an earlier one", ()), ("", ())]
)
def test_a_rollback_releases_the_reverse_flow_only_if_this_switchover_holds_it(held_by, actions):
    reverse = ReverseFlow(started_by="", held_by=held_by)
    rolling_back = next_step(
        in_state(S.ROLLING_BACK),
        source={"fence": FenceState.ABSENT},
        flow_end=FlowEnd(switchover=""),
        reverse=reverse,
    )

    assert rolling_back.actions in {actions, (WriteRecord(rolling_back.record),)}
    assert (rolling_back.record.state is S.LIFTED) == (not actions)


def test_a_rehearsal_does_not_hold_the_reverse_flow():
    record = in_state(S.FENCING, type=SwitchoverType.REHEARSAL)

    assert next_step(record, flow_end=FlowEnd(switchover="")).record.state is S.QUIESCING


@pytest.mark.parametrize("state", [S.QUIESCING, S.DRAINING])
def test_a_topic_created_after_the_fence_is_reported_instead_of_a_removed_fence(state):
    source = {"fence": FenceState.PARTIAL, "unfenced_topics": ("orders.us",)}
    decided = next_step(in_state(state), source=source)

    assert decided.record.state is S.ROLLING_BACK
    assert decided.record.reason == (
        "Topics were created on east since it was fenced: orders.us; repeat the switchover when the flow has copied them, and create none "
        "meanwhile."
    )


def given_up(record):
    """The observation of another process, which rolls back without the target."""
    seen = stored(record, replace(READY, runner="other", rollback_requested=True, gives_up_target=True))
    return replace(seen, target=ClusterObservation(), flow_end=None, copied=None, groups=None)


@pytest.mark.parametrize(
    ("state", "kind", "is_rolled_back"),
    [
        (S.FENCING, SwitchoverType.PLANNED, True),
        (S.VERIFYING, SwitchoverType.PLANNED, True),
        (S.FORWARD_ENDED, SwitchoverType.PLANNED, False),
        (S.FORWARD_ENDED, SwitchoverType.REHEARSAL, True),
        (S.PROMOTING, SwitchoverType.PLANNED, False),
    ],
)
def test_a_target_is_given_up_only_where_the_source_shows_that_it_is_not_promoted(
    state, kind, is_rolled_back
):
    record = in_state(state, type=kind)
    taken = step(record, given_up(record), 0)

    assert bool(taken.actions) == is_rolled_back
    if is_rolled_back:
        following = step(taken.record, given_up(taken.record), 0)
        assert following.record.state is S.ROLLING_BACK


def test_a_rollback_without_the_target_pauses_when_the_source_is_as_before():
    record = in_state(S.ROLLING_BACK, runner="other")
    fenced = given_up(record)
    lifted = replace(fenced, source=replace(fenced.source, fence=FenceState.ABSENT))
    held = replace(lifted, reverse=ReverseFlow(started_by="", held_by=record.id))

    assert step(record, fenced, 0).actions == (LiftFence(SwitchoverSide.SOURCE),)
    assert step(record, held, 0).actions == (ReleaseReverse(record.id),)
    paused = step(record, lifted, 0)
    assert (paused.is_paused, paused.actions, paused.record) == (True, (), record)


# -- after the point of no return


def test_promotion_switches_the_endpoint_although_the_source_is_lost():
    record = in_state(S.PROMOTING)
    promoting = step(record, replace(stored(record), source=ClusterObservation()), 90_000)

    assert promoting.actions == (SwitchEndpoint("west"),)


def test_neither_a_request_nor_the_time_limit_rolls_back_after_promotion():
    promoting = next_step(in_state(S.PROMOTING), 900_000, rollback_requested=True)

    assert promoting.record.state is S.PROMOTING


@pytest.mark.parametrize("state", [S.PROMOTING, S.REVERSING])
def test_a_fence_that_is_removed_after_promotion_is_set_again_before_other_actions(state):
    again = next_step(in_state(state), source={"fence": FenceState.PARTIAL})

    assert again.actions == (FenceCluster(SwitchoverSide.SOURCE),)
    assert "removed by someone else" in again.waits_for


def test_records_written_to_the_source_after_promotion_are_reported():
    grown = {ORDERS: PartitionEnd(topic_id="id", end=122, last_stable=122)}
    reversing = next_step(in_state(S.PROMOTING), endpoint="west", source={"ends": grown})

    assert reversing.record.state is S.REVERSING
    assert reversing.record.reason.startswith("Partitions of east have changed behind the fence: orders-0")


def test_a_started_reverse_flow_is_not_started_again():
    record = in_state(S.REVERSING)

    assert next_step(record).actions == (StartReverse("drill", ()),)
    assert next_step(record, reverse=ReverseFlow(started_by="drill")).actions == ()
    assert next_step(record, reverse=ReverseFlow(started_by="drill", is_copying=True)).record.state is S.DONE


# -- who carries it out


def test_a_process_ends_when_a_different_process_has_stored_a_newer_record():
    record = in_state(S.DRAINING)
    superseded = step(record, stored(record.revised(runner="next")), 0)

    assert superseded.is_superseded
    assert superseded.actions == ()


def test_a_record_is_stored_again_until_both_journals_have_it():
    record = in_state(S.DRAINING)
    seen = stored(record)

    assert step(record, replace(seen, source=replace(seen.source, records=())), 0).actions == (
        WriteRecord(record),
    )


def test_a_completed_switchover_has_no_further_actions():
    assert next_step(in_state(S.DONE)).actions == ()
