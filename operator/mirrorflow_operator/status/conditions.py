"""Defines all condition types and reasons, the Finding of one condition, and which conditions are problems. Pure.

To add a condition: add its type and reasons here, decide it in the module of its subject, and call that from
`assess`.

    reachability          SourceReachable, TargetReachable
    replication           TopicsSelected, Replicating, CheckpointsFresh, SchemasInSync
    spark_jobs            Seeded
    verification          Verified
    archiving             Archived, Restored
    summary_conditions    Accepted, Degraded, Ready, Reconciling, Stalled

docs/conditions.md explains each reason and what to do about it; a test compares it with this list.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple, Protocol

from mirrorflow_operator.api.status import MESSAGE_MAX, Condition, ConditionStatus
from mirrorflow_operator.api.timestamps import timestamp

_MORE: Final = " ..."
_WORD: Final = re.compile(r"[A-Za-z0-9]+")


class ConditionType(Enum):
    """The types of the status conditions, in the order in which they are shown."""

    READY = "Ready"
    ACCEPTED = "Accepted"
    SOURCE_REACHABLE = "SourceReachable"
    TARGET_REACHABLE = "TargetReachable"
    TOPICS_SELECTED = "TopicsSelected"
    REPLICATING = "Replicating"
    CHECKPOINTS_FRESH = "CheckpointsFresh"
    SCHEMAS_IN_SYNC = "SchemasInSync"
    DEGRADED = "Degraded"
    SEEDED = "Seeded"
    VERIFIED = "Verified"
    ARCHIVED = "Archived"
    RESTORED = "Restored"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"


class Reason(Enum):
    """The reasons of all conditions."""

    # Accepted
    ACCEPTED = "Accepted"
    INVALID_SPEC = "InvalidSpec"
    UNKNOWN_VERSION = "UnknownVersion"
    LOOP_FOUND = "LoopFound"
    TOPIC_COLLISION = "TopicCollision"
    FLOW_EXISTS = "FlowExists"
    CLUSTER_CHANGED = "ClusterChanged"
    SECRET_MISSING = "SecretMissing"  # noqa: S105  a word
    SETTINGS_REFUSED = "SettingsRefused"
    # SourceReachable, TargetReachable
    REACHABLE = "Reachable"
    UNREACHABLE = "Unreachable"
    AUTHENTICATION_FAILED = "AuthenticationFailed"
    NOT_AUTHORIZED = "NotAuthorized"
    UNSUPPORTED_BROKER = "UnsupportedBroker"
    NOT_ASKED = "NotAsked"
    # TopicsSelected
    SELECTED = "Selected"
    NOTHING_MATCHES = "NothingMatches"
    # Replicating
    ADVANCING = "Advancing"
    IDLE = "Idle"
    THROTTLED = "Throttled"
    STUCK = "Stuck"
    PARTITIONS_STOPPED = "PartitionsStopped"
    PARTITIONS_STALLED = "PartitionsStalled"
    TOPICS_NOT_COPIED = "TopicsNotCopied"
    SOURCE_DATA_LOST = "SourceDataLost"
    WAITING = "Waiting"
    STARTING = "Starting"
    PROGRESS_UNKNOWN = "ProgressUnknown"
    # CheckpointsFresh
    FRESH = "Fresh"
    STALE = "Stale"
    GROUPS_FAILING = "GroupsFailing"
    # SchemasInSync; also Stale
    IN_SYNC = "InSync"
    CONFLICTS_FOUND = "ConflictsFound"
    # Degraded
    WARNINGS = "Warnings"
    NO_WARNINGS = "NoWarnings"
    # Ready, in addition to the reasons of the conditions that prevent it
    REPLICATING = "Replicating"
    PAUSING = "Pausing"
    PAUSED = "Paused"
    STOPPING = "Stopping"
    STOPPED = "Stopped"
    SOURCE_UNREACHABLE = "SourceUnreachable"
    TARGET_UNREACHABLE = "TargetUnreachable"
    CHECKPOINTS_STALE = "CheckpointsStale"
    # The workloads: Ready, Reconciling, Stalled
    OBJECTS_REFUSED = "ObjectsRefused"
    NAME_CONFLICT = "NameConflict"
    PODS_REFUSED = "PodsRefused"
    NOT_SCHEDULED = "NotScheduled"
    IMAGE_NOT_PULLED = "ImageNotPulled"
    VOLUME_NOT_MOUNTED = "VolumeNotMounted"
    CONTAINER_NOT_CREATED = "ContainerNotCreated"
    OUT_OF_MEMORY = "OutOfMemory"
    CONNECTOR_CRASHING = "ConnectorCrashing"
    SCALED_TO_ZERO = "ScaledToZero"
    ROLLING_OUT = "RollingOut"
    ROLLED_OUT = "RolledOut"
    RECONCILIATION_PAUSED = "ReconciliationPaused"
    SPEC_CHANGED = "SpecChanged"
    DELETING = "Deleting"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    NOT_STALLED = "NotStalled"
    # Seeded, Verified, Archived, Restored
    SEEDING = "Seeding"  # also a reason of Replicating, Ready and Reconciling
    SEEDED = "Seeded"
    SEED_FAILED = "SeedFailed"
    VERIFYING = "Verifying"
    EQUAL = "Equal"
    DIFFERENCES_FOUND = "DifferencesFound"
    UNDECIDED = "Undecided"
    VERIFICATION_FAILED = "VerificationFailed"
    VERIFICATION_OVERDUE = "VerificationOverdue"
    JOB_DELETED = "JobDeleted"
    QUEUED = "Queued"
    NOT_SUBMITTED = "NotSubmitted"
    NOT_VERIFIED_YET = "NotVerifiedYet"
    ARCHIVING = "Archiving"
    ARCHIVED = "Archived"
    ARCHIVE_FAILED = "ArchiveFailed"
    ARCHIVE_INCOMPLETE = "ArchiveIncomplete"
    ARCHIVE_OVERDUE = "ArchiveOverdue"
    NOT_ARCHIVED_YET = "NotArchivedYet"
    RESTORING = "Restoring"  # also a reason of Replicating, Ready and Reconciling
    RESTORED = "Restored"
    RESTORE_FAILED = "RestoreFailed"


# Caused by the spec: waiting does not help, the user must change it (kstatus: Failed). For Accepted alone: objects that
# are refused by a quota, for example, leave Accepted as it is.
FINAL: Final = frozenset(
    {
        Reason.INVALID_SPEC,
        Reason.UNKNOWN_VERSION,
        Reason.LOOP_FOUND,
        Reason.TOPIC_COLLISION,
        Reason.FLOW_EXISTS,
        Reason.CLUSTER_CHANGED,
        Reason.SETTINGS_REFUSED,
        Reason.OBJECTS_REFUSED,
        Reason.NAME_CONFLICT,
    }
)
# Results of what a user requested or wrote: conditions show them at once, without hysteresis.
IMMEDIATE: Final = FINAL | {
    Reason.PAUSING,
    Reason.PAUSED,
    Reason.STOPPING,
    Reason.STOPPED,
    Reason.SECRET_MISSING,
}


# Conditions for which False is a problem; the others describe progress.
_FALSE_IS_PROBLEM: Final = frozenset(
    {
        ConditionType.ACCEPTED.value,
        ConditionType.SOURCE_REACHABLE.value,
        ConditionType.TARGET_REACHABLE.value,
        ConditionType.TOPICS_SELECTED.value,
        ConditionType.REPLICATING.value,
        ConditionType.CHECKPOINTS_FRESH.value,
        ConditionType.SCHEMAS_IN_SYNC.value,
        ConditionType.READY.value,
    }
)
# A user requested these states, or waits for them.
_REQUESTED: Final = frozenset(
    reason.value
    for reason in (
        Reason.PAUSING,
        Reason.PAUSED,
        Reason.STOPPING,
        Reason.STOPPED,
        Reason.SEEDING,
        Reason.RESTORING,
    )
)
_FAILED_RUNS: Final = frozenset(
    reason.value
    for reason in (
        Reason.SEED_FAILED,
        Reason.DIFFERENCES_FOUND,
        Reason.VERIFICATION_FAILED,
        Reason.VERIFICATION_OVERDUE,
        Reason.ARCHIVE_FAILED,
        Reason.ARCHIVE_INCOMPLETE,
        Reason.ARCHIVE_OVERDUE,
        Reason.RESTORE_FAILED,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The current value of one condition. `message` contains no values that change while the state does not.

    `causes`: the replicator's reasons behind it; `message` names each of them.
    """

    kind: ConditionType
    status: ConditionStatus
    reason: Reason
    message: str = ""
    causes: frozenset[str] = frozenset()

    def as_type(self, kind: ConditionType) -> "Finding":
        return replace(self, kind=kind)


