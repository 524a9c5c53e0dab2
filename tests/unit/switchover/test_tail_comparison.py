"""Compares the ends of a partition and of its copy."""

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.records import Record
from mirrorflow_replicator.switchover.tail_comparison import record_digest, tail_difference

ORDERS = TopicPartition("orders", 0)


def record(offset: int, value: str, *, timestamp: int = 1_000, key: bytes | None = None) -> Record:
    return Record(offset, timestamp, key, value.encode())


def difference(sent: list[Record], copied: list[Record]) -> str:
    return tail_difference(ORDERS, [*map(record_digest, sent)], [*map(record_digest, copied)])


SENT = [record(offset, f"value {offset}") for offset in range(5)]


@pytest.mark.parametrize(
    "copied",
    [
        [record(offset + 7, f"value {offset}") for offset in range(5)],
        [record(offset, f"value {offset}", timestamp=2_000) for offset in range(5)],
        SENT[2:],
        [record(9, "older"), *SENT],
    ],
    ids=["other-offsets", "other-timestamps", "fewer", "more"],
)
def test_sides_with_the_same_last_records_are_equal(copied: list[Record]):
    assert "" == difference(SENT, copied)


def test_the_difference_that_is_nearest_to_the_end_is_reported():
    copied = [record(offset, "other" if offset in {1, 3} else f"value {offset}") for offset in range(5)]

    assert "orders-0 differs from its copy in the record 2 from its end" == difference(SENT, copied)


def test_a_key_is_part_of_a_record():
    copied = [*SENT[:-1], record(4, "value 4", key=b"")]

    assert "in the record 1 from its end" in difference(SENT, copied)


def test_a_copy_without_records_is_reported():
    assert "orders-0 has 5 records at its end and its copy 0" == difference(SENT, [])


def test_empty_sides_are_equal():
    assert "" == difference([], [])
