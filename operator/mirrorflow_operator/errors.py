"""Defines every error of the operator; the `mirrorflow` command shares those of its pure part.

    OperatorError
    ├── InvalidSpecError     a MirrorFlow cannot be accepted; carries every FieldError that was found
    ├── SettingsError        the operator was started with a setting that it cannot use
    ├── NameConflictError    an object with a name that a flow needs belongs to another owner
    ├── KindMissingError     the cluster lacks a kind of object that a flow needs, or the operator may not use it
    └── ApiServerError       a request to the Kubernetes API failed
        ├── NoResponseError        no complete response: it is unknown whether the request was carried out
        ├── BusyError            429 or 5xx: retry later
        │   └── BrokenError          500: mostly caused by the object's content, sometimes by the server
        ├── ForbiddenError       401 or 403: refused by RBAC, a quota or a policy
        ├── ConflictError        409: the object has changed, or another field manager owns a field
        ├── NotFoundError        404
        ├── GoneError            410: a list's continue token is too old
        └── RejectedError        any other refusal: the object itself is invalid

A FieldError is a value, not an exception: rules return lists of them, so that a user sees all errors at once.
No error holds a secret: specs hold references only, and messages never repeat the value of a `password`.
"""

from collections.abc import Sequence

from mirrorflow_core.light_dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    """One error in a spec: `path` as in kubectl (spec.topics.include[0]), the problem, and the remedy."""

    path: str
    message: str
    action: str | None = None

    def __str__(self) -> str:
        sentence = f"{self.path}: {self.message}" + ("" if self.action is None else f"; {self.action}")
        return sentence if sentence.endswith("?") else f"{sentence}."


class OperatorError(Exception):
    """The base of all operator errors."""


class InvalidSpecError(OperatorError):
    """A MirrorFlow cannot be accepted; nothing was started."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(str(error) for error in self.errors))


class SettingsError(OperatorError):
    """An environment variable has an unusable value; the operator does not start."""

    def __init__(self, name: str, value: str, action: str) -> None:
        self.name = name
        super().__init__(f"{name} is {value!r}; {action}.")


class NameConflictError(OperatorError):
    """An object with a name that a flow needs belongs to another owner; it was not changed.

    *owner*: the name of the MirrorFlow that owns it; None if none does.
    """

    def __init__(self, kind: str, namespace: str, name: str, *, owner: str | None = None) -> None:
        self.kind, self.namespace, self.name, self.owner = kind, namespace, name, owner
        whose = "belongs to no MirrorFlow" if owner is None else f"belongs to MirrorFlow {owner}"
        remedy = "delete or rename it, or give" if owner is None else "give"
        super().__init__(
            f"{kind} {name} of namespace {namespace} {whose} and was not changed;"
            f" {remedy} the MirrorFlow another name."
        )


class KindMissingError(OperatorError):
    """The cluster has no kind *kind* that the operator may use; *problem*: why, and what to do."""

    def __init__(self, kind: str, name: str, problem: str) -> None:
        self.kind, self.name, self.problem = kind, name, problem
        super().__init__(f"{kind} {name} is not created: {problem}.")


class ApiServerError(OperatorError):
    """A failed API request (`PATCH deployments east/east-to-west-source`), and the response."""

    def __init__(self, request: str, response: str, *, status: int = 0, retry_after_s: float = 0.0) -> None:
        self.request, self.response = request, response
        self.status, self.retry_after_s = status, retry_after_s
        super().__init__(f"{request}: {response}")


class NoResponseError(ApiServerError):
    """No complete response: it is unknown whether the request was carried out."""


class BusyError(ApiServerError):
    """429 or 5xx; `retry_after_s` is the server's Retry-After in seconds, 0 without one."""


class BrokenError(BusyError):
    """500.

    The API server returns it, too, for objects that it cannot convert; then a retry never succeeds.
    """


class ForbiddenError(ApiServerError):
    """401 or 403: RBAC, a quota or a policy refuses the request."""


class ConflictError(ApiServerError):
    """409: the object has changed, or another field manager owns a field."""


class NotFoundError(ApiServerError):
    """404: the object or the API does not exist."""


class GoneError(ApiServerError):
    """410: a list's continue token is too old."""


class RejectedError(ApiServerError):
    """400, 422 and every status without a class of its own."""
