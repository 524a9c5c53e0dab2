"""Every error of the operator; `mirrorflow` shares those of its pure part.

    OperatorError
    ├── InvalidSpecError     a MirrorFlow cannot be accepted; carries every FieldError that was found
    ├── SettingsError        the operator was started with settings that it cannot work with
    ├── NotOursError         an object of a name that a flow needs belongs to somebody else
    └── ClusterError         Kubernetes did not do what it was asked
        ├── UnreachableError     no answer, or half of one: nothing is known of what was done
        ├── BusyError            429 or 5xx: later
        ├── ForbiddenError       401 or 403: RBAC, a quota or a policy says no
        ├── ConflictError        409: it is no longer what it was, or somebody else writes it
        ├── NotFoundError        404
        ├── GoneError            410: a list's continuation is too old
        └── RejectedError        any other refusal: the object itself is wrong

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


class SettingsError(OperatorError):
    """One setting from the environment; the operator does not start."""

    reason = "InvalidSettings"

    def __init__(self, name: str, value: str, action: str) -> None:
        self.name = name
        super().__init__(f"{name} is {value!r}; {action}.")


class NotOursError(OperatorError):
    """Somebody else's object has a name that a flow needs; it was left alone."""

    reason = "NameTaken"

    def __init__(self, kind: str, namespace: str, name: str) -> None:
        self.kind, self.namespace, self.name = kind, namespace, name
        super().__init__(
            f"{kind} {name} of namespace {namespace} belongs to no MirrorFlow and was left as it is;"
            " delete or rename it, or give the MirrorFlow another name."
        )


class ClusterError(OperatorError):
    """What was asked (`PATCH deployments east/east-to-west-source`), and what came of it."""

    reason = "ClusterRefused"

    def __init__(self, asked: str, answer: str, *, status: int = 0, retry_after_s: float = 0.0) -> None:
        self.asked, self.answer = asked, answer
        self.status, self.retry_after_s = status, retry_after_s
        super().__init__(f"{asked}: {answer}")


class UnreachableError(ClusterError):
    """No answer, or half of one: nothing is known of what was done."""


class BusyError(ClusterError):
    """429 or 5xx; `retry_after_s` is what the server has asked for, 0 if nothing."""


class ForbiddenError(ClusterError):
    """401 or 403."""


class ConflictError(ClusterError):
    """409."""


class NotFoundError(ClusterError):
    """404."""


class GoneError(ClusterError):
    """410."""


class RejectedError(ClusterError):
    """400, 422 and what has no class of its own."""
