"""What stretches of a target's log show of one epoch: the last record that counts, and whether that epoch is over."""

import pytest

from mirrorflow_core.wire.batch import CONTROL_BIT, TRANSACTIONAL_BIT, seal, split
from mirrorflow_core.wire.records import Record, encode
from mirrorflow_kafka.admin.target_probe import _Read

US, EPOCH = 77, 3
COMMIT, ABORT = b"\0\0\0\1", b"\0\0\0\0"


def log(words):
    """Batches of one record each: `d` plain, `t` in a transaction, `c` commit, `a` abort (of a later epoch), `x` another's."""
    found = []
    for offset, word in enumerate(words):
        marker = {"c": COMMIT, "a": ABORT}.get(word)
        record = Record(0, 1, marker or b"k", b"\0\0\0\0\0\0")
        data = encode(
            [record],
            codec=0,
            producer_id=US if word != "x" else 5,
            producer_epoch=EPOCH + (word == "a"),
            base_sequence=-1 if marker else offset,
        )
        bits = (TRANSACTIONAL_BIT if word in "tca" else 0) | (CONTROL_BIT if marker else 0)
        data[21:23] = bits.to_bytes(2, "big")
        seal(data)
        data[0:8] = offset.to_bytes(8, "big")
        found += split(data)
    return found


def last(words, stretches):
    """The offset of the last record that counts, read in *stretches* from the end on; None if there is none."""
    batches, end = log(words), len(words)
    read = _Read(US, EPOCH, None)
    for start in stretches:
        read.begin(start)
        for batch in batches[start:end]:
            read.take(batch)
        found = read.end(end)
        if found is not None:
            return found.base_offset, read.fenced
        end = start
    return None, read.fenced


@pytest.mark.parametrize("stretches", [[0], [8, 6, 4, 2, 0], [7, 5, 3, 1, 0], list(range(8, -1, -1))])
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("ddd", (2, False)),
        ("ddtt", (3, False)),
        ("ddttc", (3, False)),
        ("ddttcx", (3, False)),
        ("ddtta", (1, True)),
        ("ttcttaxx", (1, True)),
        ("ttcttcd", (6, False)),
        ("tta", (None, True)),
        ("xx", (None, False)),
    ],
)
def test_what_was_aborted_does_not_count(words, expected, stretches):
    """Wherever a stretch ends between the records and the marker that decides about them."""
    assert expected == last(words, [min(start, len(words)) for start in stretches])
