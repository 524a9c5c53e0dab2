"""Defines the condition types and reasons of MirrorPair and Switchover. Pure. docs/conditions.md explains each reason."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from mirrorflow_operator.api.status import Condition, ConditionStatus
from mirrorflow_operator.status.conditions import condition_of


class PairConditionType(Enum):
    """The types of the conditions of a pair, in the order in which they are shown."""

    READY = "Ready"
    ACCEPTED = "Accepted"


class PairReason(Enum):
    """The reasons of the conditions of a pair."""

    ACCEPTED = "Accepted"
    INVALID_SPEC = "InvalidSpec"
    FLOWS_DO_NOT_MIRROR = "FlowsDoNotMirror"
    CAN_SWITCH = "CanSwitch"
    ACTIVE_UNKNOWN = "ActiveUnknown"
    FLOW_NOT_READY = "FlowNotReady"
    LAG_TOO_HIGH = "LagTooHigh"
    LAG_UNKNOWN = "LagUnknown"
    DIFFERENCES_FOUND = "DifferencesFound"
    NOT_VERIFIED = "NotVerified"
    SWITCHING_OVER = "SwitchingOver"
    NOT_RECONCILED = "NotReconciled"


class SwitchoverConditionType(Enum):
    """The types of the conditions of a switchover, in the order in which they are shown."""

    SUCCEEDED = "Succeeded"
    WRITES_REFUSED = "WritesRefused"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"


class SwitchoverReason(Enum):
    """The reasons of the conditions of a switchover."""

    WAITING = "Waiting"
    STARTING = "Starting"
    JOB_NOT_RUNNING = "JobNotRunning"
    UNDER_WAY = "UnderWay"
    MOVED = "Moved"
    DEGRADED = "Degraded"
    OVERTAKEN = "Overtaken"
    REHEARSED = "Rehearsed"
    CANARY_FAILED = "CanaryFailed"
    REFUSED = "Refused"
    ROLLED_BACK = "RolledBack"
    FENCED = "Fenced"
    WRITES_ACCEPTED = "WritesAccepted"
    ENDED = "Ended"
    NOT_STALLED = "NotStalled"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFinding:
    """The current value of one condition of a pair or a switchover."""

    kind: PairConditionType | SwitchoverConditionType
    status: ConditionStatus
    reason: PairReason | SwitchoverReason
    message: str = ""


def conditions_of(
    findings: Iterable[PairFinding], before: Iterable[Condition], *, generation: int, now_s: float
) -> tuple[Condition, ...]:
    """Returns *findings* as conditions; the time of one whose status is that of *before* stays."""
    known = {condition.type: condition for condition in before}
    return tuple(
        condition_of(finding, known.get(finding.kind.value), generation=generation, now_s=now_s)
        for finding in findings
    )
