"""`mirrorflow check` predicts which records the target topic would refuse."""

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
    """Returns the limits of a copied topic.

    The source has records with these timestamps and batches of *size* bytes. *keyless* is the offset of a record
    without a key.
    """
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


def test_topics_that_refuse_newer_records_share_one_sentence_with_an_example() -> None:
    """By default, Kafka 4.0 and later refuse timestamps more than an hour ahead."""
    future = NOW_MS + 2 * DAY_MS
    copies = [copy("A.old", newest_ms=NOW_MS), copy("A.t", newest_ms=future)]

    [message] = refused_timestamps([*copies, copy("A.u", newest_ms=future)], NOW_MS)

    assert message.startswith(
        "message.timestamp.after.max.ms is 3600000 on target topic A.t and 1 more, which refuses newer records; "
        "t-1 has one of 2023-11-16 22:13:20 UTC at source offset 14: unless it is already copied, raise"
    )
    assert "topics.configs.exceptions" in message


def test_a_timestamp_beyond_the_last_date_is_shown_as_a_number() -> None:
    """Microseconds, taken as milliseconds, give a year that a date cannot represent."""
    [message] = refused_timestamps([copy("A.t", newest_ms=NOW_MS * 1000)], NOW_MS)

    assert f"one of {NOW_MS * 1000} ms since 1970" in message


def test_a_limit_for_old_records_is_reported_with_the_oldest_record() -> None:
    """The source may have the same limit. Its records were younger when they were written."""
    old = NOW_MS - 8 * DAY_MS
    limited = copy("A.t", oldest_ms=old, newest_ms=NOW_MS, message_timestamp_before_max_ms=str(7 * DAY_MS))

    [message] = refused_timestamps([limited], NOW_MS)

    assert message.startswith(
        "message.timestamp.before.max.ms is 604800000 on target topic A.t, which refuses older records; "
        "t-1 has one of 2023-11-06 22:13:20 UTC at source offset 0: "
    )


def test_compacted_topics_are_reported_with_a_record_without_a_key() -> None:
    copies = [
        copy("A.kept", keyless=3),
        copy("A.t", keyless=2, cleanup_policy="compact"),
        copy("A.u", keyless=9, cleanup_policy="compact,delete"),
        copy("A.v", cleanup_policy="compact"),
    ]

    [message] = refused_keys(copies)

    assert message.startswith(
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
    ids=["no record", "within the limit", "LogAppendTime", "no limit", "before Kafka 3.6", "not too old"],
)
def test_a_topic_that_accepts_the_timestamps_is_not_reported(accepting: CopyLimits) -> None:
    assert refused_timestamps([accepting], NOW_MS) == []


def test_topics_with_smaller_size_limits_share_one_sentence_per_pair_of_limits() -> None:
    copies = [
        copy("A.t"),
        copy("A.u", size=2_000_000),
        copy("A.v", size=2_000_000),
        copy("A.w", size=3_000_000),
    ]

    first, second = smaller_sizes(copies)

    assert first.startswith(
        "max.message.bytes is 1048588 on target topic A.u and 1 more, and 2000000 on the source: "
    )
    assert "topic A.w, and 3000000 on" in second
