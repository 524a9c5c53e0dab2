"""The condition TopicsSelected reports whether the source has a topic that the flow copies."""

from typing import Any

import pytest

from mirrorflow_operator.api.status import Condition, Status
from mirrorflow_operator.status.assess import assess
from mirrorflow_operator.status.conditions import new_problems
from mirrorflow_operator.status.pod_reports import PollFailure, Reading, ReasonCount, Replicating
from tests.unit.operator.observations import NOW_S, observed, reading, settled

MISTYPED = ReasonCount(
    "NothingMatches", 1, "No topic of east is selected. `topics` has orderz: is orders meant?"
)


def conditions(status: Status) -> dict[str, Condition]:
    return {condition.type: condition for condition in status.conditions}


def status_and_reason(status: Status, kind: str) -> tuple[str, str]:
    condition = conditions(status)[kind]
    return condition.status.value, condition.reason


@pytest.mark.parametrize(
    ("summary", "expected"),
    [
        ({"partitions": 0, "reasons": (MISTYPED,)}, ("False", "NothingMatches")),
        # The only partition is that of copied heartbeats.
        ({"partitions": 1, "reasons": (MISTYPED,)}, ("False", "NothingMatches")),
        ({"partitions": 12}, ("True", "Selected")),
        ({"partitions": 12, "replicating": Replicating.PAUSED}, ("True", "Selected")),
        ({"partitions": 12, "reasons": (ReasonCount("TopicNotCopied", 1),)}, ("True", "Selected")),
        ({"partitions": 0, "replicating": Replicating.WAITING}, ("Unknown", "NotAsked")),
    ],
    ids=["mistyped", "heartbeats only", "some", "paused", "not copied", "starting"],
)
def test_the_condition_topics_selected_is_what_the_connector_reports(
    summary: dict[str, Any], expected: tuple[str, str]
) -> None:
    status = assess(observed({"reading": reading(**summary)})).status

    assert status_and_reason(status, "TopicsSelected") == expected


def test_an_unreachable_pod_leaves_topics_selected_unknown() -> None:
    unreachable = Reading(read_at_s=NOW_S - 5, failure=PollFailure.UNREACHABLE)

    assert status_and_reason(assess(observed({"reading": unreachable})).status, "TopicsSelected") == (
        "Unknown",
        "NotAsked",
    )


def test_a_flow_with_a_mistyped_topic_is_not_ready_and_suggests_a_similar_one() -> None:
    """Ready has the reason and the message of TopicsSelected."""
    status = settled(observed({"reading": reading(partitions=0, reasons=(MISTYPED,))}))
    by_type = conditions(status)

    assert status_and_reason(status, "Ready") == ("False", "NothingMatches")
    assert by_type["Ready"].message == by_type["TopicsSelected"].message
    assert str(MISTYPED.example) in by_type["Ready"].message
    assert "`mirrorflow check`" in by_type["Ready"].message


def test_an_empty_selection_is_one_warning() -> None:
    """Ready has the same problem, which causes no second event."""
    nothing = observed({"reading": reading(partitions=0, reasons=(MISTYPED,))})
    after = assess(nothing)

    events = list(new_problems((), after.status.conditions, after.causes))

    assert [reason for reason, _ in events] == ["NothingMatches"]
    assert str(MISTYPED.example) in events[0][1]


def test_a_topic_that_is_created_later_makes_the_flow_ready() -> None:
    before = settled(observed({"reading": reading(partitions=0, reasons=(MISTYPED,))}))
    after = settled(observed({"reading": reading(partitions=3)}))

    assert status_and_reason(before, "Ready") == ("False", "NothingMatches")
    assert [status_and_reason(after, kind) for kind in ("TopicsSelected", "Ready")] == [
        ("True", "Selected"),
        ("True", "Replicating"),
    ]
