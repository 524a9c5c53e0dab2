"""Whether the source has a topic for the flow to copy, as the conditions and the Warning events show it."""

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
    return {one.type: one for one in status.conditions}


def answer(status: Status, kind: str) -> tuple[str, str]:
    found = conditions(status)[kind]
    return found.status.value, found.reason


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"partitions": 0, "reasons": (MISTYPED,)}, ("False", "NothingMatches")),
        # Copied heartbeats are partitions as well.
        ({"partitions": 1, "reasons": (MISTYPED,)}, ("False", "NothingMatches")),
        ({"partitions": 12}, ("True", "Selected")),
        ({"partitions": 12, "replicating": Replicating.PAUSED}, ("True", "Selected")),
        ({"partitions": 12, "reasons": (ReasonCount("TopicNotCopied", 1),)}, ("True", "Selected")),
        ({"partitions": 0, "replicating": Replicating.WAITING}, ("Unknown", "NotAsked")),
    ],
    ids=["mistyped", "heartbeats alone", "some", "paused", "not copied", "starting"],
)
def test_topics_selected_is_what_the_connector_reports(
    said: dict[str, Any], expected: tuple[str, str]
) -> None:
    status = assess(observed({"reading": reading(**said)})).status

    assert answer(status, "TopicsSelected") == expected


def test_an_unreachable_pod_leaves_topics_selected_unknown() -> None:
    away = Reading(read_at_s=NOW_S - 5, failure=PollFailure.UNREACHABLE)

    assert answer(assess(observed({"reading": away})).status, "TopicsSelected") == ("Unknown", "NotAsked")


def test_a_mistyped_topic_is_not_ready_and_names_a_similar_one() -> None:
    """Ready has the reason and the sentence of the condition that it fails for."""
    status = settled(observed({"reading": reading(partitions=0, reasons=(MISTYPED,))}))
    found = conditions(status)

    assert answer(status, "Ready") == ("False", "NothingMatches")
    assert found["Ready"].message == found["TopicsSelected"].message
    assert MISTYPED.example in found["Ready"].message
    assert "`mirrorflow check`" in found["Ready"].message


def test_nothing_selected_is_one_warning() -> None:
    """Ready repeats it, and is no second event."""
    nothing = observed({"reading": reading(partitions=0, reasons=(MISTYPED,))})
    after = assess(nothing)

    found = list(new_problems((), after.status.conditions, after.causes))

    assert [reason for reason, _ in found] == ["NothingMatches"]
    assert MISTYPED.example in found[0][1]


def test_a_topic_that_is_created_later_makes_the_flow_ready() -> None:
    before = settled(observed({"reading": reading(partitions=0, reasons=(MISTYPED,))}))
    after = settled(observed({"reading": reading(partitions=3)}))

    assert answer(before, "Ready") == ("False", "NothingMatches")
    assert [answer(after, kind) for kind in ("TopicsSelected", "Ready")] == [
        ("True", "Selected"),
        ("True", "Replicating"),
    ]
