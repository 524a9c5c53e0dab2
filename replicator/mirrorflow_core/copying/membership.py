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
    """The states of a partition in the transaction of its task, and the next one after each event."""

    # is_member: the transaction has records of it, or may get some; is_inside: its batches belong to the transaction;
    # is_silent: it sends nothing
    OUTSIDE = "outside", False, False, False
    WANTED = "wanted", False, False, False
    INSIDE = "inside", True, True, False
    HELD = "held for a commit", True, True, True
    CHANGING = "held for a change of mode", False, False, True
    CHANGING_INSIDE = "a member that is held for a change of mode", True, True, True
    RESYNCED = "a member that was resynced", True, False, True

    def __init__(self, words: str, is_member: bool, is_inside: bool, is_silent: bool) -> None:  # noqa: FBT001  of a table
        self.words = words
        self.is_member = is_member
        self.is_inside = is_inside
        self.is_silent = is_silent

    @property
    def is_joining(self) -> bool:
        """Whether it asks to join: the first time, or again."""
        return self in {TransactionMembership.WANTED, TransactionMembership.RESYNCED}

    @property
    def is_changing(self) -> bool:
        """Whether it waits for another mode."""
        return self in {TransactionMembership.CHANGING, TransactionMembership.CHANGING_INSIDE}

    def when_changing(self) -> "TransactionMembership":
        """Returns what it is when it wants another mode."""
        if self is TransactionMembership.INSIDE:
            return TransactionMembership.CHANGING_INSIDE
        return TransactionMembership.CHANGING

    def when_resynced(self) -> "TransactionMembership":
        """Returns what it is after a resync."""
        return TransactionMembership.RESYNCED if self.is_member else TransactionMembership.OUTSIDE

    def when_joined(self, *, is_resynced: bool, is_full: bool) -> "TransactionMembership":
        """Returns what it is when it was added. *is_resynced*: after that was asked; *is_full*: a commit follows."""
        if is_resynced:
            return TransactionMembership.RESYNCED
        if self is TransactionMembership.CHANGING:
            return TransactionMembership.CHANGING_INSIDE
        return TransactionMembership.HELD if is_full else TransactionMembership.INSIDE


_OUTSIDE, _WANTED, _INSIDE, _HELD, _CHANGING, _CHANGING_INSIDE, _RESYNCED = TransactionMembership
LEGAL: Final[dict[TransactionMembership, frozenset[TransactionMembership]]] = {
    _OUTSIDE: frozenset({_WANTED, _CHANGING, _RESYNCED}),
    _WANTED: frozenset({_OUTSIDE, _INSIDE, _HELD, _CHANGING, _RESYNCED}),
    _INSIDE: frozenset({_HELD, _CHANGING_INSIDE, _RESYNCED}),
    _HELD: frozenset({_OUTSIDE, _RESYNCED}),
    _CHANGING: frozenset({_OUTSIDE, _CHANGING_INSIDE, _RESYNCED}),
    _CHANGING_INSIDE: frozenset({_OUTSIDE, _RESYNCED}),
    _RESYNCED: frozenset({_OUTSIDE, _INSIDE, _HELD}),
}


def moved(before: TransactionMembership, after: TransactionMembership) -> TransactionMembership:
    """Returns *after*; asserts that it may follow *before*."""
    assert after is before or after in LEGAL[before], f"{before.words} became {after.words}"
    return after
