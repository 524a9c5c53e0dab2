"""A read_committed reader sees what KafkaConsumer shows it."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.errors import CorruptRecordsError
from mirrorflow_core.wire.aborted_transactions import AbortedFilter, is_abort_marker
from mirrorflow_core.wire.records import Record
from tests.unit.core.wire.strategies import batch_of, with_attributes


def data_batch(producer_id, offset, *, transactional=True):
    batch = batch_of([Record(0, 1, None, b"x")] * 2, base_offset=offset, producer_id=producer_id)
    return with_attributes(batch, 0x10) if transactional else batch


def marker(producer_id, offset, *, commits):
    key, value = struct.pack(">hh", 0, int(commits)), struct.pack(">hi", 0, 3)
    return with_attributes(
        batch_of([Record(0, 1, key, value)], base_offset=offset, producer_id=producer_id), 0x30
    )


def test_records_of_an_aborted_transaction_are_dropped_up_to_its_marker():
    """The next transaction of the same producer is seen again."""
    batches = [
        data_batch(7, 0),
        data_batch(8, 2),
        marker(7, 4, commits=False),
        data_batch(7, 5),
        marker(7, 7, commits=True),
    ]
    seen = AbortedFilter([(7, 0)])

    assert [seen.delivers(batch) for batch in batches] == [False, True, False, True, False]


def test_records_before_the_aborted_transaction_are_delivered():
    """A producer's earlier, committed transaction is none of the aborted one's."""
    batches = [data_batch(7, 0), marker(7, 2, commits=True), data_batch(7, 3), marker(7, 5, commits=False)]
    seen = AbortedFilter([(7, 3)])

    assert [seen.delivers(batch) for batch in batches] == [True, False, False, False]


def test_records_outside_transactions_are_delivered():
    """Also those of a producer whose transaction was aborted, and those without a producer."""
    seen = AbortedFilter([(7, 0)])

    assert seen.delivers(data_batch(7, 0, transactional=False))
    assert seen.delivers(data_batch(-1, 2, transactional=False))


def test_each_answer_brings_its_own_list():
    """A transaction that began before the fetched range is in the list again; what ended is not."""
    seen = AbortedFilter([(7, 0)])
    assert not seen.delivers(data_batch(7, 0))

    seen.feed([(7, 0)])
    assert not seen.delivers(data_batch(7, 2))

    seen.feed([])
    assert seen.delivers(data_batch(7, 4))


def test_markers_are_read():
    """Abort is type 0, commit type 1 (ControlRecordType)."""
    assert is_abort_marker(marker(1, 0, commits=False))
    assert not is_abort_marker(marker(1, 0, commits=True))
    assert not is_abort_marker(marker(1, 0, commits=False)._replace(count=0))


def test_a_marker_without_a_type_is_said():
    """A control record that cannot be read is not guessed at."""
    broken = with_attributes(batch_of([Record(0, 1, b"\0", b"")], producer_id=1), 0x30)

    with pytest.raises(CorruptRecordsError):
        is_abort_marker(broken)


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from(["write", "plain", "commit", "abort"])), max_size=25
    ),
    st.data(),
)
def test_against_a_model_of_transactions(steps, data):
    """Whatever is interleaved, and wherever reading begins, delivered is what is plain or committed."""
    steps = steps + [(producer, "commit") for producer in (1, 2, 3)]
    batches, wanted, aborted, spans = [], [], [], []
    begun: dict[int, list[int]] = {}
    offset = 0
    for producer, step in steps:
        if step == "plain":
            batches.append(data_batch(0, offset, transactional=False))
            wanted.append(True)
        elif step == "write":
            begun.setdefault(producer, []).append(len(batches))
            batches.append(data_batch(producer, offset))
            wanted.append(True)
        else:
            members = begun.pop(producer, [])
            if step == "abort" and members:
                aborted.append((producer, batches[members[0]].base_offset))
                spans.append((members[0], len(batches)))
                for member in members:
                    wanted[member] = False
            batches.append(marker(producer, offset, commits=step == "commit"))
            wanted.append(False)
        offset = batches[-1].next_offset
    start = data.draw(st.integers(0, len(batches)))
    listed = [entry for entry, (_, last) in zip(aborted, spans, strict=True) if last >= start]

    seen = AbortedFilter(reversed(listed))

    assert wanted[start:] == [seen.delivers(batch) for batch in batches[start:]]
