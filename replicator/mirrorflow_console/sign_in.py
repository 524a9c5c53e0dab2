"""Recognises visitors by a token of the cluster, and shows them the flows and switchovers that they may get.

A visitor signs in with a token of theirs; a proxy sends one with each request. TokenReview checks it and
SubjectAccessReview decides, once a minute and namespace, so a right that is taken away ends within a minute. The console keeps
no token: a session is a random id for the user's name and groups, in memory only, for an hour. While the API server does not answer,
nothing is shown: an unknown right is neither granted nor taken as missing.
"""

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable, Hashable, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from jinja2 import Environment
from kubernetes import client
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from mirrorflow_console.cluster_flows import GROUP, PLURAL, REQUEST_MAX_S
from mirrorflow_console.cluster_switchovers import SWITCHOVERS
from mirrorflow_console.gate import GateUnavailableError, Visitor
from mirrorflow_console.poller import Snapshot
from mirrorflow_console.switchovers import SwitchoverSource
from mirrorflow_kubernetes.client import REQUEST_ERRORS
from mirrorflow_replicator.version import version

SESSION_S: Final = 3_600.0
SESSIONS_MAX: Final = 1_000
REVIEW_KEPT_S: Final = 60.0
REVIEWS_MAX: Final = 10_000
ANSWER_MAX_S: Final = 15.0  # for a page; a request to the API server has ten seconds, and may wait for others
# Requests at the same time. Tokens have threads of their own, because strangers may send any number of them.
TOKEN_REVIEWS: Final = 4
ACCESS_REVIEWS: Final = 4
TOKENS_WAITING_MAX: Final = 200
BODY_MAX_BYTES: Final = 32 * 1024  # tokens with many groups have up to 8 kB
COOKIE: Final = "mirrorflow-session"
# The right to see keys of records. The API server has no such subresource: it exists for roles alone.
KEYS: Final = f"{PLURAL}/keys"
_NO_STORE: Final = {"Cache-Control": "no-store"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewedUser:
    """A user as TokenReview names one; *extra* is what authenticators add, which SubjectAccessReview may need."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(slots=True)
class _ExpiringCache:
    """Values that are forgotten after a time; the oldest ones go first."""

    kept_s: float
    size_max: int
    clock: Callable[[], float]
    values: dict[Hashable, tuple[float, Any]] = field(default_factory=dict)

    def get(self, key: Hashable) -> Any:
        """Returns what is kept under *key*; None if nothing is, or no longer."""
        at_s, value = self.values.get(key, (0.0, None))
        if value is None or self.clock() - at_s > self.kept_s:
            self.values.pop(key, None)
            return None
        return value

    def put(self, key: Hashable, value: Any) -> None:
        self.values.pop(key, None)
        while len(self.values) >= self.size_max:
            del self.values[next(iter(self.values))]
        self.values[key] = (self.clock(), value)

    def drop(self, key: Hashable) -> None:
        self.values.pop(key, None)


class _Reviews:
    """Answers of the API server: kept for a minute, and requested once for all who wait for the same one."""

    def __init__(self, pool: Executor, clock: Callable[[], float]) -> None:
        self._pool = pool
        self._known = _ExpiringCache(REVIEW_KEPT_S, REVIEWS_MAX, clock)
        self._running: dict[Hashable, asyncio.Task[Any]] = {}

    async def answer(self, key: Hashable, ask: Callable[[], Any], *, waiting_max: int | None = None) -> Any:
        """Returns what *ask* returns in a thread; None is not kept. Raises GateUnavailableError."""
        if (known := self._known.get(key)) is not None:
            return known
        if (running := self._running.get(key)) is None:
            if waiting_max is not None and len(self._running) >= waiting_max:
                raise GateUnavailableError
            running = self._running[key] = asyncio.create_task(self._asked(key, ask))
            # Its error is retrieved, also if everyone who waited for it has left.
            running.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            async with asyncio.timeout(ANSWER_MAX_S):
                return await asyncio.shield(running)
        except (TimeoutError, *REQUEST_ERRORS) as error:
            raise GateUnavailableError from error

    async def _asked(self, key: Hashable, ask: Callable[[], Any]) -> Any:
        try:
            value = await asyncio.get_running_loop().run_in_executor(self._pool, ask)
        finally:
            del self._running[key]
        if value is not None:
            self._known.put(key, value)
        return value


class ClusterGate:
    """A `Gate` by the cluster's own reviews. *results*: the namespaces of which the console has results."""

    def __init__(
        self,
        api: client.ApiClient,
        templates: Environment,
        *,
        switchovers: SwitchoverSource | None = None,
        results: AbstractSet[str] = frozenset(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._authentication = client.AuthenticationV1Api(api)
        self._authorization = client.AuthorizationV1Api(api)
        self._templates = templates
        self._switchovers = switchovers
        self._results = results
        self._sessions = _ExpiringCache(SESSION_S, SESSIONS_MAX, clock)
        self._tokens = _Reviews(ThreadPoolExecutor(TOKEN_REVIEWS, "tokens"), clock)
        self._permissions = _Reviews(ThreadPoolExecutor(ACCESS_REVIEWS, "access"), clock)

    @property
    def routes(self) -> tuple[Route, ...]:
        """The pages to sign in and out."""
        return (
            Route("/sign-in", self._form, methods=["GET"]),
            Route("/sign-in", self._sign_in, methods=["POST"]),
            Route("/sign-out", self._sign_out, methods=["POST"]),
        )

    async def visitor(self, request: Request, snapshot: Snapshot) -> Visitor | None:
        """Returns who sends *request*: by the token of a proxy, or by a session. Raises GateUnavailableError."""
        user = await self._user(request)
        if user is None:
            return None
        namespaces = {view.namespace for view in snapshot.views} | self._results
        of_switchovers = {
            reading.namespace for reading in (self._switchovers.read() if self._switchovers else ())
        }
        return Visitor(
            name=user.name,
            namespaces=await self._allowed(user, PLURAL, sorted(namespaces)),
            switchover_namespaces=await self._allowed(user, SWITCHOVERS, sorted(of_switchovers))
            if of_switchovers
            else frozenset(),
            key_namespaces=await self._allowed(user, KEYS, sorted(self._results))
            if self._results
            else frozenset(),
        )

    async def _user(self, request: Request) -> ReviewedUser | None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and token:
            return await self._user_of(token.strip())
        session = self._sessions.get(request.cookies.get(COOKIE, ""))
        return session if isinstance(session, ReviewedUser) else None

    async def _user_of(self, token: str) -> ReviewedUser | None:
        """Returns the user of *token*; None if the cluster does not accept it. Raises GateUnavailableError."""
        digest = hashlib.sha256(token.encode()).hexdigest()
        user = await self._tokens.answer(digest, lambda: self._review(token), waiting_max=TOKENS_WAITING_MAX)
        return user if isinstance(user, ReviewedUser) else None

    def _review(self, token: str) -> ReviewedUser | None:
        """As `_user_of`, in a thread. Raises REQUEST_ERRORS."""
        body = client.V1TokenReview(spec=client.V1TokenReviewSpec(token=token))
        review = self._authentication.create_token_review(body, _request_timeout=REQUEST_MAX_S)
        status = review.status
        if status is None or not status.authenticated or status.user is None or not status.user.username:
            return None
        extra: Mapping[str, list[str]] = status.user.extra or {}
        return ReviewedUser(
            name=status.user.username,
            uid=status.user.uid or "",
            groups=tuple(status.user.groups or ()),
            extra=tuple((name, tuple(values)) for name, values in sorted(extra.items())),
        )

    async def _allowed(
        self, user: ReviewedUser, resource: str, namespaces: list[str]
    ) -> frozenset[str] | None:
        """Returns those of *namespaces* whose objects of *resource* *user* may get; None if the user may get all.

        *resource*: a plural, or one with a subresource, as in `mirrorflows/keys`.
        """
        if await self._may_get(user, resource, ""):
            return None
        allowed = await asyncio.gather(
            *(self._may_get(user, resource, namespace) for namespace in namespaces)
        )
        return frozenset(
            namespace for namespace, is_allowed in zip(namespaces, allowed, strict=True) if is_allowed
        )

    async def _may_get(self, user: ReviewedUser, resource: str, namespace: str) -> bool:
        key = (user, resource, namespace)
        return await self._permissions.answer(key, lambda: self._ask(user, resource, namespace)) is True

    def _ask(self, user: ReviewedUser, resource: str, namespace: str) -> bool:
        plural, _, subresource = resource.partition("/")
        attributes = client.V1ResourceAttributes(
            verb="get",
            group=GROUP,
            resource=plural,
            subresource=subresource or None,
            namespace=namespace or None,
        )
        spec = client.V1SubjectAccessReviewSpec(
            user=user.name,
            uid=user.uid,
            groups=list(user.groups),
            extra={name: list(values) for name, values in user.extra},
            resource_attributes=attributes,
        )
        body = client.V1SubjectAccessReview(spec=spec)
        review = self._authorization.create_subject_access_review(body, _request_timeout=REQUEST_MAX_S)
        return review.status is not None and review.status.allowed is True

    # -- pages

    async def _form(self, request: Request) -> Response:
        return self._shown("")

    def _shown(self, problem: str, status: int = 200) -> Response:
        text = self._templates.get_template("sign_in.html").render(
            title="Sign in", path="/sign-in", at_s=0.0, problem=problem, place="this cluster", version=version(),
            visitor=Visitor(), view=None, query={}, has_topics=False, has_switchovers=False,
        )  # fmt: skip
        return HTMLResponse(text, status_code=status, headers=_NO_STORE)

    async def _sign_in(self, request: Request) -> Response:
        if not _is_same_origin(request):
            return self._shown("The form came from another site.", 403)
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > BODY_MAX_BYTES:
                return self._shown("The token is too long.", 413)
        token = parse_qs(body.decode("ascii", "replace")).get("token", [""])[0].strip()
        try:
            user = await self._user_of(token) if token else None
        except GateUnavailableError:
            return self._shown(
                "The token cannot be checked now: the API server does not answer. Try again.", 503
            )
        if user is None:
            return self._shown("The cluster does not accept this token.", 403)
        session = secrets.token_urlsafe(32)
        self._sessions.put(session, user)
        response = RedirectResponse("/", status_code=303, headers=_NO_STORE)
        is_secure = "https" in {request.url.scheme, request.headers.get("x-forwarded-proto", "")}
        response.set_cookie(
            COOKIE, session, max_age=int(SESSION_S), httponly=True, samesite="strict", secure=is_secure
        )
        return response

    async def _sign_out(self, request: Request) -> Response:
        if not _is_same_origin(request):
            return self._shown("The form came from another site.", 403)
        self._sessions.drop(request.cookies.get(COOKIE, ""))
        response = RedirectResponse("/sign-in", status_code=303, headers=_NO_STORE)
        response.delete_cookie(COOKIE)
        return response


def _is_same_origin(request: Request) -> bool:
    """Whether the console's own page has sent the form: browsers say so, and other clients have no session to lose."""
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host", "")
