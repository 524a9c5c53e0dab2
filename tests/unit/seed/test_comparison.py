"""Tests the comparison of two logs: unequal records are never reported equal, and differences are in their window."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.wire.batch import Batch
from mirrorflow_core.wire.records import Record
from mirrorflow_seed.verify.offset_windows import DifferenceKind, VerifyRange, WindowOutcome, WindowResult
from mirrorflow_seed.verify.range_comparison import OPEN_TRANSACTION, InOrderComparison, differing_fields
from mirrorflow_seed.verify.record_digests import RecordDigester
from tests.unit.core.wire.strategies import RECORDS, batch_of, numbered, with_attributes

WINDOW = 7


def record(number: int, **changes: object) -> Record:
    """Returns a record that differs from all others."""
    plain = Record(number, 1_700_000_000_000 + number, b"k%d" % number, b"v%d" % number, ((b"h", b"x"),))
    return plain._replace(**changes)  # type: ignore[arg-type]  # fields of a record


def batches(
    records: Sequence[Record], sizes: Sequence[int], *, first: int = 0, codec: int = 0
) -> list[Batch]:
    """*records* with consecutive offsets from *first*, in batches of the repeated *sizes*."""
    found: list[Batch] = []
    at = 0
    while at < len(records):
        size = sizes[len(found) % len(sizes)]
        found.append(batch_of(records[at : at + size], codec=codec, base_offset=first + at))
        at += size
    return found


def compare(
    source: Sequence[Batch],
    target: Sequence[Batch],
    *,
    step: int = 2,
    copied_before: int | None = 1 << 40,
    source_to: int | None = None,
    window: int = WINDOW,
) -> list[WindowResult]:
    """Compares as a task does, *step* batches at a time."""
    verify_range = VerifyRange(
        topic="t",
        partition=3,
        target_topic="e.t",
        source_from=0,
        source_to=(source[-1].next_offset if source else 0) if source_to is None else source_to,
        target_from=0,
        target_to=target[-1].next_offset if target else 0,
        copied_before=copied_before,
        window_offsets=window,
    )
    digest = RecordDigester("run", 3)
    comparison = InOrderComparison(verify_range, source=digest, target=digest)
    left, right = list(source), list(target)
    while any(needs := comparison.advance()):
        if needs.source:
            comparison.feed(source=left[:step])
            del left[:step]
            comparison.end(source=not left)
        if needs.target:
            comparison.feed(target=right[:step])
            del right[:step]
            comparison.end(target=not right)
    return comparison.results()


def differences(results: Sequence[WindowResult]) -> list[tuple[DifferenceKind, int, int]]:
    return [
        (one.kind, one.source_offset, one.target_offset) for found in results for one in found.differences
    ]


def outcomes(results: Sequence[WindowResult]) -> list[str]:
    return [one.outcome.value for one in results]


RECORDS_30 = [record(number) for number in range(30)]


def test_same_bytes_are_equal_without_being_decoded() -> None:
    """Also if a batch crosses the boundary of a window."""
    results = compare(batches(RECORDS_30, [4]), batches(RECORDS_30, [4], first=100))

    assert [0] * 5 == [one.digested for one in results]
    assert [(7, 7)] * 4 + [(2, 2)] == [(one.source_count, one.target_count) for one in results]
    assert ["equal"] * 5 == outcomes(results)
    assert (107, 114) == (results[1].target_from_offset, results[1].target_to_offset)


def test_other_batches_with_the_same_records_are_equal() -> None:
    results = compare(batches(RECORDS_30, [4], codec=3), batches(RECORDS_30, [1, 9], codec=0))

    assert ["equal"] * 5 == outcomes(results)
    assert [one.source_sum for one in results] == [one.target_sum for one in results]
    assert [one.source_chain for one in results] == [one.target_chain for one in results]
    assert 30 == sum(one.digested for one in results)


def test_each_part_of_a_record_counts() -> None:
    """A null is not an empty field, and headers have an order."""
    plain = record(9, headers=((b"a", b"1"), (b"b", b"2")))
    for changed in (
        plain._replace(key=b"other"),
        plain._replace(value=None),
        plain._replace(value=b""),
        plain._replace(timestamp=plain.timestamp + 1),
        plain._replace(headers=plain.headers[::-1]),
        plain._replace(headers=((b"a", b"1"), (b"b", None))),
        plain._replace(headers=((b"a", b"1b"), (b"", b"2"))),
    ):
        source, target = list(RECORDS_30), list(RECORDS_30)
        source[9], target[9] = plain, changed
        results = compare(batches(source, [4]), batches(target, [4]))
        assert ["equal", "different", "equal", "equal", "equal"] == outcomes(results)
        assert [(DifferenceKind.CHANGED, 9, 9)] == differences(results)


def test_missing_record_is_found_and_later_records_are_equal() -> None:
    results = compare(batches(RECORDS_30, [4]), batches(RECORDS_30[:16] + RECORDS_30[17:], [4]))

    assert [(DifferenceKind.MISSING, 16, -1)] == differences(results)
    assert ["equal", "equal", "different", "equal", "equal"] == outcomes(results)


def test_repeated_record_is_found() -> None:
    results = compare(batches(RECORDS_30, [4]), batches(RECORDS_30[:16] + RECORDS_30[15:], [4]))

    assert [(DifferenceKind.EXTRA, -1, 16)] == differences(results)
    assert 1 == outcomes(results).count("different")


def test_swapped_records_are_reordered_not_different() -> None:
    target = list(RECORDS_30)
    target[16], target[17] = target[17], target[16]
    results = compare(batches(RECORDS_30, [4]), batches(target, [4]))

    assert [(DifferenceKind.MOVED, 16, 17), (DifferenceKind.MOVED, 17, 16)] == differences(results)
    assert ["equal", "equal", "reordered", "equal", "equal"] == outcomes(results)
    assert results[2].source_chain != results[2].target_chain


def test_equal_records_of_another_partition_differ() -> None:
    assert RecordDigester("run", 0).digest(RECORDS_30[0]) != RecordDigester("run", 1).digest(RECORDS_30[0])
    assert RecordDigester("run", 0).digest(RECORDS_30[0]) != RecordDigester("other", 0).digest(RECORDS_30[0])


def test_uncopied_tail_is_not_a_difference() -> None:
    results = compare(batches(RECORDS_30, [4]), batches(RECORDS_30[:20], [4]), copied_before=20)
    assert ["equal"] * 3 == outcomes(results)
    assert 20 == sum(one.source_count for one in results)


def test_tail_before_the_stored_offset_is_missing() -> None:
    results = compare(batches(RECORDS_30, [4]), batches(RECORDS_30[:20], [4]), copied_before=22)
    assert [(DifferenceKind.MISSING, 20, -1), (DifferenceKind.MISSING, 21, -1)] == differences(results)


def test_tail_without_a_stored_offset_is_undecided() -> None:
    results = compare(batches(RECORDS_30, [4]), batches(RECORDS_30[:20], [4]), copied_before=None)
    assert ["equal", "equal", "undecided", "undecided", "undecided"] == outcomes(results)
    assert [None] * 3 == [one.ordered_equal for one in results[2:]]


def test_log_append_time_is_the_time_that_consumers_see() -> None:
    stamped = [one._replace(timestamp=1_700_000_000_029) for one in RECORDS_30]
    source = [with_attributes(batch, 0x08) for batch in batches(RECORDS_30, [30])]

    assert {"equal"} == set(outcomes(compare(source, batches(stamped, [30]))))
    assert {"different"} == set(outcomes(compare(source, batches(RECORDS_30[:29] + stamped[:1], [30]))))


SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=4)
# Few different records, so that twins and runs of twins come up.
STREAMS = st.lists(st.integers(0, 5).map(record), max_size=60)


@given(STREAMS, st.data(), SIZES, SIZES, st.integers(1, 4), st.booleans())
def test_unequal_records_are_never_reported_equal(
    source: list[Record],
    data: st.DataObject,
    sizes: list[int],
    others: list[int],
    step: int,
    is_edited: bool,  # noqa: FBT001 drawn
) -> None:
    """Counts are complete, and the records of each equal window are on the target in the same order."""
    target = list(source) if is_edited else data.draw(STREAMS)
    for _ in range(data.draw(st.integers(0, 3)) if is_edited and source else 0):
        at = data.draw(st.integers(0, len(target)))
        target[at : at + data.draw(st.integers(0, 3))] = data.draw(
            st.lists(st.integers(0, 9).map(record), max_size=3)
        )
    codec = data.draw(st.sampled_from((0, 3)))
    results = compare(batches(source, sizes), batches(target, others, codec=codec), step=step)

    digest = RecordDigester("run", 3).digest
    assert len(source) == sum(one.source_count for one in results)
    assert len(target) == sum(one.target_count for one in results)
    assert (source_of(source) == source_of(target)) == all(
        one.outcome is WindowOutcome.EQUAL for one in results
    )
    for one in results:
        here = [digest(r) for r in source[one.from_offset : one.to_offset]]
        there = [digest(r) for r in target[max(0, one.target_from_offset) : max(0, one.target_to_offset)]]
        if one.outcome is WindowOutcome.EQUAL:
            assert here == there
        if one.outcome is WindowOutcome.REORDERED:
            assert sorted(here) == sorted(there) or len(there) > one.target_count


@given(RECORDS, SIZES, SIZES, st.sampled_from((0, 1, 2, 3, 4)))
def test_records_of_any_kind_equal_themselves(
    records: list[Record], sizes: list[int], others: list[int], codec: int
) -> None:
    found = numbered(records)
    results = compare(batches(found, sizes), batches(found, others, codec=codec))
    assert all(one.outcome is WindowOutcome.EQUAL for one in results)


def source_of(records: Sequence[Record]) -> list[tuple[object, ...]]:
    return [one[1:] for one in records]


def test_tail_behind_an_open_transaction_is_undecided_for_that_reason() -> None:
    sent = batches([record(number) for number in range(6)], [3])
    verify_range = VerifyRange(
        topic="t",
        partition=3,
        target_topic="e.t",
        source_from=0,
        source_to=6,
        target_from=0,
        target_to=3,
        has_open_transaction=True,
    )
    digest = RecordDigester("run", 3)
    comparison = InOrderComparison(verify_range, source=digest, target=digest)
    comparison.feed(source=sent, target=sent[:1])
    comparison.end(source=True, target=True)
    comparison.advance()

    [window] = comparison.results()
    assert (WindowOutcome.UNDECIDED, OPEN_TRANSACTION) == (window.outcome, window.reason)


def test_fields_of_a_changed_record_are_named() -> None:
    one = record(1)
    assert () == differing_fields(one, one._replace(offset=9), timestamps=True)
    other = one._replace(key=None, headers=(), timestamp=5)
    assert ("key", "headers", "timestamp") == differing_fields(one, other, timestamps=True)
    assert ("key", "headers") == differing_fields(one, other, timestamps=False)
