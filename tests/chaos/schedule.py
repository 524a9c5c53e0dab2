"""The steps of a trial. The same seed gives the same steps, independent of their effects."""

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """The kinds of steps, with their names in the summary."""

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


WEIGHTS = {
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
# Steps that only some trials have. Such a trial begins with them, so that a short trial has them, too.
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
# The pause between steps. It is shorter than a takeover, an election or a restart, so that these overlap.
PAUSE_S = (0.2, 3.5)
# Sometimes longer than a session timeout (3 s) or the threshold of a detected pause (1 s), and sometimes shorter.
AWAY_S = (0.2, 8.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Applies *kind* for *away_s* to a process that *choice* selects, or to the leader of a partition if *leads* is
    true.
    """

    after_s: float
    kind: Kind
    choice: int
    away_s: float
    leads: bool


def steps(seed: int, *, without: Collection[Kind] = ()) -> Iterator[Step]:
    """Yields the steps of *seed* without end."""
    rng = random.Random(seed)
    weights_by_kind = {kind: weight for kind, weight in WEIGHTS.items() if kind not in without}
    kinds, weights = list(weights_by_kind), list(weights_by_kind.values())
    first = [kind for kind in SPECIAL if kind in weights_by_kind]
    first_s = FIRST_S
    while True:
        after_s = first_s if first else rng.uniform(*PAUSE_S)
        first_s = NEXT_SPECIAL_S
        yield Step(
            after_s=after_s,
            kind=first.pop() if first else rng.choices(kinds, weights)[0],
            choice=rng.randrange(1 << 16),
            away_s=rng.uniform(*AWAY_S),
            leads=rng.random() < 0.7,
        )
