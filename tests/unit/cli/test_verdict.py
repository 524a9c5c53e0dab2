"""When `--until-caught-up` is over, and whether well: decided from progress alone."""

from typing import Any

import pytest

from mirrorflow_cli.progress import Progress
from mirrorflow_cli.verdict import NOTHING_MATCHES_AFTER_S, Verdict, verdict

DONE = {"reachedStartEnd": True, "phase": "copying"}
BEHIND = {"reachedStartEnd": False, "phase": "copying"}
STOPPED = {"reachedStartEnd": False, "phase": "stopped", "message": "t-0: the record is too large."}
REFUSED = "Target topic east.t cannot be created: no."


def progress(*rows: dict[str, Any], uptime_s: float = 60.0, uncopied: tuple[str, ...] = ()) -> Progress:
    behind = sum(not row["reachedStartEnd"] for row in rows)
    summary = {
        "partitions": {"total": len(rows)},
        "caughtUp": bool(rows) and not behind and not uncopied,
        "uptimeSeconds": uptime_s,
    }
    return Progress(
        connector="C", summary=summary, partitions=rows, uncopied=uncopied, uncopied_total=len(uncopied)
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
    ],
    ids=[
        "nobody answers", "topics may still be found", "one copies", "one copies, one has stopped",
        "a refusal may heal", "a refusal may heal while the rest is done", "the rest still copies",
    ],
)  # fmt: skip
def test_waiting_goes_on_while_something_may_still_come(seen: Progress | None) -> None:
    """No verdict."""
    assert verdict(seen) is None


def test_all_caught_up_is_done() -> None:
    """Without a sentence."""
    assert Verdict(failure="") == verdict(progress(DONE, DONE))


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (progress(), "no topic of the source matches"),
        (progress(DONE, STOPPED), "t-0: the record is too large."),
        (progress(uncopied=(REFUSED,)), REFUSED),
        (progress(DONE, uncopied=(REFUSED, "two")), f"2 topics are not copied; first: {REFUSED}"),
        (progress(DONE, STOPPED, uncopied=(REFUSED,)), REFUSED),
    ],
    ids=[
        "nothing matches",
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
