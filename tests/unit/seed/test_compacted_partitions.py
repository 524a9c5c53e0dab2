"""Tests that compacted partitions are compared by the newest record of each key."""

from collections.abc import Sequence

from mirrorflow_core.record_digests import RecordDigester
from mirrorflow_core.wire.records import Record
from mirrorflow_seed.verify.offset_windows import ComparisonMethod, DifferenceKind, VerifyRange, WindowResult
from mirrorflow_seed.verify.range_comparison import NewestPerKeyComparison
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
) -> list[WindowResult]:
    results: list[WindowResult] = []
    for number in range(classes):
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
            key_class=number,
            key_classes=classes,
            can_expire=can_expire,
        )
        comparison = NewestPerKeyComparison(
            verify_range, source=RecordDigester("r", 0), target=RecordDigester("r", 0)
        )
        comparison.feed(source=[batch_of(list(source))] if source else [])
        comparison.feed(target=[batch_of(list(target))] if target else [])
        comparison.end(source=True, target=True)
        assert not any(comparison.advance())
        results += comparison.results()
    return results


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


def test_each_key_is_in_one_class() -> None:
    pairs = [(f"k{number}", "v") for number in range(500)]
    windows = compare(records_of(*pairs), records_of(*pairs[::-1]), classes=4)
    assert {"equal"} == {window.outcome.value for window in windows}
    assert 500 == sum(window.source_count for window in windows)
    assert all(window.source_count > 50 for window in windows)
