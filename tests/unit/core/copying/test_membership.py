"""Where a partition stands in the transaction of its task: only known transitions happen, and members that are resynced send nothing."""

from collections.abc import Callable
from itertools import product

import pytest

from mirrorflow_core.copying.membership import LEGAL, MEMBERS, SILENT, TransactionMembership, moved
from mirrorflow_core.copying.partition import CopierState, PartitionCopier
from tests.unit.core.copying.stubs import PRODUCERS, begun_copier, records_of, resume, send, want_transaction
from tests.unit.core.copying.test_batch_packer import WHEN
from tests.unit.core.wire.strategies import batch_of

CHANGES = [
    (before, after) for before, after in product(TransactionMembership, repeat=2) if before is not after
]
LEGAL_CHANGES = [(before, after) for before, after in CHANGES if after in LEGAL[before]]


@pytest.mark.parametrize(("before", "after"), sorted(set(CHANGES) - set(LEGAL_CHANGES), key=str))
def test_a_transition_that_is_not_legal_is_refused(
    before: TransactionMembership, after: TransactionMembership
) -> None:
    with pytest.raises(AssertionError):
        moved(before, after)


@pytest.mark.parametrize(("before", "after"), LEGAL_CHANGES + [(one, one) for one in TransactionMembership])
def test_a_legal_transition_and_none_are_made(
    before: TransactionMembership, after: TransactionMembership
) -> None:
    assert moved(before, after) is after


def outside() -> PartitionCopier:
    return begun_copier(WHEN)


def wanted() -> PartitionCopier:
    copier = outside()
    want_transaction(copier, WHEN)
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
    """Plain, with a record that is too old for that."""
    copier = outside()
    old_ms = WHEN - 2 * copier.session.plain_age_limit_ms
    copier.packer.add(batch_of(records_of(old_ms), base_offset=100))
    assert send(copier, WHEN) is None
    return copier


def changing_inside() -> PartitionCopier:
    """A member whose next record is young."""
    copier = inside()
    assert send(copier, WHEN) is not None
    copier.acknowledged(40, -1, WHEN)
    copier.packer.add(batch_of(records_of(WHEN), base_offset=103))
    assert send(copier, WHEN) is None
    return copier


def resynced() -> PartitionCopier:
    """It is COPYING again, and asks to join."""
    copier = inside()
    copier.connected()
    resume(copier, WHEN)
    assert copier.state is CopierState.COPYING
    return copier


WAYS: dict[TransactionMembership, Callable[[], PartitionCopier]] = {
    TransactionMembership.OUTSIDE: outside,
    TransactionMembership.WANTED: wanted,
    TransactionMembership.INSIDE: inside,
    TransactionMembership.HELD: held,
    TransactionMembership.CHANGING: changing,
    TransactionMembership.CHANGING_INSIDE: changing_inside,
    TransactionMembership.RESYNCED: resynced,
}


@pytest.mark.parametrize("membership", TransactionMembership)
def test_a_resync_makes_a_member_resynced_and_takes_any_other_out(membership: TransactionMembership) -> None:
    copier = WAYS[membership]()
    assert copier.membership is membership

    copier.resync()

    is_member = membership in MEMBERS
    assert copier.membership is (
        TransactionMembership.RESYNCED if is_member else TransactionMembership.OUTSIDE
    )
    assert copier.transactional_id is None


@pytest.mark.parametrize("membership", TransactionMembership)
def test_a_partition_stays_in_its_membership_when_it_continues_after_a_resync(
    membership: TransactionMembership,
) -> None:
    """A member sends nothing until it has joined again."""
    copier = WAYS[membership]()
    copier.resync()
    before = copier.membership

    resume(copier, WHEN)

    assert copier.state is CopierState.COPYING
    assert copier.membership is before
    assert copier.is_held is (before is TransactionMembership.RESYNCED)


@pytest.mark.parametrize(
    "membership", [one for one in TransactionMembership if one is not TransactionMembership.INSIDE]
)
def test_a_commit_takes_each_partition_out(membership: TransactionMembership) -> None:
    """Those that are inside were held before."""
    copier = WAYS[membership]()

    copier.released(is_marked=False)

    assert copier.membership is TransactionMembership.OUTSIDE
    assert not copier.is_held


def restart(copier: PartitionCopier) -> None:
    """It is COPYING again."""
    resume(copier, WHEN)


def restart_with_old_records(copier: PartitionCopier) -> None:
    """It is COPYING again, and asks for the transaction again."""
    resume(copier, WHEN)
    assert copier.stream is not None
    old_ms = WHEN - 2 * copier.session.plain_age_limit_ms
    copier.packer.add(batch_of(records_of(old_ms), base_offset=copier.stream.next_offset))
    assert send(copier, WHEN) is None
    assert copier.membership in {TransactionMembership.WANTED, TransactionMembership.CHANGING}


@pytest.mark.parametrize("membership", sorted(set(TransactionMembership) - MEMBERS, key=str))
@pytest.mark.parametrize("then", [lambda _: None, restart, restart_with_old_records])
@pytest.mark.parametrize("is_full", [False, True])
def test_a_partition_that_was_resynced_while_it_was_added_is_a_member_that_sends_nothing(
    membership: TransactionMembership, then: Callable[[PartitionCopier], None], *, is_full: bool
) -> None:
    copier = WAYS[membership]()
    generation = copier.resyncs
    copier.resync()
    then(copier)

    copier.joined(generation, is_full=is_full)

    assert copier.membership is TransactionMembership.RESYNCED


@pytest.mark.parametrize("is_full", [False, True])
def test_a_partition_that_wants_another_mode_while_it_is_added_is_held_inside(*, is_full: bool) -> None:
    copier = changing()

    copier.joined(copier.resyncs, is_full=is_full)

    assert copier.membership is TransactionMembership.CHANGING_INSIDE
    assert copier.wanted_change is not None


@pytest.mark.parametrize("way", [wanted, resynced])
def test_a_partition_that_is_added_to_a_full_transaction_is_held(way: Callable[[], PartitionCopier]) -> None:
    copier = way()

    copier.joined(copier.resyncs, is_full=True)

    assert copier.membership is TransactionMembership.HELD


@pytest.mark.parametrize("membership", TransactionMembership)
def test_a_silent_partition_sends_nothing(membership: TransactionMembership) -> None:
    copier = WAYS[membership]()
    assert copier.stream is not None
    copier.packer.add(batch_of(records_of(WHEN), base_offset=copier.stream.next_offset))

    assert copier.is_held is (membership in SILENT)
    if copier.is_held:
        assert copier.next_batch(WHEN, 1 << 20) == (None, ())


@pytest.mark.parametrize("membership", TransactionMembership)
def test_batches_have_the_transactional_id_only_inside_of_a_transaction(
    membership: TransactionMembership,
) -> None:
    copier = WAYS[membership]()

    is_inside = membership in MEMBERS - {TransactionMembership.RESYNCED}
    assert copier.transactional_id == (PRODUCERS.transactional.transactional_id if is_inside else None)
