"""What `mirrorflow check` foresees of records that a copy would refuse."""

import pytest

from mirrorflow_cli.check_record_limits import (
    CopyLimits,
    SampledRecord,
    TopicSample,
    refused_keys,
    refused_timestamps,
    smaller_sizes,
)
from mirrorflow_core.partitions import TopicPartition

NOW_MS, HOUR_MS, DAY_MS = 1_700_000_000_000, 3_600_000, 86_400_000
AFTER_MAX = "message.timestamp.after.max.ms"


def copy(
    name: str,
    *,
    newest_ms: int | None = None,
    oldest_ms: int | None = None,
    keyless: int | None = None,
    size: int = 1_048_588,
    **target: str,
) -> CopyLimits:
    """The copy of a topic with records of these timestamps, one without a key at offset *keyless*, and batches of *size* bytes."""
    partition = TopicPartition(name.partition(".")[2], 1)

    def record(offset: int, timestamp_ms: int | None) -> SampledRecord | None:
        if timestamp_ms is None:
            return None
        return SampledRecord(partition=partition, offset=offset, timestamp_ms=timestamp_ms)

    return CopyLimits(
        name=name,
        source={"max.message.bytes": str(size)},
        target={"max.message.bytes": "1048588", AFTER_MAX: str(HOUR_MS)}
        | {key.replace("_", "."): value for key, value in target.items()},
        sample=TopicSample(
            oldest=record(0, oldest_ms),
            newest=record(14, newest_ms),
            keyless=None if keyless is None else record(keyless, NOW_MS),
        ),
    )


def test_copies_that_refuse_a_timestamp_are_one_sentence_with_an_example() -> None:
    """Since Kafka 4.0 an hour ahead is the default limit."""
    future = NOW_MS + 2 * DAY_MS
    copies = [copy("A.old", newest_ms=NOW_MS), copy("A.t", newest_ms=future)]

    [told] = refused_timestamps([*copies, copy("A.u", newest_ms=future)], NOW_MS)

    assert told.startswith(
        "message.timestamp.after.max.ms is 3600000 on target topic A.t and 1 more, which refuses newer records; "
        "t-1 has one of 2023-11-16 22:13:20 UTC at source offset 14: unless it is already copied, raise"
    )
    assert "topics.configs.exceptions" in told


def test_a_timestamp_in_microseconds_is_named_by_its_number() -> None:
    """It is later than the last year that a date can have."""
    [told] = refused_timestamps([copy("A.t", newest_ms=NOW_MS * 1000)], NOW_MS)

    assert f"one of {NOW_MS * 1000} ms since 1970" in told


def test_a_copy_with_a_limit_for_old_records_names_the_oldest() -> None:
    """The source has such a limit, too: its records have become older since they were written."""
    old = NOW_MS - 8 * DAY_MS
    limited = copy("A.t", oldest_ms=old, newest_ms=NOW_MS, message_timestamp_before_max_ms=str(7 * DAY_MS))

    [told] = refused_timestamps([limited], NOW_MS)

    assert told.startswith(
        "message.timestamp.before.max.ms is 604800000 on target topic A.t, which refuses older records; "
        "t-1 has one of 2023-11-06 22:13:20 UTC at source offset 0: "
    )


def test_copies_that_will_be_compacted_name_a_record_without_a_key() -> None:
    copies = [
        copy("A.kept", keyless=3),
        copy("A.t", keyless=2, cleanup_policy="compact"),
        copy("A.u", keyless=9, cleanup_policy="compact,delete"),
        copy("A.v", cleanup_policy="compact"),
    ]

    [told] = refused_keys(copies)

    assert told.startswith(
        "Target topic A.t and 1 more will be compacted (cleanup.policy), as on the source, and refuse records without a key; "
        "t-1 has one at source offset 2: set cleanup.policy=delete on the copy, or"
    )
    assert refused_keys(copies[:1]) == []


@pytest.mark.parametrize(
    "accepting",
    [
        copy("A.t"),
        copy("A.t", newest_ms=NOW_MS + HOUR_MS),
        copy("A.t", newest_ms=NOW_MS + DAY_MS, message_timestamp_type="LogAppendTime"),
        copy("A.t", newest_ms=NOW_MS + DAY_MS, message_timestamp_after_max_ms=str(2**63 - 1)),
        copy("A.t", newest_ms=NOW_MS + DAY_MS, message_timestamp_after_max_ms=""),
        copy("A.t", oldest_ms=NOW_MS - DAY_MS, message_timestamp_before_max_ms=str(2 * DAY_MS)),
    ],
    ids=["no record", "within it", "the target's own time", "no limit", "before Kafka 3.6", "not too old"],
)
def test_a_copy_that_accepts_such_records_is_not_named(accepting: CopyLimits) -> None:
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
