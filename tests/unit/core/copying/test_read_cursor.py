"""A read cursor requests as much as the next batch needs, and no more than a request can hold."""

import struct

import pytest

from mirrorflow_core.copying.batch_packer import Packer
from mirrorflow_core.copying.event_log import EventLog
from mirrorflow_core.copying.read_cursor import ReadCursor
from mirrorflow_core.partitions import OffsetPair, TopicPartition
from mirrorflow_core.wire.fetch import (
    FETCH_BYTES_MAX,
    FetchKey,
    PartitionFetchResponse,
    SessionRequest,
    fetch_request,
)
from mirrorflow_core.wire.records import Record, encode_as_logged
from mirrorflow_core.writer.stream import Stream
from tests.unit.core.copying.stubs import PRODUCERS

KEY = FetchKey(bytes(16), 0)
RESPONSE_BYTES = 1 << 20


class Reading:
    """A cursor with its partition, at offset 0."""

    def __init__(self) -> None:
        self.cursor = ReadCursor(TopicPartition("orders", 0), read_committed=False)
        self.cursor.seek(0, -1)
        self.packer = Packer("orders", 0, "orders", PRODUCERS.plain)
        self.log = EventLog(0)

    def take(self, records: bytes) -> None:
        response = PartitionFetchResponse(KEY, 0, 9, 9, 0, (), -1, memoryview(bytearray(records)))
        self.cursor.take(response, self.packer, Stream(OffsetPair(-1, -1, -1, -1)), self.log)
        self.packer.clear()

    @property
    def requested_bytes(self) -> int:
        request = self.cursor.request(RESPONSE_BYTES, self.packer, self.log)
        assert request is not None
        session = SessionRequest(0, 0, ((KEY, request),))
        assert fetch_request(13, session, max_wait_ms=1, max_bytes=RESPONSE_BYTES)
        return request.max_bytes


def batch(offset: int, size_bytes: int = 100) -> bytes:
    """A batch of one record with *size_bytes* in its value."""
    return bytes(
        encode_as_logged([Record(offset, 1, None, bytes(size_bytes))], codec=0, next_offset=offset + 1)
    )


@pytest.mark.parametrize("length", [0x40000000, 0x7FFFFFFF])
def test_a_damaged_length_requests_no_more_than_a_request_can_hold(length: int) -> None:
    """Otherwise the request of all partitions of the broker could not be encoded. Intact batches lower it again."""
    reading = Reading()
    damaged = bytearray(batch(0))
    struct.pack_into(">i", damaged, 8, length)
    for _ in range(3):
        reading.take(bytes(damaged))
    assert reading.requested_bytes == FETCH_BYTES_MAX

    reading.take(batch(0))

    assert reading.requested_bytes == RESPONSE_BYTES


def test_large_batches_are_requested_whole_as_long_as_they_come() -> None:
    """A broker cuts a batch off that is not the first one of its response; each would be fetched twice."""
    reading = Reading()
    large = batch(0, 3 * RESPONSE_BYTES)
    reading.take(large[:RESPONSE_BYTES])
    assert reading.requested_bytes == len(large)

    reading.take(large)
    assert reading.requested_bytes == len(large)

    reading.take(batch(1))
    assert reading.requested_bytes == RESPONSE_BYTES
