"""Where a partition stands in the transaction of its task.

    OUTSIDE ── has records for it ──> WANTED ── joined ──> INSIDE ── a commit begins, or it is full ──> HELD
       ^  │                                                  │                                           │
       │  └── another mode ──> CHANGING                      └── another mode ──> CHANGING_INSIDE        │
       └──────────────────────────── released: the transaction is committed ────────────────────────────┘

A resync makes a member RESYNCED: records of it are in the transaction, and it sends nothing until it has joined again, or the
transaction is committed. It makes others OUTSIDE.

A partition may ask to join, and be in another state when the coordinator has added it: one that wants another mode is then
CHANGING_INSIDE, and one that was resynced is RESYNCED.
"""

from enum import Enum
from typing import Final


class TransactionMembership(Enum):
    """The states of a partition in the transaction of its task."""

    OUTSIDE = "outside"
    WANTED = "wanted"
    INSIDE = "inside"
    HELD = "held for a commit"
    CHANGING = "held for a change of mode"
    CHANGING_INSIDE = "a member that is held for a change of mode"
    RESYNCED = "a member that was resynced"


_OUTSIDE, _WANTED, _INSIDE = (
    TransactionMembership.OUTSIDE,
    TransactionMembership.WANTED,
    TransactionMembership.INSIDE,
)
_HELD, _CHANGING, _RESYNCED = (
    TransactionMembership.HELD,
    TransactionMembership.CHANGING,
    TransactionMembership.RESYNCED,
)
_CHANGING_INSIDE = TransactionMembership.CHANGING_INSIDE

LEGAL: Final[dict[TransactionMembership, frozenset[TransactionMembership]]] = {
    _OUTSIDE: frozenset({_WANTED, _CHANGING, _RESYNCED}),
    _WANTED: frozenset({_OUTSIDE, _INSIDE, _HELD, _CHANGING, _RESYNCED}),
    _INSIDE: frozenset({_HELD, _CHANGING_INSIDE, _RESYNCED}),
    _HELD: frozenset({_OUTSIDE, _RESYNCED}),
    _CHANGING: frozenset({_OUTSIDE, _CHANGING_INSIDE, _RESYNCED}),
    _CHANGING_INSIDE: frozenset({_OUTSIDE, _RESYNCED}),
    _RESYNCED: frozenset({_OUTSIDE, _INSIDE, _HELD}),
}
MEMBERS: Final = frozenset({_INSIDE, _HELD, _CHANGING_INSIDE, _RESYNCED})
# They send nothing.
SILENT: Final = frozenset({_HELD, _CHANGING, _CHANGING_INSIDE, _RESYNCED})
# They ask to join: the first time, or again.
JOINING: Final = frozenset({_WANTED, _RESYNCED})
CHANGES: Final = frozenset({_CHANGING, _CHANGING_INSIDE})


def moved(before: TransactionMembership, after: TransactionMembership) -> TransactionMembership:
    """Returns *after*; asserts that it may follow *before*."""
    assert after is before or after in LEGAL[before], f"{before.value} became {after.value}"
    return after
