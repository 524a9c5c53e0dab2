"""Stores the records of one archived file as log batches on local disk, readable from any offset.

Spark yields rows once and only forwards, but a copier goes back after each refused or lost response. So a
file is spooled first and checked meanwhile: no record of a damaged file reaches the target. It takes as much
disk as the records had in Kafka, with the same compression, and the memory of one batch.
"""

import bisect
import os
import tempfile
from types import TracebackType
from typing import Final, Self

from mirrorflow_core.wire.records import Record, encode_as_logged
from mirrorflow_seed.archive.tally import size_bytes

# The batch size of producers tuned for throughput; a copier splits batches that the target refuses.
BATCH_BYTES: Final = 256 << 10
BATCH_RECORDS: Final = 5_000
# Offsets that a batch may span: its deltas have 32 bits, and compaction leaves holes of any size.
BATCH_OFFSETS: Final = 1 << 30
_FOLDERS_KEY: Final = "SPARK_LOCAL_DIRS"  # set in executors on Kubernetes


class Spool:
    """The offsets from *start* up to *end* of a log; a context manager that deletes its file at the end."""

    def __init__(self, *, start: int, end: int, codec: int) -> None:
        self.start = start
        self.end = end
        self._codec = codec
        folder = os.environ.get(_FOLDERS_KEY, "").partition(",")[0] or None
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 it is closed by __exit__
        self._ends: list[int] = []  # the next offset after each batch
        self._places: list[tuple[int, int]] = []  # file position and size of each batch
        self._size_bytes = 0
        self._waiting: list[Record] = []
        self._waiting_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def reach(self) -> int:
        """The offset after the last batch; `end`, unless the hole behind the last record exceeds a batch."""
        return self._ends[-1] if self._ends else self.start

    def add(self, record: Record) -> None:
        """Adds the next record; offsets must increase."""
        waiting = self._waiting
        if waiting and (
            self._waiting_bytes >= BATCH_BYTES
            or len(waiting) >= BATCH_RECORDS
            or record.offset - waiting[0].offset >= BATCH_OFFSETS
        ):
            self._write(record.offset)
        self._waiting.append(record)
        self._waiting_bytes += size_bytes(record)

    def finish(self) -> None:
        """Writes the last batch; call it after the last `add`."""
        if self._waiting:
            self._write(self.end)
        self._file.flush()

    def read(self, offset: int, max_bytes: int) -> bytearray:
        """Returns whole batches from the first with *offset* or later, at least one; empty at the end."""
        found = bytearray()
        index = bisect.bisect_right(self._ends, offset)
        while index < len(self._places):
            at, length = self._places[index]
            if found and len(found) + length > max_bytes:
                break
            self._file.seek(at)
            found += self._file.read(length)
            index += 1
        return found

    def _write(self, next_offset: int) -> None:
        base = self._waiting[0].offset
        # Deltas have 32 bits: the part of a hole that does not fit is in no batch.
        reach = max(min(next_offset, base + BATCH_OFFSETS), self._waiting[-1].offset + 1)
        data = encode_as_logged(self._waiting, codec=self._codec, next_offset=reach)
        self._file.seek(self._size_bytes)
        self._file.write(data)
        self._ends.append(reach)
        self._places.append((self._size_bytes, len(data)))
        self._size_bytes += len(data)
        self._waiting, self._waiting_bytes = [], 0
