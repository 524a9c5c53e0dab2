"""Sets where a flow starts for a switchover: the flow back, which copies only what was written since the other one has ended.

Until then it is held: its claim names the switchover as an end, so that no process takes it. The starts are stored as positions
under the flow's lock, and the claim that names the switchover comes last. Then the flow is free, and its process copies from there.
A cluster that is lost cannot be asked to hold the flow, so a process also waits for a switchover that has ended the other flow
(`awaited_switchover`).
All functions are generators, see `broker_requests`.
"""

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.partitions import UNKNOWN, TopicPartition
from mirrorflow_core.writer.broker_requests import (
    Producer,
    ReadWallClock,
    Refused,
    Steps,
    ask,
)
from mirrorflow_core.writer.claim import Claim, ended_by, ids_to_take, is_end_pending
from mirrorflow_core.writer.flow_lock import Fenced, holds_lock, initialize, read_claims
from mirrorflow_core.writer.flow_plan import FlowPlan, TopicIds
from mirrorflow_core.writer.ownership import commit_claim, take_lock
from mirrorflow_core.writer.position import WriterPosition
from mirrorflow_core.writer.stored_positions import read_positions, store_positions
from mirrorflow_core.writer.transaction_log import DecidedRecords


class FlowStart(NamedTuple):
    """Where one partition starts: the next source offset, and the leader epoch of the source there; -1: unknown."""

    offset: int
    leader_epoch: int = UNKNOWN


class StartConflict(Enum):
    """Why a stored position contradicts a start."""

    AHEAD = "it has copied records after the start"
    BEHIND = "it has not copied the records before the start, and no switchover has ended it"


@dataclass(frozen=True, slots=True)
class ConflictingStarts:
    """The starts that were refused, each with the position that is stored. Nothing was stored."""

    positions: Mapping[TopicPartition, tuple[WriterPosition, StartConflict]]


@dataclass(frozen=True, slots=True)
class FlowRuns:
    """A process owns the flow."""

    claim: Claim


class Held(NamedTuple):
    """No process takes the flow. *is_new*: one could have taken it before."""

    is_new: bool


class Started(NamedTuple):
    """The starts are stored. *is_new*: they were not before."""

    is_new: bool


def conflict_of(
    start: FlowStart, position: WriterPosition | None, ids: TopicIds, *, was_ended: bool
) -> StartConflict | None:
    """Returns why *position* contradicts *start*; None if it does not. *was_ended*: a switchover has ended the flow.

    A flow that an earlier switchover has ended continues at a later start: what lies between was copied by the other flow of the
    pair. A position of a topic that was deleted since does not count, nor does one that was reset.
    """
    if position is None or position.next_source_offset < 0:
        return None
    if position.source_topic_id and ids.source and position.source_topic_id != ids.source:
        return None
    if position.next_source_offset > start.offset:
        return StartConflict.AHEAD
    is_final = was_ended and position.left
    return None if position.next_source_offset == start.offset or is_final else StartConflict.BEHIND


def awaited_switchover(
    own: Claim | None, opposite: Claim | None, *, target_cluster_id: str | None = None
) -> str | None:
    """Returns the id of the switchover that has to start a flow before a process takes it; None if there is none.

    *own* is the newest claim of the flow, and *opposite* that of the flow in the opposite direction, which is stored on the flow's source.
    A switchover that has ended that one starts this one, which would copy back what came by the other before that. If *own* is
    ended, it is waited for itself. A cluster that has taken the place of the one that was left has none of these copies:
    *target_cluster_id* is that of the present one, None if it is not known.
    """
    if opposite is None or opposite.ended is None:
        return None
    if own is not None and (own.ended is not None or own.started == opposite.ended):
        return None
    was = opposite.source_cluster_id
    return opposite.ended if was is None or target_cluster_id in {None, was} else None


def note_awaited(plan: FlowPlan, switchover: str) -> Steps[bool]:
    """Stores that *switchover* has to start the flow, which never ran; returns whether that is stored.

    So no process takes the flow after a rollback, which frees it, whenever that process is started.
    """
    lock = yield from take_lock(plan)
    if not (yield from holds_lock(lock)):
        return False
    claims = yield from read_claims(lock)
    newest = claims.committed[-1] if claims.committed else None
    if newest is not None and (newest.has_run or newest.ended is not None):
        return False
    noted = replace(plan, claim=replace(plan.claim, process=None, released=switchover))
    return (yield from commit_claim(noted, lock, left=True))


