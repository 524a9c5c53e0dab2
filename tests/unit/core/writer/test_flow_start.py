"""A switchover sets the start offsets of the reverse flow. Stored positions that contradict them are refused."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.partitions import UNKNOWN
from mirrorflow_core.writer.claim import Claim
from mirrorflow_core.writer.flow_end import clear_end
from mirrorflow_core.writer.flow_lock import Fenced
from mirrorflow_core.writer.flow_plan import TopicIds
from mirrorflow_core.writer.flow_start import (
    ConflictingStarts,
    FlowRuns,
    FlowStart,
    Held,
    StartConflict,
    Started,
    awaited_switchover,
    conflict_of,
    hold_flow,
    note_awaited,
    start_flow,
)
from mirrorflow_core.writer.ownership import FlowEnded, Ownership, take_flow
from mirrorflow_core.writer.position import WriterPosition
from tests.unit.core.writer.test_flow_end import ClaimingBrokers, end
from tests.unit.core.writer.test_takeover import IDS, ORDERS, PAYMENTS, plan

IDENTIFIERS = {"orders": TopicIds("source", "target", "orders"), "payments": TopicIds("p", "q", "payments")}
PLAN = plan(copies=IDENTIFIERS)
NEVER_RUN: tuple[WriterPosition, ...] = ()


def position(offset: int, *, left: bool = True, topic_id: str = "source") -> WriterPosition:
    return WriterPosition(
        topic="orders",
        partition=0,
        next_source_offset=offset,
        source_topic_id=topic_id,
        writer=IDS,
        left=left,
        revision=7,
    )


def brokers_with(*positions: WriterPosition, ended: str | None = None, refuses: str = "") -> ClaimingBrokers:
    """Brokers of a flow with these positions, which *ended* has ended."""
    claims: tuple[Claim, ...] = (replace(PLAN.claim, left=True, ended=ended),) if positions else ()
    brokers = ClaimingBrokers(*claims, refuses=refuses)
    brokers.positions = list(positions)
    return brokers


def start(brokers: ClaimingBrokers, offset: int, switchover: str = "second") -> object:
    return brokers.run(start_flow(PLAN, switchover, {ORDERS: FlowStart(offset, 3), PAYMENTS: FlowStart(0)}))


@pytest.mark.parametrize(
    ("stored", "ended"),
    [
        (NEVER_RUN, None),
        ((position(100),), None),
        ((position(60),), "first"),
        ((position(UNKNOWN),), None),
        ((position(500, topic_id="deleted"),), None),
    ],
    ids=["never run", "stored before a crash", "ended earlier", "reset", "topic created again"],
)
def test_start_positions_are_stored_before_the_claim_that_clears_the_end(
    stored: tuple[WriterPosition, ...], ended: str | None
) -> None:
    brokers = brokers_with(*stored, ended=ended)

    assert start(brokers, 100) == Started(is_new=True)

    positions = {new.topic_partition: new for new in brokers.transactions[-2].positions}
    assert brokers.transactions[-2].producer.transactional_id == "mirrorflow:east:lock"
    assert {key: new.next_source_offset for key, new in positions.items()} == {ORDERS: 100, PAYMENTS: 0}
    assert all(new.left and new.records == UNKNOWN for new in positions.values())
    assert (positions[ORDERS].source_epoch, positions[ORDERS].java_offset) == (3, 99)
    assert (positions[ORDERS].source_topic_id, positions[ORDERS].target_topic) == ("source", "orders")
    assert positions[ORDERS].revision == (8 if stored else 1)
    claim = brokers.claims[-1]
    assert (claim.started, claim.ended, claim.left) == ("second", None, True)


@pytest.mark.parametrize(
    ("stored", "ended", "conflict"),
    [
        (position(60), None, StartConflict.BEHIND),
        (position(60, left=False), "first", StartConflict.BEHIND),
        (position(101), None, StartConflict.AHEAD),
        (position(101), "first", StartConflict.AHEAD),
    ],
    ids=["not ended", "stopped before the end", "ahead", "ahead when it ended"],
)
def test_a_position_that_contradicts_a_start_is_refused(
    stored: WriterPosition, ended: str | None, conflict: StartConflict
) -> None:
    brokers = brokers_with(stored, ended=ended)

    assert start(brokers, 100) == ConflictingStarts({ORDERS: (stored, conflict)})
    assert not any(transaction.positions or transaction.claim for transaction in brokers.transactions)


def test_a_repeated_start_does_not_change_a_running_flow() -> None:
    brokers = brokers_with(position(60), ended="first")
    start(brokers, 100)
    owned = brokers.run(take_flow(plan(ORDERS, copies=IDENTIFIERS)))
    assert isinstance(owned, Ownership)
    written = len(brokers.transactions)

    assert start(brokers, 100) == Started(is_new=False)
    assert len(brokers.transactions) == written
    assert brokers.claims[-1].started == "second", "each owner keeps the id"


def test_an_ended_flow_keeps_the_id_of_its_start() -> None:
    """If the flow has ended since, a repeated start by an earlier switchover changes nothing."""
    brokers = brokers_with(position(60), ended="first")
    start(brokers, 100)
    brokers.positions = [position(100, left=False)]
    end(brokers, "third")
    ended = brokers.claims[-1]

    assert start(brokers, 100) == Started(is_new=False)
    assert brokers.claims[-1] == ended
    assert (ended.started, ended.ended) == ("second", "third")


def test_a_renamed_flow_that_never_ran_is_held_under_its_new_name() -> None:
    """A switchover that was rolled back has left a claim with the earlier name."""
    earlier = replace(PLAN.claim, flow="earlier", process=None, left=True)
    brokers = ClaimingBrokers(earlier)
    brokers.positions = []

    assert hold(brokers) == Held(is_new=True)
    assert (PLAN.claim.flow, None, "second") == (
        brokers.claims[-1].flow,
        brokers.claims[-1].process,
        brokers.claims[-1].ended,
    )


@pytest.mark.parametrize("refuses", ["lock", "claim"])
def test_a_fenced_switchover_does_not_start_the_flow(refuses: str) -> None:
    brokers = brokers_with(position(60), ended="first", refuses=refuses)

    assert start(brokers, 100) == Fenced()
    assert brokers.claims[-1].ended == "first"


OWN = Claim(flow="flow", process="host/1/a", source_alias="west", tasks=1, lock_epoch=1, time_ms=0)
ENDED = replace(OWN, source_alias="east", source_cluster_id="left", ended="second")


@pytest.mark.parametrize(
    ("own", "opposite", "awaited"),
    [
        (None, ENDED, "second"),
        (OWN, ENDED, "second"),
        (replace(OWN, started="first"), ENDED, "second"),
        (replace(OWN, started="second"), ENDED, None),
        (replace(OWN, ended="first"), ENDED, None),
        (None, replace(ENDED, ended=None), None),
        (None, replace(ENDED, source_cluster_id="replaced"), None),
        (None, replace(ENDED, source_cluster_id=None), "second"),
        (None, None, None),
    ],
    ids=[
        "never run",
        "run by itself",
        "started before",
        "started",
        "ended itself",
        "other flow runs",
        "new cluster",
        "unknown cluster",
        "alone",
    ],
)
def test_a_flow_waits_for_the_switchover_that_has_ended_the_other_one(
    own: Claim | None, opposite: Claim | None, awaited: str | None
) -> None:
    assert awaited_switchover(own, opposite, target_cluster_id="left") == awaited


def test_a_flow_that_never_ran_keeps_the_switchover_for_which_it_waits() -> None:
    """It can still be held and started. A flow that has run or is held does not change."""
    brokers = brokers_with()

    assert brokers.run(note_awaited(PLAN, "second"))
    claim = brokers.claims[-1]
    assert (claim.has_run, claim.ended, claim.left, claim.released) == (False, None, True, "second")
    assert hold(brokers) == Held(is_new=True)
    assert not brokers.run(note_awaited(PLAN, "second"))
    assert start(brokers, 100) == Started(is_new=True)
    assert not brokers.run(note_awaited(PLAN, "third"))
    assert (brokers.claims[-1].started, brokers.claims[-1].released) == ("second", None)


def hold(brokers: ClaimingBrokers, offset: int = 100, switchover: str = "second") -> object:
    return brokers.run(hold_flow(PLAN, switchover, {ORDERS: FlowStart(offset), PAYMENTS: FlowStart(0)}))


@pytest.mark.parametrize("stored", [NEVER_RUN, (position(100),)], ids=["never run", "has copied all of it"])
def test_a_held_flow_cannot_be_taken_until_it_is_started(stored: tuple[WriterPosition, ...]) -> None:
    brokers = brokers_with(*stored)

    assert hold(brokers) == Held(is_new=True)
    assert isinstance(brokers.run(take_flow(plan(ORDERS, copies=IDENTIFIERS))), FlowEnded)
    assert not any(transaction.positions for transaction in brokers.transactions)

    assert start(brokers, 120) == Started(is_new=True)
    assert isinstance(brokers.run(take_flow(plan(ORDERS, copies=IDENTIFIERS))), Ownership)


@pytest.mark.parametrize("stored", [NEVER_RUN, (position(100),)], ids=["never run", "has run"])
def test_a_released_flow_is_as_before_and_if_it_never_ran_has_the_id_of_the_rolled_back_switchover(
    stored: tuple[WriterPosition, ...],
) -> None:
    brokers = brokers_with(*stored)
    hold(brokers)

    assert brokers.run(clear_end(PLAN, "second"))
    claim = brokers.claims[-1]
    assert (claim.ended, claim.started, claim.left) == (None, None, True)
    assert (claim.has_run, claim.released) == ((True, None) if stored else (False, "second"))
    hold(brokers)
    assert start(brokers, 120, "third") == Started(is_new=True)
    assert not brokers.claims[-1].released


@pytest.mark.parametrize(
    ("stored", "conflict"),
    [(position(60), StartConflict.BEHIND), (position(101), StartConflict.AHEAD)],
)
def test_a_flow_with_positions_that_contradict_the_start_is_not_held(
    stored: WriterPosition, conflict: StartConflict
) -> None:
    brokers = brokers_with(stored)

    assert hold(brokers) == ConflictingStarts({ORDERS: (stored, conflict)})
    assert not brokers.claims[-1].ended


def test_a_flow_whose_owner_was_killed_is_held_and_the_owner_is_fenced() -> None:
    brokers = brokers_with(position(100))
    owned = brokers.run(take_flow(plan(ORDERS, copies=IDENTIFIERS)))
    assert isinstance(owned, Ownership)
    abandoned = brokers.claims[-1]

    starts = {ORDERS: FlowStart(100), PAYMENTS: FlowStart(0)}
    assert brokers.run(
        hold_flow(PLAN, "second", starts, abandoned=replace(abandoned, time_ms=-2))
    ) == FlowRuns(abandoned)
    assert brokers.run(hold_flow(PLAN, "second", starts, abandoned=abandoned)) == Held(is_new=True)
    assert brokers.claims[-1].ended == "second"


def test_a_flow_that_runs_is_not_held_and_keeps_its_lock() -> None:
    brokers = brokers_with(position(100))
    owned = brokers.run(take_flow(plan(ORDERS, copies=IDENTIFIERS)))
    assert isinstance(owned, Ownership)
    written = len(brokers.transactions)

    assert hold(brokers) == FlowRuns(brokers.claims[-1])
    assert len(brokers.transactions) == written


def test_a_flow_ended_by_an_earlier_switchover_is_already_held() -> None:
    brokers = brokers_with(position(60), ended="first")

    assert hold(brokers) == Held(is_new=False)
    assert brokers.claims[-1].ended == "first"


def test_a_flow_whose_hold_is_being_cleared_is_held_again() -> None:
    """The marker of the claim that clears the hold is missing.

    Without a new hold, the next process could take the flow.
    """
    brokers = brokers_with(position(100))
    hold(brokers, switchover="first")
    assert brokers.run(clear_end(PLAN, "first"))
    brokers.pending.append(brokers.claims.pop())

    assert hold(brokers) == Held(is_new=True)
    assert brokers.claims[-1].ended == "second"


@pytest.mark.parametrize("refuses", ["lock", "claim"])
def test_a_fenced_switchover_does_not_hold_the_flow(refuses: str) -> None:
    brokers = brokers_with(position(100), refuses=refuses)

    assert hold(brokers) == Fenced()
    assert not brokers.claims[-1].ended


@given(copied=st.integers(0, 20), offset=st.integers(0, 20), was_ended=st.booleans(), left=st.booleans())
def test_an_accepted_start_neither_skips_nor_repeats_records_of_the_flow(
    *, copied: int, offset: int, was_ended: bool, left: bool
) -> None:
    """One of the two flows has copied the records before the start. No later record was copied back."""
    conflict = conflict_of(
        FlowStart(offset), position(copied, left=left), IDENTIFIERS["orders"], was_ended=was_ended
    )

    if conflict is None:
        assert copied <= offset
        assert copied == offset or (was_ended and left)
    else:
        assert (conflict is StartConflict.AHEAD) == (copied > offset)
