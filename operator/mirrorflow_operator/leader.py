"""Elects one of several operators as leader with a Lease (coordination.k8s.io/v1), and runs the leader's work.

    acquire   when the Lease is new, released, or not renewed for its `leaseDurationSeconds`
    renew     every third of the duration
    lost      after two thirds of the duration without a renewal: the holder stops and becomes a candidate
    release   at shutdown, by emptying the holder, so that candidates need not wait for the Lease to expire

A candidate measures expiry with its own monotonic clock, from when it saw the record change, so the clocks of
operators need not agree. Safety does not depend on the Lease, because every write is conditional: two leaders
at once only cost refused writes.

    wait for the CRD -> list all -> watch -> pass after pass, until the Lease is lost or the process ends

Watches report changes at once. The periodic resync finds changes that the watches missed, queues their
flows, and restarts watches that reported nothing while objects changed.
"""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from mirrorflow_core.backoff import Backoff, jittered_s
from mirrorflow_operator.api.spark_workloads import SparkLauncher
from mirrorflow_operator.cluster.cache import ClusterCache, QueueKey, list_all
from mirrorflow_operator.cluster.client import (
    LEASE,
    MIRROR_FLOW,
    PAIR_KINDS,
    SPARK_APPLICATION,
    SPARK_KINDS,
    WATCHED,
    Client,
    ObjectKind,
)
from mirrorflow_operator.cluster.definition import update_definitions
from mirrorflow_operator.cluster.progress_poller import Poller
from mirrorflow_operator.cluster.watches import Watches
from mirrorflow_operator.errors import (
    ApiServerError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    OperatorError,
)
from mirrorflow_operator.metrics import Metrics
from mirrorflow_operator.reconcile.pair_reconciler import PairReconciler
from mirrorflow_operator.reconcile.reconciler import Reconciler
from mirrorflow_operator.settings import Settings
from mirrorflow_operator.status.pair_observation import PairKey
from mirrorflow_operator.work_queue import WorkQueue

CALL_TIMEOUT_PART: Final = 5  # of the duration: one lost response must not cost the Lease
RENEWALS: Final = 3  # within the duration
SILENT_DURATIONS: Final = 2  # a candidate reads the Lease several times within one duration
RELEASE_TIMEOUT_S: Final = 2.0  # a small part of a pod's grace period
_LOG = logging.getLogger(__name__)
DEFINITION_EVERY_S: Final = 2.0  # between two checks for a CRD that is installed after the operator
NEW_DEFINITION_S: Final = 20.0  # in which the API server serves a new CRD, under load
DENIED_S: Final = (
    20.0  # in which an API server that has just started, and denies everything, has read all roles
)
RETRY_MIN_S: Final = 1.0
RETRY_MAX_S: Final = 25.0  # between two attempts to read the cluster, without jitter
WATCH_GRACE_S: Final = 10.0  # a watch reports within milliseconds what a list shows
CHECK_EVERY_S: Final = (
    1.0  # between two checks whether the watches have ended, or a flow needs the Spark operator
)
SPARK_OPERATOR_EVERY_S: Final = (
    10.0  # between two checks for a Spark operator that is installed after the flow
)
STUCK_MAX_S: Final = 300.0  # a pass takes seconds; five minutes if every request times out


