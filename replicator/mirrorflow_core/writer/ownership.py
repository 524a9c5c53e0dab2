"""Takes a flow over from its previous owner, and takes single tasks over from ourselves after a refusal.

The order is the proof (`take_flow`): each newcomer first takes the lock, so no older owner can claim the flow any
more; then it initializes the ids of all older owners, so none of them can commit a position any more; then it claims
the flow, which fails if a newer owner has taken the lock. Every epoch that is in use was made, or checked against
the lock, before the next owner took the lock; so that owner's initialization ends it.

A refusal of any kind is answered by asking whether the lock is still ours. If it is not, the process stops writing
and may come back only as a newcomer.

`connectors.flow_takeover` decides whether to wait and what to take, then runs `take_flow`. `flow_ownership_states` runs the
other functions for a flow that this process owns.

All functions are generators, see `broker_requests`. The runner lets only one transaction of a producer
run at a time.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.writer.broker_requests import (
    Pause,
    Producer,
    ReadWallClock,
    Refused,
    Steps,
    Transaction,
    ask,
)
from mirrorflow_core.writer.claim import Claim, ClaimWatch, ids_to_take
from mirrorflow_core.writer.flow_lock import RETRY_MS, Fenced, holds_lock, initialize, read_claims, take_ids
from mirrorflow_core.writer.flow_plan import FlowPlan, SessionStart
from mirrorflow_core.writer.position import WriterPosition
from mirrorflow_core.writer.stored_positions import read_positions
from mirrorflow_core.writer.takeover import take_partitions
from mirrorflow_core.writer.transactional_ids import WriterIds

POLL_MS: Final = 1_000
_TOUCH_SHARE: Final = 4  # ids are used every quarter of transactional.id.expiration.ms
_TOUCH_AT_MOST_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """A flow that this process owns."""

    plan: FlowPlan
    lock: Producer
    tasks: tuple[SessionStart, ...]


@dataclass(frozen=True, slots=True)
class FlowExists:
    """Another flow copies from the same source alias to this target, or did and is not named in `takes_over`."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class FlowEnded:
    """A switchover has ended the flow: no process takes it until the end is cleared (`flow_end`). *lock*: taken to find that out."""

    claim: Claim
    lock: Producer


# -- waiting for the flow


def wait_for_turn(
    plan: FlowPlan, on_owner: Callable[[Claim], None] = lambda _: None
) -> Steps[FlowExists | None]:
    """Waits until the flow's owner has left, or renews its claim no longer. A waiting newcomer is ready.

    An ended flow is waited for until the end is cleared. *on_owner* is called with the owner's newest claim.
    """
    watch = ClaimWatch(None, 0)
    while True:
        now_ms: int = yield from ask(Pause(POLL_MS))
        claims = yield from read_claims()
        before = watch
        # A claim that is gone was deleted with its topic: a living owner writes it again.
        watch = watch.observe(claims.committed[-1] if claims.committed else watch.claim, now_ms)
        if watch.claim is not None:
            on_owner(watch.claim)
        owner = None if watch.claim is None else watch.claim.flow
        if watch.claim is not None and owner not in {plan.claim.flow, *plan.takes_over}:
            return FlowExists(watch.claim)
        if watch.may_take(now_ms):
            return None
        is_renewed = before.claim is not None and watch is not before
        is_renewed &= watch.claim is not None and watch.claim.ended is None
        if watch.claim is not None and owner != plan.claim.flow and is_renewed:
            return FlowExists(watch.claim)


# -- the flow


def take_flow(plan: FlowPlan) -> Steps[Ownership | Fenced | FlowEnded]:
    """Takes the flow from all earlier owners, dead, frozen or alive, and returns where each partition starts.

    An ended flow is not claimed: it can have been ended after the newcomer has read the claims, and before it took the lock.
    """
    lock = yield from take_lock(plan)
    if not (yield from holds_lock(lock)):
        return Fenced()
    claims = yield from read_claims(lock)
    if claims.committed:
        newest = claims.committed[-1]
        if newest.ended is not None:
            return FlowEnded(newest, lock)
        plan = replace(plan, claim=replace(plan.claim, started=newest.started))
    positions = yield from read_positions(lock)
    names = ids_to_take(claims, plan.claim, (*positions.committed, *positions.undecided))
    producers = yield from initialize(names)
    if isinstance(producers, Refused) or not (yield from commit_claim(plan, lock)):
        return Fenced()
    wanted = {plan.ids.task(number): assigned for number, assigned in enumerate(plan.assignment)}
    silent: set[int] = set()
    while True:
        tasks = yield from take_partitions(plan, lock, producers, wanted, silent=silent, renews_claim=True)
        if not isinstance(tasks, Refused):
            return Ownership(plan=plan, lock=lock, tasks=tasks)
        if not (yield from holds_lock(lock)):
            return Fenced()
        yield from ask(Pause(RETRY_MS))
        producers = yield from take_ids(lock, producers)
        if isinstance(producers, Refused):
            return Fenced()


def recover_task(
    ownership: Ownership,
    ids: WriterIds,
    partitions: Iterable[TopicPartition],
    acknowledged: Sequence[WriterPosition] = (),
) -> Steps[SessionStart | Fenced]:
    """Takes a task's partitions over from ourselves, after a refusal or an unknown outcome.

    *acknowledged* is what the last session had no time to store.
    """
    plan, lock = ownership.plan, ownership.lock
    wanted = {ids: tuple(partitions)}
    silent: set[int] = set()
    while True:
        if not (yield from holds_lock(lock)):
            return Fenced()
        producers = yield from take_ids(lock, ids, spares={ids.transactional: ids.spare})
        if isinstance(producers, Refused):
            return Fenced()
        taken = yield from take_partitions(plan, lock, producers, wanted, tuple(acknowledged), silent=silent)
        if not isinstance(taken, Refused):
            return taken[0]
        yield from ask(Pause(RETRY_MS))


def renew_claim(ownership: Ownership, *, left: bool = False) -> Steps[bool]:
    """Stores the claim again; with *left*, the flow may be taken at once. False: fenced."""
    return (yield from commit_claim(ownership.plan, ownership.lock, left=left))


def touch_interval_ms(id_expiration_ms: int) -> int:
    """Returns how often each id must be used so that the coordinator does not forget it."""
    return min(max(id_expiration_ms // _TOUCH_SHARE, _TOUCH_AT_MOST_MS), id_expiration_ms // 2)


# -- steps


def take_lock(plan: FlowPlan) -> Steps[Producer]:
    """Takes the flow's lock: no earlier owner can write a claim any more."""
    while True:
        producers = yield from initialize((plan.ids.lock,))
        if not isinstance(producers, Refused):
            return producers[plan.ids.lock]
        yield from ask(Pause(POLL_MS))


def commit_claim(
    plan: FlowPlan, lock: Producer, *, left: bool = False, ended: str | None = None
) -> Steps[bool]:
    """Stores the claim of *plan*; *ended* is the switchover that ends the flow; None: it has not ended. False: fenced."""
    now_ms: int = yield from ask(ReadWallClock())
    claim = plan.claim.renewed(
        now_ms, lock_id=lock.producer_id, lock_epoch=lock.epoch, left=left, ended=ended
    )
    return not isinstance((yield from ask(Transaction(lock, claim=claim, is_barrier=True))), Refused)