class Problem(NamedTuple):
    """Why a flow must not run, or why pods do not: a condition's reason and its message."""

    reason: Reason
    message: str


def yes(kind: ConditionType, reason: Reason, message: str = "", causes: Iterable[str] = ()) -> Finding:
    return Finding(
        kind=kind, status=ConditionStatus.TRUE, reason=reason, message=message, causes=frozenset(causes)
    )


def no(kind: ConditionType, reason: Reason, message: str, causes: Iterable[str] = ()) -> Finding:
    return Finding(
        kind=kind, status=ConditionStatus.FALSE, reason=reason, message=message, causes=frozenset(causes)
    )


def unknown(kind: ConditionType, reason: Reason, message: str) -> Finding:
    return Finding(kind=kind, status=ConditionStatus.UNKNOWN, reason=reason, message=message)


def bounded(text: str, length_max: int = MESSAGE_MAX) -> str:
    """Returns *text* in one line of printable characters, cut to *length_max*."""
    line = " ".join(
        "".join(letter if letter.isprintable() else " " for letter in text[: 4 * length_max]).split()
    )
    return line if len(line) <= length_max else line[: length_max - len(_MORE)] + _MORE


class ReportedFinding(Protocol):
    """What a condition is made of: a finding about a flow, a pair or a switchover."""

    @property
    def kind(self) -> Enum: ...
    @property
    def status(self) -> ConditionStatus: ...
    @property
    def reason(self) -> Enum: ...
    @property
    def message(self) -> str: ...