@dataclass(slots=True, kw_only=True)
class Lease:
    """One candidate for leadership, named *identity*."""

    client: Client
    namespace: str
    name: str
    identity: str
    duration_s: float
    clock: Callable[[], float] = time.monotonic
    renewed_at: float | None = None  # clock time at the start of the last successful renewal; None: not held
    # Clock time at which the Lease expires for other candidates; kept until `work_stopped`.
    expires_at: float | None = None
    answered_at: float | None = None  # clock time of the last response of the API server about the record
    _seen: tuple[str, int, str] | None = None  # holder, transitions, renewTime of another's record
    _seen_at: float = field(default=0.0)

    @property
    def retry_s(self) -> float:
        """Seconds between two attempts to renew."""
        return self.duration_s / RENEWALS

    @property
    def deadline_s(self) -> float:
        """Seconds for which a holder continues to work without a renewal."""
        return self.duration_s * 2 / RENEWALS

    @property
    def takeover_problem(self) -> str | None:
        """Why this candidate could not take over now; None if it could."""
        if self.answered_at is None:
            return "the API server has not answered yet"
        silent_s = self.clock() - self.answered_at
        if silent_s > self.duration_s * SILENT_DURATIONS:
            return f"the API server has not answered for {silent_s:.0f} s"
        return None

    async def acquire(self) -> None:
        """Waits, without a limit, until this candidate holds the Lease."""
        while not await self._try_to_hold(self._timeout_s):  # noqa: ASYNC110  no event reports that it is free
            await asyncio.sleep(self.retry_s / 2)

    async def keep(self) -> None:
        """Renews the Lease until it is lost: another holds it, or no renewal succeeded for `deadline_s`."""
        wait_s = self.retry_s
        while self.renewed_at is not None:
            until = self.renewed_at + self.deadline_s
            await asyncio.sleep(max(0.0, min(wait_s, until - self.clock())))
            left_s = until - self.clock()
            if left_s <= 0:
                self.renewed_at = None
            elif await self._try_to_hold(min(left_s, self._timeout_s)):
                wait_s = self.retry_s
            else:
                wait_s = self.retry_s / CALL_TIMEOUT_PART

    def work_stopped(self) -> None:
        """Records that all work under the Lease has ended, so that its expiry does no harm."""
        self.expires_at = None

    async def release(self) -> None:
        """Releases the Lease if it is held. If this fails, other candidates wait until it expires."""
        if self.renewed_at is None:
            return
        self.renewed_at = None
        with contextlib.suppress(ApiServerError, TimeoutError):
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                lease = await self.client.read(LEASE, self.namespace, self.name, timeout_s=RELEASE_TIMEOUT_S)
                if lease["spec"].get("holderIdentity") == self.identity:
                    # One second, so that clients that use client-go's rule can take it at once as well.
                    spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
                    await self._replace(lease, spec)

    @property
    def _timeout_s(self) -> float:
        return self.duration_s / CALL_TIMEOUT_PART

    async def _try_to_hold(self, timeout_s: float) -> bool:
        begun = self.clock()
        try:
            async with asyncio.timeout(timeout_s):
                held = await self._read_and_hold()
        except (ApiServerError, TimeoutError) as error:
            # A conflict means that another candidate was faster; the next attempt reads its record.
            if not isinstance(error, ConflictError):
                _LOG.warning(
                    "Lease %s/%s: %s", self.namespace, self.name, str(error) or "no response in time"
                )
            return False
        if held:
            self.renewed_at, self.expires_at = begun, begun + self.duration_s
        return held

    async def _read_and_hold(self) -> bool:
        try:
            lease = await self.client.read(LEASE, self.namespace, self.name, timeout_s=self._timeout_s)
            self.answered_at = self.clock()
        except NotFoundError:
            self.answered_at = self.clock()
            body = {
                "apiVersion": LEASE.api_version,
                "kind": LEASE.name,
                "metadata": {"name": self.name, "namespace": self.namespace},
                "spec": self._spec({}),
            }
            await self.client.create(LEASE, self.namespace, body, timeout_s=self._timeout_s)
            return True
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder not in {"", self.identity}:
            self.renewed_at = None
            if not self._is_silent(spec):
                return False
        await self._replace(lease, self._spec(spec))
        return True

    def _is_silent(self, spec: dict[str, Any]) -> bool:
        record = (spec["holderIdentity"], spec.get("leaseTransitions", 0), spec.get("renewTime", ""))
        if record != self._seen:
            self._seen, self._seen_at = record, self.clock()
        return self.clock() - self._seen_at > float(spec.get("leaseDurationSeconds", self.duration_s))

    def _spec(self, old: dict[str, Any]) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        mine = old.get("holderIdentity") == self.identity
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(self.duration_s),
            "acquireTime": old.get("acquireTime", now) if mine else now,
            "renewTime": now,
            "leaseTransitions": old.get("leaseTransitions", 0) + (0 if mine or not old else 1),
        }

    async def _replace(self, lease: dict[str, Any], spec: dict[str, Any]) -> None:
        await self.client.replace(
            LEASE, self.namespace, self.name, {**lease, "spec": spec}, timeout_s=self._timeout_s
        )


