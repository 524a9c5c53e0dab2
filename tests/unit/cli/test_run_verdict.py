"""When `--until-caught-up` is over, and whether well: decided from progress alone."""

from typing import Any

import pytest

from mirrorflow_cli.flow_runner import HEALS_WITHIN_S, LISTED_AGAIN_WITHIN_S, blocker, verdict
from mirrorflow_cli.run_progress import Progress

DONE = {"reachedStartEnd": True, "phase": "copying"}
BEHIND = {"reachedStartEnd": False, "phase": "copying"}
STOPPED = {"reachedStartEnd": False, "phase": "stopped", "message": "t-0: the record is too large."}
REFUSED = "Target topic east.t cannot be created: no."


NOTHING = "No topic of east is selected. Of 3 topics 3 are not, as `topics` does not match it."


def progress(
    *rows: dict[str, Any],
    uncopied: tuple[str, ...] = (),
    nothing: str = "",
    reason: str = "",
) -> Progress:
    behind = sum(not row["reachedStartEnd"] for row in rows)
    summary = {
        "partitions": {"total": len(rows)},
        "caughtUp": bool(rows) and not behind and not uncopied and not nothing,
    }
    return Progress(
        connector="C",
        summary=summary,
        partitions=rows,
        uncopied=uncopied,
        uncopied_total=len(uncopied),
        nothing_selected=nothing,
        problem=f"{reason}: it is so." if reason else "",
        reason=reason,
    )


@pytest.mark.parametrize(
    ("seen", "blocked_s"),
    [
        (None, 600.0),
        (progress(), 600.0),
        (progress(BEHIND), 600.0),
        (progress(BEHIND, STOPPED), 600.0),
        (progress(BEHIND, uncopied=(REFUSED,)), 600.0),
        (progress(uncopied=(REFUSED,)), HEALS_WITHIN_S - 1),
        (progress(DONE, uncopied=(REFUSED,)), HEALS_WITHIN_S - 1),
        (progress(DONE, nothing=NOTHING), LISTED_AGAIN_WITHIN_S - 1),
        (progress(reason="Unreachable"), HEALS_WITHIN_S - 1),
        (progress(BEHIND, reason="Unreachable"), 600.0),
    ],
    ids=[
        "no answer yet", "topics are not listed yet", "one copies", "one copies, one has stopped",
        "the rest still copies", "a refusal may heal", "a refusal may heal while the rest is done",
        "topics may still be found beside heartbeats", "a cluster may be starting", "what copies may continue",
    ],
)  # fmt: skip
def test_waiting_continues_while_progress_is_possible(seen: Progress | None, blocked_s: float) -> None:
    """However slow the machine is: only what has been reported is waited for by time."""
    assert verdict(seen, blocked_s=blocked_s) is None


def test_mistyped_topic_fails_once_topics_were_listed_again() -> None:
    """Sooner than a cluster that may be starting."""
    assert NOTHING == verdict(progress(DONE, nothing=NOTHING), blocked_s=LISTED_AGAIN_WITHIN_S)
    assert LISTED_AGAIN_WITHIN_S < HEALS_WITHIN_S


def test_all_caught_up_is_done() -> None:
    """Without a sentence."""
    assert "" == verdict(progress(DONE, DONE), blocked_s=0.0)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (progress(reason="Unreachable"), "Unreachable: it is so."),
        (progress(DONE, nothing=NOTHING), NOTHING),
        (progress(DONE, STOPPED), "t-0: the record is too large."),
        (progress(uncopied=(REFUSED,)), REFUSED),
        (progress(DONE, uncopied=(REFUSED, "two")), f"2 topics are not copied; first: {REFUSED}"),
        (progress(DONE, STOPPED, uncopied=(REFUSED,)), REFUSED),
    ],
    ids=[
        "a cluster that stays away",
        "only heartbeats are copied",
        "only stopped ones are behind",
        "all refused",
        "some refused",
        "refused and stopped",
    ],
)
def test_what_waiting_does_not_heal_is_a_failure_with_its_reason(seen: Progress, words: str) -> None:
    """Never success while a topic that matches is not copied."""
    found = verdict(seen, blocked_s=HEALS_WITHIN_S)

    assert found is not None
    assert words in found


@pytest.mark.parametrize("reason", ["FlowExists", "ClusterChanged", "SameCluster", "InvalidSettings"])
def test_what_only_a_user_can_change_is_a_failure_at_once(reason: str) -> None:
    assert verdict(progress(reason=reason), blocked_s=0.0) == f"{reason}: it is so."


def test_what_holds_up_a_run_is_known_by_its_kind() -> None:
    """Its sentence may change meanwhile."""
    seen = (
        None,
        progress(),
        progress(reason="Unreachable"),
        progress(nothing=NOTHING),
        progress(uncopied=("one",)),
    )

    assert [blocker(one) for one in seen] == ["", "", "Unreachable", "nothing selected", "uncopied"]
