"""Runs the operator process: its HTTP server, its Lease, and the leader's work while it holds the Lease.

    wait for the Lease -> lead -> Lease lost: wait again
                               -> SIGTERM: release it, exit 0

/healthz and /readyz are for the kubelet, /metrics is for Prometheus. They are read-only and expose no flow
names. What a client can cost is bounded: a connection serves one request, and ends DEADLINE_S after it began,
whatever its client has sent or read by then.
"""

import asyncio
import logging
import os
import signal
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client.aiohttp import make_aiohttp_handler

from mirrorflow_operator.api.timestamps import parse_timestamp
from mirrorflow_operator.cluster.cache import ClusterCache, QueueKey
from mirrorflow_operator.cluster.client import Client
from mirrorflow_operator.cluster.event_publisher import EventPublisher
from mirrorflow_operator.cluster.login import log_in
from mirrorflow_operator.cluster.pod_events import PodEventReader
from mirrorflow_operator.cluster.progress_client import CaBundle
from mirrorflow_operator.cluster.progress_poller import Poller
from mirrorflow_operator.leader import Leader, Lease
from mirrorflow_operator.metrics import Metrics
from mirrorflow_operator.reconcile.object_writer import ObjectWriter
from mirrorflow_operator.reconcile.observe import Observer
from mirrorflow_operator.reconcile.pair_reconciler import PairReconciler
from mirrorflow_operator.reconcile.reconciler import Reconciler
from mirrorflow_operator.reconcile.status_writer import FlowStatusWriter
from mirrorflow_operator.settings import Settings
from mirrorflow_operator.status.conditions import Reason, is_unready
from mirrorflow_operator.status.pair_observation import ENDED
from mirrorflow_operator.work_queue import WorkQueue

_LOG = logging.getLogger("mirrorflow_operator")
# For work in flight after the Lease was lost; the watchdog ends the process before the Lease expires
STOP_TIMEOUT_S: Final = 5.0
WATCHDOG_EVERY_S: Final = 0.5
DEADLINE_S: Final = 10.0  # Prometheus' default timeout of a scrape; probes wait for less
CONNECTIONS_MAX: Final = 64  # probes, a few Prometheus servers and people
SHUTDOWN_TIMEOUT_S: Final = 1.0  # a scrape takes a millisecond


