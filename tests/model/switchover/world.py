"""The small world in which a switchover is explored: two clusters and the processes on them, as one immutable value.

The topic has two partitions. An idempotent producer writes to the first one, and a transactional producer to the second
one. The forward flow copies from east to west. One of its two copiers may be suspended for any time with a fetched
record. A consumer group reads the first partition. Runs of the operator carry out switchovers; each is a process that
may die.

A log is a tuple of entries: "east 1" (written by a producer on east), "t0" (in a transaction), "commit" and "abort"
(markers), "x" (written by a super user, who bypasses the fence), "f" (a foreign record, written into the copy by
mistake). Source and target are those of the current switchover; on the way back, they are exchanged (`turned`).
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
    """A value that is compared and hashed by its identity. `kept` creates one for each value."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)


_KEPT: dict[Hashable, Kept] = {}


def kept(value: Hashable) -> Kept:
    """Returns the only `Kept` of all values that equal *value*."""
    return _KEPT.setdefault(value, Kept(value))


def kept_record(record: SwitchoverRecord) -> Kept:
    """Keeps *record* with the last entry of its history, because the state machine reads no other entry."""
    return kept(replace(record, history=record.history[-1:]))


class Producer(NamedTuple):
    """An application that writes to one partition, on the member that the endpoint had at its last start."""

    to_write: int
    member: str = EAST


class Copier(NamedTuple):
    """A process of the forward flow. `fetched` is the partition and offset of a record that it is about to write."""

    epoch: int = 0  # the epoch that it considers the newest; 0 for a newcomer
    fetched: tuple[int, int] | None = None


class Flow(NamedTuple):
    """The forward flow, as known to its coordinator and to the leaders of its copies."""

    epoch: int = 1
    marked_epoch: int = 1  # leaders refuse older epochs
    ended_by: str = ""


class Reverse(NamedTuple):
    """The reverse flow, with the offset in each partition of the target at which it reads next.

    Its process is started once its starts are stored, or earlier by a user. It copies when it owns the flow.
    """

    started_by: str = ""
    next: tuple[int, ...] = (0,) * PARTITIONS
    is_copying: bool = False
    held_by: str = ""
    has_process: bool = False


class Run(NamedTuple):
    """A process that carries out a switchover, with its record and the actions of the last step that it has not begun."""

    name: str
    record: Kept
    pending: Kept
    has_begun: bool = False  # whether it has taken the lock
    first_part: Kept | None = None  # the world when the run read the first part of its observation
    gives_up_target: bool = False  # whether it rolls back with only the source


class World(NamedTuple):
    """The complete state of the clusters, the applications and the operator."""

    to_start: tuple[Kept, ...]  # the switchovers that users will request
    troubles: tuple[str, ...] = ()  # the troubles that may still happen
    runs: tuple[Run, ...] = ()
    producers: tuple[Producer, ...] = (Producer(to_write=1), Producer(to_write=0))
    to_return: tuple[Kept, ...] = ()  # the switchovers that users will then request from west to east
    source_name: str = EAST
    source: tuple[Log, ...] = (("east 0",), ())
    target: tuple[Log, ...] = ((), ())
    target_fence: int = 0  # the number of partitions that refuse writes of applications
    source_fence: int = 0
    is_source_up: bool = True
    is_target_up: bool = True
    source_journal: tuple[Kept, ...] = ()  # the newest record of each switchover
    target_journal: tuple[Kept, ...] = ()
    lock: str = ""  # the run that has last taken the lock
    runs_started: int = 0
    endpoint: str = EAST
    group_source: int = 0  # committed offsets of the group
    group_target: int = 0
    has_checkpoints: bool = False  # whether the group has checkpoints
    checkpoint: int = 0  # the checkpoint as stored on the target
    clamped_by: str = ""  # the run that has set the group to its checkpoint, known only to that run
    has_members: bool = False  # whether the group reads on the source
    flow: Flow = Flow()
    copiers: tuple[Copier, ...] = (Copier(epoch=1), Copier())
    copied: tuple[int, ...] = (0,) * PARTITIONS
    verification: Kept | None = None
    reverse: Reverse = Reverse()
    is_canary_tried: bool = False
    has_failed_check: bool = False
    has_refused_request: bool = False  # whether a switchover must be refused before it begins
    is_quiet: bool = False  # whether the ends have been unchanged for long enough
    is_enforced: bool = False  # whether each leader knows the fence that the controller lists
    limits_passed: int = 0  # how often more time has passed than any limit allows
    is_rollback_requested: bool = False
    reads_slowly: bool = False  # whether other events happen between the parts of an observation
    is_target_lost: bool = False  # once it is down, it stays down
    is_source_lost: bool = False
    is_fence_noted: bool = (
        False  # set by an unplanned switchover: the source may be fenced although it does not respond
    )
    refuses_fence: bool = False  # the source responds, but cannot be fenced
    hangs: bool = False  # whether an open transaction never ends
    happened: frozenset[str] = frozenset()  # the troubles that have happened
    # The ends of source and target when the promotion was stored, which no process knows.
    promoted_ends: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    @property
    def target_name(self) -> str:
        return WEST if self.source_name == EAST else EAST


