"""The answer to one question as it is right now, before time has a say in it (`assess.settling`)."""

from dataclasses import dataclass, replace
from typing import Final

from mirrorflow_operator.api.status import MESSAGE_MAX, ConditionStatus
from mirrorflow_operator.assess.reasons import Kind, Reason

_MORE: Final = " ..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One question, its answer, the word and the sentence for it. A sentence holds no figure that moves by itself."""

    kind: Kind
    status: ConditionStatus
    reason: Reason
    message: str = ""

    def as_of(self, kind: Kind) -> "Finding":
        """The same, said of another question."""
        return replace(self, kind=kind)


def yes(kind: Kind, reason: Reason, message: str = "") -> Finding:
    """True."""
    return Finding(kind=kind, status=ConditionStatus.TRUE, reason=reason, message=message)


def no(kind: Kind, reason: Reason, message: str) -> Finding:
    """False."""
    return Finding(kind=kind, status=ConditionStatus.FALSE, reason=reason, message=message)


def unknown(kind: Kind, reason: Reason, message: str) -> Finding:
    """Nobody can say."""
    return Finding(kind=kind, status=ConditionStatus.UNKNOWN, reason=reason, message=message)


def bounded(text: str, length_max: int = MESSAGE_MAX) -> str:
    """*text* in one line, of printable letters, no longer than *length_max*."""
    line = " ".join(
        "".join(letter if letter.isprintable() else " " for letter in text[: 4 * length_max]).split()
    )
    return line if len(line) <= length_max else line[: length_max - len(_MORE)] + _MORE