@dataclass(slots=True, kw_only=True)
class Operator:
    """One operator process with its queue, poller, metrics and, while it leads, its leader."""

    settings: Settings
    metrics: Metrics = field(default_factory=Metrics)
    cache: ClusterCache = field(default_factory=ClusterCache)
    queue: "WorkQueue[QueueKey]" = field(default_factory=WorkQueue)
    leader: Leader | None = None
    poller: Poller = field(init=False)
    ca_bundle: CaBundle | None = field(init=False)
    _lease: Lease | None = None
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Connects the poller to the queue. Raises SettingsError where the CA file cannot be read."""
        self.poller = Poller(changed=self.queue.add, metrics=self.metrics, interval_s=self.settings.poll_s)
        file = self.settings.progress_ca
        self.ca_bundle = None if file is None else CaBundle(file=file)

    async def run(self) -> int:
        """Runs until SIGTERM, SIGINT or a failure; returns the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        client = Client(log_in, self.metrics)
        lease = Lease(
            client=client,
            namespace=self.settings.pod_namespace,
            name=self.settings.lease,
            # A random suffix, so that two processes are never the same holder, even with equal pod names.
            identity=f"{self.settings.pod_name}_{uuid.uuid4().hex[:8]}",
            duration_s=self.settings.lease_s,
        )
        self._lease = lease
        self._gauges()
        threading.Thread(target=_watchdog, args=(lease,), name="watchdog", daemon=True).start()
        host, port = self.settings.listener_host, self.settings.listener_port
        async with serving(host, port, self.metrics, self._liveness_problem, self._readiness_problem) as port:
            _LOG.info("Listening on port %d; waiting for the Lease %s/%s.", port, lease.namespace, lease.name)
            try:
                return await self._lead_until_stopped(client, lease)
            finally:
                await lease.release()
                await client.close()

    async def _lead_until_stopped(self, client: Client, lease: Lease) -> int:
        events = EventPublisher(client=client, metrics=self.metrics, instance=lease.identity)
        reconciler = self._reconciler(client, events)
        pair_reconciler = PairReconciler(
            settings=self.settings,
            client=client,
            cache=self.cache,
            poller=self.poller,
            events=events,
            metrics=self.metrics,
            changed=self.queue.add,
        )
        self.metrics.statuses_held.set_function(lambda: reconciler.held if self.leader else 0)
        while not self._stop.is_set():
            if not await self._ended_before_stop(lease.acquire()):
                break
            _LOG.info("Leading as %s.", lease.identity)
            self.leader = Leader(
                settings=self.settings,
                client=client,
                cache=self.cache,
                queue=self.queue,
                reconciler=reconciler,
                pair_reconciler=pair_reconciler,
                metrics=self.metrics,
                poller=self.poller,
            )
            work = asyncio.create_task(self.leader.lead())
            keeping = asyncio.create_task(lease.keep())
            stopping = asyncio.create_task(self._stop.wait())
            await asyncio.wait({work, keeping, stopping}, return_when=asyncio.FIRST_COMPLETED)
            failed = work.done()
            for task in (work, keeping, stopping):
                task.cancel()
            await asyncio.wait({work, keeping, stopping}, timeout=STOP_TIMEOUT_S)
            if not work.done():
                _LOG.error("The work did not stop in time; exiting.")
                os._exit(1)
            lease.work_stopped()
            self.leader = None
            if failed:
                _LOG.error("The leader's work has failed.", exc_info=work.exception())
                return 1
            _LOG.info("Stopped leading.")
        return 0

    async def _ended_before_stop(self, work: Any) -> bool:
        """Whether *work* ended before the signal to stop."""
        task = asyncio.ensure_future(work)
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for waiter in (task, stopping):
            waiter.cancel()
        await asyncio.wait({task, stopping})
        if not task.cancelled() and task.exception() is not None:
            raise task.exception() or AssertionError
        return not self._stop.is_set()

    def _reconciler(self, client: Client, events: EventPublisher) -> Reconciler:
        return Reconciler(
            settings=self.settings,
            observer=Observer(
                cache=self.cache,
                poller=self.poller,
                pod_events=PodEventReader(client=client),
                ca_bundle=self.ca_bundle,
            ),
            objects=ObjectWriter(client=client, cache=self.cache, events=events, metrics=self.metrics),
            statuses=FlowStatusWriter(client=client, cache=self.cache, events=events, metrics=self.metrics),
        )

    def _gauges(self) -> None:
        metrics = self.metrics
        metrics.leader.set_function(lambda: self.leader is not None)
        metrics.queue_depth.set_function(lambda: len(self.queue))
        metrics.queue_oldest.set_function(lambda: self.queue.oldest_s() if self.leader is not None else 0.0)
        metrics.polled_pods.set_function(lambda: len(self.poller))
        metrics.flows.set_function(lambda: len(self.cache.flows))
        metrics.flows_not_ready.set_function(self._flows_not_ready)
        metrics.flows_seed_failed.set_function(lambda: self._flows_with(Reason.SEED_FAILED))
        metrics.flows_different.set_function(lambda: self._flows_with(Reason.DIFFERENCES_FOUND))
        metrics.flows_verification_overdue.set_function(lambda: self._flows_with(Reason.VERIFICATION_OVERDUE))
        metrics.flows_archive_failing.set_function(
            lambda: self._flows_with(Reason.ARCHIVE_FAILED, Reason.ARCHIVE_INCOMPLETE, Reason.ARCHIVE_OVERDUE)
        )
        metrics.flows_restore_failed.set_function(lambda: self._flows_with(Reason.RESTORE_FAILED))
        metrics.pairs.set_function(lambda: len(self.cache.pairs.pairs))
        metrics.switchovers_under_way.set_function(self._switchovers_under_way)
        metrics.pairs_not_reconciled.set_function(self._pairs_not_reconciled)
        metrics.switchover_refuses_writes.set_function(self._refuses_writes_s)

    def _flows_not_ready(self) -> float:
        """Returns how many flows are unready against their users' wishes; 0 as in `_flows_with`."""
        if self.leader is None:
            return 0.0
        flows = self.cache.flows.values()
        return float(sum(is_unready(flow.resource.status.conditions) for flow in flows))

    def _flows_with(self, *reasons: Reason) -> float:
        """Returns how many flows have a condition with one of *reasons*.

        0 while this process does not lead, because its cache is stale then.
        """
        if self.leader is None:
            return 0.0
        flows, values = self.cache.flows.values(), {reason.value for reason in reasons}
        return float(
            sum(
                any(condition.reason in values for condition in seen.resource.status.conditions)
                for seen in flows
            )
        )

    def _switchovers_under_way(self) -> float:
        """Returns how many switchovers have begun and not ended; 0 as in `_flows_with`."""
        if self.leader is None:
            return 0.0
        states = [switchover.status.state for switchover in self.cache.pairs.switchovers.values()]
        return float(sum(state is not None and state not in ENDED for state in states))

    def _pairs_not_reconciled(self) -> float:
        """Returns how many pairs have a condition with the reason NotReconciled; 0 as in `_flows_with`."""
        if self.leader is None:
            return 0.0
        return float(sum(pair.waits_to_be_reconciled for pair in self.cache.pairs.pairs.values()))

    def _refuses_writes_s(self) -> float:
        """Returns for how many seconds the switchover that refuses writes longest has refused them; 0 if none does."""
        if self.leader is None:
            return 0.0
        refused = [
            parse_timestamp(since)
            for switchover in self.cache.pairs.switchovers.values()
            if (since := switchover.refuses_writes_since) is not None
        ]
        since_s = [begun_s for begun_s in refused if begun_s is not None]
        return max(0.0, time.time() - min(since_s)) if since_s else 0.0

    def _liveness_problem(self) -> str | None:
        return None if self.leader is None else self.leader.liveness_problem()

    def _readiness_problem(self) -> str | None:
        """Returns why the process is not ready, None if it is.

        A process that waits for the Lease is ready, because it would take over within seconds, unless the API
        server does not answer it.
        """
        if self.leader is not None:
            return self.leader.problem
        return None if self._lease is None else self._lease.takeover_problem


