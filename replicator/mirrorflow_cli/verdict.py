"""Whether `run --until-caught-up` has nothing more to wait for, and whether it ends well: from progress alone.

Caught up is about records: checkpoints and heartbeats, which never end, are not waited for, nor is their trouble. Never
well while a topic of the flow is not copied. Not ill either while something still copies: what can be copied is.
"""

from dataclasses import dataclass

from mirrorflow_cli.progress import Progress

# Topics are listed within a second or two of the start, and a refused creation is tried again after 1, 3 and 7 s.
NOTHING_MATCHES_AFTER_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """It is over: well, or with the sentence in `failure`."""

    failure: str


def verdict(seen: Progress | None) -> Verdict | None:
    """On the progress of the source connector, None where it does not answer; None while waiting may still help."""
    if seen is None:
        return None
    if seen.caught_up:
        return Verdict(failure="")
    failure = _failure(seen)
    return Verdict(failure=failure) if failure else None


def _failure(progress: Progress) -> str:
    is_settled = progress.uptime_s >= NOTHING_MATCHES_AFTER_S
    if progress.uncopied:
        if not is_settled or not (progress.hopeless or progress.behind == 0):
            return ""
        topics = "1 topic is" if progress.uncopied_total == 1 else f"{progress.uncopied_total} topics are"
        return f"{progress.connector}: {topics} not copied; first: {progress.uncopied[0]}"
    if is_settled and progress.partitions_total == 0:
        return (
            f"{progress.connector} copies no partition: no topic of the source matches, or it cannot be"
            " reached; `mirrorflow check` says which."
        )
    if progress.hopeless:
        first = progress.hopeless[0]
        return (
            f"{len(progress.hopeless)} partitions have stopped before they had caught up; first:"
            f" {first.get('message') or first.get('reason')}"
        )
    return ""
