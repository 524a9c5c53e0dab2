"""Runs the connectors of a distributed worker in this process, one slot for each, and reports them.

Guarantees: it writes nothing anywhere. A connector with wrong settings is shown as FAILED with the error. A
connector that is paused or stopped has no process.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from mirrorflow_core.connect.worker_records import TargetState
from mirrorflow_core.errors import SettingError
from mirrorflow_core.reports import ConnectorReport
from mirrorflow_core.settings import ConnectorSettings
from mirrorflow_replicator.config import keys
from mirrorflow_replicator.config.converters import converter_warnings
from mirrorflow_replicator.config.worker import parse_connector
from mirrorflow_replicator.connectors.connector_host import ConnectorHost
from mirrorflow_replicator.connectors.idle_connector import IdleConnector
from mirrorflow_replicator.connectors.source_host import SourceHost
from mirrorflow_replicator.http import command_decisions
from mirrorflow_replicator.worker.connector_slot import ConnectorSlot

log = logging.getLogger("mirrorflow.worker")


class LocalConnectors:
    """The connectors of this process, by name.

    *host* returns what runs connector *name* with such settings, None if they ask for nothing; *tasks*
    returns a connector's stored task configs; *worker* are the worker's properties, whose references its
    connectors may use; *label* precedes names where they are shown beside another worker's.
    """

    def __init__(
        self,
        worker: Mapping[str, str],
        *,
        host: Callable[[str, ConnectorSettings], ConnectorHost | None],
        tasks: Callable[[str], Sequence[Mapping[str, str]]],
        grace_s: float,
        label: str = "",
    ) -> None:
        self._worker = worker
        self._label = label
        self._host = host
        self._tasks = tasks
        self._grace_s = grace_s
        self._places: dict[str, ConnectorSlot] = {}
        self._stopping = False
        self.restarts: Counter[str] = Counter()  # requested restarts, by connector
        self.broken: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()  # runs that ended by themselves

    def arrange(self, wanted: Mapping[str, command_decisions.Wanted]) -> None:
        """Starts, changes and stops connectors so that exactly those *wanted* run."""
        for name in wanted.keys() - self._places.keys():
            self._places[name] = ConnectorSlot(
                name, make=self._make, broken=self.broken.put_nowait, grace_s=self._grace_s
            )
        for name, place in [*self._places.items()]:
            if name not in wanted and place.is_settled and place.hosted is None:
                del self._places[name]
            elif not self._stopping:
                place.want(wanted.get(name))

    async def stop(self) -> None:
        """Stops all connectors gracefully; nothing starts after this."""
        self._stopping = True
        for place in self._places.values():
            place.want(None)
        await asyncio.gather(*(place.settled() for place in self._places.values()))

    async def settled(self, name: str | None = None) -> None:
        """Waits until what runs, under *name* or under any name, is what is wanted."""
        for place in [*self._places.values()]:
            if name in (None, place.name):
                await place.settled()

    def is_settled(self, name: str) -> bool:
        """Whether what runs under *name* is what is wanted."""
        return name in self._places and self._places[name].is_settled

    @property
    def hosted(self) -> dict[str, ConnectorHost | None]:
        """What runs, by name; None where it is about to start."""
        return {name: place.hosted for name, place in self._places.items()}

    def report(self, name: str, properties: Mapping[str, str]) -> ConnectorReport:
        """Reports connector *name*, which has these *properties* in the topic, as it runs here."""
        hosted = self.hosted.get(name) or IdleConnector(name, properties, state="UNASSIGNED")
        report = hosted.report()
        return replace(
            report,
            name=name,
            properties=properties,
            task_properties=command_decisions.named_tasks(report),
            heard_of_all=hosted.heard_of_all,
            warnings=(*converter_warnings(properties, self._worker), *report.warnings),
        )

    def restart_tasks(self, name: str, tasks: Iterable[int]) -> bool:
        """Restarts the processes of *tasks* gracefully; returns False if its task has no own process."""
        hosted = self.hosted.get(name)
        if not isinstance(hosted, SourceHost):
            return False
        for task in tasks:
            hosted.restart_task(task)
        return True

    def _make(self, name: str, wanted: command_decisions.Wanted) -> ConnectorHost:
        stand_in = partial(IdleConnector, name, wanted.properties)
        if wanted.target is TargetState.STOPPED:
            return stand_in(state="STOPPED")
        if wanted.target is TargetState.PAUSED:
            return stand_in(state="PAUSED", tasks=self._tasks(name))
        warnings, shown = list[str](), self._label + name
        try:
            properties = keys.canonical({**wanted.properties, "name": name}, warnings)
            keys.check(properties, keys.CONNECTOR_SCOPES, warnings)
            settings = parse_connector(properties, self._worker)
            hosted = self._host(name, replace(settings, name=shown))
        except SettingError as error:
            log.warning("%s: %s", shown, error)
            return stand_in(state="FAILED", error=error)
        for warning in (*warnings, *settings.warnings):
            log.warning("%s: %s", shown, warning)
        return stand_in(state="RUNNING") if hosted is None else hosted
