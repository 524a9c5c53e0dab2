"""Every error of the operator's pure part, which `mirrorflow` shares.

    OperatorError
    └── InvalidSpecError   a MirrorFlow cannot be accepted; carries every FieldError that was found

A FieldError is a value, not an exception: rules return lists of them, so that a user sees all slips at once.
No error holds a secret: specs hold references only, and messages never repeat the value of a `password`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    """One slip: `path` as kubectl writes it (spec.topics.include[0]), what is wrong, and what to do about it."""

    path: str
    message: str
    action: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" + (f"; {self.action}." if self.action else ".")


class OperatorError(Exception):
    """The root; `reason` is a stable PascalCase word for conditions."""

    reason: ClassVar[str] = "Failed"


class InvalidSpecError(OperatorError):
    """A MirrorFlow cannot be accepted; nothing was started."""

    reason = "InvalidSpec"

    def __init__(self, errors: Sequence[FieldError]) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(str(error) for error in self.errors))
