"""Settles conditions: a new finding replaces the reported condition only after it held for some time. Pure.

    reported True     -> anything else   after it has not been True for the set time without a break
    reported False    -> True            after it has been True for the set time
    reported False    -> Unknown         after it has been Unknown for the set time
    reported Unknown  -> anything        at once; so is any change that a person decided

So a condition ignores changes that are shorter than that. The start of each finding is kept in an
AssessmentMemory; an operator that has lost it counts from now, which delays a change but reports nothing
wrong. `lastTransitionTime` changes only with `status`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mirrorflow_operator.api.status import Condition, ConditionStatus, timestamp
from mirrorflow_operator.status.conditions import Finding, bounded
from mirrorflow_operator.status.observation import AssessmentMemory, Since


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a new finding must hold before the condition changes, in seconds."""

    to_true_s: float = 0.0
    to_false_s: float = 0.0
    to_unknown_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The settled condition and what to remember for it.

    `again_after_s`: seconds until it may change without a new finding. `causes`: those of the finding behind
    the condition; empty while an earlier condition is kept.
    """

    condition: Condition
    since: Since
    causes: frozenset[str] = frozenset()
    again_after_s: float | None = None


def settle(
    finding: Finding,
    told: Condition | None,
    memory: AssessmentMemory,
    patience: Patience,
    *,
    generation: int,
    now_s: float,
    at_once: bool = False,
) -> Settled:
    """Returns the condition for *finding*, where the status has *told*; *at_once* skips every wait."""
    since = _since(finding, memory.since, now_s)
    if told is None or told.status is ConditionStatus.UNKNOWN or told.status is finding.status or at_once:
        return _applied(finding, told, since, generation, now_s)
    left_s = _left_s(finding, told, since, patience, now_s)
    if left_s <= 0:
        return _applied(finding, told, since, generation, now_s)
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
    # A clock that was set back must not prolong a wait without limit.
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


def _applied(
    finding: Finding, told: Condition | None, since: Since, generation: int, now_s: float
) -> Settled:
    condition = _condition(finding, told, generation, now_s)
    return Settled(condition=condition, since=since, causes=finding.causes)


def _condition(finding: Finding, told: Condition | None, generation: int, now_s: float) -> Condition:
    is_same = told is not None and told.status is finding.status
    return Condition(
        type=finding.kind.value,
        status=finding.status,
        observed_generation=generation,
        last_transition_time=told.last_transition_time if is_same and told is not None else timestamp(now_s),
        reason=finding.reason.value,
        message=bounded(finding.message),
    )
