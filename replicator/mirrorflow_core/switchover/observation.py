"""What both clusters report now, as the switchover's state machine needs it. None means unknown: not read, or not readable.

The machine decides from one observation at a time, and compares parts of it. So the observer

- holds the switchover lock of the pair on each cluster that it reads, and drops the observation if it has lost one;
- reads in the order of the fields, also those of a cluster: an end of a log that is read after the flow has ended, or after the
  fence is listed, cannot grow by what the flow or a fenced application writes.

Fields that the present state does not need may stay None; `state_machine` says which state needs which.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.loss import LossAssessment, PartitionCut
from mirrorflow_core.switchover.record import SwitchoverRecord


class SwitchoverSide(Enum):
    """A cluster by its part in the switchover: applications move from the source to the target."""

    SOURCE = "source"
    TARGET = "target"


class FenceState(Enum):
    """How much of the fence the brokers of a cluster list; it has a binding for each topic or prefix."""

    ABSENT = "absent"
    PARTIAL = "partial"
    COMPLETE = "complete"


class ReadinessCheck(Enum):
    """What must be true before a planned switchover changes anything; the value is its name in status and reports."""

    PERMISSIONS = "permissions"  # each request of the later states is permitted on both clusters
    FLOWS = "flows"  # the two flows of the pair mirror each other, and the reverse flow is valid and stopped
    LAG = "lag"
    VERIFICATION = "verification"  # recent enough, and equal
    GROUPS = "groups"  # offsets of all groups translate exactly
    TRANSACTIONS = "transactions"  # none is open for more than a minute
    PRODUCER_IDS = "producerIds"  # no active producer id of the source is also known to the target
    ENDPOINT = "endpoint"  # it can be read and switched
    FENCE = "fence"  # tried on a canary topic: writes are refused, and accepted after it is lifted


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionEnd:
    """The end of one partition; offsets are exclusive."""

    topic_id: str
    end: int
    last_stable: int  # below `end` while a transaction is open


@dataclass(frozen=True, slots=True, kw_only=True)
class TailDigest:
    """The newest records before the end of a partition of the source, which its copy must end with."""

    records: int  # their number
    digest: str  # of them, in their order, as they are copied; "": not taken


@dataclass(frozen=True, slots=True, kw_only=True)
class TailDigests:
    """The newest records before all ends of one observation. Digests are keyed, so that no writer can prepare records that collide."""

    key: str
    partitions: Mapping[TopicPartition, TailDigest]


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWrite:
    """A producer that a partition's leader remembers (DescribeProducers)."""

    partition: TopicPartition
    producer_id: int
    written_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterObservation:
    """One cluster. Partitions are those of the forward flow, all of them, by their names on this cluster."""

    records: tuple[SwitchoverRecord, ...] | None = None  # of the pair, in this cluster's journal
    fence: FenceState | None = None
    ends: Mapping[TopicPartition, PartitionEnd] | None = None
    unchanged_ms: int | None = (
        None  # how long `ends` and the fence have been the same, by the observer's monotonic clock
    )
    tails: TailDigests | None = None  # of `ends`
    unfenced_topics: tuple[str, ...] = ()  # that were created since the fence was set
    last_writes: tuple[LastWrite, ...] = ()  # names the producers, where ends grow under a fence


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowEnd:
    """Whether the forward flow has ended: its claim is committed after each log has the marker of the newest epoch.

    So where the claim names an end, all writers before it are refused.
    """

    switchover: str  # the id that the flow's newest claim names as its end; "": the flow may run


@dataclass(frozen=True, slots=True, kw_only=True)
class SealVerification:
    """The comparison of both sides up to a seal."""

    seal_sha256: str
    differences: tuple[str, ...] = ()  # a sentence for each; empty: equal
    digests_equal: int = 0  # partitions whose copy ends with the records of the seal's digest


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPass:
    """The groups of the pair that are not ready for the target."""

    active: tuple[str, ...] = ()  # with members at the source
    behind: tuple[str, ...] = ()  # whose offsets at the target are not the translated ones


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupClamp:
    """A pass over the groups that needed the target alone, by the process that observes, since the flow has ended."""

    refused: tuple[str, ...] = ()  # groups that were not placed, such as those with members at the target


@dataclass(frozen=True, slots=True, kw_only=True)
class ReverseFlow:
    """The flow from target to source."""

    started_by: str  # the id of the switchover that stored where it starts; "": none
    is_copying: bool = False  # a process of it owns it
    held_by: str = ""  # the id of the switchover that has ended or held it; "": its processes may copy


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchoverObservation:
    """Everything that is known at one moment, in the order in which it is read."""

    runner: str  # the process that observes; unique for each start
    rollback_requested: bool = False
    gives_up_target: bool = False  # the user rolls back although the target, which is not read, may be lost
    # "": passed; otherwise a sentence with the field and the cure. A check without a result is not in it.
    checks: Mapping[ReadinessCheck, str] = field(default_factory=dict)
    endpoint: str | None = None  # the alias of the member that clients are led to, as it reads back
    flow_end: FlowEnd | None = None
    source: ClusterObservation = ClusterObservation()
    copied: Mapping[TopicPartition, int] | None = (
        None  # the forward flow's committed offsets: the next to copy
    )
    verification: SealVerification | None = None  # the newest
    loss: LossAssessment | None = None
    # Whether the fence of the source can be tried now: its brokers answer, or the fence does not need them. False: not known.
    can_fence_source: bool = False
    cuts: tuple[PartitionCut, ...] | None = (
        None  # read after `flow_end`; before the flow has ended they prove nothing
    )
    clamp: GroupClamp | None = None
    groups: GroupPass | None = None
    target: ClusterObservation = ClusterObservation()
    reverse: ReverseFlow | None = None
