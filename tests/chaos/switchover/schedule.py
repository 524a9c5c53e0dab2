"""The dimensions of a trial, and the faults of each run of the command. The same seed draws the same trial."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Final

# The states in which a fault hits a run of the command. The longest states are also hit by random faults.
STATES: Final = (
    "Checking",
    "Fencing",
    "Quiescing",
    "Sealed",
    "Draining",
    "Verifying",
    "GroupsFinal",
    "ForwardEnded",
    "Promoting",
    "Reversing",
    "RollingBack",
)
# The states of a switchover without the source.
UNPLANNED_STATES: Final = ("Assessing", "ForwardEnded", "GroupsClamped", "Promoting", "RollingBack")
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    # `both` is an idempotent and a transactional producer. The transactional producer aborts some transactions.
    "producers": ("idempotent", "transactional", "both"),
    "protocol": ("classic", "consumer"),  # group.protocol of the consumer
    "partitions": ("1", "3", "6"),
    "brokers": ("1+1", "1+1", "3+1", "1+3", "3+3"),  # of east and west
    "moves": ("2", "2", "3", "4"),  # the number of switchovers to the other cluster and back
    "rehearsals": ("none", "some"),
    # When the reverse flow is first started: when the command requests it, or as soon as the endpoint is switched.
    "back": ("asked", "asked", "early"),
    "faults": ("command", "flows", "brokers", "all", "all", "none"),
    # Moves without the source: all its brokers are killed or frozen, or its user gives it up although it responds.
    "unplanned": ("none", "killed", "killed", "frozen", "answers"),
}
UNPLANNED_SHARE: Final = 0.4  # for the moves after the first one, which is unplanned if any move is


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchoverDimensions:
    """The value of each dimension, one of its `CHOICES`."""

    producers: str
    protocol: str
    partitions: str
    brokers: str
    moves: str
    rehearsals: str
    back: str
    faults: str
    unplanned: str

    def __str__(self) -> str:
        return " ".join(f"{dimension.name}={getattr(self, dimension.name)}" for dimension in fields(self))

    @property
    def arguments(self) -> str:
        """The command-line arguments that request these dimensions."""
        return " ".join(
            f"--set {dimension.name}={getattr(self, dimension.name)}" for dimension in fields(self)
        )


class Fault(Enum):
    """The kinds of faults, with their names in the summary."""

    KILL_COMMAND = "command kill -9"
    FREEZE_COMMAND = "command frozen"
    REPLACE_COMMAND = "command frozen and replaced"
    INTERRUPT_COMMAND = "command Ctrl-C"
    ROLL_BACK = "command kill -9, then rollback"
    KILL_FORWARD = "forward flow kill -9"
    FREEZE_FORWARD = "forward flow frozen"
    KILL_BACK = "flow back kill -9"
    FREEZE_BACK = "flow back frozen"
    KILL_SOURCE = "source broker kill -9"
    FREEZE_SOURCE = "source broker frozen"
    KILL_TARGET = "target broker kill -9"
    FREEZE_TARGET = "target broker frozen"


F = Fault
KINDS: Final[Mapping[str, tuple[Fault, ...]]] = {
    "command": (F.KILL_COMMAND, F.FREEZE_COMMAND, F.REPLACE_COMMAND, F.INTERRUPT_COMMAND, F.ROLL_BACK),
    "flows": (F.KILL_FORWARD, F.FREEZE_FORWARD, F.KILL_BACK, F.FREEZE_BACK),
    "brokers": (F.KILL_SOURCE, F.FREEZE_SOURCE, F.KILL_TARGET, F.FREEZE_TARGET),
    "none": (),
}
# Longer than the time after which an ended process is detected: by a command after 8 s, for the owner of a flow after
# 15 s, and for a broker after 3 or 9 s.
AWAY_S: Final = (0.2, 20.0)
PAUSE_S: Final = (1.0, 12.0)  # the time between faults that do not wait for a state


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFault:
    """Hits for *away_s* when the command shows *state*. *choice* selects a broker."""

    fault: Fault
    state: str
    away_s: float
    choice: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedFault:
    """Hits *after_s* after the previous fault."""

    fault: Fault
    after_s: float
    away_s: float
    choice: int


def drawn_dimensions(seed: int, requested: Mapping[str, str]) -> SwitchoverDimensions:
    """Draws the dimensions of *seed*, except for those *requested*. Raises ValueError for an unknown choice."""
    for name, value in requested.items():
        if value not in CHOICES.get(name, ()):
            known = ", ".join(
                f"{dimension}={'|'.join(dict.fromkeys(values))}" for dimension, values in CHOICES.items()
            )
            raise ValueError(f"{name}={value} is none of {known}")
    rng = random.Random(seed)
    return SwitchoverDimensions(
        **({name: rng.choice(values) for name, values in CHOICES.items()} | dict(requested))
    )


def state_faults(seed: int, kind: str, states: Sequence[str] = STATES) -> Iterator[StateFault]:
    """Yields a fault for each run of the command, without end, or none for the kind none."""
    rng, kinds = random.Random(f"{seed} states"), _kinds(kind)
    while kinds:
        # Half of the faults hit the command, which must be resumable at every point.
        fault = rng.choice(KINDS["command"] if rng.random() < 0.5 and kind == "all" else kinds)
        yield StateFault(
            fault=fault,
            state=rng.choice(states),
            away_s=rng.uniform(*AWAY_S),
            choice=rng.randrange(1 << 16),
        )


def unplanned_moves(seed: int, dimensions: SwitchoverDimensions) -> list[bool]:
    """Draws whether each move is unplanned."""
    rng, moves = random.Random(f"{seed} kinds"), int(dimensions.moves)
    drawn = [True, *(rng.random() < UNPLANNED_SHARE for _ in range(moves - 1))]
    return drawn if dimensions.unplanned != "none" else [False] * moves


def timed_faults(seed: int, kind: str) -> Iterator[TimedFault]:
    """Yields faults of flows and brokers without end, or none for the kinds none and command."""
    rng = random.Random(f"{seed} times")
    kinds = [fault for fault in _kinds(kind) if fault not in KINDS["command"]]
    while kinds:
        yield TimedFault(
            fault=rng.choice(kinds),
            after_s=rng.uniform(*PAUSE_S),
            away_s=rng.uniform(*AWAY_S),
            choice=rng.randrange(1 << 16),
        )


def _kinds(kind: str) -> tuple[Fault, ...]:
    return tuple(Fault) if kind == "all" else KINDS[kind]
