"""A task reads the records of its range of offsets: all of them, and no others."""

from typing import Any, cast

import pytest

from mirrorflow_core.errors import CorruptBatchError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.batch import seal
from mirrorflow_core.wire.fetch import FetchKey, PartitionFetchResponse
from mirrorflow_core.wire.records import Record, encode_as_logged
from mirrorflow_seed import topic_range_reader
from mirrorflow_seed.topic_range_reader import TopicRangeReader
from mirrorflow_seed.verify.range_reader import OffsetRange
from tests.unit.core.wire.old_messages import log_of_wrappers

pytest.importorskip("pyarrow")

ORDERS = TopicPartition("orders", 0)


class Source:
    """A cluster, and the client that connects to it."""

    alias, read_committed = "east", False

    async def connect(self) -> "Source":
        return self

    async def close(self) -> None: ...


@pytest.mark.parametrize("magic", [0, 1])
def test_old_records_before_and_after_a_cut_are_read_once(
    monkeypatch: pytest.MonkeyPatch, magic: int
) -> None:
    """A wrapper from 40 to 59 that the end of a range cuts gives each range its part, whose end is the next file's start."""

    async def fetch(_cluster: object, _partition: object, offset: int, **_: object) -> PartitionFetchResponse:
        data = log_of_wrappers(offset, end=100, magic=magic)
        return PartitionFetchResponse(FetchKey(b"orders", 0), 0, 100, 100, 0, (), -1, memoryview(data))

    monkeypatch.setattr(topic_range_reader, "read_through_elections", fetch)

    def read(start: int, end: int) -> tuple[list[int], int]:
        reader = TopicRangeReader(cast("Any", Source()), ORDERS, OffsetRange(start, end))
        offsets = [offset for columns in reader.columns() for offset in columns.column("offset").to_pylist()]
        return offsets, reader.next_offset

    assert read(0, 50) == (list(range(50)), 50)
    assert read(50, 100) == (list(range(50, 100)), 100)
    assert read(45, 46) == ([45], 46)
    assert read(0, 40) == (list(range(40)), 40)


@pytest.mark.parametrize(
    ("is_sealed", "offset"), [(True, 0), (False, 2)], ids=["found in many batches", "found in one batch"]
)
def test_the_error_for_damaged_records_names_no_offset_after_them(
    monkeypatch: pytest.MonkeyPatch, *, is_sealed: bool, offset: int
) -> None:
    """The error advises to delete the records up to that offset. Headers are decoded in many batches at once."""
    log = [
        bytes(
            encode_as_logged([Record(number, 1, None, b"v", ((b"h", b""),))], codec=0, next_offset=number + 1)
        )
        for number in range(4)
    ]
    damaged = bytearray(log[2].replace(b"\x02h\x00", b"\x01\x02h"))  # a header without a name
    log[2] = log[2][:8] + bytes(seal(damaged) if is_sealed else damaged)[8:]  # with its offset

    async def fetch(*_: object, **__: object) -> PartitionFetchResponse:
        return PartitionFetchResponse(FetchKey(b"orders", 0), 0, 4, 4, 0, (), -1, memoryview(b"".join(log)))

    monkeypatch.setattr(topic_range_reader, "read_through_elections", fetch)
    reader = TopicRangeReader(cast("Any", Source()), ORDERS, OffsetRange(0, 4))

    with pytest.raises(CorruptBatchError) as raised:
        list(reader.columns())

    assert raised.value.offset == offset
