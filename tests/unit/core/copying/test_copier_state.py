"""States of a copied partition: each event leads to the state that the diagram shows, and no other transition is made."""

from collections.abc import Callable
from itertools import product

import pytest

from mirrorflow_core.copying.partition import LEGAL_STATES, CopierState, PartitionCopier
from mirrorflow_core.errors import MirrorFlowError
from tests.unit.core.copying.stubs import begun_copier, new_copier, new_session, resume
from tests.unit.core.copying.test_batch_packer import TIMESTAMP_MS

ERROR = MirrorFlowError("the topic is denied")
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
    copier.left_out(ERROR)


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
        (RESUMING, delay, RESUMING),
        (RESUMING, leave, LEAVING),
        (COPYING, resume_it, COPYING),
        (COPYING, resync, RESUMING),
        (COPYING, stop, STOPPED),
        (COPYING, delay, COPYING),
        (COPYING, leave, LEAVING),
        (STOPPED, resume_it, COPYING),
        (STOPPED, resync, STOPPED),
        (STOPPED, stop, STOPPED),
        (STOPPED, leave_out, RESUMING),
        (STOPPED, delay, STOPPED),
        (STOPPED, leave, LEAVING),
        (LEAVING, resume_it, LEAVING),
        (LEAVING, resync, LEAVING),
        (LEAVING, stop, LEAVING),
        (LEAVING, delay, LEAVING),
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


@pytest.mark.parametrize(("before", "after"), ILLEGAL)
def test_an_illegal_transition_is_refused(before: CopierState, after: CopierState) -> None:
    copier = COPIER_IN[before]()

    with pytest.raises(AssertionError, match=f"{before.value} became {after.value}"):
        copier._become(after)
