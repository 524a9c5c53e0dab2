"""Decides whether a connector replicates, from the progress of its partitions, never from a task's own state.

Heartbeats do not count: they move while nothing else does.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from mirrorflow_core.replication_policy import HEARTBEATS, DefaultPolicy
from mirrorflow_core.reports import ConnectorReport, Guarantee, PartitionPhase, PartitionReport
from mirrorflow_replicator.http.partition_rates import NO_RATE, Rate, lag_records
from mirrorflow_replicator.http.worker_view import WorkerView

STUCK_AFTER_S = 30.0  # one window without a record while the source has some
NOT_COPIED = "TopicNotCopied"  # reason of a topic that is selected but not, or not completely, copied
NOTHING_MATCHES = "NothingMatches"  # reason of a connector that selects no topic


class ReplicatingState(Enum):
    """Whether a connector replicates, decided from its observed progress."""

    ADVANCING = "Advancing"  # records were delivered within the window, or its own rate limit holds it back
    IDLE = "Idle"  # nothing to copy
    THROTTLED = "Throttled"  # a broker throttles us, and there is something to copy
    STUCK = "Stuck"  # something to copy, and nothing moved for the window; or a topic that cannot be copied
    SOURCE_DATA_LOST = (
        "SourceDataLost"  # a partition stopped because records were gone before they were copied
    )
    PAUSED = "Paused"
    WAITING = "Waiting"  # starting, lag not known yet, or another process owns the flow


@dataclass(slots=True)
class Totals:
    """Sums over the partitions of a connector; lag counts only partitions whose lag is known."""

    partitions: int = 0
    phases: Counter[PartitionPhase] = field(default_factory=Counter)
    behind_start: int = 0  # partitions that have not reached the end offsets seen at start
    lag_records: int = 0
    lags_unknown: int = 0  # partitions whose lag is not known
    lags_unknown_at_work: int = 0  # of those, partitions that have not stopped
    lag_s: float | None = None  # the greatest; None: no partition with a lag knows its age
    rate: Rate = NO_RATE
    is_advancing: bool = False  # records of a topic other than heartbeats were copied within the window
    is_behind: bool = False  # a topic other than heartbeats has records to copy
    guarantees: Counter[Guarantee] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)  # by reason, if any: "orders-3: " and the error
    stalled: int = 0  # partitions that have something to copy but do not advance


def partitions_of(report: ConnectorReport) -> Iterator[PartitionReport]:
    """Yields all partitions of *report*, by task."""
    return (partition for task in report.tasks for partition in task.partitions)


def has_started(connectors: tuple[ConnectorReport, ...]) -> bool:
    """Whether every connector's tasks run and none of their partitions is still starting.

    A connector that still discovers its topics must not report RUNNING. Partitions that are stopped or
    waiting count as started.
    """
    return bool(connectors) and all(_has_started(report) for report in connectors)


def _has_started(report: ConnectorReport) -> bool:
    if report.state not in {"RUNNING", "PAUSED"} or len(report.tasks) < len(report.task_properties):
        return False
    if any(task.state not in {"RUNNING", "PAUSED"} for task in report.tasks):
        return False
    return all(partition.phase is not PartitionPhase.STARTING for partition in partitions_of(report))


def is_ready(report: ConnectorReport, view: WorkerView) -> bool:
    """Whether *report* is complete for its connector, even if other connectors are not ready."""
    return view.ready or (report.has_reported_all and _has_started(report))


def totals(report: ConnectorReport, view: WorkerView) -> Totals:
    """Sums up *report* with the rates that *view* has sampled."""
    total = Totals()
    heartbeats = _heartbeats(report)
    for part in partitions_of(report):
        total.partitions += 1
        total.phases[part.phase] += 1
        total.guarantees[part.guarantee] += 1
        total.behind_start += not part.reached_start_end
        total.stalled += part.is_stalled
        if part.reason is not None:
            total.reasons[part.reason] += 1
            total.examples.setdefault(part.reason, f"{part.topic}-{part.partition}: {part.message}")
        # The last known end offsets of an unreachable source may be outdated. While the target is away, nothing
        # is fetched, so what was the end may be so no more: a lag that is known has not become less. The same holds for a stall.
        records = None if report.source.reason else lag_records(part)
        if records == 0 and (report.target.reason or part.is_stalled):
            records = None
        total.lags_unknown += records is None
        total.lags_unknown_at_work += records is None and part.phase is not PartitionPhase.STOPPED
        if records:
            total.lag_records += records
            lag_s = view.samples.lag_s(report.name, part, view.monotonic_s, view.now_s)
            if lag_s is not None:
                total.lag_s = max(total.lag_s or 0.0, lag_s)
        rate = view.samples.rate(report.name, part.topic, part.partition, view.monotonic_s)
        total.rate = total.rate.plus(rate)
        if part.topic not in heartbeats:
            total.is_advancing |= rate.records > 0
            total.is_behind |= bool(records)
    if not total.lag_records:
        total.lag_s = 0.0
    paced = view.samples.rate_of_tasks(report.name, view.monotonic_s)
    total.rate = total.rate if paced is None else paced
    total.reasons.update(
        reason for reason in (report.reason, *(task.reason for task in report.tasks)) if reason is not None
    )
    if report.uncopied:
        total.reasons[NOT_COPIED] += len(report.uncopied)
        total.examples[NOT_COPIED] = report.uncopied[0]
    if report.nothing_selected is not None:
        total.reasons[NOTHING_MATCHES] += 1
        total.examples[NOTHING_MATCHES] = report.nothing_selected
    return total


def replicating(report: ConnectorReport, total: Totals, view: WorkerView) -> ReplicatingState:
    """Returns the state that *report* is observed to be in."""
    if report in view.elsewhere:
        return ReplicatingState.WAITING  # other nodes of the group have all tasks
    if report.state == "PAUSED":
        return ReplicatingState.PAUSED
    if report.is_standby:
        return ReplicatingState.WAITING
    if total.reasons["SourceDataLost"]:
        return ReplicatingState.SOURCE_DATA_LOST
    if total.is_behind and view.samples.is_throttled(report.name, view.monotonic_s):
        return ReplicatingState.THROTTLED
    if total.is_advancing:
        return ReplicatingState.ADVANCING
    stopped, waiting = total.phases[PartitionPhase.STOPPED], total.phases[PartitionPhase.WAITING]
    ready = is_ready(report, view)
    starting = total.phases[PartitionPhase.STARTING] or (total.partitions == 0 and not ready)
    if report.state == "FAILED" or (report.tasks and all(task.state == "FAILED" for task in report.tasks)):
        return ReplicatingState.STUCK
    young = view.monotonic_s - report.started_at_s < STUCK_AFTER_S
    # A topic without a copy has no partition here. Once all tasks have reported, waiting does not help.
    if report.uncopied and (ready or not young):
        return ReplicatingState.STUCK
    if young and (starting or total.is_behind):
        return ReplicatingState.WAITING
    if total.phases[PartitionPhase.STARTING] or report.state == "UNASSIGNED":
        return ReplicatingState.STUCK
    if waiting and total.is_behind:
        return ReplicatingState.WAITING
    if stopped and stopped == total.partitions:
        return ReplicatingState.STUCK
    if total.is_behind:
        # One response may take a low rate limit longer than the window.
        is_limited = any(task.is_rate_limited for task in report.tasks)
        return ReplicatingState.ADVANCING if is_limited else ReplicatingState.STUCK
    # Right after the start no lag is known, which does not mean that there is none. Nor is it known what there
    # is to copy while a cluster is away.
    is_unknown = total.lags_unknown_at_work or report.source.reason or report.target.reason
    return ReplicatingState.WAITING if is_unknown else ReplicatingState.IDLE


def _heartbeats(report: ConnectorReport) -> frozenset[str]:
    """Returns the topics of *report* that hold heartbeats, as the flow's policy recognises them.

    By its name, `orders.heartbeats` may be the copy of another cluster's heartbeats, or a topic of the user's own. In a
    flow that copies nothing else it counts as the user's: otherwise such a flow would look idle for ever.
    """
    separator = report.properties.get("replication.policy.separator") or "."
    # Identity names heartbeats as Default does. A user's own policy class is not loaded for a report.
    policy = DefaultPolicy(separator)
    topics = {part.topic for part in partitions_of(report)}
    recognised = frozenset(filter(policy.is_heartbeats_topic, topics))
    return recognised if topics - recognised else recognised & {HEARTBEATS}
