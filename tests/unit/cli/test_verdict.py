"""When `--until-caught-up` is over, and whether well: decided from progress alone."""

from typing import Any

import pytest

from mirrorflow_cli.progress import Progress
from mirrorflow_cli.verdict import NOTHING_MATCHES_AFTER_S, RunVerdict, verdict

DONE = {"reachedStartEnd": True, "phase": "copying"}
BEHIND = {"reachedStartEnd": False, "phase": "copying"}
STOPPED = {"reachedStartEnd": False, "phase": "stopped", "message": "t-0: the record is too large."}
REFUSED = "Target topic east.t cannot be created: no."


NOTHING = "No topic of east is selected. Of 3 topics 3 are not, as `topics` does not match it."


def progress(
    *rows: dict[str, Any], uptime_s: float = 60.0, uncopied: tuple[str, ...] = (), nothing: str = ""
) -> Progress:
    behind = sum(not row["reachedStartEnd"] for row in rows)
    summary = {
        "partitions": {"total": len(rows)},
        "caughtUp": bool(rows) and not behind and not uncopied and not nothing,
        "uptimeSeconds": uptime_s,
    }
    return Progress(
        connector="C",
        summary=summary,
        partitions=rows,
        uncopied=uncopied,
        uncopied_total=len(uncopied),
        nothing_selected=nothing,
    )


@pytest.mark.parametrize(
    "seen",
    [
        None,
        progress(uptime_s=NOTHING_MATCHES_AFTER_S - 1),
        progress(BEHIND),
        progress(BEHIND, STOPPED),
        progress(uncopied=(REFUSED,), uptime_s=NOTHING_MATCHES_AFTER_S - 1),
        progress(DONE, uncopied=(REFUSED,), uptime_s=NOTHING_MATCHES_AFTER_S - 1),
        progress(BEHIND, uncopied=(REFUSED,)),
        progress(DONE, nothing=NOTHING, uptime_s=NOTHING_MATCHES_AFTER_S - 1),
    ],
    ids=[
        "no answer", "topics may still be found", "one copies", "one copies, one has stopped",
        "a refusal may heal", "a refusal may heal while the rest is done", "the rest still copies",
        "topics may still be found beside heartbeats",
    ],
)  # fmt: skip
def test_waiting_continues_while_progress_is_possible(seen: Progress | None) -> None:
    """No verdict."""
    assert verdict(seen) is None


def test_all_caught_up_is_done() -> None:
    """Without a sentence."""
    assert RunVerdict(failure="") == verdict(progress(DONE, DONE))


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (progress(), "the source cannot be reached, or its topics are not listed yet"),
        (progress(DONE, nothing=NOTHING), NOTHING),
        (progress(DONE, STOPPED), "t-0: the record is too large."),
        (progress(uncopied=(REFUSED,)), REFUSED),
        (progress(DONE, uncopied=(REFUSED, "two")), f"2 topics are not copied; first: {REFUSED}"),
        (progress(DONE, STOPPED, uncopied=(REFUSED,)), REFUSED),
    ],
    ids=[
        "nothing was listed",
        "only heartbeats are copied",
        "only stopped ones are behind",
        "all refused",
        "some refused",
        "refused and stopped",
    ],
)
def test_what_waiting_does_not_heal_is_a_failure_with_its_reason(seen: Progress, words: str) -> None:
    """Never success while a topic that matches is not copied."""
    found = verdict(seen)

    assert found is not None
    assert words in found.failure
