"""The reports that tasks and connectors send about themselves and each partition.

Tasks send these values as JSON lines. The worker keeps the newest report of each partition and renders REST,
metrics and progress from them. Only partitions with a changed report are sent, so ten thousand idle ones cost
nothing. A report never contains record data or a secret. Times since which something holds are by the monotonic clock, which
all processes of a host share.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from enum import Enum
from typing import NamedTuple

from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.offsets.application_offsets import ApplicationOffset, ApplicationTranslation
from mirrorflow_core.offsets.checkpoints import GroupOffset


def known_number(number: int) -> int | None:
    """Returns *number*; None if it is negative, which stands for an unknown one."""
    return None if number < 0 else number


class PartitionPhase(Enum):
    """The state of copying a partition."""

    STARTING = "starting"  # querying the target where to continue
    COPYING = "copying"
    WAITING = "waiting"  # nothing copies it now, because the connector is paused
    STOPPED = "stopped"  # by the error in `reason` and `message`


class Guarantee(Enum):
    """The guarantee for the records of a partition (docs/exactly-once.md).

    A partition for which neither guarantee can be shown stops with an error, unless the loss policy lets it
    continue.
    """

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"  # no other writer can be fenced, and positions are in no transaction


class AcknowledgedPosition(NamedTuple):
    """A position that a task had no time to store: the source's topic and partition, and the encoded value."""

    topic: str
    partition: int
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SideReport:
    """Whether a cluster can be used. `reason`: PascalCase error, "" if it can, None if not yet tried."""

    reason: str | None = None
    since_s: float = 0.0  # monotonic clock; start of this state
    cluster_id: str | None = None
    message: str = field(default="", compare=False)  # of the newest error since this state began


UNKNOWN_SIDE = SideReport()


