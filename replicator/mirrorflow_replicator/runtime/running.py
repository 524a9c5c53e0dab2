"""What runs here of a distributed worker's connectors: a place for each, made from its properties, and what it says.

Promises: nothing is written anywhere; a connector whose settings are wrong stands there, failed, with the sentence that
says so; one that is paused or stopped has no process.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from mirrorflow_replicator.connect import herd, keys
from mirrorflow_replicator.connect.worker import parse_connector
from mirrorflow_replicator.connect.worker_records import TargetState
from mirrorflow_replicator.errors import SettingError
from mirrorflow_replicator.flow.report import ConnectorReport
from mirrorflow_replicator.runtime.hosted import Hosted
from mirrorflow_replicator.runtime.hosting import HostedConnector
from mirrorflow_replicator.runtime.place import Place
from mirrorflow_replicator.runtime.standing_in import StandIn
from mirrorflow_replicator.settings import ConnectorSettings

log = logging.getLogger("mirrorflow.worker")


class Running:
    """See the module.

    *host* gives what runs connector *name* with such settings, None where they ask for nothing; *tasks* what is written down
    of a connector's tasks; *worker* are the worker's properties, whose references its connectors may use; *label* stands
    before names wherever they are shown beside another worker's.
    """

    def __init__(
        self,
        worker: Mapping[str, str],
        *,
        host: Callable[[str, ConnectorSettings], Hosted | None],
        tasks: Callable[[str], Sequence[Mapping[str, str]]],
        grace_s: float,
        label: str = "",
    ) -> None:
        self._worker = worker
        self._label = label
        self._host = host
        self._tasks = tasks
        self._grace_s = grace_s
        self._places: dict[str, Place] = {}
        self._stopping = False
        self.restarts: Counter[str] = Counter()  # that were asked for, by connector
        self.broken: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()  # runs that have ended of themselves

    def arrange(self, wanted: Mapping[str, herd.Wanted]) -> None:
        """Let run what is *wanted* now, and nothing else."""
        for name in wanted.keys() - self._places.keys():
            self._places[name] = Place(
                name, make=self._make, broken=self.broken.put_nowait, grace_s=self._grace_s
            )
        for name, place in [*self._places.items()]:
            if name not in wanted and place.is_settled and place.hosted is None:
                del self._places[name]
            elif not self._stopping:
                place.want(wanted.get(name))

    async def stop(self) -> None:
        """End all of it in order; nothing is begun after this."""
        self._stopping = True
        for place in self._places.values():
            place.want(None)
        await asyncio.gather(*(place.settled() for place in self._places.values()))

    async def settled(self, name: str | None = None) -> None:
        """Wait until what runs, under *name* or under any, is what is wanted."""
        for place in [*self._places.values()]:
            if name in (None, place.name):
                await place.settled()

    def is_settled(self, name: str) -> bool:
        """Whether what runs under *name* is what is wanted."""
        return name in self._places and self._places[name].is_settled

    @property
    def hosted(self) -> dict[str, Hosted | None]:
        """What runs, by name; None where it is about to."""
        return {name: place.hosted for name, place in self._places.items()}

    def report(self, name: str, properties: Mapping[str, str]) -> ConnectorReport:
        """How connector *name*, which the topic gives these *properties*, fares here."""
        hosted = self.hosted.get(name) or StandIn(name, properties, state="UNASSIGNED")
        report = hosted.report()
        return replace(
            report,
            name=name,
            properties=properties,
            task_properties=herd.named_tasks(report),
            heard_of_all=hosted.heard_of_all,
        )

    def restart_tasks(self, name: str, tasks: Iterable[int]) -> bool:
        """End the processes of some *tasks* in order; new ones go on. False where its task is no process of its own."""
        hosted = self.hosted.get(name)
        if not isinstance(hosted, HostedConnector):
            return False
        for task in tasks:
            hosted.restart_task(task)
        return True

    def _make(self, name: str, wanted: herd.Wanted) -> Hosted:
        stand_in = partial(StandIn, name, wanted.properties)
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
        for warning in warnings:
            log.warning("%s: %s", shown, warning)
        return stand_in(state="RUNNING") if hosted is None else hosted
