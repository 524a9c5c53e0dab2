"""Named worlds, each with what happens in it: `python -m tests.model --scenario NAME --seed N`.

Each stands for a way in which the promise was broken, or is held, and stays as a regression test when it is mended: what it
expects is the promise of docs/exactly-once.md, never today's behaviour.
"""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from mirrorflow_core.partitions import TopicPartition
from tests.model.copier import Copier
from tests.model.options import Options
from tests.model.world import World

Play = Callable[[World], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """*options* makes the world from what is drawn; *play* is its script. *points* are those of issue 13."""

    name: str
    about: str
    options: Callable[[random.Random], Options]
    play: Play
    points: tuple[int, ...] = ()


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    options: Options | Callable[[random.Random], Options], *, points: tuple[int, ...] = ()
) -> Callable[[Play], Play]:
    """Make a script a scenario of its own name; its docstring says what it is about."""

    def named(play: Play) -> Play:
        name = play.__name__
        made = options if callable(options) else lambda _: options
        SCENARIOS[name] = Scenario(
            name=name, about=(play.__doc__ or "").strip(), options=made, play=play, points=points
        )
        return play

    return named


class Scripted(NamedTuple):
    """Whom a script is about."""

    at: TopicPartition
    copier: Copier


def copied(world: World) -> bool:
    """Whether some copier of each partition is at its end."""
    return all(_is_at_end(world, at) for at in world.partitions)


def _is_at_end(world: World, at: TopicPartition) -> bool:
    reports = (one.reports().get(at) for one in world.alive)
    return any(report is not None and report.source_offset >= world.producer.end_of(at) for report in reports)


def first(world: World) -> TopicPartition:
    """The only partition, or the first of several."""
    return world.partitions[0]
