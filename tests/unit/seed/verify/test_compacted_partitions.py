"""Tests that compacted partitions are compared by the newest record of each key."""

import asyncio
import itertools
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.record_digests import DigestedRecord, RecordDigester
from mirrorflow_core.wire.records import Record
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import ListedOffset
from mirrorflow_seed.verify import key_lookup
from mirrorflow_seed.verify.compared_sides import CompareSettings
from mirrorflow_seed.verify.key_comparison import KeyClassComparison, compare_key_rows
from mirrorflow_seed.verify.key_lookup import GROWS_TOO_FAST, LOOKUP_ROUNDS_MAX, REWRITTEN, KeyLookup
from mirrorflow_seed.verify.key_rows import KeyCombiner, KeyRow, NewestRecord, log_parts, report_rows
from mirrorflow_seed.verify.offset_windows import ComparisonMethod, DifferenceKind, VerifyRange, WindowResult
from tests.unit.core.wire.strategies import batch_of

END = 1_000


def records_of(*pairs: tuple[str, str | None]) -> list[Record]:
    return [
        Record(offset, 1_700_000_000_000, key.encode(), None if value is None else value.encode())
        for offset, (key, value) in enumerate(pairs)
    ]


def compare(
    source: Sequence[Record],
    target: Sequence[Record],
    *,
    copied_before: int | None = END,
    can_expire: bool = False,
    classes: int = 1,
    parts: int = 1,
    problem: str | None = None,
    open_transaction: str | None = None,
    rewritten: Sequence[bytes] = (),
) -> list[WindowResult]:
    """Compares like the tasks of a job: each part of a log makes rows, which Spark sorts.

    *rewritten* are the keys that the lookup has found after the planned ends.
    """
    verify_range = VerifyRange(
        topic="t",
        partition=0,
        target_topic="e.t",
        source_from=0,
        source_to=END,
        target_from=0,
        target_to=END,
        copied_before=copied_before,
        method=ComparisonMethod.NEWEST_PER_KEY,
        key_class_count=classes,
        key_classes=tuple(range(classes)),
        log_parts=parts,
        can_expire=can_expire,
        open_transaction=open_transaction,
    )
    rows: list[KeyRow] = []
    log = log_parts([verify_range])
    for part in log:
        combiner = KeyCombiner(part, RecordDigester("r", 0))
        records = source if part.side == "source" else target
        if records:
            combiner.add(batch_of(list(records)))
        rows += combiner.take()
        of_target = problem if part.side == "target" else None
        rows += report_rows(part, bytes_read=10, seconds=1.0, problem=of_target)
    rows.sort(key=lambda row: (row.number, row.key_class, row.key, row.side, row.offset))
    comparisons = list(compare_key_rows(rows, [verify_range]))
    assert sum(comparison.bytes_read for comparison in comparisons) == 10 * len(log)
    for comparison in comparisons:
        comparison.leave_undecided([RecordDigester("r", 0).digest_key(key) for key in rewritten], REWRITTEN)
    return [comparison.result() for comparison in comparisons]


def outcome(*arguments: Sequence[Record], copied_before: int | None = END, can_expire: bool = False) -> str:
    (window,) = compare(*arguments, copied_before=copied_before, can_expire=can_expire)
    return window.outcome.value


def test_records_removed_by_log_cleaners_do_not_differ() -> None:
    assert (
        outcome(records_of(("a", "1"), ("b", "1"), ("a", "2")), records_of(("b", "1"), ("a", "2"))) == "equal"
    )
    assert outcome(records_of(("a", "1"), ("a", None)), records_of()) == "equal"
    assert outcome(records_of(), records_of(("a", None))) == "equal"


def test_a_changed_newest_value_is_different() -> None:
    (window,) = compare(
        records_of(("a", "1"), ("b", "1"), ("a", "2")), records_of(("a", "2"), ("a", "1"), ("b", "1"))
    )
    assert window.outcome.value == "different"
    assert [(DifferenceKind.CHANGED, 2, 1)] == [
        (difference.kind, difference.source_offset, difference.target_offset)
        for difference in window.differences
    ]


