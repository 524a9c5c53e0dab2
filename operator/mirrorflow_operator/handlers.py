"""kopf watches; what it sees goes into the view, and the owner's key into the queue. Nothing is decided here.

kopf runs in a thread and an event loop of its own: at its end it cancels every task of its loop that it does not know, and what
it does with a thousand objects at once must not make the Lease late. Handlers return nothing and patch nothing, so kopf writes
nothing: no finalizer, no annotation, no status, no Event.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import kopf

from mirrorflow_operator.cluster.credentials import connection
from mirrorflow_operator.cluster.kinds import WATCHED, Kind
from mirrorflow_operator.cluster.listing import selector_of

_LOG = logging.getLogger(__name__)
# A load balancer that forgets a connection is found out by then at the latest. Whole seconds: the API takes no others.
SERVER_TIMEOUT_S: Final = 300
CLIENT_TIMEOUT_S: Final = 360.0
CONNECT_TIMEOUT_S: Final = 15.0
REQUEST_TIMEOUT_S: Final = 30.0
CHUNK: Final = 200
# After these kopf gives a watch up. The leader sees it, waits until everything can be read, and begins anew.
ERROR_BACKOFFS_S: Final = (0.5, 1.0, 2.0, 4.0)
IDLE_TIMEOUT_S: Final = 0.05  # kopf's task of an object holds the whole object until then
STOP_TIMEOUT_S: Final = 1.0
# kopf's name of the task that watches one kind in one namespace. One that has failed is missed by nobody but us.
TASK_NAME: Final = "watcher for "
MONITOR_EVERY_S: Final = 1.0
News = Callable[[Kind, str | None, Mapping[str, Any]], None]


@dataclass(slots=True, kw_only=True)
class Watches:
    """*news* is called in *loop* with each thing that was seen."""

    namespaces: Sequence[str]  # none: the whole cluster
    loop: asyncio.AbstractEventLoop
    news: News
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _broken: bool = False

    def start(self) -> None:
        """Begins to watch; returns at once."""
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether every watch runs: kopf gives one up when the API server refuses it for long, and goes on without it."""
        return self._thread is not None and self._thread.is_alive() and not self._broken

    async def stop(self) -> None:
        """Ends the watches; waits a bounded time, for the thread can do no harm and ends with the process."""
        self._stop.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, STOP_TIMEOUT_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._operate())
        except Exception:  # noqa: BLE001  whatever kopf dies of, the leader sees that it is dead
            _LOG.exception("The watches have ended.")

    async def _operate(self) -> None:
        monitor = asyncio.create_task(self._monitor())
        try:
            await kopf.operator(
                registry=self._registry(),
                settings=_settings(),
                standalone=True,
                clusterwide=not self.namespaces,
                namespaces=list(self.namespaces),
                stop_flag=self._stop,
                # kopf would look the user's name up, and a user id of a platform's choice has none.
                identity="mirrorflow-operator",  # type: ignore[arg-type]  # its type is not exported
            )
        finally:
            monitor.cancel()

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
        def login(**_: Any) -> kopf.ConnectionInfo:
            return connection()

        for kind in WATCHED:
            kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=kind.plural)(
                self._handler(kind)
            )
        return registry

    def _handler(self, kind: Kind) -> Callable[..., Any]:
        async def seen(*, event: Mapping[str, Any], **_: Any) -> None:
            if not self._stop.is_set():
                self.loop.call_soon_threadsafe(self.news, kind, event["type"], event["object"])

        return seen


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True  # needs no right to list namespaces or definitions
    settings.watching.server_timeout = SERVER_TIMEOUT_S
    settings.watching.client_timeout = CLIENT_TIMEOUT_S
    settings.watching.connect_timeout = CONNECT_TIMEOUT_S
    settings.watching.chunk_size = CHUNK
    settings.networking.request_timeout = REQUEST_TIMEOUT_S
    settings.networking.connect_timeout = CONNECT_TIMEOUT_S
    settings.networking.error_backoffs = ERROR_BACKOFFS_S
    settings.queueing.idle_timeout = IDLE_TIMEOUT_S
    settings.execution.max_workers = 1  # no handler needs a thread
    for kind in WATCHED:
        selector = selector_of(kind)
        if selector:
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = selector
    return settings
