"""Filters out aborted transactions for a read_committed reader, by KafkaConsumer's rule.

The broker sends all records below the last stable offset, including aborted ones, and the list of
transactions aborted there. One filter serves one partition; every fetch response carries a complete list.
Source: CompletedFetch.nextFetchedRecord.
"""

import struct
from collections.abc import Iterable

from mirrorflow_core.errors import CorruptRecordsError
from mirrorflow_core.wire import varint
from mirrorflow_core.wire.batch import CONTROL_BIT, HEADER_BYTES, TRANSACTIONAL_BIT, Batch

_ABORT = 0
_CONTROL_KEY = struct.Struct(">hh")  # version, type (ControlRecordType)


class AbortedFilter:
    """Decides for each batch, in offset order, whether its records are delivered."""

    __slots__ = ("_aborted", "_ahead")

    def __init__(self, aborted: Iterable[tuple[int, int]] = ()) -> None:
        self._ahead: list[tuple[int, int]] = []  # (first offset, producer id), the next one last
        self._aborted: set[int] = set()  # producer ids whose records are dropped now
        self.feed(aborted)

    def feed(self, aborted: Iterable[tuple[int, int]]) -> None:
        """Start the next fetch response; *aborted* is its list of (producer id, first offset)."""
        self._ahead = sorted(
            ((first_offset, producer_id) for producer_id, first_offset in aborted), reverse=True
        )
        self._aborted = set()

    def delivers(self, batch: Batch) -> bool:
        """Return whether the records of *batch* are delivered.

        Raises CorruptRecordsError if a marker cannot be read.
        """
        attributes = batch.attributes
        producer_id = batch.producer_id
        if producer_id < 0:
            return not attributes & CONTROL_BIT
        ahead = self._ahead
        if ahead:
            last_offset = batch.last_offset
            while ahead and ahead[-1][0] <= last_offset:
                self._aborted.add(ahead.pop()[1])
        if attributes & CONTROL_BIT:
            if self._aborted and is_abort_marker(batch):
                self._aborted.discard(producer_id)
            return False
        return not (attributes & TRANSACTIONAL_BIT and producer_id in self._aborted)


def is_abort_marker(batch: Batch) -> bool:
    """Return whether a control batch aborts its transaction; False where compaction removed its marker.

    Raises CorruptRecordsError if its control record has no type.
    """
    if batch.count <= 0:
        return False
    data = batch.data
    _, at = varint.decode(data, HEADER_BYTES)  # length
    _, at = varint.decode(data, at + 1)  # timestamp, after the attributes
    _, at = varint.decode(data, at)  # offset
    key_bytes, at = varint.decode(data, at)
    if key_bytes < _CONTROL_KEY.size or at + key_bytes > len(data):
        raise CorruptRecordsError(f"the control record at offset {batch.base_offset} has no type")
    kind: int = _CONTROL_KEY.unpack_from(data, at)[1]
    return kind == _ABORT