def condition_of(
    finding: ReportedFinding, reported: Condition | None, *, generation: int, now_s: float
) -> Condition:
    """Returns the condition; its time is that of the *reported* one if the status is the same."""
    is_same = reported is not None and reported.status is finding.status
    return Condition(
        type=finding.kind.value,
        status=finding.status,
        observed_generation=generation,
        last_transition_time=reported.last_transition_time
        if is_same and reported is not None
        else timestamp(now_s),
        reason=finding.reason.value,
        message=bounded(finding.message),
    )


def new_problems(
    before: Sequence[Condition], now: Sequence[Condition], causes: Mapping[str, frozenset[str]]
) -> Iterator[tuple[str, str]]:
    """Yields reason and message of each problem that *now* has and *before* had not, each once.

    *causes*: those of the conditions of *now*, by type; a new cause under the same reason is a new problem.
    Ready comes last, because it usually repeats another condition.
    """
    known = {condition.type: condition for condition in before}
    yielded: set[str] = set()
    for condition in sorted(now, key=lambda condition: condition.type == ConditionType.READY.value):
        if not _is_problem(condition) or condition.reason in yielded or condition.message in yielded:
            continue
        if _is_known(condition, known.get(condition.type), causes.get(condition.type, frozenset())):
            continue
        yielded |= {condition.reason, condition.message}
        yield condition.reason, condition.message


def is_unready(conditions: Sequence[Condition]) -> bool:
    """Whether a flow with *conditions* is not Ready, and no user asked for that, as by a pause or a seed."""
    ready = next((condition for condition in conditions if condition.type == ConditionType.READY.value), None)
    return ready is None or (ready.status is not ConditionStatus.TRUE and ready.reason not in _REQUESTED)


def _is_known(condition: Condition, before: Condition | None, causes: frozenset[str]) -> bool:
    """Whether *before* is the same problem; its message names the causes, so they survive a restart."""
    if before is None or (before.status, before.reason) != (condition.status, condition.reason):
        return False
    if condition.type == ConditionType.DEGRADED.value:
        return condition.message == before.message
    return causes <= set(_WORD.findall(before.message))


def _is_problem(condition: Condition) -> bool:
    if condition.type == ConditionType.DEGRADED.value:
        return condition.status is ConditionStatus.TRUE
    if condition.reason == Reason.SOURCE_DATA_LOST.value or condition.reason in _FAILED_RUNS:
        return True
    return (
        condition.type in _FALSE_IS_PROBLEM
        and condition.status is ConditionStatus.FALSE
        and condition.reason not in _REQUESTED
    )
