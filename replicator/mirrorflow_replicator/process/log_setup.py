"""Sets up logging on stderr, and sets and finds the levels of loggers by Log4j's names.

- MIRRORFLOW_LOG_LEVEL is one of Log4j's levels (default INFO); REST changes it (`/admin/loggers`).
- MIRRORFLOW_LOG_FORMAT is text (default) or json: time (RFC 3339, UTC), level, logger, message, exception.

The module is small, because task processes load it too.
"""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

LEVEL_VARIABLE: Final = "MIRRORFLOW_LOG_LEVEL"
FORMAT_VARIABLE: Final = "MIRRORFLOW_LOG_FORMAT"
FORMATS: Final = ("text", "json")
_TEXT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"


class JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the object, on one line."""
        moment = datetime.fromtimestamp(record.created, tz=UTC).isoformat(timespec="milliseconds")
        said = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said, ensure_ascii=False)


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
