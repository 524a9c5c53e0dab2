"""Finds what happened to a flow between two views of it: the events of the time line. Pure.

An event has the time that the status has of it, else that of the poll which found it.
"""

from collections.abc import Iterator
from typing import Final

from mirrorflow_console.flow_runs import FlowRun, seconds_of
from mirrorflow_console.flow_views import ConditionRow, FlowView, Level
from mirrorflow_console.history import HistoryEvent
from mirrorflow_replicator.http.progress_text import counted

# Reasons of the condition Reconciling: while pods of a workload are started or replaced, and afterwards.
ROLLING_OUT: Final = "RollingOut"
ROLLED_OUT: Final = "RolledOut"
_RECONCILING: Final = "Reconciling"
_ROLLS: Final = frozenset({ROLLING_OUT, ROLLED_OUT})
# Reasons of Reconciling that an event of a roll or of a run describes.
_DESCRIBED: Final = _ROLLS | {"Seeding", "Restoring"}
_ENDED_WELL: Final = "Succeeded"
_ENDED: Final = frozenset({_ENDED_WELL, "Failed", "Lost"})
# Runs whose beginning and end the status does not have.
_UNDATED: Final = frozenset({"restart"})


def changes(before: FlowView | None, now: FlowView, at_s: float) -> Iterator[HistoryEvent]:
    """Yields the events between *before* and *now*, in the order in which a reader wants them."""

    def event(kind: str, level: Level, text: str) -> HistoryEvent:
        return HistoryEvent(at_s=at_s, flow=now.key, kind=kind, level=level.value, text=text)

    if before is None:
        yield event("seen", now.level, f"First seen here: {now.state}.")
        yield from dated_events(now, at_s)
        for trouble in now.troubles:
            yield event("trouble", trouble.level, trouble.text)
        return
    if before.uptime_s is not None and now.uptime_s is not None and now.uptime_s < before.uptime_s:
        yield event("restart", Level.WARNING, "The connector was started again.")
    if now.losses > before.losses:
        yield event(
            "loss",
            Level.BROKEN,
            f"{counted(now.losses - before.losses, 'loss').replace('losss', 'losses')} of source or target data.",
        )
    yield from _changed_rolls(before, now, at_s)
    yield from _changed_runs(before, now, at_s)
    if now.conditions and before.is_reported != now.is_reported:
        # A page of the flow has opened or closed. Pods and status describe one trouble differently; the conditions have its events.
        yield from _changed_conditions(before, now, at_s)
        return
    known = {trouble.key for trouble in before.troubles}
    current = {trouble.key for trouble in now.troubles}
    for trouble in now.troubles:
        if trouble.key not in known:
            yield event("trouble", trouble.level, trouble.text)
    for trouble in before.troubles:
        if trouble.key not in current:
            yield event("repaired", Level.FINE, f"Resolved: {trouble.text}")
    if before.state != now.state:
        yield event("state", now.level, f"{before.state} → {now.state}")
    yield from _changed_conditions(before, now, at_s)


def dated_events(now: FlowView, at_s: float) -> Iterator[HistoryEvent]:
    """Yields the events that the status of *now* has the times of: its last roll, and the last run of each kind.

    They happened whether or not a console ran.
    """
    roll = _reconciling_of(now)
    if roll is not None and (ended_s := seconds_of(roll.since)) is not None and roll.reason == ROLLED_OUT:
        yield _roll_event(now, roll, min(ended_s, at_s))
    for run in now.runs:
        if run.began_s is not None:
            yield _began(now, run, min(run.began_s, at_s))
        if run.ended_s is not None and run.phase in _ENDED:
            yield _ended(now, run, min(run.ended_s, at_s))


def _changed_rolls(before: FlowView, now: FlowView, at_s: float) -> Iterator[HistoryEvent]:
    """Yields the begin and the end of a roll of workloads, also of one that began and ended between two polls."""
    was, roll = _reconciling_of(before), _reconciling_of(now)
    if was is not None and roll is not None and roll.reason in _ROLLS:
        since_s = seconds_of(roll.since) if was.since != roll.since else None
        if (was.reason, was.since) != (roll.reason, roll.since):
            yield _roll_event(now, roll, at_s if since_s is None else min(since_s, at_s))
    images = dict(before.images)
    for connector, image in now.images:
        if connector in images and images[connector] != image:
            text = f"The {connector} connector has a new image: `{image}`, after `{images[connector]}`."
            yield _event(now, "roll", Level.WAITING, text, at_s)


