"""The event log of a partition begins and limits its segments, and is stored as JSON."""

import json
from typing import Any

import pytest

from mirrorflow_core.copying.event_log import (
    ENTRIES_MAX,
    ENTRIES_MIN,
    SEGMENTS_MAX,
    TASK_ENTRIES_MAX,
    from_json,
    to_json,
)
from mirrorflow_core.copying.partition import CopierState, PartitionCopier
from mirrorflow_core.errors import PartitionError, RecordTooLargeError
from mirrorflow_core.partitions import OffsetPair
from mirrorflow_core.wire.error_codes import REQUEST_TIMED_OUT
from tests.unit.core.copying.stubs import begun_copier, new_session, put_in_flight, resume

NOW = 1_700_000_000_000


def segments_of(copier: PartitionCopier) -> list[dict[str, Any]]:
    return list(json.loads(json.dumps(copier.replay_document()))["segments"])


def names_of(segment: dict[str, Any]) -> list[str]:
    return [from_json(event)[0] for event in segment["events"]]


def refuse(copier: PartitionCopier) -> None:
    """Refuses a batch and resumes the partition."""
    put_in_flight(copier, 1)
    copier.refused(REQUEST_TIMED_OUT, "")
    resume(copier, NOW)


def test_an_unusual_event_begins_a_segment():
    copier = begun_copier(NOW)

    refuse(copier)

    assert names_of(segments_of(copier)[-1])[-2:] == ["refused", "resumed"]


def test_usual_events_outside_a_segment_are_not_kept():
    copier = begun_copier(NOW, new_session())
    copier.log.end(copier.state_values)
    before = segments_of(copier)

    put_in_flight(copier, 1)
    copier.acknowledged(0, -1, NOW)

    assert segments_of(copier) == before


def test_an_acknowledgement_with_a_gap_begins_a_segment():
    copier = begun_copier(NOW)
    put_in_flight(copier, 1)
    copier.acknowledged(0, -1, NOW)
    copier.log.end(copier.state_values)

    put_in_flight(copier, 1)
    copier.acknowledged(7, -1, NOW)

    assert names_of(segments_of(copier)[-1]) == ["acknowledged"]


@pytest.mark.parametrize("partitions", [1, 32, 100, TASK_ENTRIES_MAX // ENTRIES_MIN])
def test_the_total_number_of_logged_events_of_a_task_is_bounded(partitions):
    session = new_session()

    session.limit_event_logs(partitions)

    assert ENTRIES_MIN <= session.entries_max <= ENTRIES_MAX
    assert partitions * session.entries_max <= TASK_ENTRIES_MAX


def test_only_a_bounded_number_of_segments_and_events_is_kept():
    session = new_session()
    session.limit_event_logs(10**6)
    copier = begun_copier(NOW, session)

    for _ in range(1_000):
        refuse(copier)

    segments = segments_of(copier)
    assert len(segments) == SEGMENTS_MAX
    assert sum(len(segment["events"]) for segment in segments) <= SEGMENTS_MAX * session.entries_max
    assert copier.state is CopierState.COPYING


@pytest.mark.parametrize(
    "value",
    [
        (1, "text", None, 2.5, True),
        {"key": (OffsetPair(1, 2, 3),)},
        frozenset({1, 2}),
        [CopierState.COPYING, b"\x00\xff"],
        new_session(),
    ],
    ids=["tuple", "dict", "set", "enum and bytes", "session"],
)
def test_values_decoded_from_json_equal_the_encoded_ones(value):
    assert from_json(json.loads(json.dumps(to_json(value)))) == value


def test_an_error_decoded_from_json_equals_the_encoded_one():
    error = RecordTooLargeError(
        topic="orders", partition=2, offset=7, size_bytes=9, target_topic="east.orders", then=""
    )

    decoded = from_json(json.loads(json.dumps(to_json(error))))

    assert isinstance(decoded, PartitionError)
    assert (str(decoded), vars(decoded)) == (str(error), vars(error))


def test_a_type_of_a_different_package_is_refused():
    with pytest.raises(ValueError, match="os:system is not a type"):
        from_json({"$": "os:system", "items": ["true"]})
