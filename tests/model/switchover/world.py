"""The small world in which a switchover is explored: two clusters with what runs on them, as one immutable value.

The topic has two partitions. An idempotent producer writes to the first one, a transactional producer to the second one. The forward
flow copies from east to west; of its two copiers, one may sleep for any time with a record that it has fetched. A
consumer group reads the first partition. Runs of the operator carry switchovers out, each a process that may die.

A log is a tuple of entries: "a0", "a1" (of the first producer), "t0" (in a transaction), "commit" and "abort" (markers), "x" (of a super
user, who bypasses the fence), "f" (foreign: written into the copy by mistake), "w0", "w1" (of producers that have moved). The reverse
flow copies "w0" as "w0".
"""

from collections.abc import Hashable
from dataclasses import replace
from functools import cache
from typing import Any, Final, NamedTuple

from mirrorflow_core.switchover.record import SwitchoverLimits, SwitchoverRecord
from mirrorflow_core.switchover.states import SwitchoverState, SwitchoverType

EAST: Final = "east"
WEST: Final = "west"
PARTITIONS: Final = 2
MARKERS: Final = frozenset({"commit", "abort"})
LIMITS: Final = SwitchoverLimits()
LONG_MS: Final = LIMITS.checking_ms + LIMITS.refused_ms  # longer than each limit

Log = tuple[str, ...]


class Kept:
    """A value that is compared and hashed by its identity; `kept` makes one for each value."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)


_KEPT: dict[Hashable, Kept] = {}


def kept(value: Hashable) -> Kept:
    """Returns the one `Kept` of all values that equal *value*."""
    return _KEPT.setdefault(value, Kept(value))


def kept_record(record: SwitchoverRecord) -> Kept:
    """Keeps *record* with the last entry of its history; the state machine reads no other."""
    return kept(replace(record, history=record.history[-1:]))


class Producer(NamedTuple):
    """An application that writes to one partition, of the member to which it was led when it last started."""

    to_write: int
    member: str = EAST


class Copier(NamedTuple):
    """A process of the forward flow. `fetched`: the partition and offset of a record that it is about to write."""

    epoch: int = 0  # that it believes to be the newest; 0: it is a newcomer
    fetched: tuple[int, int] | None = None


class Flow(NamedTuple):
    """The forward flow, as its coordinator and the leaders of its copies know it."""

    epoch: int = 1
    marked_epoch: int = 1  # leaders refuse older ones
    ended_by: str = ""


class Reverse(NamedTuple):
    """The reverse flow: where it reads next in each partition of the target."""

    started_by: str = ""
    next: tuple[int, ...] = (0,) * PARTITIONS
    is_copying: bool = False


class Run(NamedTuple):
    """A process that carries a switchover out: its record, and the actions of the last step that it has not begun yet."""

    name: str
    record: Kept
    pending: Kept
    has_begun: bool = False  # it has taken the lock
    first_part: Kept | None = None  # the world as it was when the run read the first part of its observation


class World(NamedTuple):
    """Everything that the clusters, the applications and the operator know."""

    to_start: tuple[Kept, ...]  # the switchovers that users will ask for
    troubles: tuple[str, ...] = ()  # that may still happen
    runs: tuple[Run, ...] = ()
    producers: tuple[Producer, ...] = (Producer(to_write=1), Producer(to_write=0))
    source: tuple[Log, ...] = (("a0",), ())
    target: tuple[Log, ...] = ((), ())
    target_fence: int = 0  # how many partitions refuse writes of applications
    source_fence: int = 0
    is_source_up: bool = True
    is_target_up: bool = True
    source_journal: tuple[Kept, ...] = ()  # the newest record of each switchover
    target_journal: tuple[Kept, ...] = ()
    lock: str = ""  # the run that has taken it last
    runs_started: int = 0
    endpoint: str = EAST
    group_source: int = 0  # committed offsets of the group
    group_target: int = 0
    has_members: bool = False  # the group, at the source
    flow: Flow = Flow()
    copiers: tuple[Copier, ...] = (Copier(epoch=1), Copier())
    copied: tuple[int, ...] = (0,) * PARTITIONS
    verification: Kept | None = None
    reverse: Reverse = Reverse()
    is_canary_tried: bool = False
    has_failed_check: bool = False
    is_quiet: bool = False  # the ends have been unchanged for long enough
    is_enforced: bool = False  # each leader knows the fence that the controller lists
    limits_passed: int = 0  # how often more time has passed than any limit allows
    is_rollback_requested: bool = False
    reads_slowly: bool = False  # other things happen between the parts of an observation
    hangs: bool = False  # an open transaction is never ended
    happened: frozenset[str] = frozenset()  # of the troubles


def requested(
    name: str = "first", type_: SwitchoverType = SwitchoverType.PLANNED, **changes: Any
) -> SwitchoverRecord:
    """Returns the record of a switchover from east to west that a user asks for."""
    record = SwitchoverRecord(
        id=name, pair="pair", type=type_, source=EAST, to=WEST, created_ms=0, limits=LIMITS
    )
    return replace(record, **changes)


def last_stable(log: Log) -> int:
    """Returns the offset before which each transaction has ended."""
    if "t0" in log and not MARKERS & set(log):
        return log.index("t0")
    return len(log)


def data(log: Log) -> Log:
    """Returns the entries of *log* that consumers see, and copiers copy."""
    return tuple(entry for entry in log if entry not in MARKERS)


def journal_with(journal: tuple[Kept, ...], record: Kept) -> tuple[Kept, ...]:
    """Returns *journal* after *record* was written and compacted, sorted by switchover."""
    others = [other for other in journal if other.value.id != record.value.id]
    return tuple(sorted([*others, record], key=lambda other: other.value.id))


@cache
def newest(journal: tuple[Kept, ...]) -> SwitchoverRecord | None:
    """Returns the newest record in *journal*."""
    return max((record.value for record in journal), key=lambda record: record.key, default=None)


def stored_state(world: World) -> SwitchoverState | None:
    """Returns the state of the newest switchover, as the target's journal has it."""
    record = newest(world.target_journal)
    return None if record is None else record.state
