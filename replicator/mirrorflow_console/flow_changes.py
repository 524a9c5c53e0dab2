"""Finds what happened to a flow between two views of it: the events of the time line. Pure."""

from collections.abc import Iterator

from mirrorflow_console.flow_views import FlowView, Level
from mirrorflow_console.history import HistoryEvent
from mirrorflow_replicator.http.progress_text import counted


def changes(before: FlowView | None, now: FlowView, at_s: float) -> Iterator[HistoryEvent]:
    """Yields the events between *before* and *now*, in the order in which a reader wants them."""

    def event(kind: str, level: Level, text: str) -> HistoryEvent:
        return HistoryEvent(at_s=at_s, flow=now.key, kind=kind, level=level.value, text=text)

    if before is None:
        yield event("seen", now.level, f"First seen here: {now.state}.")
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


def _changed_conditions(before: FlowView, now: FlowView, at_s: float) -> Iterator[HistoryEvent]:
    statuses = {condition.type: (condition.status, condition.reason) for condition in before.conditions}
    for condition in now.conditions:
        if condition.type in statuses and statuses[condition.type] != (condition.status, condition.reason):
            text = f"{condition.type} is {condition.status} ({condition.reason})" + (
                f": {condition.message}" if condition.message else "."
            )
            yield HistoryEvent(
                at_s=at_s, flow=now.key, kind="condition", level=condition.level.value, text=text
            )
