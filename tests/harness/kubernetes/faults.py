"""What may go wrong between a client and the API server, and which requests it strikes: `fault_proxy` does it.

    proxy.on(Match(verb="patch", resource="deployments"), Refuse(409), skip=2)   # the third one
    proxy.on(Match(verb="patch"), LoseAnswer(), times=ALWAYS)                    # done, but the response is lost

Requests are named as RBAC names them: `list` is a GET of many, `watch` one with `watch=true`, and a subresource stands
behind a slash (`mirrorflows/status`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qs, urlsplit

ALWAYS: Final = 1 << 62
WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """One request. What is not about an object of the API (`/version`, say) has an empty resource."""

    verb: str
    resource: str = ""
    group: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def is_write(self) -> bool:
        """Whether it would change something, were it let through. Leases do not count: their holder writes for ever."""
        return self.verb in WRITES and self.resource != "leases"

    @classmethod
    def of(cls, method: str, target: str) -> "Ask":
        """From HTTP's method and target."""
        parts = urlsplit(target)
        words = parts.path.strip("/").split("/")
        group, namespace = "", ""
        if words[0] == "api":
            rest = words[2:]
        elif words[0] == "apis" and len(words) > 1:
            group, rest = words[1], words[3:]
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
    """Which requests: what is None matches any. `write` asks for `Ask.is_write`."""

    verb: str | None = None
    resource: str | None = None
    namespace: str | None = None
    name: str | None = None
    write: bool | None = None

    def __call__(self, ask: Ask) -> bool:
        wanted = (
            (self.verb, ask.verb),
            (self.resource, ask.resource),
            (self.namespace, ask.namespace),
            (self.name, ask.name),
            (self.write, ask.is_write),
        )
        return all(want is None or want == have for want, have in wanted)


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answered with *status* and a Status as the API server writes them; never let through."""

    status: int
    retry_after_s: int | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class Delay:
    """Let through after *seconds*."""

    seconds: float


@dataclass(frozen=True, slots=True)
class CutBody:
    """Done; of the answer's body only the first *bytes* arrive, then the connection ends."""

    bytes: int


@dataclass(frozen=True, slots=True)
class LoseAnswer:
    """Done; the connection ends instead of an answer, after *then* was called (in the proxy's thread)."""

    then: Callable[[], None] | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class Drop:
    """Not done: the connection ends, after *then* was called (in the proxy's thread)."""

    then: Callable[[], None] | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class Silence:
    """Not done, and the connection stays open without a word until the client gives up."""


Fault = Refuse | Delay | CutBody | LoseAnswer | Drop | Silence


@dataclass(kw_only=True, slots=True)
class Rule:
    """*fault* strikes the requests that *match*, after the first *skip* of them, *times* times."""

    match: Match
    fault: Fault
    skip: int = 0
    times: int = 1
    struck: int = field(default=0, init=False)

    def strikes(self, ask: Ask) -> bool:
        """Counts *ask*, and says whether its turn has come."""
        if self.struck >= self.times or not self.match(ask):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.struck += 1
        return True


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """A request that passed the proxy, with the HTTP status that the client received; 0 if it received none."""

    ask: Ask
    status: int
    fault: Fault | None = None


def status_body(status: int, ask: Ask) -> dict[str, object]:
    """The Status with which an API server refuses."""
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
        "message": f"The fault proxy refuses to {ask.verb} {ask.resource} {ask.name}".rstrip() + ".",
        "reason": reasons.get(status, "Unknown"),
        "code": status,
    }
