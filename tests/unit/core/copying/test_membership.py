"""Transaction membership of a partition: only legal transitions are made, and a resynced member sends nothing."""

from collections.abc import Callable
from itertools import product

import pytest

from mirrorflow_core.copying.membership import LEGAL, TransactionMembership, moved
from mirrorflow_core.copying.partition import CopierState, PartitionCopier
from tests.unit.core.copying.stubs import PRODUCERS, begun_copier, records_of, resume, send, want_transaction
from tests.unit.core.copying.test_batch_packer import TIMESTAMP_MS
from tests.unit.core.wire.strategies import batch_of

TRANSITIONS = [
    (before, after) for before, after in product(TransactionMembership, repeat=2) if before is not after
]
MEMBERS = {membership for membership in TransactionMembership if membership.is_member}
LEGAL_TRANSITIONS = [(before, after) for before, after in TRANSITIONS if after in LEGAL[before]]


@pytest.mark.parametrize(("before", "after"), sorted(set(TRANSITIONS) - set(LEGAL_TRANSITIONS), key=str))
def test_an_illegal_transition_is_refused(
    before: TransactionMembership, after: TransactionMembership
) -> None:
    with pytest.raises(AssertionError):
        moved(before, after)


@pytest.mark.parametrize(
    ("before", "after"),
    LEGAL_TRANSITIONS + [(membership, membership) for membership in TransactionMembership],
)
def test_legal_and_empty_transitions_are_made(
    before: TransactionMembership, after: TransactionMembership
) -> None:
    assert moved(before, after) is after


def outside() -> PartitionCopier:
    return begun_copier(TIMESTAMP_MS)


def wanted() -> PartitionCopier:
    copier = outside()
    want_transaction(copier, TIMESTAMP_MS)
    return copier


def inside() -> PartitionCopier:
    copier = wanted()
    copier.joined(copier.resyncs, is_full=False)
    return copier


def held() -> PartitionCopier:
    copier = inside()
    copier.held()
    return copier


def changing() -> PartitionCopier:
    """A copier in plain mode whose next record is too old for it."""
    copier = outside()
    old_ms = TIMESTAMP_MS - 2 * copier.session.plain_age_limit_ms
    copier.packer.add(batch_of(records_of(old_ms), base_offset=100))
    assert send(copier, TIMESTAMP_MS) is None
    return copier


def changing_inside() -> PartitionCopier:
    """A member of the transaction whose next record is recent."""
    copier = inside()
    assert send(copier, TIMESTAMP_MS) is not None
    copier.acknowledged(40, -1, TIMESTAMP_MS)
    copier.packer.add(batch_of(records_of(TIMESTAMP_MS), base_offset=103))
    assert send(copier, TIMESTAMP_MS) is None
    return copier


def resynced() -> PartitionCopier:
    """A member that was resynced and copies again."""
    copier = inside()
    copier.connected()
    resume(copier, TIMESTAMP_MS)
    assert copier.state is CopierState.COPYING
    return copier


COPIER_IN: dict[TransactionMembership, Callable[[], PartitionCopier]] = {
    TransactionMembership.OUTSIDE: outside,
    TransactionMembership.WANTED: wanted,
    TransactionMembership.INSIDE: inside,
    TransactionMembership.HELD: held,
    TransactionMembership.CHANGING: changing,
    TransactionMembership.CHANGING_INSIDE: changing_inside,
    TransactionMembership.RESYNCED: resynced,
}


@pytest.mark.parametrize("membership", TransactionMembership)
def test_a_resync_turns_members_into_resynced_and_others_into_outside(
    membership: TransactionMembership,
) -> None:
    copier = COPIER_IN[membership]()
    assert copier.membership is membership

    copier.resync()

    assert copier.membership is (
        TransactionMembership.RESYNCED if membership in MEMBERS else TransactionMembership.OUTSIDE
    )
    assert copier.transactional_id is None