@dataclass(slots=True, kw_only=True)
class Leader:
    """Runs one term of leadership; `cache` and `reconciler` outlive it."""

    settings: Settings
    client: Client
    cache: ClusterCache
    queue: "WorkQueue[QueueKey]"
    reconciler: Reconciler
    pair_reconciler: PairReconciler
    metrics: Metrics
    poller: Poller
    problem: str | None = "the cluster has not been read yet"  # why it does not work; None while it does
    _since: float = field(default_factory=time.monotonic)
    _watches: Watches | None = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _kinds: tuple[ObjectKind, ...] = WATCHED  # with pairs and switchovers, where they may be read
    _has_new_definitions: bool = False  # this term has applied CRDs, which are served within seconds
    _missed_change: bool = False  # the watches missed a change that a list showed
    _has_new_kinds: bool = False  # the watches lack kinds that can be read since

    async def lead(self) -> None:
        """Runs this term until it is cancelled."""
        self.cache.set_spark_operator_problem(None)
        try:
            await self._wait_for_definition()
            await self._identify_kubernetes()
            await self._include_pairs()
            await self._read_all()
            self._since = time.monotonic()
            self._queue_all()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.poller.run())
                tasks.create_task(self._watch())
                tasks.create_task(self._resync())
                tasks.create_task(self._find_spark_operator())
                for _ in range(self.settings.workers):
                    tasks.create_task(self._work())
        finally:
            self.problem = "this process does not lead"
            if self._watches is not None:
                await self._watches.stop()

    def liveness_problem(self) -> str | None:
        """Returns why the process should be restarted, for the liveness probe; None if it should not."""
        stuck_s = min(self.queue.stuck_s(), time.monotonic() - self._since)
        if self.problem is None and stuck_s > STUCK_MAX_S:
            return f"No pass has ended for {stuck_s:.0f} s."
        return None

    def handle_event(self, kind: ObjectKind, event: str | None, body: Mapping[str, Any]) -> None:
        """Applies one watch event to the cache and queues what it affects."""
        for key in self.cache.handle_event(kind, event, body):
            self.queue.add(key)

    async def _wait_for_definition(self) -> None:
        """Returns when the CRD of MirrorFlows is there, and no CRD is older than this operator."""
        is_logged = is_updated = False
        while True:
            try:
                listed = await self.client.get(f"/apis/{MIRROR_FLOW.api_version}")
                if any(resource["name"] == MIRROR_FLOW.plural for resource in listed["resources"]):
                    # Once: an API server may store a CRD differently for ever.
                    if is_updated or not await update_definitions(self.client):
                        return
                    is_updated = self._has_new_definitions = True
                    # The API server drops new fields from statuses until it uses the new CRD, in milliseconds.
                    self.problem = "the MirrorFlow CRD has just been updated"
                    await asyncio.sleep(DEFINITION_EVERY_S)
                    continue
            except NotFoundError:
                pass
            except ApiServerError as error:
                _LOG.warning("Waiting for the API server: %s", error)
                self.problem = f"cannot read the cluster: {error}"
                await asyncio.sleep(DEFINITION_EVERY_S)
                continue
            self.problem = "the MirrorFlow CRD is not installed: apply crds/mirrorflows.yaml"
            if not is_logged:
                _LOG.error("The MirrorFlow CRD is not installed; waiting. Apply crds/mirrorflows.yaml.")
                is_logged = True
            await asyncio.sleep(DEFINITION_EVERY_S)

    async def _identify_kubernetes(self) -> None:
        """Reads the UID of kube-system, which identifies a Kubernetes cluster, for the ids of new flows."""
        async for _ in Backoff(min_s=RETRY_MIN_S, max_s=RETRY_MAX_S):
            if self.cache.kubernetes_id is not None:
                return
            try:
                namespace = await self.client.get("/api/v1/namespaces/kube-system")
                self.cache.identify(namespace["metadata"]["uid"])
            except ForbiddenError as error:
                _LOG.warning("Ids of new flows do not name this Kubernetes cluster: %s", error)
                return
            except ApiServerError as error:
                self._log_retry(error)

    async def _include_pairs(self) -> None:
        """Watches pairs and switchovers, too, where their CRDs are installed and the role has the rights to read them.

        An operator that was upgraded without them still runs flows.
        """
        begun_s = time.monotonic()
        async for _ in Backoff(min_s=RETRY_MIN_S, max_s=RETRY_MAX_S):
            try:
                if (denied := await self._why_no_flows()) is not None:
                    # Nothing can be said of the role: an API server that starts denies everything.
                    begun_s = time.monotonic()
                    self._log_retry(denied)
                    continue
                for kind in PAIR_KINDS:
                    await self._look_for(kind)
            except (NotFoundError, ForbiddenError) as error:
                is_missing = isinstance(error, NotFoundError)
                wait_s = NEW_DEFINITION_S * self._has_new_definitions if is_missing else DENIED_S
                if time.monotonic() - begun_s > wait_s:
                    self._leave_out_pairs(error)
                    return
                self._log_retry(error)
            except ApiServerError as error:
                self._log_retry(error)
            else:
                self._kinds = (*WATCHED, *PAIR_KINDS)
                return

    async def _look_for(self, kind: ObjectKind) -> None:
        """Returns if *kind* can be read in each namespace in which flows can. Raises ApiServerError."""
        for namespace in self.settings.namespaces or (None,):
            try:
                await self._read_one(kind, namespace)
            except ForbiddenError:
                if namespace is None or await self._may_read_flows(namespace):
                    raise

    async def _why_no_flows(self) -> ForbiddenError | None:
        """Returns why flows can be read in no namespace; None if they can in one. Raises ApiServerError."""
        denied: ForbiddenError | None = None
        for namespace in self.settings.namespaces or (None,):
            try:
                await self._read_one(MIRROR_FLOW, namespace)
            except ForbiddenError as error:
                denied = error
            else:
                return None
        return denied

    async def _may_read_flows(self, namespace: str) -> bool:
        try:
            await self._read_one(MIRROR_FLOW, namespace)
        except ForbiddenError:
            return False
        return True

    async def _read_one(self, kind: ObjectKind, namespace: str | None) -> None:
        async for _ in self.client.chunks(kind, namespace, limit=1):
            break

    def _leave_out_pairs(self, error: ApiServerError) -> None:
        self._kinds = WATCHED
        _LOG.warning(
            "Switchovers are not carried out until the operator is started again with the CRDs of crds/ and their rights: %s",
            error,
        )

    async def _find_spark_operator(self) -> None:
        """Watches the kinds of the Spark operator, too, once a flow needs them and they may be read."""
        while True:
            if SPARK_APPLICATION in self._kinds or not self._needs_spark_operator():
                await asyncio.sleep(CHECK_EVERY_S)
                continue
            before, problem = self.cache.spark_operator_problem, await self._spark_operator_problem()
            if problem == "":
                self._kinds = (*self._kinds, *SPARK_KINDS)
                await self._read_all()
                self._has_new_kinds = True
            # Only now, so that no pass plans an application that exists and has not been read.
            self.cache.set_spark_operator_problem(before if problem is None else problem)
            if self.cache.spark_operator_problem != before:
                self._queue_all()
            await asyncio.sleep(SPARK_OPERATOR_EVERY_S)

    def _needs_spark_operator(self) -> bool:
        """Whether a flow launches its jobs by SparkApplications, or has a driver of one."""
        specs = (
            flow.resource.flow.spec for flow in self.cache.flows.values() if flow.resource.flow is not None
        )
        return self.cache.has_spark_applications() or any(
            spec.spark is not None and spec.spark.launcher is SparkLauncher.SPARK_APPLICATION
            for spec in specs
        )

    async def _spark_operator_problem(self) -> str | None:
        """Returns why SparkApplications cannot be used; "" if they can, None where the API server gives no answer."""
        for kind in SPARK_KINDS:
            what = f"{kind.plural}.{kind.group}"
            try:
                await self._look_for(kind)
            except NotFoundError:
                return (
                    f"the CRD {what} ({kind.version}) is not installed; install Kubeflow's Spark operator, or set"
                    " spec.spark.launcher to Job"
                )
            except ForbiddenError:
                return (
                    f"the operator may not read {what}; install Kubeflow's Spark operator and set sparkApplications.enabled of"
                    " MirrorFlow's chart, or set spec.spark.launcher to Job"
                )
            except ApiServerError as error:
                _LOG.warning("Cannot look for the Spark operator; retrying: %s", error)
                return None
        return ""

    async def _read_all(self) -> frozenset[str]:
        """Lists everything it may read, retrying until it succeeds.

        Returns the kinds of which a list showed something that the cache did not know.
        """
        kinds: frozenset[str] = frozenset()
        async for _ in Backoff(min_s=RETRY_MIN_S, max_s=RETRY_MAX_S):
            try:
                if SPARK_APPLICATION in self._kinds:
                    await self._keep_spark_kinds()
                kinds = await self._read_scopes()
            except ApiServerError as error:
                self.metrics.failed_lists.labels(reason=type(error).__name__).inc()
                self._log_retry(error)
            else:
                self.problem = None
                break
        return kinds

    async def _keep_spark_kinds(self) -> None:
        """Stops watching the kinds of the Spark operator where they can no longer be read; flows go on without them."""
        problem = await self._spark_operator_problem()
        if not problem:
            return
        _LOG.error("SparkApplications are no longer watched: %s.", problem)
        self.cache.set_spark_operator_problem(problem)
        self._kinds = tuple(kind for kind in self._kinds if kind not in SPARK_KINDS)
        for kind in SPARK_KINDS:
            for key in self.cache.remove_absent(kind, None, set(), sys.maxsize):
                self.queue.add(key)

    def _log_retry(self, error: ApiServerError) -> None:
        self.problem = f"cannot read the cluster: {error}"
        _LOG.warning("Cannot read the cluster; retrying: %s", error)

    async def _read_scopes(self) -> frozenset[str]:
        kinds: frozenset[str] = frozenset()
        forbidden: ForbiddenError | None = None
        readable = 0
        for namespace in self.settings.namespaces or (None,):
            try:
                listed = await list_all(
                    self.client, self.cache, namespace, self.settings.selector, kinds=self._kinds
                )
            except ForbiddenError as error:
                if namespace is None:
                    raise
                forbidden = error
                self._cannot_read(namespace, error)
                continue
            readable += 1
            kinds |= listed.keys()
            for key in frozenset[QueueKey]().union(*listed.values()):
                self.queue.add(key)
            if namespace is not None and self.cache.unreadable.pop(namespace, None) is not None:
                self._queue_all(namespace)
        if forbidden is not None and not readable:
            raise forbidden
        return kinds

    def _cannot_read(self, namespace: str, error: ForbiddenError) -> None:
        """Records that one namespace is forbidden; only its flows are affected, and their status says why."""
        self.metrics.failed_lists.labels(reason=type(error).__name__).inc()
        if self.cache.unreadable.get(namespace) != str(error):
            _LOG.error("Cannot read namespace %s; its flows are not reconciled: %s", namespace, error)
            self.cache.unreadable[namespace] = str(error)
            self._queue_all(namespace)

    def _queue_all(self, namespace: str | None = None) -> None:
        keys: list[QueueKey] = [*self.cache.flows, *self.cache.pairs.known_keys()]
        for key in keys:
            if namespace in {None, key[0]}:
                self.queue.add(key)

    async def _watch(self) -> None:
        """Keeps kopf running in the readable namespaces."""
        while True:
            readable = [
                namespace for namespace in self.settings.namespaces if namespace not in self.cache.unreadable
            ]
            self._missed_change = self._has_new_kinds = False
            self._watches = Watches(
                namespaces=readable,
                selector=self.settings.selector,
                kinds=self._kinds,
                loop=asyncio.get_running_loop(),
                on_event=self.handle_event,
            )
            self._watches.start()
            await self._until_watches_end(readable)
            _LOG.warning("Restarting the watches.")
            self.metrics.watch_restarts.inc()
            await self._watches.stop()
            await self._read_all()

    async def _until_watches_end(self, readable: list[str]) -> None:
        """Returns when the watches died, missed a change, or the readable namespaces or kinds changed."""
        while (
            self._watches is not None
            and self._watches.alive
            and not (self._missed_change or self._has_new_kinds)
        ):
            if readable != [
                namespace for namespace in self.settings.namespaces if namespace not in self.cache.unreadable
            ]:
                return
            await asyncio.sleep(CHECK_EVERY_S)

    async def _resync(self) -> None:
        while True:
            every_s = self.settings.resync_s
            if self.cache.unreadable:
                every_s = min(every_s, RETRY_MAX_S)
            await asyncio.sleep(jittered_s(every_s))
            begun = time.monotonic()
            kinds = await self._read_all()
            self._queue_all()
            if kinds:
                await asyncio.sleep(WATCH_GRACE_S)
            missed = {kind for kind in kinds if self.cache.watched_at.get(kind, 0.0) < begun}
            for kind in missed:
                self.metrics.watch_misses.labels(kind=kind).inc()
            self._missed_change = bool(missed)

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            # A pass that writes nothing never awaits, and a thousand of them in a row would delay the Lease's
            # renewal. So the event loop runs once between two passes, also of different workers.
            async with self._turn:
                await asyncio.sleep(0)
            begun = time.monotonic()
            result = "ok"
            try:
                again_s = await self._reconcile(key)
            except asyncio.CancelledError:
                self.queue.done(key, 0.0)
                raise
            except OperatorError as error:
                result = type(error).__name__
                self._failed(key, error)
            except Exception:  # noqa: BLE001
                # A bug that one flow triggers must not stop the other flows.
                result = "Bug"
                self.queue.failed(key)
                _LOG.exception("%s/%s: bug in the operator", *key[:2])
            else:
                self.queue.done(key, again_s)
                if again_s is None and not self._is_known(key):
                    self.queue.forget(key)
            self.metrics.reconciles.labels(result=result).inc()
            self.metrics.reconcile_seconds.observe(time.monotonic() - begun)

    async def _reconcile(self, key: QueueKey) -> float | None:
        if isinstance(key, PairKey):
            return await self.pair_reconciler.reconcile(key)
        return await self.reconciler.reconcile(key)

    def _is_known(self, key: QueueKey) -> bool:
        if isinstance(key, PairKey):
            return key in self.cache.pairs.known_keys()
        return key in self.cache.flows

    def _failed(self, key: QueueKey, error: OperatorError) -> None:
        wait_s = self.queue.failed(key, getattr(error, "retry_after_s", 0.0))
        # Two writers changed one object at once; the next pass has the newer version, so this is no warning.
        level = logging.DEBUG if isinstance(error, ConflictError) else logging.WARNING
        _LOG.log(level, "%s/%s: retrying in %.1f s: %s", *key[:2], wait_s, error)
