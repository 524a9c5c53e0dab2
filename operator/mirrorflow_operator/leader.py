"""Runs the leader's work: lists the cluster, watches it, processes the queue, and lists again periodically.

    wait for the CRD -> list all -> watch -> pass after pass, until the Lease is lost or the process ends

Watches report changes at once. The periodic resync finds changes that the watches missed, queues their
flows, and restarts watches that reported nothing while objects changed.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mirrorflow_core.backoff import Backoff, jittered_s
from mirrorflow_operator.cluster.client import MIRROR_FLOW, Client, ObjectKind, read_kubernetes_id
from mirrorflow_operator.cluster.view import View, list_all
from mirrorflow_operator.cluster.watches import Watches
from mirrorflow_operator.errors import (
    ApiServerError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    OperatorError,
)
from mirrorflow_operator.metrics import Metrics
from mirrorflow_operator.reconcile.reconciler import Reconciler
from mirrorflow_operator.settings import Settings
from mirrorflow_operator.status.admission import Key
from mirrorflow_operator.work_queue import WorkQueue

_LOG = logging.getLogger(__name__)
DEFINITION_EVERY_S: Final = 2.0  # between two checks for a CRD that is installed after the operator
RETRY_MIN_S: Final = 1.0
RETRY_MAX_S: Final = 25.0  # between two attempts to read the cluster, without jitter
WATCH_GRACE_S: Final = 10.0  # a watch reports within milliseconds what a list shows
CHECK_EVERY_S: Final = 1.0  # between two checks whether the watches have ended
STUCK_MAX_S: Final = 300.0  # a pass takes seconds; five minutes if every request times out


@dataclass(slots=True, kw_only=True)
class Leader:
    """Runs one term of leadership; `view` and `reconciler` outlive it."""

    settings: Settings
    client: Client
    view: View
    queue: "WorkQueue[Key]"
    reconciler: Reconciler
    metrics: Metrics
    unreadable: dict[str, str]  # the reconciler's: namespaces that may not be read, and why
    companions: Sequence[
        Callable[[], Coroutine[Any, Any, None]]
    ] = ()  # further tasks that run while it leads
    problem: str = "the cluster has not been read yet"  # why it does not work; "" while it does
    _since: float = field(default_factory=time.monotonic)
    _watches: Watches | None = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _silent: bool = False  # the watches missed a change that a list showed

    async def lead(self) -> None:
        """Runs this term until it is cancelled."""
        try:
            await self._wait_for_definition()
            await self._identify_kubernetes()
            await self._read_all()
            self._since = time.monotonic()
            self._queue_all()
            async with asyncio.TaskGroup() as tasks:
                for companion in self.companions:
                    tasks.create_task(companion())
                tasks.create_task(self._watch())
                tasks.create_task(self._resync())
                for _ in range(self.settings.workers):
                    tasks.create_task(self._work())
        finally:
            self.problem = "this process does not lead"
            if self._watches is not None:
                await self._watches.stop()

    def sick(self) -> str:
        """Returns why the process should be restarted, for the liveness probe; "" if it should not."""
        stuck_s = min(self.queue.stuck_s(), time.monotonic() - self._since)
        if not self.problem and stuck_s > STUCK_MAX_S:
            return f"No pass has ended for {stuck_s:.0f} s."
        return ""

    def handle_event(self, kind: ObjectKind, event: str | None, body: Mapping[str, Any]) -> None:
        """Applies one watch event to the view and queues the flows it affects."""
        for key in self.view.handle_event(kind, event, body):
            self.queue.add(key)

    async def _wait_for_definition(self) -> None:
        said = False
        while True:
            try:
                found = await self.client.get(f"/apis/{MIRROR_FLOW.api_version}")
                if any(one["name"] == MIRROR_FLOW.plural for one in found["resources"]):
                    return
            except NotFoundError:
                pass
            except ApiServerError as error:
                _LOG.warning("Waiting for the API server: %s", error)
            self.problem = "the MirrorFlow CRD is not installed: apply crds/mirrorflows.yaml"
            if not said:
                _LOG.error("The MirrorFlow CRD is not installed; waiting. Apply crds/mirrorflows.yaml.")
                said = True
            await asyncio.sleep(DEFINITION_EVERY_S)

    async def _identify_kubernetes(self) -> None:
        """Reads the UID of kube-system, which identifies a Kubernetes cluster, for the ids of new flows."""
        async for _ in Backoff(min_s=RETRY_MIN_S, max_s=RETRY_MAX_S):
            if self.reconciler.kubernetes_id:
                return
            try:
                self.reconciler.kubernetes_id = await read_kubernetes_id(self.client)
            except ForbiddenError as error:
                _LOG.warning("Ids of new flows do not name this Kubernetes cluster: %s", error)
                return
            except ApiServerError as error:
                self._will_retry(error)

    async def _read_all(self) -> frozenset[str]:
        """Lists everything it may read, retrying until it succeeds.

        Returns the kinds of which a list showed something that the view did not know.
        """
        kinds: frozenset[str] = frozenset()
        async for _ in Backoff(min_s=RETRY_MIN_S, max_s=RETRY_MAX_S):
            try:
                kinds = await self._read_scopes()
            except ApiServerError as error:
                self.metrics.failed_lists.labels(reason=type(error).__name__).inc()
                self._will_retry(error)
            else:
                self.problem = ""
                break
        return kinds

    def _will_retry(self, error: ApiServerError) -> None:
        self.problem = f"cannot read the cluster: {error}"
        _LOG.warning("Cannot read the cluster; retrying: %s", error)

    async def _read_scopes(self) -> frozenset[str]:
        kinds: frozenset[str] = frozenset()
        refused: ForbiddenError | None = None
        readable = 0
        for namespace in self.settings.namespaces or (None,):
            try:
                listed = await list_all(self.client, self.view, namespace)
            except ForbiddenError as error:
                if namespace is None:
                    raise
                refused = error
                self._cannot_read(namespace, error)
                continue
            readable += 1
            kinds |= listed.kinds
            for key in listed.changed:
                self.queue.add(key)
            if namespace is not None and self.unreadable.pop(namespace, None) is not None:
                self._queue_all(namespace)
        if refused is not None and not readable:
            raise refused
        return kinds

    def _cannot_read(self, namespace: str, error: ForbiddenError) -> None:
        """Records that one namespace is forbidden; only its flows are affected, and their status says why."""
        self.metrics.failed_lists.labels(reason=type(error).__name__).inc()
        if self.unreadable.get(namespace) != str(error):
            _LOG.error("Cannot read namespace %s; its flows are not reconciled: %s", namespace, error)
            self.unreadable[namespace] = str(error)
            self._queue_all(namespace)

    def _queue_all(self, namespace: str | None = None) -> None:
        for key in self.view.flows:
            if namespace in {None, key[0]}:
                self.queue.add(key)

    async def _watch(self) -> None:
        """Keeps kopf running in the readable namespaces."""
        while True:
            readable = [one for one in self.settings.namespaces if one not in self.unreadable]
            self._silent = False
            self._watches = Watches(
                namespaces=readable, loop=asyncio.get_running_loop(), on_event=self.handle_event
            )
            self._watches.start()
            await self._until_watches_end(readable)
            _LOG.warning("Restarting the watches.")
            self.metrics.watch_restarts.inc()
            await self._watches.stop()
            await self._read_all()

    async def _until_watches_end(self, readable: list[str]) -> None:
        """Returns when the watches died, missed a change, or the set of readable namespaces changed."""
        while self._watches is not None and self._watches.alive and not self._silent:
            if readable != [one for one in self.settings.namespaces if one not in self.unreadable]:
                return
            await asyncio.sleep(CHECK_EVERY_S)

    async def _resync(self) -> None:
        while True:
            every_s = self.settings.resync_s
            if self.unreadable:
                every_s = min(every_s, RETRY_MAX_S)
            await asyncio.sleep(jittered_s(every_s))
            begun = time.monotonic()
            kinds = await self._read_all()
            self._queue_all()
            if kinds:
                await asyncio.sleep(WATCH_GRACE_S)
            missed = {kind for kind in kinds if self.view.watched_at.get(kind, 0.0) < begun}
            for kind in missed:
                self.metrics.watch_misses.labels(kind=kind).inc()
            self._silent = bool(missed)

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
                again_s = await self.reconciler.reconcile(key)
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
                _LOG.exception("%s/%s: bug in the operator", *key)
            else:
                self.queue.done(key, again_s)
                if key not in self.view.flows:
                    self.queue.forget(key)
            self.metrics.reconciles.labels(result=result).inc()
            self.metrics.reconcile_seconds.observe(time.monotonic() - begun)

    def _failed(self, key: Key, error: OperatorError) -> None:
        wait_s = self.queue.failed(key, getattr(error, "retry_after_s", 0.0))
        # Two writers changed one object at once; the next pass has the newer version, so this is no warning.
        level = logging.DEBUG if isinstance(error, ConflictError) else logging.WARNING
        _LOG.log(level, "%s/%s: retrying in %.1f s: %s", *key, wait_s, error)
