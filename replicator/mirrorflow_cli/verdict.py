"""Decides from progress alone whether `run --until-caught-up` is over, and whether it succeeded.

Only records count: checkpoints and heartbeats never end, so neither they nor their errors matter. A run does
not succeed while a topic of the flow is not copied, and does not fail while any partition can still catch up.
"""

from dataclasses import dataclass

from mirrorflow_cli.progress import Progress

# Topics are listed within 2 s of the start; a refused creation is tried again after 1, 3 and 7 s.
NOTHING_MATCHES_AFTER_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVerdict:
    """The run is over: it succeeded, or failed for the reason in `failure`."""

    failure: str


def verdict(seen: Progress | None) -> RunVerdict | None:
    """Returns the verdict for the source connector's progress (None if it did not answer).

    Returns None while waiting may still help.
    """
    if seen is None:
        return None
    if seen.caught_up:
        return RunVerdict(failure="")
    failure = _failure(seen)
    return RunVerdict(failure=failure) if failure else None


def _failure(progress: Progress) -> str:
    is_settled = progress.uptime_s >= NOTHING_MATCHES_AFTER_S
    if progress.uncopied:
        if not is_settled or not (progress.hopeless or progress.behind == 0):
            return ""
        topics = "1 topic is" if progress.uncopied_total == 1 else f"{progress.uncopied_total} topics are"
        return f"{progress.connector}: {topics} not copied; first: {progress.uncopied[0]}"
    if progress.nothing_selected:
        return progress.nothing_selected if is_settled else ""
    if is_settled and progress.partitions_total == 0:
        return (
            f"{progress.connector} copies no partition: the source cannot be reached, or its topics are not listed yet;"
            " `mirrorflow check` says which."
        )
    if progress.hopeless:
        first = progress.hopeless[0]
        return (
            f"{len(progress.hopeless)} partitions have stopped before they had caught up; first:"
            f" {first.get('message') or first.get('reason')}"
        )
    return ""