def requested(
    name: str = "first",
    type_: SwitchoverType = SwitchoverType.PLANNED,
    *,
    source: str = EAST,
    to: str = WEST,
    accepts_loss: bool = False,
) -> SwitchoverRecord:
    """Returns the record of a switchover that a user requests."""
    return SwitchoverRecord(
        id=name,
        pair="pair",
        type=type_,
        source=source,
        to=to,
        created_ms=0,
        limits=LIMITS,
        accepts_loss=accepts_loss,
    )


def turned(world: World) -> World:
    """Returns the world at the start of the way back, in which the reverse flow becomes the forward flow."""
    return world._replace(
        to_start=world.to_return,
        to_return=(),
        source_name=world.target_name,
        source=world.target,
        target=world.source,
        source_fence=world.target_fence,
        target_fence=world.source_fence,
        is_source_up=world.is_target_up,
        is_target_up=world.is_source_up,
        source_journal=world.target_journal,
        target_journal=world.source_journal,
        flow=Flow(),
        copiers=(Copier(epoch=1), Copier()),
        copied=world.reverse.next,
        reverse=Reverse(held_by=world.flow.ended_by),
        group_source=world.group_target,
        group_target=world.group_source,
        is_canary_tried=False,
        is_quiet=False,
        is_enforced=False,
        promoted_ends=None,
    )


def last_stable(log: Log) -> int:
    """Returns the offset before which each transaction has ended."""
    if "t0" in log and not MARKERS & set(log):
        return log.index("t0")
    return len(log)


def data(log: Log) -> Log:
    """Returns the entries of *log* that consumers receive and copiers copy."""
    return tuple(entry for entry in log if entry not in MARKERS)


def journal_with(journal: tuple[Kept, ...], record: Kept) -> tuple[Kept, ...]:
    """Returns *journal* after *record* was written and compacted, sorted by switchover."""
    others = [other for other in journal if other.value.id != record.value.id]
    return tuple(sorted([*others, record], key=lambda other: other.value.id))


@cache
def newest(journal: tuple[Kept, ...]) -> SwitchoverRecord | None:
    """Returns the newest record in *journal*."""
    return max((record.value for record in journal), key=lambda record: record.key, default=None)


def all_records(world: World) -> list[SwitchoverRecord]:
    """Returns the newest record of each switchover in both journals."""
    records = [record.value for record in (*world.source_journal, *world.target_journal)]
    return list({record.id: record for record in sorted(records, key=lambda record: record.key)}.values())


def known_records(world: World) -> list[SwitchoverRecord]:
    """Returns what a process reads that starts now, which are the records of the clusters that respond."""
    return all_records(
        world._replace(
            source_journal=world.source_journal if world.is_source_up else (),
            target_journal=world.target_journal if world.is_target_up else (),
        )
    )


def stored_state(world: World) -> SwitchoverState | None:
    """Returns the state of the newest switchover to the target.

    An unplanned switchover that was given up counts only if there is no other.
    """
    records = [record.value for record in (*world.source_journal, *world.target_journal)]
    given_up = {SwitchoverState.REFUSED, SwitchoverState.LIFTED}
    valid = [record for record in records if not (record.is_unplanned and record.state in given_up)]
    record = max(valid or records, key=lambda record: record.key, default=None)
    return None if record is None or record.to != world.target_name else record.state
