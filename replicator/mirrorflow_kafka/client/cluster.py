"""The client of one Kafka cluster: bootstrap, metadata, and requests routed to the right broker.

Secrets are resolved for every new connection (`security.secret_rotation`), and connections are replaced when
secrets change (`security.secret_rotation`). Only `call` retries a request: within its timeout, after a
retriable error, or a response that it went to the wrong broker; after a lost response only what
`client.repeatable_requests` allows.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from mirrorflow_core.backoff import backoff_s
from mirrorflow_core.errors import (
    AuthenticationFailedError,
    ClusterChangedError,
    ClusterError,
    UnreachableError,
)
from mirrorflow_core.java.cloud_logins import is_aws_iam
from mirrorflow_core.reports import SideReport
from mirrorflow_core.settings import ClientSettings
from mirrorflow_core.wire import error_codes
from mirrorflow_kafka.client.background_tasks import report_failure
from mirrorflow_kafka.client.connection import Connection
from mirrorflow_kafka.client.metadata import EMPTY, Metadata, merged
from mirrorflow_kafka.client.pool import (
    ConnectionPool,
    PoolKey,
    Reachability,
    open_connection,
    retrieve_error,
)
from mirrorflow_kafka.client.repeatable_requests import may_repeat
from mirrorflow_kafka.security.client_security import parse_addresses
from mirrorflow_kafka.security.secret_rotation import Credentials, Resolve, SecretRotation

# To connect to a cluster; the error is reported then, and callers that live on try again.
REACH_TIMEOUT_S = 20.0
CALL_TIMEOUT_S = 60.0  # Java's default.api.timeout.ms
REQUEST_TIMEOUT_S = 30.0  # Java's request.timeout.ms: one attempt within a call
# One attempt of a small read that any broker can serve: another broker is asked then. It takes milliseconds, so a broker that
# needs longer is frozen or cut off from this process.
ANY_BROKER_TIMEOUT_S = 5.0
# Java's retry.backoff.ms and retry.backoff.max.ms.
RETRY_BACKOFF_MIN_S = 0.1
RETRY_BACKOFF_MAX_S = 1.0
# Until the coordinator has completed the previous transaction, which takes milliseconds, nothing can be
# written.
CONCURRENT_BACKOFF_MIN_S = 0.003
RETRIES_MAX = 100  # more than a minute at the longest backoff; the timeout ends a call earlier
# Many "leader moved" responses must not cause many metadata requests (Java: at most one per
# retry.backoff.ms). The first start of a flow needs about 30 in a row, each of other topics: these do not wait.
REFRESH_INTERVAL_MIN_S = 0.1
REFRESHES_AT_ONCE = 40
METADATA_TOPICS_MAX = 2000  # names in one request: 500 kB of the longest names
COORDINATORS_MAX = 50_000  # cached coordinators, some 150 bytes each; the cache is cleared when it is full
_Item = TypeVar("_Item")


class _Refresh:
    """One pending metadata request, shared by all callers that wait for it. `topics` None means all."""

    def __init__(self, request: Callable[["_Refresh"], Coroutine[Any, Any, None]], *, name: str) -> None:
        self.topics: set[str] | None = set()
        self.task = asyncio.create_task(request(self), name=name)
        self.task.add_done_callback(retrieve_error)

    def add(self, topics: Iterable[str] | None) -> None:
        if topics is None:
            self.topics = None
        elif self.topics is not None:
            self.topics.update(topics)


class Cluster:
    """A client of one cluster. Created by `connect`; `close` closes all of its connections."""

    def __init__(
        self, settings: ClientSettings, *, resolve: Resolve, refreshes_at_once: int = REFRESHES_AT_ONCE
    ) -> None:
        self.alias = settings.alias
        self.metadata: Metadata = EMPTY
        self.throttle_ms = 0  # the throttle time of fetches by `admin.log_reader`
        self._settings = settings
        self._credentials = Credentials(settings, resolve)
        self._pool = ConnectionPool(self._open, cluster=self.alias)
        self._reach = Reachability(is_open=lambda: self._pool.has_open)
        self._coordinators: dict[tuple[int, str], int] = {}
        self._next_refresh: _Refresh | None = None
        self._refresh_lock = asyncio.Lock()
        self._refreshes_at_once = refreshes_at_once
        self._refreshes_used_s = float("-inf")  # loop time up to which the intervals are used
        self._bootstrapping: asyncio.Task[None] | None = None
        self._rotation = SecretRotation(self.alias, self._pool, self._credentials.security)
        self._following: asyncio.Task[None] | None = None

    @classmethod
    async def connect(
        cls,
        settings: ClientSettings,
        *,
        resolve: Resolve,
        timeout_s: float = REACH_TIMEOUT_S,
        refreshes_at_once: int = REFRESHES_AT_ONCE,
    ) -> "Cluster":
        """Connects to the cluster at any of its bootstrap addresses and reads its brokers.

        *refreshes_at_once*: how many metadata requests in a row do not wait for REFRESH_INTERVAL_MIN_S. Raises SettingError,
        UnreachableError, AuthenticationFailedError, UnsupportedBrokerError.
        """
        cluster = cls(settings, resolve=resolve, refreshes_at_once=refreshes_at_once)
        try:
            async with asyncio.timeout(timeout_s):
                await cluster._bootstrap()
            if cluster._credentials.security() is not None:
                cluster._following = asyncio.create_task(
                    cluster._rotation.run(), name=f"secrets-{cluster.alias}"
                )
                cluster._following.add_done_callback(report_failure)
        except TimeoutError:
            await cluster.close()
            problem = f"no response within {timeout_s:g} s"
            raise UnreachableError(
                cluster=cluster.alias, addresses=settings.bootstrap_servers, problem=problem
            ) from None
        except BaseException:
            await cluster.close()
            raise
        return cluster

    @property
    def uses_aws_iam(self) -> bool:
        """Whether IAM policies grant the permissions on this cluster."""
        return is_aws_iam(self._settings.properties)

    @property
    def cluster_id(self) -> str | None:
        """The cluster id that the brokers report; None: not read yet, or they report none."""
        return self.metadata.cluster_id

    @property
    def reach(self) -> SideReport:
        """Whether the cluster is reachable, according to the latest connection attempts."""
        return self._reach.report(self.cluster_id)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Problems that keep connections from using changed secrets."""
        return self._rotation.warnings

    def leader(self, topic: str, partition: int) -> int | None:
        """Returns the leader's node id from the cached metadata; None if unknown or there is none."""
        return self.metadata.leader(topic, partition)

    def raise_for(
        self, code: int, request: str, subject: str | None = None, *, message: str | None = None
    ) -> None:
        """Raises the error of a response's *code*; do nothing for 0. *subject* is the topic, group, ... concerned."""
        error_codes.raise_for(code, cluster=self.alias, request=request, subject=subject, message=message)

    def add_throttle_ms(self, throttle_ms: int) -> None:
        """Adds the throttle time of one fetch."""
        self.throttle_ms += throttle_ms

    async def close(self) -> None:
        """Closes every connection; requests without a response fail."""
        refreshing = self._next_refresh.task if self._next_refresh else None
        tasks = [self._bootstrapping, refreshing, self._following]
        for task in tasks:
            if task is not None:
                task.cancel()
        await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)
        await self._pool.close()

    # Connections

    async def connection(self, node_id: int, *, purpose: str = "admin", index: int = 0) -> Connection:
        """Returns the connection to a broker for one purpose, opened or re-opened if needed.

        Raises UnreachableError, AuthenticationFailedError, SettingError (a secret cannot be resolved).
        """
        return await self._pool.get(PoolKey(node_id, purpose, index))

    async def _open(self, key: PoolKey) -> Connection:
        broker = self.metadata.brokers.get(key.node_id)
        if broker is None:
            raise UnreachableError(
                cluster=self.alias,
                addresses=f"broker {key.node_id}",
                problem="the cluster has no such broker now",
            )
        return await self._open_at(broker.host, broker.port, node_id=key.node_id)

    async def _open_at(self, host: str, port: int, *, node_id: int) -> Connection:
        try:
            connection = await open_connection(
                host,
                port,
                client_id=self._settings.client_id,
                security=self._credentials.security(),
                cluster=self.alias,
                node_id=node_id,
                renew=self._credentials.security,
            )
        except ClusterError as error:
            self._reach.failed(error)
            raise
        self._reach.opened(is_bootstrap=node_id < 0)
        return connection

    async def _any_connection(self) -> Connection:
        """Returns a connection to any broker that responds; bootstrap again if no known broker does."""
        for is_last in (False, True):
            nodes = list(self.metadata.brokers)
            random.shuffle(nodes)
            already_open = self._pool.open_nodes("admin")
            silent = self._pool.silent_nodes("admin", ANY_BROKER_TIMEOUT_S)
            nodes.sort(key=lambda node: (node in silent, node not in already_open))
            for node in nodes:
                try:
                    return await self.connection(node)
                except (UnreachableError, AuthenticationFailedError):
                    if is_last and node == nodes[-1]:
                        raise
            if not is_last:
                await self._bootstrap()
        raise UnreachableError(
            cluster=self.alias, addresses=self._settings.bootstrap_servers, problem="it knows no brokers"
        )

    async def _bootstrap(self) -> None:
        """Reads the brokers from the bootstrap addresses. Concurrent callers share one attempt."""
        if self._bootstrapping is None or self._bootstrapping.done():
            self._bootstrapping = asyncio.create_task(self._bootstrap_now(), name=f"bootstrap-{self.alias}")
            self._bootstrapping.add_done_callback(retrieve_error)
        await asyncio.shield(self._bootstrapping)

    async def _bootstrap_now(self) -> None:
        addresses = parse_addresses(self._credentials.resolved().get("bootstrap.servers", ""))
        errors: list[ClusterError] = []
        for host, port in addresses:
            try:
                connection = await self._open_at(host, port, node_id=-1)
                try:
                    response = await connection.call(MetadataRequest(topics=[]), timeout_s=REQUEST_TIMEOUT_S)
                finally:
                    connection.close()
            except (UnreachableError, AuthenticationFailedError) as error:
                errors.append(error)
                continue
            if response.brokers:
                self._take(response, requested=())
                self._pool.forgive()
                return
            problem = "it knows no brokers yet"
            errors.append(UnreachableError(cluster=self.alias, addresses=f"{host}:{port}", problem=problem))
        refused = [error for error in errors if isinstance(error, AuthenticationFailedError)]
        if refused:  # more informative than an address that does not respond
            raise refused[0]
        problems = [error.problem for error in errors if isinstance(error, UnreachableError)]
        written = ",".join(f"{host}:{port}" for host, port in addresses)
        problem = "; ".join(dict.fromkeys(problems))
        raise UnreachableError(cluster=self.alias, addresses=written, problem=problem) from errors[-1]

    def _take(self, response: Any, *, requested: Iterable[str] | None) -> None:
        new = merged(self.metadata, response, requested=requested)
        known, reported = self.metadata.cluster_id, new.cluster_id
        if known is not None and reported is not None and known != reported:
            raise ClusterChangedError(alias=self.alias, expected=known, found=reported)
        self.metadata = new

    # Metadata

    async def refresh(self, topics: Iterable[str] | None = None) -> None:
        """Requests brokers and *topics* (None: all topics) and merge the response into `metadata`.

        Callers share a request that is not sent yet. Raises ClusterError, ClusterChangedError.
        """
        refresh = self._next_refresh
        if refresh is None:
            refresh = self._next_refresh = _Refresh(self._refresh_in_turn, name=f"refresh-{self.alias}")
        refresh.add(topics)
        await asyncio.shield(refresh.task)

    async def _refresh_in_turn(self, refresh: _Refresh) -> None:
        now = asyncio.get_running_loop().time
        async with self._refresh_lock:
            ahead_s = self._refreshes_at_once * REFRESH_INTERVAL_MIN_S
            await asyncio.sleep(max(0.0, self._refreshes_used_s - ahead_s - now()))
            # Later callers may have seen newer metadata, so they get the next request.
            self._next_refresh = None
            try:
                await self._refresh_now(refresh.topics)
            finally:
                self._refreshes_used_s = max(self._refreshes_used_s, now()) + REFRESH_INTERVAL_MIN_S

    async def _refresh_now(self, topics: set[str] | None) -> None:
        names = None if topics is None else sorted(topics)
        parts: list[Sequence[str] | None] = (
            [None] if names is None else [*chunks(names, METADATA_TOPICS_MAX)] or [[]]
        )
        for chunk in parts:
            requested = (
                None if chunk is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in chunk]
            )
            request = MetadataRequest(topics=requested, allow_auto_topic_creation=False, min_version=1)
            response = await self.call(request, attempt_s=ANY_BROKER_TIMEOUT_S)
            self._take(response, requested=chunk)

    # Requests

    async def call(
        self,
        request: Any,
        *,
        node_id: int | None = None,
        controller: bool = False,
        coordinator: tuple[int, str] | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
        attempt_s: float = REQUEST_TIMEOUT_S,
        codes_of: Callable[[Any], Iterable[int]] | None = None,
        final_code: int = error_codes.NONE,
    ) -> Any:
        """Sends *request* to a node, the controller, a coordinator or any broker; returns the response.

        It is retried with backoff within *timeout_s* while no broker can be reached, after a retriable top-level
        error, and if the response says that the controller or coordinator has moved. After a lost response, or
        *attempt_s* without one, it is retried if `may_repeat` says so; otherwise UnreachableError leaves open whether it
        is executed. The caller checks all other error codes. *coordinator* is (key type, key): 0 a group, 1 a transactional
        id. *codes_of* returns the error codes of a response that holds them deeper than in its first list. A response
        with *final_code* is returned at once. Raises ClusterError, SettingError.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        is_repeatable = may_repeat(request.name.removesuffix("Request"))
        for failures in range(1, RETRIES_MAX + 1):
            pause_s = backoff_s(failures, lowest_s=RETRY_BACKOFF_MIN_S, highest_s=RETRY_BACKOFF_MAX_S)
            is_last = failures == RETRIES_MAX or loop.time() + pause_s >= deadline
            is_sent = False
            try:
                async with asyncio.timeout_at(deadline):
                    connection = await self._route(node_id, controller=controller, coordinator=coordinator)
                    is_sent = True
                    response = await connection.call(request, timeout_s=attempt_s)
            except TimeoutError:
                # It may have moved, and only this process cannot reach its former broker.
                self._forget(coordinator)
                raise self._out_of_time(request, timeout_s) from None
            except UnreachableError:
                self._forget(coordinator)
                if is_last or loop.time() + pause_s >= deadline or (is_sent and not is_repeatable):
                    raise
            else:
                parts = frozenset((codes_of or _shallow_codes)(response))
                is_final = error_codes.NONE != final_code == response.error_code
                to_coordinator = coordinator is not None
                has_moved = _must_repeat(response, parts, controller=controller, coordinator=to_coordinator)
                if is_last or is_final or not has_moved:
                    return response
                if error_codes.CONCURRENT_TRANSACTIONS in parts | {getattr(response, "error_code", 0)}:
                    # The coordinator is the right one, so it stays cached.
                    await asyncio.sleep(
                        backoff_s(failures, lowest_s=CONCURRENT_BACKOFF_MIN_S, highest_s=RETRY_BACKOFF_MAX_S)
                    )
                    continue
            self._forget(coordinator)
            await asyncio.sleep(pause_s)
            if controller or node_id is not None:
                await self._refresh_quietly()
        raise self._out_of_time(request, timeout_s)

    def _out_of_time(self, request: Any, timeout_s: float) -> UnreachableError:
        problem = f"{request.name} was not answered within {timeout_s:g} s"
        return UnreachableError(
            cluster=self.alias, addresses=self._settings.bootstrap_servers, problem=problem
        )

    def _forget(self, coordinator: tuple[int, str] | None) -> None:
        if coordinator is not None:
            self._coordinators.pop(coordinator, None)

    async def _refresh_quietly(self) -> None:
        """Refreshes brokers and controller; a failure is ignored, because the next attempt raises it."""
        try:
            connection = await self._any_connection()
            request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
            self._take(await connection.call(request, timeout_s=ANY_BROKER_TIMEOUT_S), requested=())
        except (UnreachableError, AuthenticationFailedError):
            return

    async def _route(
        self, node_id: int | None, *, controller: bool, coordinator: tuple[int, str] | None
    ) -> Connection:
        if coordinator is not None:
            return await self.connection(await self.coordinator(coordinator))
        if node_id is not None:
            return await self.connection(node_id)
        if controller and self.metadata.controller_id in self.metadata.brokers:
            return await self.connection(self.metadata.controller_id)
        return await self._any_connection()

    async def coordinator(self, coordinator: tuple[int, str], *, anew: bool = False) -> int:
        """Returns the node id of the coordinator of (key type, key); *anew* bypasses the cache. Raises ClusterError."""
        known = None if anew else self._coordinators.get(coordinator)
        if known is not None:
            return known
        kind, key = coordinator
        connection = await self._any_connection()
        request = FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key])
        response = await connection.call(request, timeout_s=ANY_BROKER_TIMEOUT_S)
        # Version 4 and later: a list (KIP-699).
        row = response.coordinators[0] if response.coordinators else response
        if error_codes.is_retriable(row.error_code):
            raise UnreachableError(
                cluster=self.alias,
                addresses=connection.address,
                problem=f"no coordinator for {key} yet ({error_codes.name_of(row.error_code)})",
            )
        self.raise_for(row.error_code, "FindCoordinator", key)
        if row.node_id not in self.metadata.brokers:
            await self._refresh_quietly()
        if len(self._coordinators) >= COORDINATORS_MAX:
            self._coordinators.clear()
        self._coordinators[coordinator] = int(row.node_id)
        return int(row.node_id)


def _shallow_codes(response: Any) -> set[int]:
    return {
        getattr(item, "error_code", 0) or 0
        for name in ("topics", "results", "responses", "groups")
        for item in getattr(response, name, None) or ()
    }


def _must_repeat(response: Any, parts: Iterable[int], *, controller: bool, coordinator: bool) -> bool:
    """Returns whether a retry, at another broker or later, may change the response or one of its *parts*."""
    whole = getattr(response, "error_code", 0) or 0
    moved: frozenset[int] = frozenset()
    if controller:
        moved |= error_codes.CONTROLLER_MOVED
    if coordinator:
        moved |= error_codes.COORDINATOR_MOVED
    return error_codes.is_retriable(whole) or not moved.isdisjoint(parts)


def chunks(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    """Yields *items* in parts of at most *size*, for requests of bounded size."""
    return (items[begin : begin + size] for begin in range(0, len(items), size))


async def connect_both(
    source: ClientSettings,
    target: ClientSettings,
    *,
    resolve: Resolve,
    timeout_s: float = REACH_TIMEOUT_S,
    note: Callable[[Cluster | BaseException], None] = lambda _: None,
) -> tuple[Cluster, Cluster]:
    """Connects to *source* and *target* in parallel; returns both clients.

    *note* is called with the client or the error of each side. Raises ClusterError, SettingError; if both
    sides fail, the source's error.
    """
    results = await asyncio.gather(
        *(Cluster.connect(client, resolve=resolve, timeout_s=timeout_s) for client in (source, target)),
        return_exceptions=True,
    )
    for result in results:
        note(result)
    failures = [result for result in results if isinstance(result, BaseException)]
    if failures:
        await asyncio.gather(*(result.close() for result in results if isinstance(result, Cluster)))
        raise failures[0]
    there = [result for result in results if isinstance(result, Cluster)]
    return there[0], there[1]
