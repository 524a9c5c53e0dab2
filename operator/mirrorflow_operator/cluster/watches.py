"""Watches the cluster with kopf, and passes each event to the operator's event loop.

kopf's watches run in a thread and event loop of their own: at its end kopf cancels every task of its loop that it does not
know, and handling a thousand objects at once must not delay the Lease's renewal. Handlers return nothing and patch nothing,
so kopf writes nothing: no finalizer, no annotation, no status, no Event.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import kopf

from mirrorflow_kubernetes.async_requests import CONNECT_TIMEOUT_S
from mirrorflow_operator.cluster.cache import selector_of
from mirrorflow_operator.cluster.client import CHUNK, REQUEST_TIMEOUT_S, WATCHED, ObjectKind
from mirrorflow_operator.cluster.login import for_kopf, log_in

_LOG = logging.getLogger(__name__)
# The longest time until a connection that a load balancer dropped is noticed. The API takes whole seconds.
SERVER_TIMEOUT_S: Final = 300
CLIENT_TIMEOUT_S: Final = 360.0
# After these backoffs kopf gives up a watch. Then the leader lists everything again and restarts the watches.
ERROR_BACKOFFS_S: Final = (0.5, 1.0, 2.0, 4.0)
IDLE_TIMEOUT_S: Final = 0.05  # kopf's task for an object keeps the whole object in memory until then
STOP_TIMEOUT_S: Final = 1.0
# kopf's name prefix of the tasks that watch one kind in one namespace. kopf does not notice a failed one.
TASK_NAME: Final = "watcher for "
MONITOR_EVERY_S: Final = 1.0
OnEvent = Callable[[ObjectKind, str | None, Mapping[str, Any]], None]


@dataclass(slots=True, kw_only=True)
class Watches:
    """Watches all *kinds* and calls *on_event* in *loop* with each event."""

    namespaces: Sequence[str]  # empty: the whole cluster
    selector: str = ""  # that of `selector_of`
    kinds: Sequence[ObjectKind] = WATCHED
    loop: asyncio.AbstractEventLoop
    on_event: OnEvent
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _broken: bool = False

    def start(self) -> None:
        """Starts watching in a thread; returns at once."""
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether every watch runs.

        kopf gives up a watch that the API server keeps refusing, and continues without it.
        """
        return self._thread is not None and self._thread.is_alive() and not self._broken

    async def stop(self) -> None:
        """Stops the watches and waits at most STOP_TIMEOUT_S.

        A thread that runs longer does no harm: its events are dropped and it ends with the process.
        """
        self._stop.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, STOP_TIMEOUT_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._operate())
        except Exception:  # noqa: BLE001  whatever ends kopf, the leader restarts the watches
            _LOG.exception("The watches have ended.")

    async def _operate(self) -> None:
        monitor = asyncio.create_task(self._monitor())
        try:
            await kopf.operator(
                registry=self._registry(),
                settings=_settings(self.selector, self.kinds),
                standalone=True,
                clusterwide=not self.namespaces,
                namespaces=list(self.namespaces),
                stop_flag=self._stop,
                # Otherwise kopf looks up the user's name, and a user id assigned by the platform has none.
                identity="mirrorflow-operator",  # type: ignore[arg-type]  # its type is not exported
            )
        finally:
            monitor.cancel()
            # A thread of this loop waits for the flag, and the loop waits for the thread.
            self._stop.set()

    async def _monitor(self) -> None:
        most = 0
        while not self._stop.is_set():
            running = sum(task.get_name().startswith(TASK_NAME) for task in asyncio.all_tasks())
            most = max(most, running)
            if running < most and not self._stop.is_set():
                self._broken = True
            await asyncio.sleep(MONITOR_EVERY_S)

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry)
        async def login(**_: Any) -> kopf.ConnectionInfo:
            return await for_kopf(await log_in())

        for kind in self.kinds:
            kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=kind.plural)(
                self._handler(kind)
            )
        return registry

    def _handler(self, kind: ObjectKind) -> Callable[..., Any]:
        async def seen(*, event: Mapping[str, Any], **_: Any) -> None:
            if not self._stop.is_set():
                self.loop.call_soon_threadsafe(self.on_event, kind, event["type"], event["object"])

        return seen


def _settings(flows: str, kinds: Sequence[ObjectKind]) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True  # so that no right to list namespaces or CRDs is needed
    settings.watching.server_timeout = SERVER_TIMEOUT_S
    settings.watching.client_timeout = CLIENT_TIMEOUT_S
    settings.watching.connect_timeout = CONNECT_TIMEOUT_S
    settings.watching.chunk_size = CHUNK
    settings.networking.request_timeout = REQUEST_TIMEOUT_S
    settings.networking.connect_timeout = CONNECT_TIMEOUT_S
    settings.networking.error_backoffs = ERROR_BACKOFFS_S
    settings.queueing.idle_timeout = IDLE_TIMEOUT_S
    settings.execution.max_workers = 1  # no handler needs a thread
    for kind in kinds:
        selector = selector_of(kind, flows)
        if selector:
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = selector
    return settings
