"""Offset commits in `__consumer_offsets` are read in every version.

A commit in a transaction applies only if the transaction was committed.
"""

import struct

import pytest

from mirrorflow_core.errors import CorruptRecordsError
from mirrorflow_core.offsets.group_commits import GroupCommit, PartitionCommits, decode_commit
from mirrorflow_core.offsets.offset_translation import Committed
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.batch import CONTROL_BIT, TRANSACTIONAL_BIT, Batch, new_batch, split
from mirrorflow_core.wire.records import Record, encode

ORDERS = TopicPartition("orders", 3)
TIME = struct.pack(">q", 1)
OFFSET = struct.pack(">q", 42)
METADATA = b"\x00\x01m"
LEADER_EPOCH = struct.pack(">i", 5)


def commit_key(group: str = "g", *, version: int = 1) -> bytes:
    text = group.encode()
    return struct.pack(">hh", version, len(text)) + text + b"\x00\x06orders" + struct.pack(">i", 3)


def commit_value(offset: int = 42, *, metadata: bytes = METADATA) -> bytes:
    return struct.pack(">hqi", 3, offset, -1) + metadata + TIME


def committed(offset: int, group: str = "g") -> GroupCommit:
    return GroupCommit(group, ORDERS, Committed(offset=offset, metadata="m"))


VALUES = {
    0: struct.pack(">h", 0) + OFFSET + METADATA + TIME,
    1: struct.pack(">h", 1) + OFFSET + METADATA + TIME + TIME,
    2: struct.pack(">h", 2) + OFFSET + METADATA + TIME,
    3: struct.pack(">h", 3) + OFFSET + LEADER_EPOCH + METADATA + TIME,
    4: struct.pack(">h", 4) + OFFSET + LEADER_EPOCH + b"\x02m" + TIME + b"\x01\x00\x10" + bytes(16),
}


@pytest.mark.parametrize("key_version", [0, 1])
@pytest.mark.parametrize("version", sorted(VALUES))
def test_every_version_of_a_commit_is_decoded(version: int, key_version: int):
    """Version 4 is the flexible form. Its topic id is a tagged field."""
    record = Record(0, 0, commit_key(version=key_version), VALUES[version], ())

    assert committed(42) == decode_commit(record)


def test_a_null_value_deletes_the_committed_offset():
    assert GroupCommit("g", ORDERS, None) == decode_commit(Record(0, 0, commit_key(), None, ()))


@pytest.mark.parametrize("version", [2, 3, 17])
def test_records_other_than_offset_commits_are_skipped(version: int):
    assert decode_commit(Record(0, 0, struct.pack(">h", version) + b"\x00\x01g", b"x", ())) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (commit_key()[:-1], VALUES[3]),
        (commit_key(), VALUES[3][:9]),
        (commit_key(), b"\x00\x05" + VALUES[3][2:]),
    ],
)
def test_a_commit_that_cannot_be_decoded_is_an_error(key: bytes, value: bytes):
    """A later version may have different fields, so the reader does not guess."""
    with pytest.raises(CorruptRecordsError, match="offset 9"):
        decode_commit(Record(9, 0, key, value, ()))


class Log:
    """A partition of the log. Each method appends a batch and returns the commits that now apply."""

    def __init__(self) -> None:
        self.commits = PartitionCommits()
        self._next_offset = 0

    def commit(self, offset: int, *, producer_id: int = -1) -> list[GroupCommit]:
        data = encode(
            [Record(0, 0, commit_key(), commit_value(offset), ())],
            codec=0,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=producer_id >= 0,
        )
        return self._append(data)

    def mark(self, producer_id: int, *, commits: bool) -> list[GroupCommit]:
        body = encode([Record(0, 0, struct.pack(">hh", 0, int(commits)), bytes(6), ())], codec=0)
        (batch,) = split(body)
        attributes = CONTROL_BIT | TRANSACTIONAL_BIT
        control = new_batch(
            bytes(batch.data[61:]),
            attributes=attributes,
            base_timestamp=0,
            max_timestamp=0,
            count=1,
            producer_id=producer_id,
            producer_epoch=0,
        )
        return self._append(control)

    def _append(self, data: bytearray) -> list[GroupCommit]:
        struct.pack_into(">q", data, 0, self._next_offset)
        batch: Batch = split(data)[0]
        self._next_offset = batch.next_offset
        return self.commits.take(batch)


def test_commits_of_a_transaction_apply_with_its_marker():
    log = Log()

    assert [] == log.commit(1, producer_id=7)
    assert [] == log.commit(2, producer_id=7)
    assert [committed(2)] == log.mark(7, commits=True)
    assert [] == log.mark(7, commits=True)


def test_commits_of_an_aborted_transaction_never_apply():
    log = Log()

    assert [] == log.commit(1, producer_id=7)
    assert [] == log.mark(7, commits=False)
    assert [committed(5)] == log.commit(5)


def test_a_transaction_does_not_replace_a_commit_later_in_the_log():
    """The coordinator applies the commit that is later in the log, not the one whose marker is later."""
    log = Log()
    log.commit(1, producer_id=7)
    log.commit(2, producer_id=8)

    assert [committed(3)] == log.commit(3)
    log.commit(4, producer_id=8)

    assert [committed(4)] == log.mark(8, commits=True)
    assert [] == log.mark(7, commits=True)
