"""Levels of loggers change for a name and all below it, as Connect's do, and task processes are told."""

import logging
import uuid

import pytest

from mirrorflow_replicator.logs import NUMBERS, Loggers


class Follower:
    def __init__(self):
        self.told = []

    def set_level(self, logger, level):
        self.told.append((logger, level))


@pytest.fixture
def root():
    before = logging.root.level
    yield
    logging.root.setLevel(before)
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.setLevel(logging.NOTSET)


def test_a_level_is_that_of_a_name_and_of_all_below_it():
    loggers, own, follower = Loggers(), f"t{uuid.uuid4().hex[:6]}", Follower()
    loggers.followers.add(follower)
    logging.getLogger(f"{own}.a.b")
    logging.getLogger(f"{own}x")
    before = loggers.levels()[f"{own}.a.b"]

    assert [f"{own}.a", f"{own}.a.b"] == loggers.set(f"{own}.a", "TRACE")
    assert [] == loggers.set(f"{own}.a", "TRACE")
    found = loggers.levels()
    assert ("TRACE", None, before.level) == (
        found[f"{own}.a.b"].level,
        found[f"{own}x"].changed_ms,
        found[f"{own}x"].level,
    )
    assert found[f"{own}.a"].changed_ms is not None
    assert [(f"{own}.a", "TRACE")] * 2 == follower.told
    assert {f"{own}.a": "TRACE"} == loggers.was_set


@pytest.mark.usefixtures("root")
def test_the_roots_level_is_everybodys():
    loggers = Loggers()
    logging.getLogger("some.where").setLevel(logging.WARNING)

    changed = loggers.set("ROOT", "OFF")

    assert {"root", "some.where", "mirrorflow.task"} <= set(changed)
    assert {"OFF"} == {one.level for one in loggers.levels().values()}


def test_every_level_of_log4j_is_known():
    assert list(NUMBERS) == ["ALL", "TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "OFF"]
