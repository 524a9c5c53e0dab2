"""Levels of loggers, shown and changed while a process runs, as Connect's `/admin/loggers` does (KIP-495, KIP-976).

Levels are Log4j's by name and by meaning; they are of the process, as loggers are. Task processes are told what was set,
also those that start later. A restart of the worker begins with what it was started with, as Java's does.
"""

import logging
from collections.abc import Sequence
from typing import Final, Protocol
from weakref import WeakSet

from mirrorflow_replicator.connect.commands import LEVELS
from mirrorflow_replicator.connect.view import LoggerLevel
from mirrorflow_replicator.connect.worker_records import ConfigRecord, LogLevel
from mirrorflow_replicator.runtime.clock import now_ms
from mirrorflow_replicator.runtime.log_levels import NUMBERS, ROOT, apply, known

# Of tasks, whose process it is not: shown all the same, so that it can be found.
TASK_LOGGER: Final = "mirrorflow.task"
SET_MAX = 1000  # by hand, one at a time; a client that sends more names is not to fill memory


class Follower(Protocol):
    """Another process of ours."""

    def set_level(self, logger: str, level: str) -> None:
        """The level of *logger* and all below it is another now."""


class Loggers:
    """See the module."""

    def __init__(self) -> None:
        self.was_set: dict[str, str] = {}  # in their order, for a process that starts later
        self.followers: WeakSet[Follower] = WeakSet()
        self._changed_ms: dict[str, int] = {}
        logging.getLogger(TASK_LOGGER)

    def levels(self) -> dict[str, LoggerLevel]:
        """Of every logger there is, by name; the effective one where none was set."""
        return {
            name: LoggerLevel(_name(logger.getEffectiveLevel()), self._changed_ms.get(name))
            for name, logger in sorted(known().items())
        }

    def set(self, namespace: str, level: str) -> list[str]:
        """Set *level*, one of NUMBERS, for a logger and all below it; the names of those that have another now."""
        namespace = ROOT if namespace.lower() in {"", ROOT} else namespace
        if len(self.was_set) >= SET_MAX and namespace not in self.was_set:
            return []
        before = {name: logger.getEffectiveLevel() for name, logger in known(namespace).items()}
        self.was_set.pop(namespace, None)
        self.was_set[namespace] = level
        apply(namespace, level)
        changed = sorted(name for name, number in before.items() if number != NUMBERS[level])
        self._changed_ms.update(dict.fromkeys(changed, now_ms()))
        for follower in tuple(self.followers):
            follower.set_level(namespace, level)
        return changed


def _name(number: int) -> str:
    return next((name for name, one in NUMBERS.items() if number <= one), "OFF")


LOGGERS: Final = Loggers()


def follow_levels(records: Sequence[ConfigRecord]) -> Sequence[ConfigRecord]:
    """*records* of the config topic as they came; what they say of levels is done."""
    for record in records:
        if isinstance(record, LogLevel) and record.level in LEVELS:
            LOGGERS.set(record.namespace, record.level)
    return records