def test_a_tombstone_that_was_not_copied_is_different() -> None:
    assert outcome(records_of(("b", "1"), ("a", None)), records_of(("a", "1"), ("b", "1"))) == "different"
    assert outcome(records_of(("b", "1")), records_of(("a", "1"), ("b", "1"))) == "different"


def test_key_after_the_stored_offset_is_ignored() -> None:
    assert (
        outcome(records_of(("b", "1"), ("a", "2")), records_of(("b", "1"), ("a", "1")), copied_before=1)
        == "equal"
    )
    assert (
        outcome(records_of(("b", "1"), ("a", "2")), records_of(("b", "1"), ("a", "1")), copied_before=None)
        == "undecided"
    )


def test_key_that_retention_may_have_deleted_is_undecided() -> None:
    assert outcome(records_of(("b", "1"), ("a", "2")), records_of(("b", "1")), can_expire=True) == "undecided"
    assert (
        outcome(records_of(("b", "1"), ("a", "2")), records_of(("b", "1"), ("a", "3")), can_expire=True)
        == "different"
    )


def test_a_key_that_was_written_again_is_undecided_and_hides_no_other_difference() -> None:
    """Whichever side has lost its older record to a log cleaner."""
    all_keys = records_of(("a", "1"), ("b", "1"), ("c", "1"))
    for source, target in ((all_keys[1:], all_keys), (all_keys, all_keys[1:])):
        (window,) = compare(source, target, rewritten=[b"a"])
        assert ("undecided", REWRITTEN, 0) == (window.outcome.value, window.reason, window.differing)

        (window,) = compare(source, target, rewritten=[b"b"])
        assert ("different", 1) == (window.outcome.value, window.differing)

        (window,) = compare(source, [*target[:-1], target[-1]._replace(value=b"2")], rewritten=[b"a"])
        assert ("different", 1) == (window.outcome.value, window.differing)


def test_each_key_is_in_one_class() -> None:
    pairs = [(f"k{number}", "v") for number in range(500)]
    windows = compare(records_of(*pairs), records_of(*pairs[::-1]), classes=4)
    assert {"equal"} == {window.outcome.value for window in windows}
    assert 500 == sum(window.source_count for window in windows)
    assert all(window.source_count > 50 for window in windows)


@given(st.integers(1, 40), st.integers(1, 5))
def test_the_number_of_parts_and_classes_changes_no_outcome(parts: int, classes: int) -> None:
    """A key whose versions are in several parts is compared by the newest of all."""
    source = records_of(*((f"k{number % 7}", str(number)) for number in range(50)))
    target = records_of(*((f"k{number % 7}", str(number)) for number in range(43, 50)))
    windows = compare(source, target, parts=parts, classes=classes)
    assert {"equal"} == {window.outcome.value for window in windows}
    assert classes == len(windows)
    assert 7 == sum(window.source_count for window in windows)

    changed = [*target[:3], target[3]._replace(value=b"other"), *target[4:]]
    windows = compare(source, changed, parts=parts, classes=classes)
    assert 1 == sum(window.differing for window in windows)


def test_a_log_that_was_not_read_to_its_end_leaves_its_keys_undecided() -> None:
    """The keys that were not read are not missing."""
    source = records_of(("a", "1"), ("b", "1"))
    windows = compare(source, [], classes=3, problem="The batch is damaged.")
    assert [("undecided", "The batch is damaged.")] * 3 == [
        (window.outcome.value, window.reason) for window in windows
    ]


def test_keys_after_an_open_transaction_are_undecided_with_that_reason() -> None:
    (window,) = compare(
        records_of(("a", "1")), [], copied_before=None, open_transaction="Producer 7 has one open."
    )
    assert ("undecided", "Producer 7 has one open.") == (window.outcome.value, window.reason)


