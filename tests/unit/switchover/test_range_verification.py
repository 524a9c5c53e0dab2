"""Compares the newest records of both sides from the log ends. Retention and compaction explain missing records."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import StartPosition
from mirrorflow_core.switchover.observation import TailDigest
from mirrorflow_kafka.admin import admin
from mirrorflow_replicator.switchover import range_verification
from mirrorflow_replicator.switchover.range_verification import (
    Comparison,
    SourceTails,
    Tail,
    TailRecord,
    compare_newest,
    compared,
    with_seal,
)

ORDERS = TopicPartition("orders", 0)


def tail(contents: Sequence[tuple[str, str]], *, first: int = 0, is_whole: bool = True) -> Tail:
    """Returns records with these keys and values."""
    records = [
        TailRecord(offset=first + number, key=key.encode(), digest=f"{key}={value}".encode())
        for number, (key, value) in enumerate(contents)
    ]
    return Tail(records=records, is_whole=is_whole)


A, B, C, D = ("a", "1"), ("b", "2"), ("c", "3"), ("a", "4")


@pytest.mark.parametrize(
    ("sent", "copied", "expected"),
    [
        (tail([A, B, C]), tail([A, B, C], first=7), Comparison(records=3)),
        (tail([]), tail([]), Comparison(records=0)),
        (tail([A, B, C], is_whole=False), tail([B, C], first=9, is_whole=False), Comparison(records=2)),
        (tail([], is_whole=False), tail([A, B], first=9), Comparison(records=0)),
        (
            tail([A, B, C], first=5),
            tail([A, D, C], first=20),
            Comparison(
                records=3,
                difference="orders-0: the record at offset 6 differs from that at offset 21 of its copy",
            ),
        ),
        (
            tail([A, B], first=5),
            tail([]),
            Comparison(records=0, difference="orders-0: its copy lacks the record at offset 6"),
        ),
        (
            tail([]),
            tail([A], first=4),
            Comparison(records=0, difference="orders-0: the source lacks the record at offset 4"),
        ),
        (
            tail([A, B, C], first=5),
            tail([B, C]),
            Comparison(records=2, difference="orders-0: its copy lacks the record at offset 5"),
        ),
        (
            tail([A, B, C], first=5, is_whole=False),
            tail([C]),
            Comparison(records=1, difference="orders-0: its copy lacks the record at offset 6"),
        ),
        (tail([B, C]), tail([A, B, C], first=7), Comparison(records=2)),
    ],
    ids=[
        "equal",
        "both empty",
        "retention on one side",
        "all expired",
        "changed",
        "no copy",
        "not sent",
        "first one not copied",
        "first ones not copied",
        "source created again",
    ],
)
def test_records_are_compared_from_the_ends_of_both_logs(sent: Tail, copied: Tail, expected: Comparison):
    assert compared(ORDERS, sent, copied, is_compacted=False) == expected


@pytest.mark.parametrize(
    ("start", "difference"),
    [(StartPosition.EARLIEST, "orders-0: its copy lacks the record at offset 5"), (StartPosition.LATEST, "")],
)
def test_records_from_before_a_flow_that_starts_later_are_not_expected(
    monkeypatch: pytest.MonkeyPatch, start: StartPosition, difference: str
):
    async def offsets_at(_: object, partitions: Iterable[TopicPartition], *__: object, **___: object) -> Any:
        return dict.fromkeys(partitions, 0)

    async def no_settings(*_: object) -> dict[str, None]:
        return {}

    async def read_tail(*_: object, **__: object) -> Tail:
        return tail([B, C])

    monkeypatch.setattr(
        range_verification, "_copies", lambda _, partitions: {each: each for each in partitions}
    )
    monkeypatch.setattr(range_verification, "_topic_setting", no_settings)
    monkeypatch.setattr(range_verification, "_tail", read_tail)
    monkeypatch.setattr(admin, "offsets_at", offsets_at)
    settings: Any = SimpleNamespace(start=start)
    source = SourceTails(key="k", tails={ORDERS: tail([A, B, C], first=5)}, compacted=())
    target: Any = None

    result = asyncio.run(compare_newest(settings, target, source))

    assert result == {ORDERS: Comparison(records=2, difference=difference)}


@pytest.mark.parametrize(
    ("sent", "copied", "records", "differs"),
    [
        ([A, B, D], [B, D], 2, False),
        ([B, D], [A, B, C, D], 2, False),
        ([A, B], [B, D], 2, True),
    ],
    ids=["cleaned earlier", "cleaned later", "newest of a key differs"],
)
def test_only_the_newest_records_of_keys_count_in_a_compacted_partition(
    *, sent: list[tuple[str, str]], copied: list[tuple[str, str]], records: int, differs: bool
):
    result = compared(ORDERS, tail(sent), tail(copied), is_compacted=True)

    assert (result.records, bool(result.difference)) == (records, differs)


def test_a_whole_copy_of_a_compacted_partition_has_each_key():
    """A cleaner keeps the newest record of each key. Where retention has removed records of the copy, it may lack keys."""
    lacks = compared(ORDERS, tail([A, B, D]), tail([A, D]), is_compacted=True)
    shortened = compared(ORDERS, tail([A, B, D]), tail([A, D], is_whole=False), is_compacted=True)

    assert lacks == Comparison(
        records=1, difference="orders-0: its copy has no record of the key at offset 1"
    )
    assert shortened == Comparison(records=1)


def test_a_cleaner_may_have_removed_a_record_without_key_or_value_from_a_copy():
    deleted = TailRecord(offset=3, key=b"b", digest=b"b", is_kept_by_cleaner=False)

    result = compared(
        ORDERS, replace(tail([A]), records=[*tail([A, B]).records, deleted]), tail([A]), is_compacted=True
    )

    assert result == Comparison(records=1)


@given(
    contents=st.lists(st.sampled_from([A, B, C, D]), min_size=1, max_size=12),
    kept=st.integers(1, 12),
    changed=st.integers(0, 11),
)
def test_a_changed_record_is_reported_if_both_sides_still_have_its_offset(
    contents: list[tuple[str, str]], kept: int, changed: int
):
    altered = list(contents)
    index = changed % len(contents)
    altered[index] = ("z", "9")

    result = compared(ORDERS, tail(contents), tail(altered[-kept:], is_whole=False), is_compacted=False)

    assert bool(result.difference) == (index >= len(contents) - kept)


def sealed(tail_: Tail, *, compacted: bool = False) -> TailDigest:
    """What the seal has of *tail_*."""
    tails = SourceTails(key="k", tails={ORDERS: tail_}, compacted={ORDERS} if compacted else ())
    return tails.digests().partitions[ORDERS]


EQUAL = Comparison(records=2)


def test_a_copy_that_ends_with_the_sealed_records_has_their_digest():
    """Offsets differ on both sides, and retention may have left the copy more."""
    seal = sealed(tail([B, C], first=5))

    assert seal.records == 2
    assert with_seal(EQUAL, ORDERS, seal, tail([A, B, C], first=70)).has_sealed_digest


@pytest.mark.parametrize("copied", [[B, D], [C, B], [B, C, A]], ids=["changed", "reordered", "more"])
def test_a_copy_that_ends_with_other_records_differs_from_the_seal(copied: list[tuple[str, str]]):
    result = with_seal(EQUAL, ORDERS, sealed(tail([B, C])), tail(copied))

    assert result.difference == "orders-0: its copy does not end with the 2 records that were sealed"
    assert not result.has_sealed_digest


def test_a_copy_of_which_retention_has_removed_sealed_records_is_not_judged_by_the_digest():
    result = with_seal(EQUAL, ORDERS, sealed(tail([A, B, C])), tail([B, C], is_whole=False))

    assert result == EQUAL


@pytest.mark.parametrize("copied", [[B, C], []], ids=["some", "all"])
def test_a_whole_copy_with_fewer_records_than_the_seal_differs(copied: list[tuple[str, str]]):
    """Retention has removed them on the source since it was sealed."""
    result = with_seal(EQUAL, ORDERS, sealed(tail([A, B, C])), tail(copied))

    assert result.difference == "orders-0: its copy does not end with the 3 records that were sealed"


def test_a_compacted_or_empty_partition_has_no_digest():
    assert sealed(tail([A, B]), compacted=True) == TailDigest(records=0, digest="")
    assert sealed(tail([])) == TailDigest(records=0, digest="")
    assert with_seal(EQUAL, ORDERS, sealed(tail([])), tail([A])) == EQUAL


def test_a_difference_of_records_is_reported_before_one_of_the_seal():
    first = Comparison(records=2, difference="orders-0: the record at offset 6 differs")

    assert with_seal(first, ORDERS, sealed(tail([B, C])), tail([B, D])) == first
