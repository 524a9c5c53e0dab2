"""Which batches a read_committed reader sees, by KafkaConsumer's rule (CompletedFetch.nextFetchedRecord).

The broker sends what lies below the last stable offset, aborted records included, and a list of the transactions that were
aborted there. One filter serves one partition; every fetch answer brings its whole list anew.
"""

import struct
from collections.abc import Iterable

from mirrorflow_replicator.errors import CorruptRecordsError
from mirrorflow_replicator.wire import varint
from mirrorflow_replicator.wire.batch import CONTROL_BIT, HEADER_BYTES, TRANSACTIONAL_BIT, Batch

_ABORT = 0
_CONTROL_KEY = struct.Struct(">hh")  # version, type (ControlRecordType)


class AbortedFilter:
    """Answers, batch by batch in the order of offsets, whether its records are delivered."""

    __slots__ = ("_aborted", "_ahead")

    def __init__(self, aborted: Iterable[tuple[int, int]] = ()) -> None:
        self._ahead: list[tuple[int, int]] = []  # (first offset, producer id), the next one last
        self._aborted: set[int] = set()  # producer ids whose records are dropped here
        self.feed(aborted)

    def feed(self, aborted: Iterable[tuple[int, int]]) -> None:
        """Begin with the batches of another fetch answer; *aborted* is its list of (producer id, first offset)."""
        self._ahead = sorted(
            ((first_offset, producer_id) for producer_id, first_offset in aborted), reverse=True
        )
        self._aborted = set()

    def delivers(self, batch: Batch) -> bool:
        """Whether the records of *batch* are delivered. Raises CorruptRecordsError if a marker cannot be read."""
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
    """Whether a control batch ends its transaction by abort. An empty one (its marker was compacted away) does not."""
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
