"""States of a copied partition: each event leads to the state that the diagram shows, and no other transition is made."""

from collections.abc import Callable
from itertools import product

import pytest

from mirrorflow_core.copying.effects import Effects, Signal
from mirrorflow_core.copying.partition import LEGAL_STATES, CopierState, PartitionCopier
from mirrorflow_core.errors import MirrorFlowError, NotAuthorizedError, UnreachableError
from mirrorflow_core.wire.fetch import FetchKey, PartitionFetchResponse
from tests.unit.core.copying.stubs import begun_copier, new_copier, new_session, records_of, resume
from tests.unit.core.copying.test_batch_packer import TIMESTAMP_MS
from tests.unit.core.wire.strategies import batch_of

ERROR = MirrorFlowError("the topic is denied")
UNREACHABLE = UnreachableError(cluster="east", addresses="b:9092", problem="refused")
RESUMING, COPYING, STOPPED, LEAVING = CopierState
ILLEGAL = [
    (before, after)
    for before, after in product(CopierState, repeat=2)
    if before is not after and after not in LEGAL_STATES[before]
]


def resuming() -> PartitionCopier:
    return new_copier(new_session())


def copying() -> PartitionCopier:
    return begun_copier(TIMESTAMP_MS)


def stopped() -> PartitionCopier:
    copier = copying()
    copier.stop(ERROR)
    return copier


def leaving() -> PartitionCopier:
    copier = copying()
    copier.leave()
    return copier


COPIER_IN: dict[CopierState, Callable[[], PartitionCopier]] = {
    RESUMING: resuming,
    COPYING: copying,
    STOPPED: stopped,
    LEAVING: leaving,
}


def resume_it(copier: PartitionCopier) -> None:
    resume(copier, TIMESTAMP_MS)


def resync(copier: PartitionCopier) -> None:
    copier.resync()


def stop(copier: PartitionCopier) -> None:
    copier.stop(ERROR)


def leave_out(copier: PartitionCopier) -> None:
    copier.left_out(MirrorFlowError("the topic has no leader"))


def leave_out_without_permission(copier: PartitionCopier) -> None:
    copier.left_out(NotAuthorizedError(cluster="east", operation="Read", resource="topic orders"))


def lose_source_broker(copier: PartitionCopier) -> None:
    copier.fetch_failed(UNREACHABLE)


def lose_target_broker(copier: PartitionCopier) -> None:
    copier.write_failed(UNREACHABLE)


def delay(copier: PartitionCopier) -> None:
    copier.delayed(ERROR)


def leave(copier: PartitionCopier) -> None:
    copier.leave()


@pytest.mark.parametrize(
    ("before", "event", "after"),
    [
        (RESUMING, resume_it, COPYING),
        (RESUMING, resync, RESUMING),
        (RESUMING, stop, STOPPED),
        (RESUMING, leave_out, RESUMING),
        (RESUMING, leave_out_without_permission, STOPPED),
        (RESUMING, lose_source_broker, RESUMING),
        (RESUMING, lose_target_broker, RESUMING),
        (RESUMING, delay, RESUMING),
        (RESUMING, leave, LEAVING),
        (COPYING, resume_it, COPYING),
        (COPYING, resync, RESUMING),
        (COPYING, stop, STOPPED),
        (COPYING, lose_source_broker, COPYING),
        (COPYING, lose_target_broker, RESUMING),
        (COPYING, delay, COPYING),
        (COPYING, leave, LEAVING),
        (STOPPED, resume_it, COPYING),
        (STOPPED, resync, STOPPED),
        (STOPPED, stop, STOPPED),
        (STOPPED, leave_out, RESUMING),
        (STOPPED, lose_source_broker, STOPPED),
        (STOPPED, lose_target_broker, STOPPED),
        (STOPPED, delay, STOPPED),
        (STOPPED, leave, LEAVING),
        (LEAVING, resume_it, LEAVING),
        (LEAVING, resync, LEAVING),
        (LEAVING, stop, LEAVING),
        (LEAVING, delay, LEAVING),
        (LEAVING, lose_source_broker, LEAVING),
        (LEAVING, lose_target_broker, LEAVING),
        (LEAVING, leave, LEAVING),
    ],
)
def test_an_event_leads_to_the_state_of_the_diagram(
    before: CopierState, event: Callable[[PartitionCopier], None], after: CopierState
) -> None:
    copier = COPIER_IN[before]()
    assert copier.state is before

    event(copier)

    assert copier.state is after