def _watchdog(lease: Lease) -> None:
    """Ends the process before its Lease expires if its event loop hangs or the process was frozen."""
    while True:
        time.sleep(WATCHDOG_EVERY_S)
        until = lease.expires_at
        if until is not None and time.monotonic() > until - WATCHDOG_EVERY_S:
            os.write(2, b"The Lease is about to expire; exiting.\n")
            os._exit(1)


@asynccontextmanager
async def serving(
    host: str,
    port: int,
    metrics: Metrics,
    liveness_problem: Callable[[], str | None],
    readiness_problem: Callable[[], str | None],
) -> AsyncIterator[int]:
    """Serves inside the block, on the port that it yields (chosen by the OS where *port* is 0).

    *liveness_problem* and *readiness_problem* return a sentence, or None without a problem.
    """

    async def healthz(_: web.Request) -> web.Response:
        return _probe_response(liveness_problem())

    async def readyz(_: web.Request) -> web.Response:
        return _probe_response(readiness_problem())

    application = web.Application(middlewares=[_one_request])
    application.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", make_aiohttp_handler(metrics.registry)),
        ]
    )
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT_S)
    await runner.setup()
    handlers = cast("web.Server", runner.server)  # set by setup()
    try:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _BoundedConnection(handlers), host, port)
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            server.close()  # listening only; connections end with the runner
    finally:
        await runner.cleanup()


class _BoundedConnection(asyncio.Protocol):
    """Passes a new connection to aiohttp, which limits neither their number nor the time of a request."""

    def __init__(self, handlers: web.Server) -> None:
        self._handlers = handlers

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connection = cast("asyncio.Transport", transport)
        if len(self._handlers.connections) >= CONNECTIONS_MAX:
            connection.abort()
            return
        handler = self._handlers()
        connection.set_protocol(handler)
        handler.connection_made(connection)
        asyncio.get_running_loop().call_later(DEADLINE_S, connection.abort)


@web.middleware
async def _one_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    response = await handler(request)
    response.force_close()
    return response


def _probe_response(problem: str | None) -> web.Response:
    return web.Response(text="ok") if problem is None else web.Response(status=503, text=problem)
