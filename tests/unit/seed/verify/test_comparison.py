"""Tests the comparison of two logs: unequal records are never reported equal, and differences are in their window."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.record_digests import RecordDigester
from mirrorflow_core.wire.batch import Batch
from mirrorflow_core.wire.records import Record
from mirrorflow_seed.verify.in_order_comparison import InOrderComparison
from mirrorflow_seed.verify.offset_windows import DifferenceKind, VerifyRange, WindowOutcome, WindowResult
from mirrorflow_seed.verify.record_details import KEY_TEXT_MAX, differing_fields, key_text
from tests.unit.core.wire.strategies import RECORDS, batch_of, numbered, with_attributes

WINDOW = 7


def record(number: int, **changes: object) -> Record:
    """Returns a record that differs from all others."""
    plain = Record(number, 1_700_000_000_000 + number, b"k%d" % number, b"v%d" % number, ((b"h", b"x"),))
    return plain._replace(**changes)  # type: ignore[arg-type]  # fields of a record


def batches(
    records: Sequence[Record], sizes: Sequence[int], *, first: int = 0, codec: int = 0
) -> list[Batch]:
    """Packs *records* with consecutive offsets from *first* into batches; *sizes* is repeated."""
    packed: list[Batch] = []
    index = 0
    while index < len(records):
        size = sizes[len(packed) % len(sizes)]
        packed.append(batch_of(records[index : index + size], codec=codec, base_offset=first + index))
        index += size
    return packed


def compare(
    source: Sequence[Batch],
    target: Sequence[Batch],
    *,
    step: int = 2,
    copied_before: int | None = 1 << 40,
    source_to: int | None = None,
    window: int = WINDOW,
) -> list[WindowResult]:
    """Compares like a task, *step* batches at a time."""
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


def differences(results: Sequence[WindowResult]) -> list[tuple[DifferenceKind, int | None, int | None]]:
    return [
        (difference.kind, difference.source_offset, difference.target_offset)
        for window in results
        for difference in window.differences
    ]


def outcomes(results: Sequence[WindowResult]) -> list[str]:
    return [window.outcome.value for window in results]


RECORDS_30 = [record(number) for number in range(30)]


def test_same_bytes_are_equal_without_being_decoded() -> None:
    """This includes batches that cross the boundary of a window."""
    results = compare(batches(RECORDS_30, [4]), batches(RECORDS_30, [4], first=100))

    assert [0] * 5 == [window.digested for window in results]
    assert [(7, 7)] * 4 + [(2, 2)] == [(window.source_count, window.target_count) for window in results]
    assert ["equal"] * 5 == outcomes(results)
    assert (107, 114) == (results[1].target_from_offset, results[1].target_to_offset)


def test_different_batches_with_the_same_records_are_equal() -> None:
    results = compare(batches(RECORDS_30, [4], codec=3), batches(RECORDS_30, [1, 9], codec=0))

    assert ["equal"] * 5 == outcomes(results)
    assert [window.source_sum for window in results] == [window.target_sum for window in results]
    assert [window.source_chain for window in results] == [window.target_chain for window in results]
    assert 30 == sum(window.digested for window in results)


def test_a_change_of_any_field_makes_a_record_different() -> None:
    """A null differs from an empty field, and headers are ordered."""
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


def test_a_missing_record_does_not_make_later_windows_different() -> None:
    results = compare(batches(RECORDS_30, [4]), batches(RECORDS_30[:16] + RECORDS_30[17:], [4]))

    assert [(DifferenceKind.MISSING, 16, None)] == differences(results)
    assert ["equal", "equal", "different", "equal", "equal"] == outcomes(results)


def test_a_repeated_record_is_extra() -> None:
    results = compare(batches(RECORDS_30, [4]), batches(RECORDS_30[:16] + RECORDS_30[15:], [4]))

    assert [(DifferenceKind.EXTRA, None, 16)] == differences(results)
    assert 1 == outcomes(results).count("different")


def test_swapped_records_are_reordered_not_different() -> None:
    target = list(RECORDS_30)
    target[16], target[17] = target[17], target[16]
    results = compare(batches(RECORDS_30, [4]), batches(target, [4]))

    assert [(DifferenceKind.MOVED, 16, 17), (DifferenceKind.MOVED, 17, 16)] == differences(results)
    assert ["equal", "equal", "reordered", "equal", "equal"] == outcomes(results)
    assert results[2].source_chain != results[2].target_chain


def test_digests_of_equal_records_differ_between_partitions_and_runs() -> None:
    assert RecordDigester("run", 0).digest(RECORDS_30[0]) != RecordDigester("run", 1).digest(RECORDS_30[0])
    assert RecordDigester("run", 0).digest(RECORDS_30[0]) != RecordDigester("other", 0).digest(RECORDS_30[0])


def test_uncopied_tail_is_not_a_difference() -> None:
    results = compare(batches(RECORDS_30, [4]), batches(RECORDS_30[:20], [4]), copied_before=20)
    assert ["equal"] * 3 == outcomes(results)
    assert 20 == sum(window.source_count for window in results)


def test_tail_before_the_stored_offset_is_missing() -> None:
    results = compare(batches(RECORDS_30, [4]), batches(RECORDS_30[:20], [4]), copied_before=22)
    assert [(DifferenceKind.MISSING, 20, None), (DifferenceKind.MISSING, 21, None)] == differences(results)


def test_tail_without_a_stored_offset_is_undecided() -> None:
    results = compare(batches(RECORDS_30, [4]), batches(RECORDS_30[:20], [4]), copied_before=None)
    assert ["equal", "equal", "undecided", "undecided", "undecided"] == outcomes(results)
    assert [None] * 3 == [window.ordered_equal for window in results[2:]]


def test_timestamps_of_log_append_time_batches_are_compared_as_consumers_read_them() -> None:
    stamped = [record._replace(timestamp=1_700_000_000_029) for record in RECORDS_30]
    source = [with_attributes(batch, 0x08) for batch in batches(RECORDS_30, [30])]

    assert {"equal"} == set(outcomes(compare(source, batches(stamped, [30]))))
    assert {"different"} == set(outcomes(compare(source, batches(RECORDS_30[:29] + stamped[:1], [30]))))


SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=4)
# Few different records, so that equal records occur, also next to each other.
STREAMS = st.lists(st.integers(0, 5).map(record), max_size=60)


@given(STREAMS, st.data(), SIZES, SIZES, st.integers(1, 4), st.booleans())
def test_unequal_records_are_never_reported_equal(
    source: list[Record],
    data: st.DataObject,
    sizes: list[int],
    target_sizes: list[int],
    step: int,
    is_edited: bool,  # noqa: FBT001 drawn
) -> None:
    """The counts include all records. An equal window has the same records in the same order on both sides."""
    target = list(source) if is_edited else data.draw(STREAMS)
    for _ in range(data.draw(st.integers(0, 3)) if is_edited and source else 0):
        index = data.draw(st.integers(0, len(target)))
        target[index : index + data.draw(st.integers(0, 3))] = data.draw(
            st.lists(st.integers(0, 9).map(record), max_size=3)
        )
    codec = data.draw(st.sampled_from((0, 3)))
    results = compare(batches(source, sizes), batches(target, target_sizes, codec=codec), step=step)

    digest = RecordDigester("run", 3).digest
    assert len(source) == sum(window.source_count for window in results)
    assert len(target) == sum(window.target_count for window in results)
    assert (without_offsets(source) == without_offsets(target)) == all(
        window.outcome is WindowOutcome.EQUAL for window in results
    )
    for window in results:
        expected = [digest(r) for r in source[window.from_offset : window.to_offset]]
        copied = [digest(r) for r in target[window.target_from_offset or 0 : window.target_to_offset or 0]]
        if window.outcome is WindowOutcome.EQUAL:
            assert expected == copied
        if window.outcome is WindowOutcome.REORDERED:
            assert sorted(expected) == sorted(copied) or len(copied) > window.target_count


@given(RECORDS, SIZES, SIZES, st.sampled_from((0, 1, 2, 3, 4)))
def test_any_records_are_equal_to_themselves(
    records: list[Record], sizes: list[int], target_sizes: list[int], codec: int
) -> None:
    log = numbered(records)
    results = compare(batches(log, sizes), batches(log, target_sizes, codec=codec))
    assert all(window.outcome is WindowOutcome.EQUAL for window in results)


def without_offsets(records: Sequence[Record]) -> list[tuple[object, ...]]:
    return [record[1:] for record in records]


def test_a_tail_after_an_open_transaction_is_undecided_with_that_reason() -> None:
    sent = batches([record(number) for number in range(6)], [3])
    verify_range = VerifyRange(
        topic="t",
        partition=3,
        target_topic="e.t",
        source_from=0,
        source_to=6,
        target_from=0,
        target_to=3,
        open_transaction="Producer 7 has an open transaction.",
    )
    digest = RecordDigester("run", 3)
    comparison = InOrderComparison(verify_range, source=digest, target=digest)
    comparison.feed(source=sent, target=sent[:1])
    comparison.end(source=True, target=True)
    comparison.advance()

    [window] = comparison.results()
    assert window.outcome is WindowOutcome.UNDECIDED
    assert window.reason == "Producer 7 has an open transaction."


def test_a_difference_names_the_fields_except_the_offset() -> None:
    plain = record(1)
    assert () == differing_fields(plain, plain._replace(offset=9), timestamps=True)
    changed = plain._replace(key=None, headers=(), timestamp=5)
    assert ("key", "headers", "timestamp") == differing_fields(plain, changed, timestamps=True)
    assert ("key", "headers") == differing_fields(plain, changed, timestamps=False)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (b"order-17", "order-17"),
        ("Größe 7".encode(), "Größe 7"),
        (b"", ""),
        (None, None),
        (b"\x00\x00\x00\x00\x05order", "0x00000000056f72646572"),  # Avro of a registry
        (b"\xff\xfe", "0xfffe"),
        (b"0xfffe", "0x307866666665"),  # else it would look like the key before
        (b"a\nb", "0x610a62"),
        ("a\N{RIGHT-TO-LEFT OVERRIDE}b".encode(), "0x61e280ae62"),  # it would reverse what follows on a page
    ],
)
def test_a_key_is_kept_as_printable_text_else_in_hex(key: bytes | None, text: str | None) -> None:
    assert key_text(key) == text


@pytest.mark.parametrize("key", [b"k" * 1_000_000, b"\xff" * 1_000_000])
def test_a_long_key_is_cut(key: bytes) -> None:
    text = key_text(key)
    assert text is not None
    assert len(text) == KEY_TEXT_MAX + 1
    assert text.endswith("\N{HORIZONTAL ELLIPSIS}")


@pytest.mark.parametrize("offset", [0, WINDOW, WINDOW + 1])
def test_an_unreadable_range_without_source_offsets_is_undecided(offset: int):
    """It has extra records of the target alone. If they are damaged, its window must not be missing from the result."""
    verify_range = VerifyRange(
        topic="t",
        partition=3,
        target_topic="e.t",
        source_from=offset,
        source_to=offset,
        target_from=0,
        target_to=5,
        window_offsets=WINDOW,
    )
    digest = RecordDigester("run", 3)

    windows = InOrderComparison(verify_range, source=digest, target=digest).results(reason="It is damaged.")

    assert [(offset, offset, WindowOutcome.UNDECIDED, "It is damaged.")] == [
        (window.from_offset, window.to_offset, window.outcome, window.reason) for window in windows
    ]