def _reconciling_of(view: FlowView) -> ConditionRow | None:
    """Returns the condition that says whether workloads of a flow are rolled out, or why they are not."""
    return next((condition for condition in view.conditions if condition.type == _RECONCILING), None)


def _roll_event(now: FlowView, roll: ConditionRow, at_s: float) -> HistoryEvent:
    is_over = roll.reason == ROLLED_OUT
    begin = "Rolled out" if is_over else "Roll"
    return _event(now, "roll", Level.FINE if is_over else Level.WAITING, f"{begin}: {roll.message}", at_s)


def _changed_runs(before: FlowView, now: FlowView, at_s: float) -> Iterator[HistoryEvent]:
    known = {run.kind: run for run in before.runs}
    for run in now.runs:
        was = known.get(run.kind)
        if was is not None and _is_another_run(was, run):
            was = None
        has_begun = run.began_s is not None or run.kind in _UNDATED
        begins = has_begun and (was is None or was.began_s != run.began_s)
        if begins:
            yield _began(now, run, at_s if run.began_s is None else min(run.began_s, at_s))
        if run.lost > (0 if was is None else was.lost):
            text = f"The {run.name} has lost data of {counted(run.lost, 'partition')}."
            yield _event(now, run.kind, Level.BROKEN, text, at_s)
        if was is not None and run.wave > was.wave > 0:
            yield _event(now, run.kind, Level.WAITING, f"The {run.name} has begun wave {run.wave}.", at_s)
        if run.phase != (None if was is None else was.phase):
            if run.phase in _ENDED:
                yield _ended(now, run, at_s if run.ended_s is None else min(run.ended_s, at_s))
            elif was is not None and was.phase not in _ENDED and has_begun and not begins:
                yield _event(now, run.kind, Level.WAITING, f"The {run.name} is {run.phase.lower()}.", at_s)


def _is_another_run(was: FlowRun, run: FlowRun) -> bool:
    """Whether *run* is not the one that *was* describes; a run that is repeated with its id has no beginning at first."""
    is_repeated = was.phase in _ENDED and run.phase not in _ENDED and was.began_s != run.began_s
    return is_repeated or not was.is_same_run(run)


def _began(now: FlowView, run: FlowRun, at_s: float) -> HistoryEvent:
    return _event(now, run.kind, Level.WAITING, f"The {run.name} began.", at_s)


def _ended(now: FlowView, run: FlowRun, at_s: float) -> HistoryEvent:
    is_fine = run.phase == _ENDED_WELL and not (run.lost or run.differing)
    level = Level.FINE if is_fine else Level.BROKEN
    what = f"{'is' if run.phase == 'Lost' else 'has'} {run.phase.lower()}"
    text = f"The {run.name} {'has found differences' if run.differing else what}"
    return _event(now, run.kind, level, f"{text}: {run.message}" if run.message else f"{text}.", at_s)


def _event(now: FlowView, kind: str, level: Level, text: str, at_s: float) -> HistoryEvent:
    return HistoryEvent(at_s=at_s, flow=now.key, kind=kind, level=level.value, text=text)


def _changed_conditions(before: FlowView, now: FlowView, at_s: float) -> Iterator[HistoryEvent]:
    statuses = {condition.type: (condition.status, condition.reason) for condition in before.conditions}
    for condition in now.conditions:
        if condition.type == _RECONCILING and _is_described(_reconciling_of(before), condition):
            continue
        if condition.type in statuses and statuses[condition.type] != (condition.status, condition.reason):
            text = f"{condition.type} is {condition.status} ({condition.reason})" + (
                f": {condition.message}" if condition.message else "."
            )
            yield _event(now, "condition", condition.level, text, at_s)


def _is_described(was: ConditionRow | None, reconciling: ConditionRow) -> bool:
    """Whether another event has what *reconciling* says: of a roll, or of a run, which may have begun before a trouble *was*."""
    return reconciling.reason in _ROLLS or (
        reconciling.reason in _DESCRIBED and (was is None or was.reason in _DESCRIBED)
    )