@pytest.mark.parametrize("lose_broker", [PartitionCopier.fetch_failed, PartitionCopier.write_failed])
@pytest.mark.parametrize(
    ("state", "looks_up", "error"),
    [(RESUMING, True, None), (COPYING, True, UNREACHABLE), (STOPPED, False, ERROR), (LEAVING, True, None)],
)
def test_leaders_are_looked_up_when_a_broker_is_lost_unless_the_partition_has_stopped(
    lose_broker: Callable[[PartitionCopier, MirrorFlowError], Effects],
    state: CopierState,
    error: MirrorFlowError | None,
    *,
    looks_up: bool,
) -> None:
    copier = COPIER_IN[state]()

    effects = lose_broker(copier, UNREACHABLE)

    assert (Signal.REFRESH_LEADER in effects) is looks_up
    assert (Signal.REPORT in effects) is (state is COPYING)
    assert copier.health.error is error


def test_a_partition_of_a_lost_target_broker_holds_no_fetched_records() -> None:
    """Eight such partitions would use up the memory of the task, and all others would wait."""
    copier = copying()
    copier.packer.add(batch_of(records_of(TIMESTAMP_MS), base_offset=100))

    copier.write_failed(UNREACHABLE)

    assert not copier.packer.queued_bytes


def test_an_outage_keeps_the_events_at_which_a_partition_stopped() -> None:
    """Its log has room for two segments. Broker after broker may be lost while it is stopped."""
    copier = stopped()
    before = copier.replay_document()["segments"]

    copier.fetch_failed(UNREACHABLE)
    copier.write_failed(UNREACHABLE)

    assert copier.replay_document()["segments"] == before


def test_readers_do_not_wait_for_a_partition_that_the_session_leaves_out() -> None:
    """While they wait for one, they fetch the others a hundred times a second."""
    waits, left_out = resuming(), resuming()
    left_out.session.start.waiting[left_out.source] = UNREACHABLE

    assert waits.may_fetch_soon()
    assert not left_out.may_fetch_soon()


def test_a_partition_is_left_out_once_for_each_error() -> None:
    """The same error again is no news."""
    copier = resuming()

    assert copier.left_out(UNREACHABLE) == (Signal.REPORT,)
    assert not copier.left_out(UNREACHABLE)


@pytest.mark.parametrize(("before", "after"), ILLEGAL)
def test_an_illegal_transition_is_refused(before: CopierState, after: CopierState) -> None:
    copier = COPIER_IN[before]()

    with pytest.raises(AssertionError, match=f"{before.value} became {after.value}"):
        copier._become(after)


def test_a_queue_that_was_emptied_from_outside_is_detected_at_the_next_fetch_response() -> None:
    """What is skipped next would move the position over the records that were dropped."""
    copier = copying()
    batches = [batch_of(records_of(TIMESTAMP_MS), base_offset=100 + 3 * number) for number in range(2)]
    first, second = (
        PartitionFetchResponse(
            FetchKey(b"orders", 2), 0, 106, 106, 0, (), -1, memoryview(bytearray(batch.data))
        )
        for batch in batches
    )
    copier.fetched(first, 100)
    copier.packer.clear()

    with pytest.raises(AssertionError, match="what was read is queued or sent"):
        copier.fetched(second, 103)
