"""What a task says of each partition, and a connector of itself.

Tasks send these values as JSON lines; the worker keeps the newest of each partition and renders REST, metrics and
progress from them. Only partitions whose report changed are sent, so ten thousand idle ones cost nothing.
A report never holds a payload or a secret.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from mirrorflow_replicator.flow.group_offsets import GroupOffset


class Phase(Enum):
    """What a partition is doing."""

    STARTING = "starting"  # asking the target where to go on
    COPYING = "copying"
    WAITING = "waiting"  # another copier of the flow is at work (DESIGN 4.2, clause 10)
    STOPPED = "stopped"  # by an error; `reason` and `message` say which


class Guarantee(Enum):
    """What holds for the records of a partition (DESIGN 4.2, "Say what holds").

    There is no third: a partition for which neither can be shown to hold stops and says so, unless the policy for lost
    source data tells it to go on.
    """

    EXACTLY_ONCE = "exactly-once"
    SINGLE_WRITER = "exactly-once-single-writer"  # old timestamps: the leader may forget us


@dataclass(frozen=True, slots=True, kw_only=True)
class SideReport:
    """Whether one of the two clusters can be used; `reason` is PascalCase, "" if it can, None if nobody has tried yet."""

    reason: str | None = None
    since_s: float = 0.0  # wall clock; of that answer
    cluster_id: str = ""


UNKNOWN_SIDE = SideReport()


def worst_side(sides: Iterable[SideReport]) -> SideReport:
    """What is to be said where several clients use one cluster: one that cannot is enough, the longest at that."""
    known = [side for side in sides if side.reason is not None]
    if not known:
        return UNKNOWN_SIDE
    worst = min(known, key=lambda side: (not side.reason, side.since_s))
    cluster_id = worst.cluster_id or next((side.cluster_id for side in known if side.cluster_id), "")
    return replace(worst, cluster_id=cluster_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReport:
    """One partition. Offsets are of the next record to be copied; -1 is unknown. Counts are since the task began."""

    topic: str  # on the source
    target_topic: str
    partition: int
    phase: Phase
    source_offset: int = -1  # next to be delivered
    source_end_offset: int = -1  # high watermark (last stable offset with read_committed) as last seen
    target_offset: int = -1  # end of the target as last acknowledged
    records: int = 0
    bytes: int = 0
    value_bytes: int = 0  # what MM2's byte-count counts; equals `bytes` where values were not looked at
    batches_raw: int = 0
    batches_coalesced: int = 0
    batches_reencoded: int = 0
    skipped_records: int = 0  # aborted and control, never delivered
    lost_records: int = 0  # source offsets that were gone, where the policy was to go on
    losses: int = 0  # how often records were lost, or may have been, on either side, and policy was to go on
    refused_writes: int = 0  # answers that made us ask the target again
    record_timestamp_ms: int = -1  # of the newest delivered record
    record_age_ms: float = -1  # at fetch, last sample (MM2 record-age-ms)
    latency_ms: float = -1  # at acknowledgement, last sample (MM2 replication-latency-ms)
    reached_start_end: bool = False  # delivered up to the end offset seen when the task began
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    guarantee_reason: str = ""
    reason: str = ""  # PascalCase, of the error that stopped it or holds it up
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """One task, as a whole. Partitions hold only those that changed since the last report."""

    task: int
    state: str  # Connect's words: RUNNING, FAILED, PAUSED, UNASSIGNED
    trace: str = ""  # the sentence of the error that failed it
    reason: str = ""  # PascalCase, of the same error
    partitions: tuple[PartitionReport, ...] = ()
    errors: Mapping[str, int] = field(default_factory=dict)  # counted by reason since the task began
    throttle_ms: int = 0  # waited because a broker asked for it, since the task began
    refused_settings: tuple[str, ...] = ()
    offset_syncs: int = 0  # written since the task began
    is_here: bool = True  # on this node of a group
    worker_id: str = ""  # of the node that has it; "": the connector's
    warnings: tuple[str, ...] = ()  # what is not done beside the copying, and why
    source: SideReport = UNKNOWN_SIDE
    target: SideReport = UNKNOWN_SIDE


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReport:
    """The newest heartbeat known in one topic: written there by this connector, or copied there."""

    cluster: str  # alias of the cluster that has the topic
    topic: str
    timestamp_ms: int  # as the heartbeat says it, by the clock of who wrote it


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLatency:
    """How long the last checkpoint of a group and target partition took until it was acknowledged (MM2's metric)."""

    group: str
    topic: str  # on the target
    partition: int
    latency_ms: float
    spread_ms: tuple[float, float, float] | None = (
        None  # least, greatest, mean of the window; None: no sample in it
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsReport:
    """What a checkpoint connector does with consumer groups. Counts of groups are as of now, the others since it began."""

    selected: int = 0  # groups of the source whose offsets are translated
    failing: int = 0  # of these, groups that cannot be read or written; `warnings` name them
    unlike: int = 0  # selected, but of a kind that has no offsets to translate
    active: int = 0  # of these, groups with members on the target, which are left alone
    checkpoints: int = 0  # written
    moved: int = 0  # offsets that groups of the target were given
    passed_s: float | None = None  # wall clock, of the last pass over all groups that succeeded
    interval_s: float | None = None  # between passes
    translations: Mapping[str, int] = field(
        default_factory=dict
    )  # partitions of groups: exact, bound, unknown
    latencies: tuple[CheckpointLatency, ...] = ()
    # Of one group, or of all (None), as of the last pass. Made when it is asked for: there may be a million lines.
    offsets: Callable[[str | None], Iterable[GroupOffset]] = field(
        default=lambda _: (), compare=False, repr=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorReport:
    """A connector and all it is known to do; what REST, /metrics and /progress are rendered from."""

    name: str
    connector_class: str
    flow: str
    source_alias: str
    target_alias: str
    properties: Mapping[str, str]  # unresolved
    state: str
    trace: str = ""
    reason: str = ""  # PascalCase, of the error that `trace` is about
    worker_id: str = ""
    version: str = ""  # of this program, as Connect says a plug-in's
    started_at_s: float = 0.0  # wall clock
    now_s: float = 0.0
    tasks: tuple[TaskReport, ...] = ()  # `partitions` whole here, sorted by topic and partition
    task_properties: tuple[Mapping[str, str], ...] = ()
    topics: tuple[str, ...] = ()  # active target topics
    records_per_s: float = 0.0
    bytes_per_s: float = 0.0
    lag_s: float = -1.0
    warnings: tuple[str, ...] = ()
    heartbeats: tuple[HeartbeatReport, ...] = ()
    groups: GroupsReport | None = None  # of a checkpoint connector
    heard_of_all: bool = False  # every partition was heard of: what is said of the whole holds for the whole
    is_here: bool = True  # the connector itself, on this node of a group
    uncopied: tuple[str, ...] = ()  # a sentence for each selected topic that is not, or not wholly, copied
    source: SideReport = UNKNOWN_SIDE
    target: SideReport = UNKNOWN_SIDE
    missing: tuple[str, str] | None = None  # folder and file that a setting names and this host does not have
