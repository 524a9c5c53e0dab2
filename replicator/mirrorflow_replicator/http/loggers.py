"""Shows and changes the levels of loggers at run time, as Connect's `/admin/loggers` does (KIP-495, KIP-976).

Level names and meanings are Log4j's. Levels apply to the process, as loggers do. Changes are sent to task
processes, including those that start later. A restart of the worker resets them, as Java's does.
"""

import logging
from collections.abc import Sequence
from typing import Final, Protocol
from weakref import WeakSet

from mirrorflow_core.connect.worker_records import ConfigRecord, LogLevelRecord
from mirrorflow_replicator.http.commands import LEVELS
from mirrorflow_replicator.http.worker_view import LoggerLevel
from mirrorflow_replicator.process.clock import now_ms
from mirrorflow_replicator.process.log_setup import NUMBERS, ROOT, apply, known

# The logger of task processes: listed here all the same, so that users find it.
TASK_LOGGER: Final = "mirrorflow.task"
SET_MAX = 1000  # set by hand, one at a time; a client that sends more names must not fill memory


class Follower(Protocol):
    """Another process of ours."""

    def set_level(self, logger: str, level: str) -> None:
        """Sets *level* for *logger* and all loggers below it."""


class Loggers:
    """The levels of this process's loggers, and the processes that follow them."""

    def __init__(self) -> None:
        self.was_set: dict[str, str] = {}  # in the order of the calls, for a process that starts later
        self.followers: WeakSet[Follower] = WeakSet()
        self._changed_ms: dict[str, int] = {}
        logging.getLogger(TASK_LOGGER)

    def levels(self) -> dict[str, LoggerLevel]:
        """Returns the level of every logger, by name; the effective one where none was set."""
        return {
            name: LoggerLevel(_name(logger.getEffectiveLevel()), self._changed_ms.get(name))
            for name, logger in sorted(known().items())
        }

    def set(self, namespace: str, level: str) -> list[str]:
        """Sets *level*, one of NUMBERS, for a logger and all below it; returns the changed names."""
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
    """Returns *records* of the config topic unchanged, after setting the levels that they contain."""
    for record in records:
        if isinstance(record, LogLevelRecord) and record.level in LEVELS:
            LOGGERS.set(record.namespace, record.level)
    return records
