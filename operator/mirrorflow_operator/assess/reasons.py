"""Every type and every reason of a condition, and which of them nobody has to wait for.

docs/conditions.md says of each what it means and what to do; a test holds it to this list.
"""

from enum import Enum
from typing import Final


class Kind(Enum):
    """A question that a condition answers, in the order in which they are shown."""

    READY = "Ready"
    ACCEPTED = "Accepted"
    SOURCE_REACHABLE = "SourceReachable"
    TARGET_REACHABLE = "TargetReachable"
    REPLICATING = "Replicating"
    CHECKPOINTS_FRESH = "CheckpointsFresh"
    SEEDED = "Seeded"
    VERIFIED = "Verified"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"


class Reason(Enum):
    """The words of all conditions."""

    # Accepted
    ACCEPTED = "Accepted"
    INVALID_SPEC = "InvalidSpec"
    UNKNOWN_VERSION = "UnknownVersion"
    LOOP_FOUND = "LoopFound"
    TOPIC_COLLISION = "TopicCollision"
    FLOW_EXISTS = "FlowExists"
    CLUSTER_CHANGED = "ClusterChanged"
    IDENTITY_REFUSED = "IdentityRefused"
    SECRET_MISSING = "SecretMissing"  # noqa: S105  a word
    SETTINGS_REFUSED = "SettingsRefused"
    # SourceReachable, TargetReachable
    REACHABLE = "Reachable"
    UNREACHABLE = "Unreachable"
    AUTHENTICATION_FAILED = "AuthenticationFailed"
    NOT_AUTHORIZED = "NotAuthorized"
    UNSUPPORTED_BROKER = "UnsupportedBroker"
    NOT_ASKED = "NotAsked"
    # Replicating
    ADVANCING = "Advancing"
    IDLE = "Idle"
    THROTTLED = "Throttled"
    STUCK = "Stuck"
    PARTITIONS_STOPPED = "PartitionsStopped"
    TOPICS_NOT_COPIED = "TopicsNotCopied"
    SOURCE_DATA_LOST = "SourceDataLost"
    WAITING = "Waiting"
    STARTING = "Starting"
    PROGRESS_UNKNOWN = "ProgressUnknown"
    # CheckpointsFresh
    FRESH = "Fresh"
    STALE = "Stale"
    GROUPS_FAILING = "GroupsFailing"
    # Ready, besides the reasons of what keeps it from being so
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
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    NOT_STALLED = "NotStalled"
    # Seeded, Verified
    SEEDING = "Seeding"  # of Replicating, Ready and Reconciling, too
    SEEDED = "Seeded"
    SEED_FAILED = "SeedFailed"
    VERIFYING = "Verifying"
    EQUAL = "Equal"
    DIFFERENCES_FOUND = "DifferencesFound"
    UNDECIDED = "Undecided"
    VERIFICATION_FAILED = "VerificationFailed"
    VERIFICATION_OVERDUE = "VerificationOverdue"
    JOB_DELETED = "JobDeleted"
    NOT_VERIFIED_YET = "NotVerifiedYet"


# Of the spec alone: time does not heal it, somebody has to write another one (kstatus: Failed).
FINAL: Final = frozenset(
    {
        Reason.INVALID_SPEC,
        Reason.UNKNOWN_VERSION,
        Reason.LOOP_FOUND,
        Reason.TOPIC_COLLISION,
        Reason.FLOW_EXISTS,
        Reason.CLUSTER_CHANGED,
        Reason.SETTINGS_REFUSED,
    }
)
# What somebody has asked for, or written: Ready says so at once, and does not wait to see whether it passes.
DECIDED: Final = FINAL | {
    Reason.PAUSING,
    Reason.PAUSED,
    Reason.STOPPING,
    Reason.STOPPED,
    Reason.SECRET_MISSING,
    Reason.IDENTITY_REFUSED,
}