def worst_side(sides: Iterable[SideReport]) -> SideReport:
    """Returns one report for several clients of a cluster: the longest failure if any client fails."""
    known = [side for side in sides if side.reason is not None]
    if not known:
        return UNKNOWN_SIDE
    worst = min(known, key=lambda side: (not side.reason, side.since_s))
    cluster_id = worst.cluster_id or next(
        (side.cluster_id for side in known if side.cluster_id is not None), None
    )
    return replace(worst, cluster_id=cluster_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReport:
    """The report on one partition. Offsets are of the next record. Counts start with the task. None: unknown, or no such thing."""

    topic: str  # on the source
    target_topic: str
    partition: int
    phase: PartitionPhase
    source_offset: int | None = (
        None  # after the last delivered record, inside transactions the last committed one
    )
    # Last known high watermark. With read_committed the last stable offset, unless an open transaction stalls it.
    source_end_offset: int | None = None
    target_offset: int | None = None  # end of the target as last acknowledged
    records: int = 0
    bytes: int = 0
    value_bytes: int = 0  # MM2's byte-count; equals `bytes` where values were not decoded
    batches_raw: int = 0
    batches_coalesced: int = 0
    batches_reencoded: int = 0
    skipped_records: int = 0  # aborted and control records, never delivered
    lost_records: int = 0  # source offsets left out: gone where the loss policy continued, or refused
    # Number of certain or possible losses, on either cluster, where the loss policy continued.
    losses: int = 0
    refused_writes: int = 0  # responses after which the target was queried again
    record_timestamp_ms: int | None = None  # of the newest delivered record
    record_age_ms: float | None = None  # at fetch, last sample (MM2 record-age-ms)
    latency_ms: float | None = None  # at acknowledgement, last sample (MM2 replication-latency-ms)
    reached_start_end: bool = False  # delivered up to the end offset seen when the task began
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    guarantee_reason: str | None = None
    reason: str | None = None  # PascalCase, of the error that stops or delays it, or of its stall
    message: str | None = None  # of the same
    stalled_since_ms: int | None = None  # monotonic clock; None: not stalled
    source_leader_epoch: int | None = None
    target_leader_epoch: int | None = None
    write_mode: str | None = None  # of WriteMode

    @property
    def is_stalled(self) -> bool:
        """Whether it makes no progress although it has something to copy."""
        return self.stalled_since_ms is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """The report on one task. `partitions` holds only those that changed since the last report."""

    task: int
    state: str  # as in Connect: RUNNING, FAILED, PAUSED, UNASSIGNED
    trace: str | None = None  # message of the error that failed it; None: it has not failed
    reason: str | None = None  # PascalCase, of the same error
    partitions: tuple[PartitionReport, ...] = ()
    errors: Mapping[str, int] = field(default_factory=dict)  # number by reason since the task began
    throttle_ms: int = 0  # time waited for broker throttling, since the task began
    is_rate_limited: bool = False  # its rate limit holds a reader back at present
    refused_settings: tuple[str, ...] = ()
    offset_syncs: int = 0  # written since the task began
    active_records: int | None = None  # sent and not yet acknowledged; None: unknown, as below
    buffer_free_bytes: int | None = None  # free part of the buffer for fetched data
    commit_ms: float | None = None  # mean duration of the newest offset commits
    is_here: bool = True  # on this node of a group
    worker_id: str | None = None  # of the node that runs it; None: the connector's
    warnings: tuple[str, ...] = ()  # side duties that are not done, and why
    source: SideReport = UNKNOWN_SIDE
    target: SideReport = UNKNOWN_SIDE
    # How often its process has ended a start as the only writer, and waits for the next one.
    sessions_ended: int = 0
    acknowledged: tuple[AcknowledgedPosition, ...] = ()  # of the start that has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReport:
    """The newest heartbeat known in one topic: written there by this connector, or copied there."""

    cluster: str  # alias of the cluster with the topic
    topic: str
    timestamp_ms: int  # from the heartbeat, by its writer's clock


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLatency:
    """The time until the last checkpoint of a group and target partition was acknowledged (MM2's metric)."""

    group: str
    topic: str  # on the target
    partition: int
    latency_ms: float
    # Minimum, maximum, mean of the window; None: no sample.
    spread_ms: tuple[float, float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsReport:
    """The report of a checkpoint connector. Numbers of groups are current, other counts start with the connector."""

    selected: int = 0  # groups of the source whose offsets are translated
    failing: int = 0  # of these, groups that cannot be read or written; `warnings` name them
    unlike: int = 0  # selected groups of a type without offsets to translate
    active: int = 0  # selected groups with members on the target, which are not moved
    checkpoints: int = 0  # written
    moved: int = 0  # offsets committed for target groups
    passed_s: float | None = None  # monotonic clock at the end of the last successful pass over all groups
    interval_s: float | None = None  # between passes
    followed_by: str | None = (
        None  # how groups are followed between passes: commit-log, polls; None: not at all
    )
    followed_s: float | None = None  # monotonic clock when the groups were last followed
    translations: Mapping[str, int] = field(
        default_factory=dict
    )  # number of group partitions by precision: exact, bound, unknown
    read_again_records: int | None = (
        None  # that all groups read again at most, once they are moved; None: not known of one of them
    )
    latencies: tuple[CheckpointLatency, ...] = ()
    # Returns the offsets of one group, or of all (None), at the last pass. Lazy, because there may be a
    # million.
    offsets: Callable[[str | None], Iterable[GroupOffset]] = field(
        default=lambda _: (), compare=False, repr=False
    )
    # Translates offsets of applications, with True from the target to the source. None: nothing was read yet.
    translate: (
        Callable[[Sequence[ApplicationOffset], bool], Awaitable[list[ApplicationTranslation]]] | None
    ) = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemasReport:
    """The report of a schema connector. *registered* counts from its start, the others are of the last pass."""

    subjects: int = 0  # that are copied
    versions: int = 0
    missing: int = 0  # versions that the target lacks
    conflicts: int = 0
    registered: int = 0
    passed_s: float | None = None  # monotonic clock at the end of the last pass without an error
    interval_s: float = 0.0  # between passes


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorReport:
    """The report on one connector, from which REST, /metrics and /progress are rendered."""

    name: str
    connector_class: str
    flow: str
    source_alias: str
    target_alias: str
    properties: Mapping[str, str]  # unresolved
    state: str
    trace: str | None = None  # message of the error that keeps it from running; None: there is none
    reason: str | None = None  # PascalCase, of the error in `trace`
    worker_id: str | None = None  # None: this worker's
    version: str | None = None  # of this program, as Connect reports a plug-in's
    started_at_s: float = 0.0  # monotonic clock
    tasks: tuple[TaskReport, ...] = ()  # with all `partitions`, sorted by topic and partition
    task_properties: tuple[Mapping[str, str], ...] = ()
    topics: tuple[str, ...] = ()  # active target topics
    warnings: tuple[str, ...] = ()
    heartbeats: tuple[HeartbeatReport, ...] = ()
    groups: GroupsReport | None = None  # of a checkpoint connector
    schemas: SchemasReport | None = None  # of a schema connector
    has_reported_all: bool = False  # every partition has reported, so totals are complete
    is_here: bool = True  # whether the connector itself is on this node of a group
    is_standby: bool = False  # another process owns the flow; this one takes over when that one stops
    uncopied: tuple[str, ...] = ()  # a sentence for each selected topic that is not, or not fully, copied
    nothing_selected: str | None = (
        None  # a sentence if no topic except heartbeats is selected; None: some are
    )
    source: SideReport = UNKNOWN_SIDE
    target: SideReport = UNKNOWN_SIDE
    # Folder and file that a setting names and that do not exist on this host.
    missing: tuple[str, str] | None = None