@given(st.integers(0, 100), st.integers(0, 100), st.integers(1, 20))
def test_parts_of_a_log_cover_each_offset_once(source: int, target: int, count: int) -> None:
    """Each side has a first part, even an empty one. Only the first part of the source is reported for all classes."""
    verify_range = VerifyRange(
        topic="t",
        partition=0,
        target_topic="e.t",
        source_from=5,
        source_to=5 + source,
        target_from=9,
        target_to=9 + target,
        log_parts=count,
    )
    parts = log_parts([verify_range])
    for side, begin, end in (("source", 5, 5 + source), ("target", 9, 9 + target)):
        ranges = [part.verify_range for part in parts if part.side == side]
        borders = [
            (cut.source_from, cut.source_to) if side == "source" else (cut.target_from, cut.target_to)
            for cut in ranges
        ]
        assert [begin, *(stop for _, stop in borders)] == [*(start for start, _ in borders), end]
        assert 1 <= len(borders) <= count
    assert [True] == [part.is_first for part in parts if part.is_first]


def test_only_keys_that_would_be_reported_are_looked_up() -> None:
    """Not those that are behind, may have expired, or lie after all that is known to be copied."""

    def looked_up(
        *, copied_before: int | None = 4, can_expire: bool = False, problem: str | None = None
    ) -> set[bytes]:
        verify_range = VerifyRange(
            topic="t",
            partition=0,
            target_topic="e.t",
            source_from=0,
            source_to=END,
            target_from=0,
            target_to=END,
            copied_before=copied_before,
            can_expire=can_expire,
        )
        comparison = KeyClassComparison(verify_range, 0)
        report = {"bytes": 0, "seconds": 0, "memory": 0, "problem": problem}
        comparison.add_report(json.dumps(report))
        for key, source, target in (
            (b"equal", 0, 0),
            (b"missing", 1, None),
            (b"changed", 2, 9),
            (b"extra", None, 3),
            (b"behind", 5, None),
        ):
            newest = [
                None if offset is None else NewestRecord(DigestedRecord(offset, b"%d" % offset), False)
                for offset in (source, target)
            ]
            comparison.add(key, *newest)
        return set(comparison.keys_to_look_up)

    assert {b"missing", b"changed", b"extra"} == looked_up()
    assert {b"changed"} == looked_up(can_expire=True)
    assert {b"extra"} == looked_up(copied_before=None)
    assert set() == looked_up(problem="The batch is damaged.")


@pytest.mark.parametrize(("round_s", "rounds"), [(60.0, 1), (0.0, LOOKUP_ROUNDS_MAX)])
def test_a_lookup_ends_with_a_short_round_or_leaves_keys_undecided(
    round_s: float, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of the source grows between any two rounds; each round reads what was added."""
    ends = itertools.count(END + 10, 10)
    read: list[tuple[str, int, int]] = []

    async def list_offsets(
        _: object, partitions: Sequence[TopicPartition], *__: object
    ) -> dict[object, object]:
        [partition] = partitions
        return {partition: ListedOffset(offset=next(ends) if partition.topic == "t" else END)}

    class EmptyReader:
        bytes_read = 7

        def __init__(
            self, _: object, partition: TopicPartition, offsets: tuple[int, int], *, read_committed: bool
        ) -> None:
            read.append((partition.topic, *offsets))
            assert not read_committed

        async def more(self) -> None:
            return None

        async def close(self) -> None:
            pass

    monkeypatch.setattr(admin, "list_offsets", list_offsets)
    monkeypatch.setattr(key_lookup, "OffsetRangeReader", EmptyReader)
    monkeypatch.setattr(key_lookup, "LOOKUP_ROUND_S", round_s)
    monkeypatch.setattr(key_lookup, "digesters", lambda *_: (RecordDigester("r", 0), None))
    verify_range = VerifyRange(
        topic="t", partition=0, target_topic="e.t", source_from=0, source_to=END, target_from=0, target_to=END
    )
    settings: Any = SimpleNamespace(read_committed=False)
    sides: Any = {"source": None, "target": None}
    lookup = KeyLookup(sides, settings, verify_range, frozenset([b"key"]), CompareSettings(run_id="r"))

    asyncio.run(lookup.run())

    assert [("t", END + 10 * number, END + 10 * number + 10) for number in range(rounds)] == read
    assert (None if rounds == 1 else GROWS_TOO_FAST) == lookup.problem
