"""Sets and finds the levels of this process's loggers, by Log4j's names.

Small, because task processes load it too.
"""

import logging
from collections.abc import Mapping
from typing import Final

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
