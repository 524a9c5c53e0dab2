"""What is seen and what was told before -> the condition to tell: time has a say in what changes. Pure.

    told True     -> anything else   only after it has not been True for so long, without a break
    told False    -> True            only after it has been True for so long
    told False    -> Unknown         only after it has been Unknown for so long
    told Unknown  -> anything        at once, and so with whatever somebody has decided

So a condition does not follow what comes and goes faster than that. Since when something is seen is kept in a Memory; who has
lost it counts from now, which costs patience and makes nothing untrue. `lastTransitionTime` moves with `status` alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mirrorflow_operator.api.status import Condition, ConditionStatus
from mirrorflow_operator.assess.findings import Finding, bounded
from mirrorflow_operator.assess.moments import moment
from mirrorflow_operator.assess.observation import Memory, Since


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long something else is to be seen before it is told, in seconds."""

    to_true_s: float = 0.0
    to_false_s: float = 0.0
    to_unknown_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The condition, what to remember for it, and in how many seconds it may be another one though nothing else is seen."""

    condition: Condition
    since: Since
    again_after_s: float | None = None


def settle(
    finding: Finding,
    told: Condition | None,
    memory: Memory,
    patience: Patience,
    *,
    generation: int,
    now_s: float,
    at_once: bool = False,
) -> Settled:
    """The condition for *finding* where *told* stands in the status; *at_once* where nobody waits."""
    since = _since(finding, memory.since, now_s)
    if told is None or told.status is ConditionStatus.UNKNOWN or told.status is finding.status or at_once:
        return Settled(condition=_condition(finding, told, generation, now_s), since=since)
    left_s = _left_s(finding, told, since, patience, now_s)
    if left_s <= 0:
        return Settled(condition=_condition(finding, told, generation, now_s), since=since)
    return Settled(
        condition=told.model_copy(update={"observed_generation": generation}),
        since=since,
        again_after_s=left_s,
    )


def _since(finding: Finding, before: Mapping[str, Since], now_s: float) -> Since:
    known = before.get(finding.kind.value)
    status = finding.status.value
    is_true = finding.status is ConditionStatus.TRUE
    if known is None:
        return Since(status=status, since_s=now_s, untrue_since_s=None if is_true else now_s)
    # A clock that was set back must not make anybody wait for ever.
    untrue_s = (
        None if is_true else min(now_s, now_s if known.untrue_since_s is None else known.untrue_since_s)
    )
    since_s = min(known.since_s, now_s) if known.status == status else now_s
    return Since(status=status, since_s=since_s, untrue_since_s=untrue_s)


def _left_s(finding: Finding, told: Condition, since: Since, patience: Patience, now_s: float) -> float:
    if finding.status is ConditionStatus.TRUE:
        return patience.to_true_s - (now_s - since.since_s)
    wait_s = patience.to_false_s if finding.status is ConditionStatus.FALSE else patience.to_unknown_s
    if told.status is ConditionStatus.TRUE and since.untrue_since_s is not None:
        return wait_s - (now_s - since.untrue_since_s)
    return wait_s - (now_s - since.since_s)


def _condition(finding: Finding, told: Condition | None, generation: int, now_s: float) -> Condition:
    is_same = told is not None and told.status is finding.status
    return Condition(
        type=finding.kind.value,
        status=finding.status,
        observed_generation=generation,
        last_transition_time=told.last_transition_time if is_same and told is not None else moment(now_s),
        reason=finding.reason.value,
        message=bounded(finding.message),
    )
