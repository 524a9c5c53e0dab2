"""The log of a process: its format, and the levels of loggers, which REST changes (`/admin/loggers`, KIP-495, KIP-976).

- MIRRORFLOW_LOG_LEVEL is one of Log4j's levels (default INFO).
- MIRRORFLOW_LOG_FORMAT is text (default) or json: time (RFC 3339, UTC), level, logger, message, exception.

Levels have Log4j's names and meanings, and apply to the process. Changes are sent to task processes, including those that
start later. A restart of the worker resets them, as Java's does.
"""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple, Protocol
from weakref import WeakSet

from mirrorflow_replicator.process import now_ms

LEVEL_VARIABLE: Final = "MIRRORFLOW_LOG_LEVEL"
FORMAT_VARIABLE: Final = "MIRRORFLOW_LOG_FORMAT"
FORMATS: Final = ("text", "json")
_TEXT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
ROOT: Final = "root"
NUMBERS: Final[Mapping[str, int]] = {
    "ALL": 1,
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "OFF": logging.CRITICAL + 10,
}
# The logger of task processes: listed here all the same, so that users find it.
TASK_LOGGER: Final = "mirrorflow.task"
SET_MAX = 1000  # set by hand, one at a time; a client that sends more names must not fill memory


class JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the object, on one line."""
        moment = datetime.fromtimestamp(record.created, tz=UTC).isoformat(timespec="milliseconds")
        entry = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def set_up(environment: Mapping[str, str]) -> None:
    """Sets up logging from the environment variables. Raises ValueError with a message for the user."""
    level = environment.get(LEVEL_VARIABLE, "").upper() or "INFO"
    if level not in NUMBERS:
        raise ValueError(f"{LEVEL_VARIABLE}={level} is no level; use one of {', '.join(NUMBERS)}.")
    how = environment.get(FORMAT_VARIABLE, "").lower() or "text"
    if how not in FORMATS:
        raise ValueError(f"{FORMAT_VARIABLE}={how} is no format; use {' or '.join(FORMATS)}.")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if how == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=NUMBERS[level], handlers=[handler])


def apply(namespace: str, level: str) -> None:
    """Sets *level*, one of NUMBERS, for *namespace* and all loggers below it in this process."""
    for logger in known(namespace).values():
        logger.setLevel(NUMBERS[level])


def known(namespace: str = ROOT) -> dict[str, logging.Logger]:
    """Returns the logger of *namespace* and every logger below it, by name."""
    every = {
        name: logger
        for name, logger in logging.root.manager.loggerDict.items()
        if isinstance(logger, logging.Logger)
    }
    if namespace == ROOT:
        return {ROOT: logging.root, **every}
    below = {name: logger for name, logger in every.items() if name.startswith(f"{namespace}.")}
    return {namespace: logging.getLogger(namespace), **below}


class LoggerLevel(NamedTuple):
    """A logger's level by Log4j's name, and when it was changed; None: never (Java LoggerLevel)."""

    level: str
    changed_ms: int | None = None


class Follower(Protocol):
    """Another process of ours."""

    def set_level(self, logger: str, level: str) -> None:
        """Sets *level* for *logger* and all loggers below it."""

    def write_replays(self) -> None:
        """Writes what it did lately into files."""


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

    def write_replays(self) -> None:
        """Has every follower write what it did lately into files."""
        for follower in tuple(self.followers):
            follower.write_replays()


def _name(number: int) -> str:
    return next((name for name, level in NUMBERS.items() if number <= level), "OFF")


LOGGERS: Final = Loggers()
