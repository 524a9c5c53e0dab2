"""Log levels apply to a logger and its children, as in Connect, and are sent to task processes."""

import logging
import uuid

import pytest

from mirrorflow_replicator.logs import NUMBERS, Loggers


class FollowerStub:
    def __init__(self):
        self.levels = []
        self.replays = 0

    def set_level(self, logger, level):
        self.levels.append((logger, level))

    def write_replays(self):
        self.replays += 1


@pytest.fixture
def root():
    before = logging.root.level
    yield
    logging.root.setLevel(before)
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.setLevel(logging.NOTSET)


def test_a_level_applies_to_a_logger_and_its_children():
    loggers, own, follower = Loggers(), f"t{uuid.uuid4().hex[:6]}", FollowerStub()
    loggers.followers.add(follower)
    logging.getLogger(f"{own}.a.b")
    logging.getLogger(f"{own}x")
    before = loggers.levels()[f"{own}.a.b"]

    assert [f"{own}.a", f"{own}.a.b"] == loggers.set(f"{own}.a", "TRACE")
    assert [] == loggers.set(f"{own}.a", "TRACE")
    levels = loggers.levels()
    assert ("TRACE", None, before.level) == (
        levels[f"{own}.a.b"].level,
        levels[f"{own}x"].changed_ms,
        levels[f"{own}x"].level,
    )
    assert levels[f"{own}.a"].changed_ms is not None
    assert [(f"{own}.a", "TRACE")] * 2 == follower.levels
    assert {f"{own}.a": "TRACE"} == loggers.was_set


def test_followers_write_replays():
    loggers, follower = Loggers(), FollowerStub()
    loggers.followers.add(follower)

    loggers.write_replays()

    assert follower.replays == 1


@pytest.mark.usefixtures("root")
def test_the_level_of_the_root_applies_to_all_loggers():
    loggers = Loggers()
    logging.getLogger("some.where").setLevel(logging.WARNING)

    changed = loggers.set("ROOT", "OFF")

    assert {"root", "some.where", "mirrorflow.task"} <= set(changed)
    assert {"OFF"} == {logger.level for logger in loggers.levels().values()}


def test_the_levels_are_those_of_log4j():
    assert list(NUMBERS) == ["ALL", "TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "OFF"]
