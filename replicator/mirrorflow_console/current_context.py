"""Reads the flows of the kubeconfig's current context for a user who has not named one.

So nothing of it may be in the way: no page waits for its cluster, a program that logs in is not run because it may ask, and what
fails is one sentence where its flows would be.
"""

import logging
import os
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from mirrorflow_console.documents import Figures, FlowReading
from mirrorflow_console.flow_source import FlowSource
from mirrorflow_console.partition_table import PartitionTable
from mirrorflow_kubernetes.credentials import KubernetesLoginError, kubeconfig

# How long a poll waits. A cluster far away needs ten round trips; one that has not answered yet gets what one nearby needs.
WAIT_MAX_S: Final = 2.0
WAIT_UNKNOWN_S: Final = 0.3
RETRY_S: Final = 30.0  # after a problem: a cluster that is off costs nothing but its sentence
ASKS: Final = frozenset({"exec", "auth-provider"})  # fields of a user whose login runs a program
UNANSWERED: Final = "Its cluster has not answered yet."
FAILED: Final = (
    "Its flows cannot be read; the line of the console's log that names this context has the reason."
)

_LOG: Final = logging.getLogger(__name__)


class CurrentContext(NamedTuple):
    """The current context of the kubeconfig, and whether its login runs a program."""

    name: str
    may_ask: bool


def current_context() -> CurrentContext | None:
    """Returns the current context, by kubectl's rule: the first file that sets a value counts. None if there is none."""
    documents = [*_documents((kubeconfig() or "").split(os.pathsep))]
    name = next((name for document in documents if (name := document.get("current-context"))), None)
    if not isinstance(name, str):
        return None
    context = _entry(documents, "contexts", name).get("context")
    user = context.get("user") if isinstance(context, dict) else None
    login = _entry(documents, "users", user).get("user")
    return CurrentContext(name, may_ask=isinstance(login, dict) and not ASKS.isdisjoint(login))


def _documents(paths: Sequence[str]) -> Sequence[Mapping[str, Any]]:
    documents = []
    for path in filter(None, paths):
        try:
            document = yaml.safe_load(Path(path).expanduser().read_text())
        except (OSError, ValueError, RuntimeError, yaml.YAMLError):
            continue  # `--context` reports it
        if isinstance(document, dict):
            documents.append(document)
    return documents


def _entry(documents: Sequence[Mapping[str, Any]], kind: str, name: Any) -> Mapping[str, Any]:
    """Returns the first of the contexts or users that has *name*; empty if there is none."""
    for document in documents:
        entries = document.get(kind)
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and name is not None and entry.get("name") == name:
                return entry
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class _ContextRead:
    """What a `FlowSource` returned at one read."""

    readings: Sequence[FlowReading] = ()
    figures: Mapping[str, Figures] = field(default_factory=dict)
    partitions: Mapping[str, PartitionTable] = field(default_factory=dict)
    problem: str = ""
    is_first: bool = False  # nothing has been read yet


class CurrentContextFlows:
    """A `FlowSource`: what *connect* returns, read by a thread of its own for which a poll waits *wait_max_s* at most.

    Flows that are not read in time have what their status had, and the problem says so. *connect* raises KubernetesLoginError.
    """

    def __init__(
        self,
        context: CurrentContext,
        connect: Callable[[str], FlowSource],
        *,
        wait_max_s: float = WAIT_MAX_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.problem = ""
        self.figures: Mapping[str, Figures] = {}
        self.partitions: Mapping[str, PartitionTable] = {}
        self._context = context
        self._connect = connect
        self._wait_max_s = wait_max_s
        self._clock = clock
        self._result = _ContextRead(is_first=True)
        self._retry_at_s = 0.0
        self._request: tuple[AbstractSet[str], AbstractSet[str], bool] = (frozenset(), frozenset(), False)
        self._wanted = threading.Event()
        self._answered = threading.Event()
        if context.may_ask:
            command = f"mirrorflow ui --context {shlex.quote(context.name)}"
            self.problem = f"Its login runs a program, which may ask; to show its flows, start {command}."
        else:
            threading.Thread(target=self._run, name="current context", daemon=True).start()

    def read(
        self, detailed: AbstractSet[str], groups: AbstractSet[str], *, is_watched: bool
    ) -> list[FlowReading]:
        """Returns the flows of the context."""
        if self._context.may_ask:
            return []
        wait_s = 0.0  # for a cluster that did not answer in time, no second poll waits
        last = self._result
        if self._answered.is_set() and not (last.problem and self._clock() < self._retry_at_s):
            self._answered.clear()
            self._request = (detailed, groups, is_watched)
            self._wanted.set()
            is_answering = not last.is_first and not last.problem
            wait_s = self._wait_max_s if is_answering else min(WAIT_UNKNOWN_S, self._wait_max_s)
        is_read = self._answered.wait(wait_s)
        result = self._result
        self.problem = result.problem
        if is_read:
            self.figures, self.partitions = result.figures, result.partitions
            return [*result.readings]
        self.figures, self.partitions = {}, {}
        if not result.problem:
            self.problem = f"{UNANSWERED} What follows may be old." if result.readings else UNANSWERED
        return _without_figures(result.readings)

    def _run(self) -> None:
        source: FlowSource | None = None
        try:
            source = self._connect(self._context.name)
        except KubernetesLoginError as error:
            self._result = _ContextRead(problem=f"Cannot log in: {error.problem}.")
        except Exception:  # noqa: BLE001  the user has not named this context: its kubeconfig must not end the console
            _LOG.exception("The context %s cannot be used.", self._context.name)
            self._result = _ContextRead(problem=FAILED)
        while True:
            self._answered.set()
            self._wanted.wait()
            self._wanted.clear()
            if source is not None:
                self._result = self._read(source)
                self._retry_at_s = self._clock() + RETRY_S

    def _read(self, source: FlowSource) -> _ContextRead:
        detailed, groups, is_watched = self._request
        try:
            readings = source.read(detailed, groups, is_watched=is_watched)
        except Exception:  # noqa: BLE001  the thread must not end: pages would show old flows for ever
            _LOG.exception("The flows of the context %s cannot be read.", self._context.name)
            return _ContextRead(readings=_without_figures(self._result.readings), problem=FAILED)
        return _ContextRead(
            readings=readings, figures=source.figures, partitions=source.partitions, problem=source.problem
        )


def _without_figures(readings: Sequence[FlowReading]) -> list[FlowReading]:
    """Returns *readings* with what the status has: old figures would look like new ones."""
    return [replace(reading, document=None, offsets=(), schemas=None) for reading in readings]
