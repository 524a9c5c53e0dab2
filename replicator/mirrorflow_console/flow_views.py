"""Turns what was read about a flow into what its pages show: state, trouble and lag, the worst first. Pure.

States and sentences are those of `mirrorflow status` (`run_causes`, `progress_text`) and of the resource's conditions, so that
terminal, kubectl and console agree.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import Any, Final

from mirrorflow_cli.kubectl_plugin import problems as condition_problems
from mirrorflow_cli.run_causes import causes, notes
from mirrorflow_cli.run_progress import Progress
from mirrorflow_console.documents import (
    LAGGING_S,
    ConnectorDocument,
    Figures,
    FlowReading,
    RunningSwitchover,
)
from mirrorflow_console.field_kinds import NAME_MAX, TEXT_MAX
from mirrorflow_console.flow_runs import FlowRun, images_of, runs_of
from mirrorflow_console.lag_forecast import HELD_UP, Forecast, LagSample, Outlook, forecast
from mirrorflow_console.partition_table import PartitionTable
from mirrorflow_console.runbook import Advice, advice_for
from mirrorflow_replicator.http.progress_text import (
    UNREACHABLE,
    counted,
    lag_text,
    reasons,
    state_of,
    unreachable_sides,
)
from mirrorflow_replicator.http.replicating_state import ReplicatingState

# Reasons of Ready and Replicating that a person asked for, or that pass by themselves.
_WAITING_REASONS: Final = frozenset(
    {
        "Pausing",
        "Paused",
        "Stopping",
        "Stopped",
        "Seeding",
        "Restoring",
        "Starting",
        "Waiting",
        "RollingOut",
        "Deleting",
        "NotAsked",
    }
)
FALLING_BEHIND: Final = "FallingBehind"
NO_LONGER_LAGGING_S: Final = 45.0  # below `LAGGING_S`: a lag of about a minute would come and go
DIFFERENCES_FOUND: Final = "DifferencesFound"  # as the reason of the condition Verified
SWITCHOVER_UNDER_WAY: Final = "SwitchoverUnderWay"
# The ranges of `status.lag`, in words.
_LAG_RANGES: Final = {
    "0": "0 s",
    "<1s": "below 1 s",
    "<10s": "below 10 s",
    "<1m": "below 1 min",
    "<10m": "below 10 min",
    "more": "over 10 min",
}
# As the operator writes: "Secret east-ca is missing", "key password of Secret east", "kubectl logs --previous POD"; and as
# connectors do: "Cluster west does not authorize Write on topic orders;", "broker 2 of cluster west, which leads orders-3, ...".
_NAMED_OBJECT: Final = re.compile(
    r"(?:^|lacks |\bof )(?P<kind>Secret|ConfigMap) (?P<name>[a-z0-9][a-z0-9.-]*[a-z0-9])|logs --previous (?P<pod>[a-z0-9][a-z0-9.-]*[a-z0-9])"
    r"|\bCluster (?P<acl_of>\S+) does not authorize (?P<acl>\w+ on [^;]+);"
    r"|\bbroker (?P<broker>[0-9]+) of (?:cluster )?(?P<broker_of>[\w.-]*\w)"
    r"|\bCluster (?P<lost_of>\S+) cannot be reached at broker (?P<lost>[0-9]+)"
)
# What `run_causes` reads of a partition. Of 10,000 in trouble, whole rows would take 12 MB at each poll.
_CAUSE_FIELDS: Final = (
    "topic", "partition", "phase", "lagRecords", "reason", "message", "stalledSeconds"
)  # fmt: skip
_CLUSTER_CONDITIONS: Final = {"SourceReachable": "source", "TargetReachable": "target"}


class Level(IntEnum):
    """How much a flow or an object needs a person; the least comes first."""

    BROKEN = 0
    WARNING = 1
    UNKNOWN = 2
    WAITING = 3
    FINE = 4

    @property
    def word(self) -> str:
        return {0: "broken", 1: "attention", 2: "unknown", 3: "waiting", 4: "fine"}[self.value]


class SubjectKind(Enum):
    """The kind of object that trouble is about, the most concrete first."""

    SWITCHOVER = "switchover"  # explains what the others are during it
    CLUSTER = "cluster"
    SECRET = "Secret"  # noqa: S105  a kind
    CONFIG_MAP = "ConfigMap"
    ACL = "ACL"
    POD = "pod"
    BROKER = "broker"
    CONNECTOR = "connector"
    PARTITION = "partition"
    VERIFICATION = "verification"
    FLOW = "flow"
    CONDITION = "condition"


_KINDS: Final = (*SubjectKind,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One reason why a flow does not do all it should, with its object and what to do about it."""

    level: Level
    kind: SubjectKind
    subject: str
    text: str
    reason: str = ""
    advice: Advice | None = None

    @property
    def sentence(self) -> str:
        """The text beside the name of its object, which need not be repeated."""
        text = self.text.removeprefix(f"{self.subject}: ")
        return f"{text[:1].upper()}{text[1:]}" if text != self.text else text

    @property
    def key(self) -> tuple[str, str, str]:
        """What stays the same while the sentence changes, for example with a count."""
        return (self.kind.value, self.subject, self.reason or self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionRow:
    """One condition of the resource, in words."""

    type: str
    status: str
    reason: str
    message: str
    since: str
    level: Level


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowView:
    """Everything about a flow at one moment. Lag and rates are None where they are not known."""

    key: str
    name: str
    namespace: str
    source: str
    target: str
    level: Level
    state: str
    troubles: tuple[Trouble, ...] = ()
    notes: tuple[str, ...] = ()
    lag: str = "?"  # in records, as `mirrorflow status` prints it
    lag_range: str = ""  # in time, from the status, while no process reports its lag: "<10s"
    lag_records: int | None = None
    lag_s: float | None = None
    is_lag_at_least: bool = False  # partitions with a lag of unknown age are not in `lag_s`
    records_per_s: float | None = None
    bytes_per_s: float | None = None
    records: int | None = None
    losses: int = 0
    uptime_s: float | None = None
    partitions: int = 0
    stopped: int = 0
    stalled: int = 0
    guarantees: Mapping[str, int] = field(default_factory=dict)
    outlook: Forecast = field(default_factory=lambda: Forecast(outlook=Outlook.UNKNOWN))
    conditions: tuple[ConditionRow, ...] = ()
    runs: tuple[FlowRun, ...] = ()
    images: tuple[tuple[str, str], ...] = ()  # of the workload of each connector
    source_level: Level = Level.UNKNOWN
    target_level: Level = Level.UNKNOWN
    switchover: RunningSwitchover | None = None

    @property
    def worst(self) -> Trouble | None:
        return self.troubles[0] if self.troubles else None

    @property
    def is_reported(self) -> bool:
        """Whether a process of the flow reports it. Otherwise the view has what the resource's status has."""
        return self.uptime_s is not None


def worst_first(views: Iterable[FlowView], figures: Mapping[str, Figures]) -> list[FlowView]:
    """Sorts flows by level, then by lag in seconds, then by name. *figures*: newer ones than those of the views, by key."""

    def order(view: FlowView) -> tuple[Level, float, int, str, str]:
        now = figures.get(view.key)
        lag_s, records = (view.lag_s, view.lag_records) if now is None else (now.lag_s, now.lag_records)
        return (view.level, -(lag_s or 0.0), -(records or 0), view.name, view.key)

    return sorted(views, key=order)


def flow_view(
    reading: FlowReading, samples: Sequence[LagSample] = (), *, before: FlowView | None = None
) -> FlowView:
    """Returns the view of *reading*. *samples*: its lag in the last minutes, oldest first, with the current one.

    *before*: its last view, because trouble with lag begins at another lag than it ends.
    """
    conditions = _conditions(reading.status)
    document = reading.document
    own = [] if document is None else [*_troubles(document)]
    if samples and document is not None and document.has_unknown_ages:
        samples = [*samples[:-1], samples[-1]._replace(seconds=None)]
    was = Outlook.UNKNOWN if before is None else before.outlook.outlook
    is_held_up = document is not None and _is_held_up(document.partitions)
    outlook = HELD_UP if is_held_up else forecast(samples, was=was)
    if document is not None:
        own += _unlisted(document, own)
        own += _lag_troubles(document, outlook, before)
    troubles = sorted(
        [*own, *_of_conditions(reading, own), *_of_verification(reading), *_of_switchover(reading)],
        key=lambda trouble: (trouble.level, _KINDS.index(trouble.kind), trouble.subject),
    )
    base = {
        "key": reading.key,
        "name": reading.name,
        "namespace": reading.namespace,
        "source": reading.source or ("" if document is None else document.source) or "source",
        "target": reading.target or ("" if document is None else document.target) or "target",
        "troubles": tuple(troubles),
        "conditions": conditions,
        "runs": runs_of(reading.status),
        "images": images_of(reading.status),
        "outlook": outlook,
        "switchover": reading.switchover,
    }
    if document is None:
        return _unanswered(reading, base)
    return _answered(document, base)


def with_figures(
    view: FlowView, document: ConnectorDocument, figures: Figures, samples: Sequence[LagSample]
) -> FlowView:
    """Returns *view*, which has no trouble and was made from *document*, with newer figures. *samples* as for `flow_view`."""
    return replace(
        view,
        **_figures(replace(document, figures=figures)),
        outlook=forecast(samples, was=view.outlook.outlook),
    )


def _figures(document: ConnectorDocument) -> dict[str, Any]:
    summary, figures = document.progress.summary, document.figures
    is_known = bool(figures.lag_records) or not summary["partitions"].get("lagUnknown")
    return {
        "lag": lag_text({**summary, "lagRecords": figures.lag_records}),
        "lag_records": figures.lag_records if is_known else None,
        "lag_s": figures.lag_s if is_known else None,
        "is_lag_at_least": document.has_unknown_ages,
        "records_per_s": figures.records_per_s,
        "bytes_per_s": figures.bytes_per_s,
        "records": figures.records,
        "uptime_s": figures.uptime_s,
    }


def _is_held_up(partitions: PartitionTable) -> bool:
    """Whether a partition that copies no more has something to copy: no rate of the others makes up for it."""
    return any(partitions.each(lambda phase, lag: phase == "stopped" and lag != 0, "phase", "lagRecords"))


def _unanswered(reading: FlowReading, base: dict[str, Any]) -> FlowView:
    """Returns the view of a flow whose process does not answer: what the resource reports, else nothing."""
    status = reading.status or {}
    ready = next((condition for condition in base["conditions"] if condition.type == "Ready"), None)
    state = "not answering" if ready is None else ready.reason
    level = Level.UNKNOWN if ready is None else _of_ready(ready)
    troubles = list(base.pop("troubles"))
    if ready is None:
        text = reading.problem or "Its process does not answer."
        troubles.append(
            Trouble(
                level=Level.UNKNOWN, kind=SubjectKind.FLOW, subject=reading.name, text=text, reason="NoAnswer",
                advice=advice_for("NoAnswer"),
            )
        )  # fmt: skip
    notes_ = (reading.problem,) if reading.problem and ready is not None else ()
    lag = status.get("lag")
    return FlowView(
        **base,
        troubles=tuple(troubles),
        level=min([level, *(trouble.level for trouble in troubles)]),
        state=state,
        notes=notes_,
        lag_range=_LAG_RANGES.get(lag, "") if isinstance(lag, str) else "",
        source_level=_side_level(base["conditions"], "source"),
        target_level=_side_level(base["conditions"], "target"),
    )


def _of_ready(ready: "ConditionRow") -> Level:
    if ready.status == "True":
        return Level.FINE
    return Level.WAITING if ready.reason in _WAITING_REASONS else Level.UNKNOWN


def _answered(document: ConnectorDocument, base: dict[str, Any]) -> FlowView:
    progress, summary = document.progress, document.progress.summary
    partitions: Mapping[str, int] = summary.get("partitions", {})
    notes_ = (*document.notes, *notes(progress))
    levels = [_of_state(progress), *(trouble.level for trouble in base["troubles"])]
    if notes_:
        levels.append(Level.WARNING)
    return FlowView(
        **base,
        level=min(levels),
        state="waiting" if progress.is_standby else state_of(summary),
        notes=notes_,
        **_figures(document),
        losses=summary["losses"],
        partitions=max(progress.partitions_total, document.partitions_total),
        stopped=partitions.get("stopped", 0),
        stalled=partitions.get("stalled", 0),
        guarantees=summary.get("guarantee", {}),
        source_level=_of_side(summary.get("source", {})),
        target_level=_of_side(summary.get("target", {})),
    )


_LEVELS: Final = {
    ReplicatingState.ADVANCING: Level.FINE,
    ReplicatingState.IDLE: Level.FINE,
    ReplicatingState.THROTTLED: Level.WARNING,
    ReplicatingState.STUCK: Level.BROKEN,
    ReplicatingState.SOURCE_DATA_LOST: Level.BROKEN,
    ReplicatingState.PAUSED: Level.WAITING,
    ReplicatingState.WAITING: Level.WAITING,
}
_BY_WORD: Final = {state.value: level for state, level in _LEVELS.items()}


def _of_state(progress: Progress) -> Level:
    if progress.is_standby:
        return Level.WAITING
    if unreachable_sides(progress.summary):
        return Level.BROKEN
    return _BY_WORD.get(str(progress.summary.get("replicating")), Level.UNKNOWN)


def _of_side(side: Mapping[str, Any]) -> Level:
    return {"Reachable": Level.FINE, UNREACHABLE: Level.BROKEN}.get(str(side.get("reach")), Level.UNKNOWN)


def _troubles(document: ConnectorDocument) -> Iterator[Trouble]:
    partitions = document.partitions
    # Others are no cause.
    troubled = partitions.where(lambda reason, message: reason or message, "reason", "message")
    progress = replace(document.progress, partitions=tuple(partitions.rows(_CAUSE_FIELDS, troubled)))
    for cause in causes(progress):
        about = _kind_of(cause.about, progress)
        kind, subject = _named_object(cause.text, of=about) or (about, cause.about or progress.connector)
        yield Trouble(
            level=Level.WARNING if about is SubjectKind.PARTITION and not cause.has_stopped else Level.BROKEN,
            kind=kind,
            subject=subject,
            text=cause.line,
            reason=cause.reason or "",
            advice=advice_for(cause.reason or "", has_stopped=cause.has_stopped),
        )


def _unlisted(document: ConnectorDocument, own: Sequence[Trouble]) -> Iterator[Trouble]:
    """Yields the reasons of partitions that are not among those that were read, of which only the summary knows."""
    progress = document.progress
    if len(document.partitions) >= document.partitions_total:
        return
    known = {trouble.reason for trouble in own}
    has_stopped = bool(progress.summary["partitions"].get("stopped"))
    for reason in progress.summary["reasons"]:
        if reason["reason"] not in known:
            yield Trouble(
                level=Level.BROKEN if has_stopped else Level.WARNING,
                kind=SubjectKind.FLOW,
                subject=progress.connector,
                text=f"{reason['example'] or reason['reason']} ({counted(reason['count'], 'partition')})",
                reason=reason["reason"],
                advice=advice_for(reason["reason"], has_stopped=has_stopped),
            )


def _kind_of(about: str | None, progress: Progress) -> SubjectKind:
    if about in {"source", "target"}:
        return SubjectKind.CLUSTER
    if about is None:
        return SubjectKind.FLOW
    return SubjectKind.CONNECTOR if about == progress.connector else SubjectKind.PARTITION


def _lag_troubles(
    document: ConnectorDocument, outlook: Forecast, before: FlowView | None
) -> Iterator[Trouble]:
    lag_s = document.figures.lag_s
    known = before is not None and any(trouble.reason == FALLING_BEHIND for trouble in before.troubles)
    least_s = NO_LONGER_LAGGING_S if known else LAGGING_S
    if lag_s is None or lag_s < least_s or outlook.outlook is not Outlook.NOT_AT_THIS_RATE:
        return
    yield Trouble(
        level=Level.WARNING,
        kind=SubjectKind.FLOW,
        subject=document.progress.connector,
        text="The target falls behind: the lag does not shrink at this rate.",
        reason=FALLING_BEHIND,
        advice=advice_for(FALLING_BEHIND),
    )


def _conditions(status: Mapping[str, Any] | None) -> tuple[ConditionRow, ...]:
    rows = (status or {}).get("conditions")
    conditions = (
        [condition for condition in rows if isinstance(condition, dict)] if isinstance(rows, list) else []
    )
    return tuple(
        ConditionRow(
            type=str(condition.get("type", "")),
            status=str(condition.get("status", "")),
            reason=str(condition.get("reason", "")),
            message=str(condition.get("message", "")),
            since=str(condition.get("lastTransitionTime", "")),
            level=_of_condition(condition),
        )
        for condition in conditions
    )


def _of_condition(condition: Mapping[str, Any]) -> Level:
    if condition.get("status") == "Unknown":
        return Level.UNKNOWN
    is_problem = any(
        condition_problems({"conditions": [{"type": "", "reason": "", "status": "", **condition}]})
    )
    if not is_problem:
        return Level.FINE
    if condition.get("reason") in _WAITING_REASONS:
        return Level.WAITING
    return Level.WARNING if condition.get("type") == "Degraded" else Level.BROKEN


def _of_conditions(reading: FlowReading, own: Sequence[Trouble]) -> Iterator[Trouble]:
    """Yields the conditions that are problems, each sentence once, and no cause that the connector reports itself."""
    known = {trouble.reason for trouble in own}
    texts: set[str] = set()
    # Ready comes last, because it usually repeats another condition.
    for condition in sorted(_conditions(reading.status), key=lambda row: row.type == "Ready"):
        if (
            condition.level not in {Level.BROKEN, Level.WARNING}
            or condition.message in texts
            or condition.reason in known
        ):
            continue
        if condition.type in {"Ready", "Replicating"} and (own or texts):
            continue  # What they repeat is listed itself.
        texts.add(condition.message)
        kind, subject = _object_of(condition)
        yield Trouble(
            level=condition.level,
            kind=kind,
            subject=subject,
            text=condition.message or f"{condition.type} is {condition.status}.",
            reason=condition.reason,
            advice=advice_for(condition.reason),
        )


def _object_of(condition: ConditionRow) -> tuple[SubjectKind, str]:
    """Returns what a condition is about: the first object that its message names, else a cluster or the condition itself."""
    side = _CLUSTER_CONDITIONS.get(condition.type)
    about = SubjectKind.CONDITION if side is None else SubjectKind.CLUSTER
    return _named_object(condition.message, of=about) or (about, side or condition.type)


def _named_object(message: str, *, of: SubjectKind) -> tuple[SubjectKind, str] | None:
    """Returns the first object that *message* names, more concrete than *of*, which it is about; None if there is none.

    A cluster that cannot be used names a broker only as the last one that was tried.
    """
    match = _NAMED_OBJECT.search(message)
    if match is None:
        return None
    if match["acl"]:
        return SubjectKind.ACL, f"{match['acl']} of {match['acl_of']}"
    if of is SubjectKind.CLUSTER:
        return None
    if broker := match["broker"] or match["lost"]:
        return SubjectKind.BROKER, f"{broker} of {match['broker_of'] or match['lost_of']}"
    return (SubjectKind.POD, match["pod"]) if match["pod"] else (SubjectKind(match["kind"]), match["name"])


def _of_verification(reading: FlowReading) -> Iterator[Trouble]:
    """Yields the differences that the newest verification in a folder has found; the resource has conditions for its own."""
    result = reading.verification or {}
    windows = result.get("windows")
    if isinstance(windows, dict) and (windows.get("different") or windows.get("reordered")):
        yield Trouble(
            level=Level.BROKEN,
            kind=SubjectKind.VERIFICATION,
            subject=str(result.get("runId") or "")[:NAME_MAX],
            text=str(result.get("message") or "Records differ.")[:TEXT_MAX],
            reason=DIFFERENCES_FOUND,
            advice=advice_for(DIFFERENCES_FOUND),
        )


def _of_switchover(reading: FlowReading) -> Iterator[Trouble]:
    """Yields the switchover of the flow's pair that has not ended."""
    if (switchover := reading.switchover) is not None:
        yield Trouble(
            level=Level.BROKEN if switchover.is_abandoned else Level.WARNING,
            kind=SubjectKind.SWITCHOVER,
            subject=switchover.key,
            text=switchover.text,
            reason=SWITCHOVER_UNDER_WAY,
        )


def _side_level(conditions: Iterable[ConditionRow], side: str) -> Level:
    levels = (condition.level for condition in conditions if _CLUSTER_CONDITIONS.get(condition.type) == side)
    return next(levels, Level.UNKNOWN)


def state_text(view: FlowView, progress: Progress | None) -> str:
    """Returns the state with its reasons, as the column `state` of `mirrorflow status`."""
    if progress is None or progress.is_standby:
        return view.state
    return ", ".join((view.state, *reasons(progress.summary)))
