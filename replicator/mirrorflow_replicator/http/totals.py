"""Adds up what a connector's partitions and tasks report, and derives one state for the connector.

`replicating` is decided from the observed progress, never from a task's own state. Heartbeats do not count:
they move while nothing else does.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from mirrorflow_core.replication_policy import HEARTBEATS, DefaultPolicy
from mirrorflow_core.reports import ConnectorReport, Guarantee, PartitionPhase, PartitionReport
from mirrorflow_replicator.http.samples import NO_RATE, Rate, lag_records
from mirrorflow_replicator.http.worker_view import WorkerView

STUCK_AFTER_S = 30.0  # one window without a record while the source has some
NOT_COPIED = "TopicNotCopied"  # reason of a topic that is selected but not, or not completely, copied
NOTHING_MATCHES = "NothingMatches"  # reason of a connector that selects no topic


class ReplicatingState(Enum):
    """What a connector is observed to do."""

    ADVANCING = "Advancing"  # records were delivered within the window
    IDLE = "Idle"  # nothing to copy
    THROTTLED = "Throttled"  # a broker throttles us, and there is something to copy
    STUCK = "Stuck"  # something to copy, and nothing moved for the window; or a topic that cannot be copied
    SOURCE_DATA_LOST = (
        "SourceDataLost"  # a partition stopped because records were gone before they were copied
    )
    PAUSED = "Paused"
    WAITING = "Waiting"  # starting, lag not known yet, or another process owns the flow


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over the partitions of a connector; lag counts only partitions whose lag is known."""

    partitions: int
    phases: Counter[PartitionPhase]
    behind_start: int  # partitions that have not reached the end offsets seen at start
    lag_records: int
    lags_unknown: int  # partitions whose lag is not known
    lags_unknown_at_work: int  # of those, partitions that have not stopped
    lag_s: float  # the greatest; -1: no partition with a lag knows its age
    rate: Rate
    is_advancing: bool  # records of a topic other than heartbeats were copied within the window
    is_behind: bool  # a topic other than heartbeats has records to copy
    guarantees: Counter[Guarantee]
    reasons: Counter[str]
    examples: Mapping[str, str]  # by reason, if any: "orders-3: " and the error
    stalled: int  # partitions that have something to copy but do not advance


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
    return view.ready or (report.heard_of_all and _has_started(report))


def totals(report: ConnectorReport, view: WorkerView) -> Totals:
    """Sums up *report* with the rates that *view* has sampled."""
    phases: Counter[PartitionPhase] = Counter()
    guarantees: Counter[Guarantee] = Counter()
    reasons: Counter[str] = Counter()
    examples: dict[str, str] = {}
    behind_start = lag = unknown = unknown_at_work = count = stalled = 0
    age_s, age_known, rate = 0.0, False, NO_RATE
    is_advancing = is_behind = False
    heartbeats = _heartbeats(report)
    for part in partitions_of(report):
        count += 1
        phases[part.phase] += 1
        guarantees[part.guarantee] += 1
        behind_start += not part.reached_start_end
        stalled += part.is_stalled
        if part.reason:
            reasons[part.reason] += 1
            examples.setdefault(part.reason, f"{part.topic}-{part.partition}: {part.message}")
        # What was known of an unreachable source may be outdated.
        records = -1 if report.source.reason else lag_records(part)
        unknown += records < 0
        unknown_at_work += records < 0 and part.phase is not PartitionPhase.STOPPED
        if records > 0:
            lag += records
            age = view.samples.lag_s(report.name, part, view.now_s, view.now_s)
            age_known = age_known or age >= 0
            age_s = max(age_s, age)
        counts = part.topic not in heartbeats
        its_rate = view.samples.rate(report.name, part.topic, part.partition, view.now_s)
        rate = rate.plus(its_rate)
        is_advancing = is_advancing or (counts and its_rate.records > 0)
        is_behind = is_behind or (counts and records > 0)
    reasons.update(word for word in (report.reason, *(task.reason for task in report.tasks)) if word)
    if report.uncopied:
        reasons[NOT_COPIED] += len(report.uncopied)
        examples[NOT_COPIED] = report.uncopied[0]
    if report.nothing_selected:
        reasons[NOTHING_MATCHES] += 1
        examples[NOTHING_MATCHES] = report.nothing_selected
    return Totals(
        partitions=count,
        phases=phases,
        behind_start=behind_start,
        lag_records=lag,
        lags_unknown=unknown,
        lags_unknown_at_work=unknown_at_work,
        lag_s=age_s if age_known or lag == 0 else -1.0,
        rate=rate,
        is_advancing=is_advancing,
        is_behind=is_behind,
        guarantees=guarantees,
        reasons=reasons,
        examples=examples,
        stalled=stalled,
    )


def replicating(report: ConnectorReport, total: Totals, view: WorkerView) -> ReplicatingState:
    """Returns the state that *report* is observed to be in."""
    if report in view.elsewhere:
        return ReplicatingState.WAITING  # for work: other nodes have all of it
    if report.state == "PAUSED":
        return ReplicatingState.PAUSED
    if total.reasons["SourceDataLost"]:
        return ReplicatingState.SOURCE_DATA_LOST
    if total.is_behind and view.samples.is_throttled(report.name, view.now_s):
        return ReplicatingState.THROTTLED
    if total.is_advancing:
        return ReplicatingState.ADVANCING
    stopped, waiting = total.phases[PartitionPhase.STOPPED], total.phases[PartitionPhase.WAITING]
    ready = is_ready(report, view)
    starting = total.phases[PartitionPhase.STARTING] or (total.partitions == 0 and not ready)
    if report.state == "FAILED" or (report.tasks and all(task.state == "FAILED" for task in report.tasks)):
        return ReplicatingState.STUCK
    young = view.now_s - report.started_at_s < STUCK_AFTER_S
    # A topic without a copy has no partition here. Once all tasks have reported, waiting does not help.
    if report.uncopied and (ready or not young):
        return ReplicatingState.STUCK
    if young and (starting or total.is_behind):
        return ReplicatingState.WAITING
    if total.phases[PartitionPhase.STARTING] or report.state == "UNASSIGNED":
        return ReplicatingState.STUCK
    if waiting and total.is_behind:
        return ReplicatingState.WAITING
    if total.is_behind or (stopped and stopped == total.partitions):
        return ReplicatingState.STUCK
    # Right after the start no lag is known, which does not mean that there is none.
    return ReplicatingState.WAITING if total.lags_unknown_at_work else ReplicatingState.IDLE


def _heartbeats(report: ConnectorReport) -> frozenset[str]:
    """Returns the topics of *report* that hold heartbeats, as the flow's policy recognises them.

    By its name, `orders.heartbeats` may be the copy of another cluster's heartbeats, or a topic of the user's
    own. In a flow that copies nothing else it counts as the user's: otherwise such a flow would look idle for
    ever.
    """
    separator = report.properties.get("replication.policy.separator") or "."
    # Identity names heartbeats as Default does. A user's own policy class is not loaded for a report.
    policy = DefaultPolicy(separator)
    topics = {part.topic for part in partitions_of(report)}
    recognised = frozenset(filter(policy.is_heartbeats_topic, topics))
    return recognised if topics - recognised else recognised & {HEARTBEATS}