@pytest.mark.parametrize("membership", TransactionMembership)
def test_resuming_after_a_resync_keeps_the_membership(
    membership: TransactionMembership,
) -> None:
    copier = COPIER_IN[membership]()
    copier.resync()
    before = copier.membership

    resume(copier, TIMESTAMP_MS)

    assert copier.state is CopierState.COPYING
    assert copier.membership is before
    assert copier.is_held is (before is TransactionMembership.RESYNCED)


@pytest.mark.parametrize(
    "membership", sorted(set(TransactionMembership) - {TransactionMembership.INSIDE}, key=str)
)
def test_a_commit_moves_each_partition_outside(membership: TransactionMembership) -> None:
    """No partition is INSIDE at a commit, because members are held first."""
    copier = COPIER_IN[membership]()

    copier.released(is_marked=False)

    assert copier.membership is TransactionMembership.OUTSIDE
    assert not copier.is_held


def resume_copying(copier: PartitionCopier) -> None:
    """Resumes the copier."""
    resume(copier, TIMESTAMP_MS)


def resume_with_old_records(copier: PartitionCopier) -> None:
    """Resumes the copier, which requests to join the transaction again."""
    resume(copier, TIMESTAMP_MS)
    assert copier.stream is not None
    old_ms = TIMESTAMP_MS - 2 * copier.session.plain_age_limit_ms
    copier.packer.add(batch_of(records_of(old_ms), base_offset=copier.stream.next_offset))
    assert send(copier, TIMESTAMP_MS) is None
    assert copier.membership in {TransactionMembership.WANTED, TransactionMembership.CHANGING}


@pytest.mark.parametrize("membership", sorted(set(TransactionMembership) - MEMBERS, key=str))
@pytest.mark.parametrize("then", [lambda _: None, resume_copying, resume_with_old_records])
@pytest.mark.parametrize("is_full", [False, True])
def test_a_partition_resynced_while_it_is_added_becomes_a_resynced_member(
    membership: TransactionMembership, then: Callable[[PartitionCopier], None], *, is_full: bool
) -> None:
    copier = COPIER_IN[membership]()
    resyncs = copier.resyncs
    copier.resync()
    then(copier)

    copier.joined(resyncs, is_full=is_full)

    assert copier.membership is TransactionMembership.RESYNCED


@pytest.mark.parametrize("is_full", [False, True])
def test_a_partition_that_changes_mode_while_it_is_added_is_held_inside(*, is_full: bool) -> None:
    copier = changing()

    copier.joined(copier.resyncs, is_full=is_full)

    assert copier.membership is TransactionMembership.CHANGING_INSIDE
    assert copier.wanted_change is not None


@pytest.mark.parametrize("new", [wanted, resynced])
def test_a_partition_added_to_a_full_transaction_is_held(new: Callable[[], PartitionCopier]) -> None:
    copier = new()

    copier.joined(copier.resyncs, is_full=True)

    assert copier.membership is TransactionMembership.HELD


@pytest.mark.parametrize("membership", TransactionMembership)
def test_a_held_partition_sends_nothing(membership: TransactionMembership) -> None:
    copier = COPIER_IN[membership]()
    assert copier.stream is not None
    copier.packer.add(batch_of(records_of(TIMESTAMP_MS), base_offset=copier.stream.next_offset))

    assert copier.is_held is membership.is_silent
    if copier.is_held:
        assert copier.next_batch(TIMESTAMP_MS, 1 << 20) == (None, ())


@pytest.mark.parametrize("membership", TransactionMembership)
def test_only_batches_inside_a_transaction_have_the_transactional_id(
    membership: TransactionMembership,
) -> None:
    copier = COPIER_IN[membership]()

    is_inside = membership in MEMBERS - {TransactionMembership.RESYNCED}
    assert copier.transactional_id == (PRODUCERS.transactional.transactional_id if is_inside else None)
