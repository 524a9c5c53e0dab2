"""Readings with equal digests give equal assessments, and relevant changes change the digest."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mirrorflow_operator.status.assess import assess, reading_digest
from mirrorflow_operator.status.observation import Observation
from mirrorflow_operator.status.pod_reports import (
    Checkpoints,
    PollFailure,
    Reading,
    ReasonCount,
    Replicating,
    SideReachability,
    SideSummary,
    Summary,
)
from tests.unit.operator import observations
from tests.unit.operator.observations import CHECKPOINT, NOW_S, connector, observed, pod, summary

SIDES = st.builds(
    SideSummary,
    reach=st.sampled_from(SideReachability),
    reason=st.sampled_from([None, "AuthenticationFailed", "Unheard"]),
    since_s=st.sampled_from([None, 0.0, 9.9, 10.0, 500.0]),
    cluster_id=st.sampled_from([None, "one"]),
)
FIGURES: dict[str, st.SearchStrategy[Any]] = {
    "uptime_s": st.sampled_from([0.0, 29.0, 31.0, 179.0, 181.0, 9_999.0]),
    "state": st.sampled_from(["RUNNING", "FAILED"]),
    "partitions_stopped": st.integers(0, 2),
    "partitions_stalled": st.integers(0, 2),
    "lag_records": st.integers(0, 2),
    "lag_s": st.sampled_from([None, 0.0, 0.9, 1.0, 9.0, 10.0, 59.0, 60.0, 599.0, 600.0]),
    "records_per_s": st.sampled_from([0.0, 0.1, 7.0]),
    "replicating": st.sampled_from(Replicating),
    "reasons": st.lists(
        st.builds(ReasonCount, st.sampled_from(["TopicNotCopied", "TopicGone"]), st.integers(1, 3)),
        max_size=2,
    ).map(tuple),
    "warnings": st.integers(0, 2),
    "first_warnings": st.lists(st.sampled_from(["One.", "Two."]), max_size=2).map(tuple),
    "source": SIDES,
    "target": SIDES,
    "checkpoints": st.none()
    | st.builds(
        Checkpoints,
        groups=st.integers(0, 2),
        failing=st.integers(0, 2),
        age_s=st.sampled_from([None, 0.0, 179.0, 181.0, 400.0]),
        interval_s=st.sampled_from([None, 60.0, 100.0]),
    ),
}


def _observation(polled: Summary) -> Observation:
    reading = Reading(read_at_s=NOW_S - 5, summary=polled)
    polled_pod = pod(reading=reading)
    return observed(connectors=(connector(pods=(polled_pod,)), connector(CHECKPOINT, pods=(polled_pod,))))


# Most changes change the digest, and are filtered out.
@settings(max_examples=3 * settings().max_examples, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    first=st.fixed_dictionaries(FIGURES),
    changes=st.lists(st.sampled_from(sorted(FIGURES)), min_size=1, max_size=4, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: FIGURES[name] for name in names})
    ),
)
def test_readings_with_equal_digests_give_equal_assessments(first: dict[str, Any], changes: dict[str, Any]):
    original = replace(summary(), **first)
    changed = replace(original, **changes)
    assume(
        reading_digest(Reading(read_at_s=0.0, summary=original))
        == reading_digest(Reading(read_at_s=9.0, summary=changed))
    )

    assert assess(_observation(original)).status == assess(_observation(changed)).status


@pytest.mark.parametrize(
    "changes",
    [
        {"replicating": Replicating.STUCK},
        {"lag_records": 5, "lag_s": 70.0},
        {"reasons": (ReasonCount("TopicGone", 1),)},
        {"partitions_stopped": 1},
        {"partitions_stalled": 1},
        {"state": "FAILED"},
        {"target": SideSummary(reach=SideReachability.UNREACHABLE)},
        {"source": replace(observations.REACHED, cluster_id="other")},
        {"checkpoints": Checkpoints(age_s=1.0)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_relevant_change_changes_the_digest(changes: dict[str, Any]):
    before, after = (Reading(read_at_s=0.0, summary=summary(**fields)) for fields in ({}, changes))

    assert reading_digest(before) != reading_digest(after)


def test_changed_figures_keep_the_digest():
    """Therefore steady traffic does not queue the flow."""
    moved = summary(uptime_s=930.0, lag_records=0, records_per_s=0.0, lag_s=0.4)

    assert reading_digest(Reading(read_at_s=0.0, summary=summary())) == reading_digest(
        Reading(read_at_s=30.0, summary=moved)
    )


def test_the_reason_of_a_failed_poll_is_part_of_the_digest():
    """The text of the error is not part of the digest, because it may differ each time."""
    first, again = (Reading(read_at_s=0.0, failure=PollFailure.UNREACHABLE, problem=text) for text in "ab")
    other = Reading(read_at_s=0.0, failure=PollFailure.REFUSED)

    assert reading_digest(first) == reading_digest(again)
    assert reading_digest(first) != reading_digest(other)