def hold_flow(
    plan: FlowPlan,
    switchover: str,
    starts: Mapping[TopicPartition, FlowStart],
    *,
    abandoned: Claim | None = None,
) -> Steps[Held | FlowRuns | ConflictingStarts | Fenced]:
    """Holds the flow for *switchover* until `start_flow`; does nothing if a switchover has ended it. `clear_end` undoes it.

    Refused if it has copied other records than those before *starts*. *plan* has the ids of the topics. The claim of a flow that
    never ran has no process: it is no owner. *abandoned*: a claim that its owner no longer renews; should that wake up, it is fenced.
    """
    claims = yield from read_claims()
    if not is_end_pending(claims) and (unheld := _why_unheld(claims, abandoned)):
        return unheld
    lock = yield from take_lock(plan)
    if not (yield from holds_lock(lock)):
        return Fenced()
    claims = yield from read_claims(lock)
    if unheld := _why_unheld(claims, abandoned):
        return unheld
    taken = yield from _take(plan, lock, claims, starts)
    if not isinstance(taken, Mapping):
        return taken
    newest = claims.committed[-1] if claims.committed else None
    claim = newest if newest is not None and newest.has_run else replace(plan.claim, process=None)
    held = replace(plan, claim=claim)
    is_held = yield from commit_claim(held, lock, left=True, ended=switchover)
    return Held(is_new=True) if is_held else Fenced()


def _why_unheld(claims: DecidedRecords[Claim], abandoned: Claim | None) -> Held | FlowRuns | None:
    """Returns why the flow is not to be held; None if it is."""
    newest = claims.committed[-1] if claims.committed else None
    if newest is None or newest == abandoned or (newest.left and newest.ended is None):
        return None
    return FlowRuns(newest) if newest.ended is None else Held(is_new=False)


def start_flow(
    plan: FlowPlan, switchover: str, starts: Mapping[TopicPartition, FlowStart]
) -> Steps[Started | ConflictingStarts | Fenced]:
    """Stores *starts* for *switchover*, clears the end of the flow if it has one, and leaves it to the next process.

    Does nothing if this switchover has stored them before. *plan* has the ids of the topics.
    """
    claims = yield from read_claims()
    if claims.committed and claims.committed[-1].started == switchover:
        return Started(is_new=False)  # its process may run, and must keep the lock
    lock = yield from take_lock(plan)
    if not (yield from holds_lock(lock)):
        return Fenced()
    claims = yield from read_claims(lock)
    newest = claims.committed[-1] if claims.committed else None
    if newest is not None and newest.started == switchover:
        left = replace(plan, claim=newest)
        is_left = yield from commit_claim(left, lock, left=True, ended=newest.ended)
        return Started(is_new=False) if is_left else Fenced()
    positions = yield from _take(plan, lock, claims, starts)
    if not isinstance(positions, Mapping):
        return positions
    now_ms: int = yield from ask(ReadWallClock())
    new = [_position(plan, key, start, positions.get(key), now_ms) for key, start in sorted(starts.items())]
    if (yield from store_positions(lock, new)) is not None:
        return Fenced()
    started = replace(plan, claim=replace(plan.claim, started=switchover))
    return Started(is_new=True) if (yield from commit_claim(started, lock, left=True)) else Fenced()


def _take(
    plan: FlowPlan,
    lock: Producer,
    claims: DecidedRecords[Claim],
    starts: Mapping[TopicPartition, FlowStart],
) -> Steps[Mapping[TopicPartition, WriterPosition] | ConflictingStarts | Fenced]:
    """Takes all ids of the flow under *lock*; returns its positions, none of which contradicts *starts*."""
    was_ended = ended_by(claims) is not None
    stored = yield from read_positions(lock)
    positions = {position.topic_partition: position for position in stored.committed}
    conflicts = {
        key: (positions[key], conflict)
        for key, start in starts.items()
        if (
            conflict := conflict_of(
                start, positions.get(key), plan.topic_ids.get(key.topic, TopicIds()), was_ended=was_ended
            )
        )
    }
    if conflicts:
        return ConflictingStarts(conflicts)
    producers = yield from initialize(ids_to_take(claims, plan.claim, (*stored.committed, *stored.undecided)))
    return Fenced() if isinstance(producers, Refused) else positions


def _position(
    plan: FlowPlan, partition: TopicPartition, start: FlowStart, known: WriterPosition | None, now_ms: int
) -> WriterPosition:
    """Returns the position of a partition of which nothing is copied from *start* on; its records are counted anew."""
    ids = plan.topic_ids.get(partition.topic, TopicIds())
    return WriterPosition(
        topic=partition.topic,
        partition=partition.partition,
        next_source_offset=start.offset,
        java_offset=start.offset - 1,
        source_epoch=start.leader_epoch,
        target_topic=ids.copy,
        source_topic_id=ids.source,
        target_topic_id=ids.target,
        writer=plan.ids.task(0),
        left=True,
        time_ms=now_ms,
        revision=1 + ((known and known.revision) or 0),
    )
