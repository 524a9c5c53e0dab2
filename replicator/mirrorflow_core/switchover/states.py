"""The states of a switchover, and which may follow which.

    ACCEPTED > CHECKING > FENCING > QUIESCING > SEALED > DRAINING > VERIFYING > GROUPS_FINAL > FORWARD_ENDED
                  |          |___________________________________________________________________|      |
                  v                                      v                                              v
               REFUSED                          ROLLING_BACK > LIFTED or REHEARSED      PROMOTING > REVERSING > DONE

PROMOTING is the point of no return: each state before it can be rolled back, each state from it on can only be retried. A
rehearsal rolls back where a planned switchover promotes.

An unplanned switchover needs the target alone, because the source may be lost:

    ACCEPTED > ASSESSING > FORWARD_ENDED > GROUPS_CLAMPED > PROMOTING > DEGRADED
                  |              |________________|
                  v                      v
               REFUSED        ROLLING_BACK > LIFTED

In DEGRADED applications run on the target, and the two clusters have not been reconciled: the source may have records that
never crossed. Once those are dealt with and the flow back is started, its user has it DONE. No switchover of the pair begins before
that.
"""

from enum import Enum
from typing import Final


class SwitchoverType(Enum):
    """What a switchover does."""

    PLANNED = "Planned"
    REHEARSAL = "Rehearsal"
    UNPLANNED = "Unplanned"
    RESTORE = "Restore"  # a planned one, back to the member that an unplanned one has left


class SwitchoverState(Enum):
    """How far a switchover is; the value is the name in the journal, the resource and the command."""

    ACCEPTED = "Accepted"
    CHECKING = "Checking"
    ASSESSING = "Assessing"
    FENCING = "Fencing"
    QUIESCING = "Quiescing"
    SEALED = "Sealed"
    DRAINING = "Draining"
    VERIFYING = "Verifying"
    GROUPS_FINAL = "GroupsFinal"
    FORWARD_ENDED = "ForwardEnded"
    GROUPS_CLAMPED = "GroupsClamped"
    PROMOTING = "Promoting"
    REVERSING = "Reversing"
    DONE = "Done"
    DEGRADED = "Degraded"
    ROLLING_BACK = "RollingBack"
    LIFTED = "Lifted"
    REHEARSED = "Rehearsed"
    REFUSED = "Refused"


_S = SwitchoverState
# The source refuses writes, and the switchover can still be rolled back.
FENCED: Final = frozenset(
    {
        _S.FENCING,
        _S.QUIESCING,
        _S.SEALED,
        _S.DRAINING,
        _S.VERIFYING,
        _S.GROUPS_FINAL,
        _S.FORWARD_ENDED,
    }
)
# The source shows that the target was not promoted.
UNPROMOTED: Final = (FENCED - {_S.FORWARD_ENDED}) | {_S.ROLLING_BACK}
# An unplanned switchover: the flow may have ended, and the switchover can still be rolled back.
ENDING: Final = frozenset({_S.FORWARD_ENDED, _S.GROUPS_CLAMPED})
# The point of no return is behind.
PROMOTED: Final = frozenset({_S.PROMOTING, _S.REVERSING, _S.DONE, _S.DEGRADED})
# They move applications while both clusters can be reached.
LOSSLESS: Final = frozenset({SwitchoverType.PLANNED, SwitchoverType.RESTORE})
# Applications run on the target.
MOVED: Final = frozenset({_S.DONE, _S.DEGRADED})
# Everything becomes as it was before.
ROLLED_BACK: Final = frozenset({_S.ROLLING_BACK, _S.LIFTED, _S.REHEARSED})
FINAL: Final = frozenset({_S.DONE, _S.LIFTED, _S.REHEARSED, _S.REFUSED})
# No process carries it out: it is over, or waits until its user reconciles the clusters.
AT_REST: Final = FINAL | {_S.DEGRADED}

# A run that was interrupted while it was fenced continues at FENCING: the fence may have been lifted meanwhile.
LEGAL: Final[dict[SwitchoverState, frozenset[SwitchoverState]]] = {
    _S.ACCEPTED: frozenset({_S.CHECKING, _S.ASSESSING, _S.REFUSED}),
    _S.CHECKING: frozenset({_S.FENCING, _S.REFUSED}),
    _S.ASSESSING: frozenset({_S.FORWARD_ENDED, _S.REFUSED}),
    _S.FENCING: frozenset({_S.QUIESCING, _S.ROLLING_BACK}),
    _S.QUIESCING: frozenset({_S.SEALED, _S.FENCING, _S.ROLLING_BACK}),
    _S.SEALED: frozenset({_S.DRAINING, _S.FENCING, _S.ROLLING_BACK}),
    _S.DRAINING: frozenset({_S.VERIFYING, _S.FENCING, _S.ROLLING_BACK}),
    _S.VERIFYING: frozenset({_S.GROUPS_FINAL, _S.FENCING, _S.ROLLING_BACK}),
    _S.GROUPS_FINAL: frozenset({_S.FORWARD_ENDED, _S.FENCING, _S.ROLLING_BACK}),
    _S.FORWARD_ENDED: frozenset({_S.PROMOTING, _S.GROUPS_CLAMPED, _S.FENCING, _S.ROLLING_BACK}),
    _S.GROUPS_CLAMPED: frozenset({_S.PROMOTING, _S.ROLLING_BACK}),
    _S.PROMOTING: frozenset({_S.REVERSING, _S.DEGRADED}),
    _S.REVERSING: frozenset({_S.DONE}),
    _S.ROLLING_BACK: frozenset({_S.LIFTED, _S.REHEARSED}),
    _S.DONE: frozenset(),
    _S.DEGRADED: frozenset({_S.DONE}),
    _S.LIFTED: frozenset(),
    _S.REHEARSED: frozenset(),
    _S.REFUSED: frozenset(),
}


def moved(before: SwitchoverState, after: SwitchoverState) -> SwitchoverState:
    """Returns *after*; asserts that it may follow *before*."""
    assert after is before or after in LEGAL[before], f"{before.value} became {after.value}"
    return after
