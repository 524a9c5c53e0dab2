"""Decides from progress when `--until-caught-up` ends, and whether it succeeded."""

from typing import Any

import pytest

from mirrorflow_cli.flow_runner import HEALS_WITHIN_S, LISTED_AGAIN_WITHIN_S, blocker, verdict
from mirrorflow_cli.run_progress import Progress

DONE = {"reachedStartEnd": True, "phase": "copying"}
LAGGING = {"reachedStartEnd": False, "phase": "copying"}
STOPPED = {"reachedStartEnd": False, "phase": "stopped", "message": "t-0: the record is too large."}
REFUSED = "Target topic east.t cannot be created: no."


NOTHING = "No topic of east is selected. Of 3 topics 3 are not, as `topics` does not match it."


def progress(
    *rows: dict[str, Any],
    uncopied: tuple[str, ...] = (),
    nothing: str | None = None,
    reason: str | None = None,
) -> Progress:
    lagging_partitions = sum(not row["reachedStartEnd"] for row in rows)
    summary = {
        "partitions": {"total": len(rows)},
        "caughtUp": bool(rows) and not lagging_partitions and not uncopied and not nothing,
    }
    return Progress(
        connector="C",
        summary=summary,
        partitions=rows,
        uncopied=uncopied,
        uncopied_total=len(uncopied),
        nothing_selected=nothing,
        problem=None if reason is None else f"{reason}: it is so.",
        reason=reason,
    )


@pytest.mark.parametrize(
    ("report", "blocked_s"),
    [
        (None, 600.0),
        (progress(), 600.0),
        (progress(LAGGING), 600.0),
        (progress(LAGGING, STOPPED), 600.0),
        (progress(LAGGING, uncopied=(REFUSED,)), 600.0),
        (progress(uncopied=(REFUSED,)), HEALS_WITHIN_S - 1),
        (progress(DONE, uncopied=(REFUSED,)), HEALS_WITHIN_S - 1),
        (progress(DONE, nothing=NOTHING), LISTED_AGAIN_WITHIN_S - 1),
        (progress(reason="Unreachable"), HEALS_WITHIN_S - 1),
        (progress(LAGGING, reason="Unreachable"), 600.0),
    ],
    ids=[
        "no response yet", "topics not listed yet", "copying", "one copying, one stopped",
        "one copying, one topic refused", "refused for a short time", "refused for a short time, rest done",
        "no topic selected for a short time", "unreachable for a short time", "unreachable while copying",
    ],
)  # fmt: skip
def test_waiting_continues_while_progress_is_possible(report: Progress | None, blocked_s: float) -> None:
    """The time limit applies only after a problem was reported, because the machine may be slow."""
    assert verdict(report, blocked_s=blocked_s) is None


def test_an_empty_selection_fails_after_topics_were_listed_again() -> None:
    """Listing again takes less time than waiting for a cluster that may be starting."""
    assert NOTHING == verdict(progress(DONE, nothing=NOTHING), blocked_s=LISTED_AGAIN_WITHIN_S)
    assert LISTED_AGAIN_WITHIN_S < HEALS_WITHIN_S


def test_a_run_succeeds_when_all_partitions_have_caught_up() -> None:
    assert "" == verdict(progress(DONE, DONE), blocked_s=0.0)


@pytest.mark.parametrize(
    ("report", "message"),
    [
        (progress(reason="Unreachable"), "Unreachable: it is so."),
        (progress(DONE, nothing=NOTHING), NOTHING),
        (progress(DONE, STOPPED), "t-0: the record is too large."),
        (progress(uncopied=(REFUSED,)), REFUSED),
        (progress(DONE, uncopied=(REFUSED, "two")), f"2 topics are not copied; first: {REFUSED}"),
        (progress(DONE, STOPPED, uncopied=(REFUSED,)), REFUSED),
    ],
    ids=[
        "unreachable cluster",
        "only heartbeats copied",
        "only stopped partitions lag",
        "all topics refused",
        "some topics refused",
        "refused and stopped",
    ],
)
def test_a_lasting_problem_fails_the_run_with_its_reason(report: Progress, message: str) -> None:
    """The run never succeeds while a selected topic is not copied."""
    failure = verdict(report, blocked_s=HEALS_WITHIN_S)

    assert failure is not None
    assert message in failure


@pytest.mark.parametrize("reason", ["FlowExists", "ClusterChanged", "SameCluster", "InvalidSettings"])
def test_a_problem_that_only_a_user_can_fix_fails_the_run_immediately(reason: str) -> None:
    assert verdict(progress(reason=reason), blocked_s=0.0) == f"{reason}: it is so."


def test_the_blocker_of_a_run_is_the_kind_of_problem() -> None:
    """Its message may change while it lasts."""
    reports = (
        None,
        progress(),
        progress(reason="Unreachable"),
        progress(nothing=NOTHING),
        progress(uncopied=("one",)),
    )

    assert [blocker(report) for report in reports] == [
        None,
        None,
        "Unreachable",
        "nothing selected",
        "uncopied",
    ]
