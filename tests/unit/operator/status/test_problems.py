"""Each new problem in a status becomes one Warning event."""

from typing import Any

import pytest

from mirrorflow_operator.api.status import MESSAGE_MAX, Condition, ConditionStatus, Status
from mirrorflow_operator.status.assess import assess
from mirrorflow_operator.status.conditions import new_problems
from mirrorflow_operator.status.pod_reports import ReasonCount, Replicating
from tests.unit.operator.observations import observed, reading, resource

TOO_LARGE = ReasonCount("RecordTooLarge", 1, "orders-3: the record at source offset 7 takes 2000000 bytes.")
TAKEN = ReasonCount(
    "TargetTaken",
    1,
    "orders-4: target topic east.orders already holds the copy of payments; rename one of the copies.",
)
YES, NO, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN


def condition(kind: str, status: ConditionStatus, reason: str, message: str = "A sentence.") -> Condition:
    return Condition(
        type=kind,
        status=status,
        reason=reason,
        message=message,
        observed_generation=1,
        last_transition_time="2026-11-18T11:06:40Z",
    )


@pytest.mark.parametrize(
    ("current", "expected"),
    [
        (condition("SourceReachable", NO, "Unreachable"), True),
        (condition("SourceReachable", UNKNOWN, "NotAsked"), False),
        (condition("Replicating", NO, "PartitionsStalled"), True),
        (condition("Replicating", NO, "Paused"), False),
        (condition("Replicating", YES, "SourceDataLost"), True),
        (condition("Replicating", YES, "Advancing"), False),
        (condition("Degraded", YES, "Warnings"), True),
        (condition("Degraded", NO, "NoWarnings"), False),
        (condition("Verified", NO, "DifferencesFound"), True),
        (condition("Verified", UNKNOWN, "Verifying"), False),
        (condition("Reconciling", YES, "RollingOut"), False),
        (condition("Ready", NO, "OutOfMemory"), True),
        (condition("Ready", NO, "Seeding"), False),
    ],
)
def test_conditions_that_need_attention_are_problems(current: Condition, *, expected: bool) -> None:
    """Requested and unknown states are not problems."""
    assert expected == bool(list(new_problems([], [current], {})))


def test_a_lasting_problem_is_reported_once() -> None:
    """The figures in its message may change."""
    before = condition("Replicating", NO, "PartitionsStalled", "1 WritesRefused.")
    current = condition("Replicating", NO, "PartitionsStalled", "2 WritesRefused.")

    assert [] == list(new_problems([before], [current], {}))


def test_a_new_warning_is_reported() -> None:
    """Both warnings have the same reason."""
    before = condition("Degraded", YES, "Warnings", "An ACL is missing.")
    current = condition("Degraded", YES, "Warnings", "Two ACLs are missing.")

    assert [("Warnings", "Two ACLs are missing.")] == list(new_problems([before], [current], {}))


def test_a_problem_that_ready_repeats_is_reported_once() -> None:
    """The reason of Ready may have a different name."""
    unreachable = "Cluster east cannot be used."
    ready = condition("Ready", NO, "SourceUnreachable", unreachable)
    source = condition("SourceReachable", NO, "Unreachable", unreachable)

    assert [("Unreachable", unreachable)] == list(new_problems([], [ready, source], {}))


def warnings(
    *reasons: ReasonCount, before: Status, **summary: object
) -> tuple[Status, list[tuple[str, str]]]:
    """Returns the status of a flow with partitions stopped for *reasons*, and its new warnings after the status
    *before*.
    """
    fields: dict[str, Any] = {
        "replicating": Replicating.ADVANCING,
        "records_per_s": 5.0,
        "partitions_stopped": len(reasons),
    }
    stopped = reading(**(fields | summary), reasons=reasons)
    observation = observed({"reading": stopped}, resource=resource(status=before))
    assessment = assess(observation)
    return assessment.status, list(
        new_problems(before.conditions, assessment.status.conditions, assessment.causes)
    )


def test_a_second_cause_of_the_same_problem_is_a_second_warning() -> None:
    """A warning about a large record does not include a different topic."""
    first, events = warnings(TOO_LARGE, before=Status())
    assert [reason for reason, _ in events] == ["PartitionsStopped"]

    second, events = warnings(TOO_LARGE, TAKEN, before=first)

    assert [reason for reason, _ in events] == ["PartitionsStopped"]
    assert "TargetTaken (" in events[0][1]
    assert (second, []) == warnings(TOO_LARGE, TAKEN, before=second)


def test_a_cause_that_ends_or_grows_is_not_a_new_warning() -> None:
    """A higher count or a different example of a known cause is not a new problem."""
    both, _ = warnings(TOO_LARGE, TAKEN, before=Status())

    fewer, events = warnings(TOO_LARGE, before=both)
    assert events == []

    _, events = warnings(
        TOO_LARGE._replace(number=2, example="payments-0: its record is large."), before=fewer
    )
    assert events == []


def test_lost_records_do_not_hide_a_second_cause() -> None:
    """SourceDataLost is the worst reason of a pod, but the pod may have other problems."""
    lost = ReasonCount("SourceDataLost", 1)
    first, _ = warnings(lost, before=Status(), replicating=Replicating.SOURCE_DATA_LOST)

    _, events = warnings(lost, TAKEN, before=first, replicating=Replicating.SOURCE_DATA_LOST)

    assert [("SourceDataLost", True)] == [(reason, "TargetTaken" in message) for reason, message in events]


def test_a_message_names_each_cause() -> None:
    """If long examples cut off a cause, it would be a new warning each time."""
    causes = [ReasonCount(f"Cause{number}", 1, "x" * 200) for number in range(20)]
    first, _ = warnings(*causes, before=Status())

    replicating = next(condition for condition in first.conditions if condition.type == "Replicating")
    assert all(f"1 {cause.reason}" in replicating.message for cause in causes)
    assert len(replicating.message) < MESSAGE_MAX
    assert (first, []) == warnings(*causes, before=first)


@pytest.mark.parametrize("cause", ["TargetTaken", "FlowTaken", "UnsupportedBatch"])
def test_a_cause_that_needs_a_user_has_a_remedy(cause: str) -> None:
    status, _ = warnings(ReasonCount(cause, 1), before=Status())

    message = next(condition.message for condition in status.conditions if condition.type == "Replicating")
    assert f"1 {cause} (" in message
