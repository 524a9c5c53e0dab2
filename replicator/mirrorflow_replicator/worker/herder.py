"""Runs all connectors of a process: those of its files (`FixedHerder`), or of a distributed worker's topic.

The latter are in `worker.single_node_herder` and `worker.distributed_herder`; `worker.main_process` serves each of them.

The file of a connector may pause and resume it while the process runs (`StateFiles`): the kubelet updates the
files of a mounted ConfigMap in place, so a MirrorFlow is paused without another pod. Every other setting in the files takes
effect at the next start.

    run ──> set_states(another state) ──> stop gracefully ──> run the other form

Guarantees: the running and the paused form never run at the same time. The report is that of the form that runs, so a
connector that is about to pause is RUNNING until it has stopped.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from mirrorflow_core import setting_table
from mirrorflow_core.connect.session_keys import ConnectError
from mirrorflow_core.errors import SettingError
from mirrorflow_core.java.properties import PropertyReader
from mirrorflow_core.reports import ConnectorReport
from mirrorflow_core.setting_table import read_properties
from mirrorflow_core.settings import ConnectorSettings
from mirrorflow_kafka.security.secret_rotation import SECRETS_POLL_S
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.connectors.connector_host import IdleConnector, RunningConnector, create_connector
from mirrorflow_replicator.http.commands import Command
from mirrorflow_replicator.http.partition_rates import Samples
from mirrorflow_replicator.http.replicating_state import has_started
from mirrorflow_replicator.http.worker_view import Request, Response
from mirrorflow_replicator.worker.local_connectors import ConnectorSlot

log = logging.getLogger("mirrorflow.worker")


# Other connectors start then at the latest: an unreachable source must not delay heartbeats to the target for long.
OTHERS_START_AFTER_S: Final = 3.0
START_POLL_S: Final = 0.1
KEY: Final = "mirrorflow.state"
RUNNING: Final = "running"
PAUSED: Final = "paused"
States = Mapping[str, str]  # RUNNING or PAUSED, by the connector's name


class StateFiles:
    """Follows the state in each connector's file. *read* returns the texts of the files.

    *providers* are the worker's config providers.
    """

    def __init__(self, read: Callable[[], Sequence[str]], providers: Mapping[str, str]) -> None:
        self._read = read
        self._providers = providers
        self._texts: tuple[str, ...] = ()
        self._problem: str | None = None  # as last logged

    async def follow(self, apply: Callable[[States], None]) -> None:
        """Polls the files until cancelled; passes the states to *apply* whenever a file has changed."""
        while True:
            await asyncio.sleep(SECRETS_POLL_S)
            self.poll(apply)

    def poll(self, apply: Callable[[States], None]) -> None:
        """Applies the states of changed files. If a file is invalid, logs that once and keeps all states."""
        try:
            texts = tuple(self._read())
            if texts == self._texts:
                return
            states = dict(self._state(text) for text in texts)
        except (OSError, SettingError) as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("The changed files of the connectors are not used: %s", error)
            return
        self._texts, self._problem = texts, None
        apply(states)

    def _state(self, text: str) -> tuple[str, str]:
        """Returns name and state of the connector in *text*. Raises SettingError."""
        properties = setting_table.canonical(read_properties(text, []), [])
        read = PropertyReader(properties, Resolver({**self._providers, **properties}))
        return read.text("name"), read.choice(KEY, (RUNNING, PAUSED), RUNNING)


def with_state(properties: Mapping[str, str], state: str) -> dict[str, str]:
    """Returns the properties of a connector with that state; RUNNING, the default, is left out.

    Properties that have it already stay as they are written.
    """
    if properties.get(KEY, RUNNING).strip().lower() == state:
        return dict(properties)
    others = {key: value for key, value in properties.items() if key != KEY}
    return others if state == RUNNING else {**others, KEY: state}


class Herder(Protocol):
    """What `worker.main_process` needs from a set of connectors."""

    takes_changes: bool  # whether `carry_out` changes connectors

    async def run(self) -> None:
        """Runs the connectors until cancelled; when it ends, the process ends."""

    async def stop(self, grace_s: float) -> None:
        """Stops the connectors gracefully; `run` is cancelled afterwards."""

    def set_states(self, states: States) -> None:
        """Pauses and resumes connectors whose files changed."""

    def reports(self) -> tuple[ConnectorReport, ...]:
        """Reports each connector now; may be called at any time."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of the herder as a whole."""

    def is_ready(self, reports: Sequence[ConnectorReport]) -> bool:
        """Whether each connector has started what it should run, according to the current *reports*."""

    @property
    def is_rebalancing(self) -> bool:
        """Whether the group is rebalancing."""

    @property
    def has_connectors(self) -> bool:
        """Whether `reports` has every connector: not before the config topic, if any, has been read."""

    def is_serving(self, reports: Sequence[ConnectorReport]) -> bool:
        """Whether the herder knows its connectors and, if it accepts commands at all, accepts them now."""

    @property
    def target_cluster_id(self) -> str | None:
        """The target's cluster id; None before the target was first reached."""

    async def carry_out(self, command: Command, request: Request) -> Response:
        """Carries out a writing REST call. Raises ConnectError, MirrorFlowError."""


