"""Runs the connectors of a distributed worker in this process, one slot for each, and reports them.

Guarantees: it writes nothing anywhere. A connector with wrong settings is shown as FAILED with the error. A
connector that is paused or stopped has no process.

The settings in a slot may change at any time:

    want(new) ──> the old one stops gracefully ──> the new one starts
        ^   └── changed again meanwhile: only the newest counts ──┘

At most one connector of a name runs at a time. When `settled` returns, what runs is what is wanted then, which
may have changed since the call. A slot does not delay another slot's change.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Generic, TypeVar

from mirrorflow_core import setting_table
from mirrorflow_core.connect.worker_records import ConfigRecord, LogLevelRecord, TargetState
from mirrorflow_core.connect.worker_state import WorkerConfigs
from mirrorflow_core.errors import SettingError
from mirrorflow_core.reports import ConnectorReport
from mirrorflow_core.settings import ConnectorSettings
from mirrorflow_kafka.client.cancellation import cancel_and_wait
from mirrorflow_kafka.stores.worker_topics import ConfigTopic
from mirrorflow_replicator.config.connector_settings import converter_warnings, parse_connector
from mirrorflow_replicator.connectors.connector_host import IdleConnector, RestartsTasks, RunningConnector
from mirrorflow_replicator.logs import LOGGERS, NUMBERS
from mirrorflow_replicator.worker import config_decisions
from mirrorflow_replicator.worker.config_decisions import Wanted

T = TypeVar("T")  # what is wanted; another value means a restart

log = logging.getLogger("mirrorflow.worker")


async def read_config_topic(topic: ConfigTopic) -> Sequence[ConfigRecord]:
    """Returns the new records of *topic*; sets logger levels as they arrive. Raises ClusterError."""
    records = await topic.read_new()
    for record in records:
        if isinstance(record, LogLevelRecord) and record.level in NUMBERS:
            LOGGERS.set(record.namespace, record.level)
    return records


class LocalConnectors:
    """The connectors of this process, by name.

    *configs* is the state of the config topic. *host* returns what runs a connector with such settings; *runs_here* is whether
    this process runs it at all. *worker* has the worker's properties, whose config providers its connectors may use. *label*
    precedes names where they are shown with those of another worker.
    """

    def __init__(
        self,
        configs: WorkerConfigs,
        worker: Mapping[str, str],
        *,
        host: Callable[[str, ConnectorSettings], RunningConnector],
        runs_here: Callable[[str, Wanted], bool] = lambda *_: True,
        grace_s: float,
        label: str = "",
    ) -> None:
        self._configs = configs
        self._worker = worker
        self._label = label
        self._host = host
        self._runs_here = runs_here
        self._grace_s = grace_s
        self._slots: dict[str, ConnectorSlot[Wanted]] = {}
        self._stopping = False
        self._restarts: Counter[str] = Counter()  # requested restarts, by connector
        self._unexpected_ends: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()

    async def run(self) -> None:
        """Raises what ended a connector: it ends only when stopped; any other end is a bug and must not go unnoticed."""
        (await self._unexpected_ends.get()).result()

    def arrange(self) -> None:
        """Starts, changes and stops connectors so that exactly those run that the config topic wants here now."""
        wanted = {
            name: wanted
            for name, wanted in config_decisions.wanted(self._configs, self._restarts).items()
            if self._runs_here(name, wanted)
        }
        for name in wanted.keys() - self._slots.keys():
            self._slots[name] = ConnectorSlot(
                name,
                make=self._make,
                on_unexpected_end=self._unexpected_ends.put_nowait,
                grace_s=self._grace_s,
            )
        for name, slot in [*self._slots.items()]:
            if name not in wanted and slot.is_settled and slot.hosted is None:
                del self._slots[name]
            elif not self._stopping:
                slot.want(wanted.get(name))

    async def stop(self) -> None:
        self._stopping = True
        for slot in self._slots.values():
            slot.want(None)
        await asyncio.gather(*(slot.settled() for slot in self._slots.values()))

    async def settled(self, name: str | None = None) -> None:
        """Waits until what runs, under *name* or under any name, is what is wanted."""
        for slot in [*self._slots.values()]:
            if name in (None, slot.name):
                await slot.settled()

    def is_settled(self, name: str) -> bool:
        """Whether what runs under *name* is what is wanted."""
        return name in self._slots and self._slots[name].is_settled

    @property
    def hosted(self) -> dict[str, RunningConnector | None]:
        return {name: slot.hosted for name, slot in self._slots.items()}

    def report(self, name: str) -> ConnectorReport:
        """Reports what runs here of connector *name*, which is in the config topic."""
        properties = self._configs.connectors[name]
        hosted = self.hosted.get(name) or IdleConnector(name, properties, state="UNASSIGNED")
        report = hosted.report()
        return replace(
            report,
            name=name,
            properties=properties,
            task_properties=config_decisions.with_task_class(report.connector_class, report.task_properties),
            has_reported_all=hosted.has_reported_all,
            warnings=(*converter_warnings(properties, self._worker), *report.warnings),
        )

    def restart(self, name: str) -> None:
        """Stops connector *name* gracefully and starts it again."""
        self._restarts[name] += 1
        self.arrange()

    def restart_tasks(self, name: str, tasks: Iterable[int]) -> None:
        """Restarts the processes of *tasks* gracefully; the connector, where its task has no own process."""
        hosted = self.hosted.get(name)
        if isinstance(hosted, RestartsTasks):
            for task in tasks:
                hosted.restart_task(task)
        else:
            self.restart(name)

    def _make(self, name: str, wanted: Wanted) -> RunningConnector:
        idle = partial(IdleConnector, name, wanted.properties)
        if wanted.target is TargetState.STOPPED:
            return idle(state="STOPPED")
        if wanted.target is TargetState.PAUSED:
            return idle(state="PAUSED", tasks=self._configs.tasks.get(name, ()))
        warnings, shown = list[str](), self._label + name
        try:
            properties = setting_table.canonical({**wanted.properties, "name": name}, warnings)
            setting_table.check(properties, setting_table.CONNECTOR_SCOPES, warnings)
            settings = parse_connector(properties, self._worker)
            hosted = self._host(name, replace(settings, name=shown))
        except SettingError as error:
            log.warning("%s: %s", shown, error)
            return idle(state="FAILED", error=error)
        for warning in (*warnings, *settings.warnings):
            log.warning("%s: %s", shown, warning)
        return hosted


class ConnectorSlot(Generic[T]):
    """The slot of one connector. *make* starts nothing: it returns the host whose `run` the slot runs.

    *on_unexpected_end* receives each run that has ended by itself, and each change that failed.
    """

    def __init__(
        self,
        name: str,
        *,
        make: Callable[[str, T], RunningConnector],
        on_unexpected_end: Callable[["asyncio.Task[None]"], None],
        grace_s: float,
    ) -> None:
        self.name = name
        self.hosted: RunningConnector | None = None
        self._make = make
        self._on_unexpected_end = on_unexpected_end
        self._grace_s = grace_s
        self._wanted: T | None = None
        self._current: T | None = None
        self._running: asyncio.Task[None] | None = None
        self._changing: asyncio.Task[None] | None = None

    def want(self, wanted: T | None) -> None:
        """Runs *wanted* from now on; None stops the connector."""
        self._wanted = wanted
        if wanted != self._current and self.is_settled:
            self._changing = asyncio.create_task(self._change(), name=f"slot-{self.name}")
            self._changing.add_done_callback(self._change_ended)

    @property
    def is_settled(self) -> bool:
        """Whether no change is under way."""
        return self._changing is None or self._changing.done()

    async def settled(self) -> None:
        """Waits until what runs is what is wanted."""
        while self._changing is not None and not self._changing.done():
            await asyncio.wait({self._changing})
        if self._changing is not None:
            self._changing.result()

    async def _change(self) -> None:
        while self._current != self._wanted:
            await self._end()
            # Read only now: stopping took its time.
            wanted = self._wanted
            if wanted is not None:
                self.hosted = self._make(self.name, wanted)
                self._running = asyncio.create_task(self.hosted.run(), name=f"connector-{self.name}")
                self._running.add_done_callback(self._ended)
            self._current = wanted

    async def _end(self) -> None:
        hosted, running = self.hosted, self._running
        if hosted is None or running is None:
            return
        await hosted.stop(self._grace_s)
        self._running = None
        await cancel_and_wait(running)
        self.hosted = None

    def _change_ended(self, changing: "asyncio.Task[None]") -> None:
        if not changing.cancelled() and changing.exception() is not None:
            self._on_unexpected_end(changing)

    def _ended(self, running: "asyncio.Task[None]") -> None:
        if running is self._running and not running.cancelled():
            self._on_unexpected_end(running)
