"""What `mirrorflow check` foresees of records that a copy would refuse."""

import pytest

from mirrorflow_cli.record_limits import CopyLimits, NewestRecord, refused_timestamps, smaller_sizes
from mirrorflow_core.partitions import TopicPartition

NOW_MS, HOUR_MS, DAY_MS = 1_700_000_000_000, 3_600_000, 86_400_000
AHEAD = "message.timestamp.after.max.ms"


def copy(name: str, *, timestamp_ms: int | None = None, size: int = 1_048_588, **target: str) -> CopyLimits:
    """The copy of a topic whose newest record is of *timestamp_ms*, and which accepts *size* bytes."""
    partition = TopicPartition(name.partition(".")[2], 1)
    return CopyLimits(
        name=name,
        source={"max.message.bytes": str(size)},
        target={"max.message.bytes": "1048588", AHEAD: str(HOUR_MS)}
        | {key.replace("_", "."): value for key, value in target.items()},
        newest=None
        if timestamp_ms is None
        else NewestRecord(partition=partition, offset=14, timestamp_ms=timestamp_ms),
    )


def test_copies_that_refuse_a_timestamp_are_one_sentence_with_an_example() -> None:
    """Since Kafka 4.0 an hour ahead is the default limit."""
    future = NOW_MS + 2 * DAY_MS
    copies = [copy("A.old", timestamp_ms=NOW_MS), copy("A.t", timestamp_ms=future)]

    [told] = refused_timestamps([*copies, copy("A.u", timestamp_ms=future)], NOW_MS)

    assert told.startswith(
        "message.timestamp.after.max.ms is 3600000 on target topic A.t and 1 more, which refuses newer records; "
        "t-1 has one of 2023-11-16 22:13:20 UTC at source offset 14: raise"
    )
    assert "topics.configs.exceptions" in told


def test_a_timestamp_in_microseconds_is_named_by_its_number() -> None:
    """It is later than the last year that a date can have."""
    [told] = refused_timestamps([copy("A.t", timestamp_ms=NOW_MS * 1000)], NOW_MS)

    assert f"one of {NOW_MS * 1000} ms since 1970" in told


@pytest.mark.parametrize(
    "accepting",
    [
        copy("A.t"),
        copy("A.t", timestamp_ms=NOW_MS + HOUR_MS),
        copy("A.t", timestamp_ms=NOW_MS + DAY_MS, message_timestamp_type="LogAppendTime"),
        copy("A.t", timestamp_ms=NOW_MS + DAY_MS, message_timestamp_after_max_ms=str(2**63 - 1)),
        copy("A.t", timestamp_ms=NOW_MS + DAY_MS, message_timestamp_after_max_ms=""),
    ],
    ids=["no record", "within the limit", "the target's own time", "no limit", "before Kafka 3.6"],
)
def test_a_copy_that_accepts_the_newest_record_is_not_named(accepting: CopyLimits) -> None:
    assert refused_timestamps([accepting], NOW_MS) == []


def test_copies_that_accept_smaller_batches_are_one_sentence_for_each_pair_of_limits() -> None:
    copies = [
        copy("A.t"),
        copy("A.u", size=2_000_000),
        copy("A.v", size=2_000_000),
        copy("A.w", size=3_000_000),
    ]

    same, larger = smaller_sizes(copies)

    assert same.startswith(
        "max.message.bytes is 1048588 on target topic A.u and 1 more, and 2000000 on the source: "
    )
    assert "topic A.w, and 3000000 on" in larger