class FixedHerder:
    """Runs the connectors that files define. Raises SettingError if the settings of one are invalid."""

    takes_changes = False
    has_connectors = True
    is_rebalancing = False
    warnings: tuple[str, ...] = ()

    def __init__(self, connectors: Sequence[ConnectorSettings], *, samples: Samples, grace_s: float) -> None:
        self._samples = samples
        self._stopping = False
        self._unexpected_ends: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()
        self.settings = {connector.name: connector for connector in connectors if connector.is_enabled}
        for setting in self.settings.values():
            create_connector(setting, samples=samples)  # raises for invalid settings, before anything starts
        self._slots = {
            name: ConnectorSlot(
                name, make=self._make, on_unexpected_end=self._unexpected_ends.put_nowait, grace_s=grace_s
            )
            for name in self.settings
        }

    async def run(self) -> None:
        """Starts the source connectors, then the others; when one ends, all end.

        The others would take CPU time from the first record, and a checkpoint connector would miss the offset-syncs topic,
        which the source connector is about to create.
        """
        for settings in self.settings.values():
            for warning in settings.warnings:
                log.warning("%s: %s", settings.name, warning)
        copying = [slot for name, slot in self._slots.items() if self.settings[name].source is not None]
        self._start(copying)
        for _ in range(round(OTHERS_START_AFTER_S / START_POLL_S)):
            if all(slot.hosted is not None and slot.hosted.has_reported_all for slot in copying):
                break
            await asyncio.sleep(START_POLL_S)
        self._start(self._slots.values())
        (await self._unexpected_ends.get()).result()

    def _start(self, slots: Iterable[ConnectorSlot[ConnectorSettings]]) -> None:
        for slot in slots:
            if not self._stopping:
                slot.want(self.settings[slot.name])

    def _make(self, name: str, settings: ConnectorSettings) -> RunningConnector:
        return create_connector(settings, samples=self._samples)

    async def stop(self, grace_s: float) -> None:
        self._stopping = True
        for slot in self._slots.values():
            slot.want(None)
        await asyncio.gather(*(slot.settled() for slot in self._slots.values()))

    def set_states(self, states: States) -> None:
        """Pauses and resumes connectors whose files changed."""
        for name in states.keys() & self.settings.keys():
            settings, is_paused = self.settings[name], states[name] == PAUSED
            if settings.is_paused != is_paused:
                properties = with_state(settings.properties, states[name])
                self.settings[name] = replace(settings, is_paused=is_paused, properties=properties)
                if self._slots[name].hosted is not None:  # otherwise `run` starts it in its new form
                    self._start([self._slots[name]])

    def reports(self) -> tuple[ConnectorReport, ...]:
        return tuple(self._report(name, slot.hosted) for name, slot in self._slots.items())

    def _report(self, name: str, hosted: RunningConnector | None) -> ConnectorReport:
        settings = self.settings[name]
        report = (hosted or IdleConnector(name, settings.properties, state="UNASSIGNED")).report()
        return replace(
            report,
            has_reported_all=hosted is not None and hosted.has_reported_all,
            warnings=(*settings.warnings, *report.warnings),
        )

    def is_ready(self, reports: Sequence[ConnectorReport]) -> bool:
        """Whether all connectors have started and have reported everything they run once."""
        return has_started(tuple(reports)) and all(report.has_reported_all for report in reports)

    def is_serving(self, reports: Sequence[ConnectorReport]) -> bool:
        """Whether the connectors have started."""
        return self.is_ready(reports)

    @property
    def target_cluster_id(self) -> str | None:
        hosted = [slot.hosted for slot in self._slots.values() if slot.hosted is not None]
        return next(filter(None, (connector.target_cluster_id for connector in hosted)), None)

    async def carry_out(self, command: Command, request: Request) -> Response:
        """Raises ConnectError: connectors from files cannot be changed over REST."""
        raise ConnectError(501, f"{type(command).__name__} is for a distributed worker.")
