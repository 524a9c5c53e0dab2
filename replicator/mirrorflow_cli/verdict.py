"""Decides from progress alone whether `run --until-caught-up` is over, and whether it succeeded.

Only records count: checkpoints and heartbeats never end, so neither they nor their errors matter. A run does
not succeed while a topic of the flow is not copied, and does not fail while any partition can still catch up.
"""

from dataclasses import dataclass

from mirrorflow_cli.progress import Progress
from mirrorflow_core.errors import (
    ClusterChangedError,
    FlowExistsError,
    FlowNotMovedError,
    InvalidSettingError,
    RefusedSettingError,
    UnsupportedBrokerError,
)

# What may heal is given as long, from when it was first reported: a refused creation is tried again after 1, 3
# and 7 s, and brokers that start do not know all of their topics yet.
HEALS_WITHIN_S = 15.0
# Reasons that only a user can remove.
_FINAL = frozenset(
    error.reason
    for error in (
        ClusterChangedError,
        FlowExistsError,
        FlowNotMovedError,
        InvalidSettingError,
        RefusedSettingError,
        UnsupportedBrokerError,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVerdict:
    """The run is over: it succeeded, or failed for the reason in `failure`."""

    failure: str


def hindrance(seen: Progress | None) -> str:
    """Returns what may heal and holds up the run now; "" if nothing is known to."""
    if seen is None:
        return ""
    if seen.uncopied:
        return "uncopied"
    return "nothing selected" if seen.nothing_selected else seen.reason


def verdict(seen: Progress | None, *, held_s: float) -> RunVerdict | None:
    """Returns the verdict for the source connector's progress (None if it did not answer).

    *held_s*: seconds since its `hindrance` was first seen. Returns None while waiting may still help.
    """
    if seen is None:
        return None
    if seen.caught_up:
        return RunVerdict(failure="")
    failure = _failure(seen, is_settled=held_s >= HEALS_WITHIN_S)
    return RunVerdict(failure=failure) if failure else None


def _failure(progress: Progress, *, is_settled: bool) -> str:
    if progress.uncopied:
        if not is_settled or not (progress.hopeless or progress.behind == 0):
            return ""
        topics = "1 topic is" if progress.uncopied_total == 1 else f"{progress.uncopied_total} topics are"
        return f"{progress.connector}: {topics} not copied; first: {progress.uncopied[0]}"
    if progress.nothing_selected:
        return progress.nothing_selected if is_settled else ""
    if progress.problem and progress.partitions_total == 0:
        return progress.problem if is_settled or progress.reason in _FINAL else ""
    if progress.hopeless:
        first = progress.hopeless[0]
        return (
            f"{len(progress.hopeless)} partitions have stopped before they had caught up; first:"
            f" {first.get('message') or first.get('reason')}"
        )
    return ""
