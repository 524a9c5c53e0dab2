"""What befalls whom, and when: the same for the same seed, whatever happens on the way."""

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What is done, as the summary names it."""

    KILL_COPIER = "copier kill -9"
    KILL_TASK = "task kill -9"
    FREEZE_COPIER = "copier frozen"
    FREEZE_TASK = "task frozen"
    STOP_COPIER = "copier stopped"
    KILL_SOURCE = "source broker kill -9"
    KILL_TARGET = "target broker kill -9"
    FREEZE_SOURCE = "source broker frozen"
    FREEZE_TARGET = "target broker frozen"
    CHANGE_SETTINGS = "settings changed"
    TRUNCATE_SOURCE = "source truncated"
    ALTER_INTERNAL = "internal topic deleted or altered"
    STEP_CLOCK = "clock stepped"
    ALTER_COPY = "settings of a copy changed"
    LIMIT_RATE = "rate limited"
    DENY_COPY = "copy denied"
    LATE_REQUESTS = "requests late"


OFTEN = {
    Kind.KILL_COPIER: 3,
    Kind.KILL_TASK: 3,
    Kind.FREEZE_COPIER: 3,
    Kind.FREEZE_TASK: 2,
    Kind.STOP_COPIER: 1,
    Kind.KILL_SOURCE: 2,
    Kind.KILL_TARGET: 4,
    Kind.FREEZE_SOURCE: 1,
    Kind.FREEZE_TARGET: 2,
    Kind.CHANGE_SETTINGS: 2,
    Kind.TRUNCATE_SOURCE: 2,
    Kind.ALTER_INTERNAL: 2,
    Kind.STEP_CLOCK: 2,
    Kind.ALTER_COPY: 2,
    Kind.LIMIT_RATE: 2,
    Kind.DENY_COPY: 2,
    Kind.LATE_REQUESTS: 4,
}
# What only some trials have; those begin with it, however short they are, once there is something copied.
SPECIAL = (
    Kind.LATE_REQUESTS,
    Kind.DENY_COPY,
    Kind.LIMIT_RATE,
    Kind.ALTER_COPY,
    Kind.STEP_CLOCK,
    Kind.ALTER_INTERNAL,
    Kind.CHANGE_SETTINGS,
    Kind.TRUNCATE_SOURCE,
)
FIRST_S = 5.0
NEXT_SPECIAL_S = 2.0
# Between steps: shorter than a succession, an election or a restart takes, so that they overlap.
PAUSE_S = (0.2, 3.5)
# Long enough for a session to end (3 s) or a pause to be noticed (1 s), and short enough for neither.
AWAY_S = (0.2, 8.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Do *kind* to number *who* (modulo those there are), for *away_s*; brokers: the leader of a partition if *leads*."""

    after_s: float
    kind: Kind
    who: int
    away_s: float
    leads: bool


def steps(seed: int, *, without: Collection[Kind] = ()) -> Iterator[Step]:
    """The steps of *seed*, without end."""
    chance = random.Random(seed)
    often = {kind: weight for kind, weight in OFTEN.items() if kind not in without}
    kinds, weights = list(often), list(often.values())
    first = [kind for kind in SPECIAL if kind in often]
    first_s = FIRST_S
    while True:
        after_s = first_s if first else chance.uniform(*PAUSE_S)
        first_s = NEXT_SPECIAL_S
        yield Step(
            after_s=after_s,
            kind=first.pop() if first else chance.choices(kinds, weights)[0],
            who=chance.randrange(1 << 16),
            away_s=chance.uniform(*AWAY_S),
            leads=chance.random() < 0.7,
        )
