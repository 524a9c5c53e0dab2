"""Ends a flow for a switchover, so that nothing of it is written any more, and clears the end.

A flow is ended like it is taken, by the same steps: `take_flow` with the partitions that have a position, then `recover_task` over those
that could not be fenced, or whose first position was stored after that was read. So the ids of all earlier writers are initialized, and each fence is in its log. What follows is here: the
position of each partition is stored as left, not too many in one transaction, and last the claim that names the switchover. A newcomer that reads this claim
does not take the flow (`ownership`).

All functions are generators, see `broker_requests`.
"""

from collections.abc import Mapping
from dataclasses import replace

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.writer.broker_requests import ReadWallClock, Steps, ask
from mirrorflow_core.writer.claim import ended_by, is_end_pending
from mirrorflow_core.writer.flow_lock import Fenced, holds_lock, read_claims
from mirrorflow_core.writer.flow_plan import FlowPlan, TaskProducers, TopicIds, WritePoint, position_at
from mirrorflow_core.writer.ownership import FlowEnded, Ownership, commit_claim, take_lock
from mirrorflow_core.writer.position import WriteMode
from mirrorflow_core.writer.stored_positions import store_positions


def store_end(
    ownership: Ownership,
    producers: TaskProducers,
    points: Mapping[TopicPartition, WritePoint],
    topic_ids: Mapping[str, TopicIds],
    switchover: str,
) -> Steps[bool]:
    """Stores the final positions, then that *switchover* has ended the flow. False: fenced, or the outcome is unknown.

    *points* are those of all sessions, and *producers* those of the last one. A process that takes the flow
    once the end is cleared continues exactly there.
    """
    now_ms: int = yield from ask(ReadWallClock())
    positions = tuple(
        position_at(
            partition,
            replace(point, target_end=point.records_end, revision=point.revision + 1),
            producers,
            mode=WriteMode.PLAIN,
            time_ms=now_ms,
            topic_ids=topic_ids.get(partition.topic, TopicIds()),
            left=True,
        )
        for partition, point in points.items()
    )
    if (yield from store_positions(producers.transactional, positions)) is not None:
        return False
    return (yield from commit_claim(ownership.plan, ownership.lock, left=True, ended=switchover))


def clear_end(plan: FlowPlan, switchover: str) -> Steps[bool | Fenced | FlowEnded]:
    """Clears the end of a flow, so that the next process takes it; returns whether *switchover* had ended it.

    The lock of a flow that has not ended is left to its owner, unless an end is pending. A flow that never ran keeps the id: it was to start with that switchover.
    FlowEnded: another switchover has ended it.
    """
    claims = yield from read_claims()
    if ended_by(claims) is None and not is_end_pending(claims):
        return False
    lock = yield from take_lock(plan)
    if not (yield from holds_lock(lock)):
        return Fenced()
    claims = yield from read_claims(lock)
    # Without any claim, a switchover was about to hold the flow, which never ran.
    claim = claims.committed[-1] if claims.committed else replace(plan.claim, process=None)
    if claim.ended not in {None, switchover}:
        return FlowEnded(claim, lock)
    has_ended = claim.ended is not None
    if has_ended and not claim.has_run:
        claim = replace(claim, released=switchover)
    # Also without an end: the lock was taken, so the next process need not wait, and no older claim is pending any more.
    is_stored = yield from commit_claim(replace(plan, claim=claim), lock, left=True)
    return has_ended if is_stored else Fenced()
