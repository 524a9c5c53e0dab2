"""The records of one archived file as a stretch of a log, on this machine's disk, to be read from any of its offsets.

Spark hands rows on once and forwards only; who copies has to go back after each refused or lost answer. So a file is spooled
first, and checked on the way: not one record of a damaged file reaches the target. Disk: what the records have in Kafka, as
compressed as they were there; memory: one batch.
"""

import bisect
import os
import tempfile
from types import TracebackType
from typing import Final, Self

from mirrorflow_replicator.wire.records import Record, encode_as_logged
from mirrorflow_seed.archive.tally import size_bytes

# As large as producers make them that are set up for throughput; the engine splits what the target does not take.
BATCH_BYTES: Final = 256 << 10
BATCH_RECORDS: Final = 5_000
# Offsets that a batch may span: its deltas are 32 bits wide, and compaction leaves holes of any size.
BATCH_OFFSETS: Final = 1 << 30
_FOLDERS_KEY: Final = "SPARK_LOCAL_DIRS"  # of an executor on Kubernetes


class Spool:
    """A stretch from offset *start* up to *end*; a context manager, whose file goes with it."""

    def __init__(self, *, start: int, end: int, codec: int) -> None:
        self.start = start
        self.end = end
        self._codec = codec
        folder = os.environ.get(_FOLDERS_KEY, "").partition(",")[0] or None
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 it is closed by __exit__
        self._ends: list[int] = []  # where each batch ends: the offset after its own
        self._places: list[tuple[int, int]] = []  # where it lies, and its size
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
        """The offset after all that can be read; `end`, unless a hole behind the last record is larger than a batch."""
        return self._ends[-1] if self._ends else self.start

    def add(self, record: Record) -> None:
        """The next one; offsets grow."""
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
        """All were added."""
        if self._waiting:
            self._write(self.end)
        self._file.flush()

    def read(self, offset: int, max_bytes: int) -> bytearray:
        """Whole batches from the first on that holds *offset* or later ones, at least one; empty at the end."""
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
        # Deltas are 32 bits: a hole behind the batch that does not fit belongs to nobody.
        reach = max(min(next_offset, base + BATCH_OFFSETS), self._waiting[-1].offset + 1)
        data = encode_as_logged(self._waiting, codec=self._codec, next_offset=reach)
        self._file.seek(self._size_bytes)
        self._file.write(data)
        self._ends.append(reach)
        self._places.append((self._size_bytes, len(data)))
        self._size_bytes += len(data)
        self._waiting, self._waiting_bytes = [], 0
