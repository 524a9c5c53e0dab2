"""Faults between a client and the API server, and the requests to which `fault_proxy` applies them.

        proxy.on(Match(verb="patch", resource="deployments"), Refuse(409), skip=2)   # the third one
        proxy.on(Match(verb="patch"), LoseResponse(), times=ALWAYS)		    # done, but the response is lost

Requests have RBAC's verbs and resources: `list` is a GET of many objects, `watch` one with `watch=true`, and a subresource
follows a slash (`mirrorflows/status`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qs, urlsplit

ALWAYS: Final = 1 << 62
WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiRequest:
    """A request. Its resource is empty if it does not concern an object of the API, such as `/version`."""

    verb: str
    resource: str = ""
    group: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def is_write(self) -> bool:
        """Returns whether the request would change something.

        Leases do not count, because their holder writes periodically.
        """
        return self.verb in WRITES and self.resource != "leases"

    @classmethod
    def of(cls, method: str, target: str) -> "ApiRequest":
        """Returns the request for an HTTP method and target."""
        parts = urlsplit(target)
        parts_of_path = parts.path.strip("/").split("/")
        group, namespace = "", ""
        if parts_of_path[0] == "api":
            rest = parts_of_path[2:]
        elif parts_of_path[0] == "apis" and len(parts_of_path) > 1:
            group, rest = parts_of_path[1], parts_of_path[3:]
        else:
            rest = []
        if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in {"status", "finalize"}:
            namespace, rest = rest[1], rest[2:]
        name = rest[1] if len(rest) > 1 else ""
        resource = "/".join([*rest[:1], *rest[2:3]])
        watches = parse_qs(parts.query).get("watch", [""])[0] in {"true", "1"}
        verb = _verb(method, name=name, watches=watches, about_an_object=bool(resource))
        return cls(verb=verb, resource=resource, group=group, namespace=namespace, name=name, path=parts.path)


def _verb(method: str, *, name: str, watches: bool, about_an_object: bool) -> str:
    match method:
        case "GET" if watches:
            return "watch"
        case "GET" if about_an_object and not name:
            return "list"
        case "DELETE":
            return "delete" if name else "deletecollection"
        case _:
            return _VERBS.get(method, "get")


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """Selects requests. A field that is None matches any value, and *write* is compared with `ApiRequest.is_write`."""

    verb: str | None = None
    resource: str | None = None
    namespace: str | None = None
    name: str | None = None
    write: bool | None = None

    def __call__(self, request: ApiRequest) -> bool:
        fields = (
            (self.verb, request.verb),
            (self.resource, request.resource),
            (self.namespace, request.namespace),
            (self.name, request.name),
            (self.write, request.is_write),
        )
        return all(expected is None or expected == actual for expected, actual in fields)


@dataclass(frozen=True, slots=True)
class Refuse:
    """Responds with *status* and a Status object like the API server, and does not forward the request."""

    status: int
    retry_after_s: int | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class Delay:
    """Forwards the request after *seconds*."""

    seconds: float


@dataclass(frozen=True, slots=True)
class CutBody:
    """Forwards the request. Only the first *bytes* of the response's body arrive, and then the connection ends."""

    bytes: int


@dataclass(frozen=True, slots=True)
class LoseResponse:
    """Forwards the request. The connection ends without a response after *then* was called in the proxy's thread."""

    then: Callable[[], None] | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class Drop:
    """Does not forward the request. The connection ends after *then* was called in the proxy's thread."""

    then: Callable[[], None] | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class Silence:
    """Does not forward the request. The connection stays open without a response until the client gives up."""


Fault = Refuse | Delay | CutBody | LoseResponse | Drop | Silence


@dataclass(kw_only=True, slots=True)
class Rule:
    """Applies *fault* to *times* requests that *match*, after the first *skip* of them. `hits` counts the matches."""

    match: Match
    fault: Fault
    skip: int = 0
    times: int = 1
    hits: int = field(default=0, init=False)

    def applies_to(self, request: ApiRequest) -> bool:
        """Counts *request*, and returns whether the fault applies to it."""
        if self.hits >= self.times or not self.match(request):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.hits += 1
        return True


@dataclass(frozen=True, kw_only=True, slots=True)
class ProxiedRequest:
    """A request that passed the proxy, with the HTTP status that the client received, or 0 without a response."""

    request: ApiRequest
    status: int
    fault: Fault | None = None


def status_body(status: int, request: ApiRequest) -> dict[str, object]:
    """Returns the Status object with which an API server refuses a request."""
    reasons = {
        409: "Conflict",
        410: "Expired",
        429: "TooManyRequests",
        500: "InternalError",
        503: "ServiceUnavailable",
    }
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f"The fault proxy refuses to {request.verb} {request.resource} {request.name}".rstrip()
        + ".",
        "reason": reasons.get(status, "Unknown"),
        "code": status,
    }
