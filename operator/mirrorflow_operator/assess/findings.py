"""Defines Finding: the current value of one condition, before hysteresis (`assess.hysteresis`)."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from mirrorflow_operator.api.status import MESSAGE_MAX, ConditionStatus
from mirrorflow_operator.assess.reasons import ConditionType, Reason

_MORE: Final = " ..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The current value of one condition. `message` holds no figure that changes by itself.

    `causes`: the replicator's reasons behind it; `message` names each of them.
    """

    kind: ConditionType
    status: ConditionStatus
    reason: Reason
    message: str = ""
    causes: frozenset[str] = frozenset()

    def as_of(self, kind: ConditionType) -> "Finding":
        """Returns the same finding for another condition type."""
        return replace(self, kind=kind)


def yes(kind: ConditionType, reason: Reason, message: str = "", causes: Iterable[str] = ()) -> Finding:
    """Returns a finding with status True."""
    return Finding(
        kind=kind, status=ConditionStatus.TRUE, reason=reason, message=message, causes=frozenset(causes)
    )


def no(kind: ConditionType, reason: Reason, message: str, causes: Iterable[str] = ()) -> Finding:
    """Returns a finding with status False."""
    return Finding(
        kind=kind, status=ConditionStatus.FALSE, reason=reason, message=message, causes=frozenset(causes)
    )


def unknown(kind: ConditionType, reason: Reason, message: str) -> Finding:
    """Returns a finding with status Unknown."""
    return Finding(kind=kind, status=ConditionStatus.UNKNOWN, reason=reason, message=message)


def bounded(text: str, length_max: int = MESSAGE_MAX) -> str:
    """Returns *text* in one line of printable characters, cut to *length_max*."""
    line = " ".join(
        "".join(letter if letter.isprintable() else " " for letter in text[: 4 * length_max]).split()
    )
    return line if len(line) <= length_max else line[: length_max - len(_MORE)] + _MORE
