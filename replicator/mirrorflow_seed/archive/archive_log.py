"""Presents several archived files of one partition as one stretch of a log, with a spool per file.

Spark yields the files in any order, but the records of each file in order.
"""

import bisect
import contextlib
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from mirrorflow_core.wire.records import Record
from mirrorflow_seed.archive.manifest import ArchivedFile
from mirrorflow_seed.archive.spool import Spool
from mirrorflow_seed.errors import JobFailedError


class ArchiveLog:
    """The offsets from *start* up to *end* of *files*, given in offset order; a context manager."""

    def __init__(self, files: Sequence[ArchivedFile], *, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self._starts = [one.start for one in files]
        # Uncompressed: they are read once, and the disk is faster than a codec.
        self._spools = [Spool(start=max(start, one.start), end=min(end, one.end), codec=0) for one in files]
        self._before = [one.start - 1 for one in files]
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        for one in self._spools:
            self._open.enter_context(one)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def add(self, record: Record) -> None:
        """Adds the next record of its file. Raises JobFailedError if its offset is not expected there."""
        index = bisect.bisect_right(self._starts, record.offset) - 1
        if index < 0 or not self._before[index] < record.offset < self._spools[index].end:
            raise JobFailedError(
                f"An archived file holds a record at offset {record.offset}, which its manifest does not have there."
            )
        self._before[index] = record.offset
        self._spools[index].add(record)

    def finish(self) -> None:
        """Completes all spools; call it after the last `add`."""
        for one in self._spools:
            one.finish()

    def read(self, offset: int, max_bytes: int) -> bytearray:
        """Returns whole batches of one file from the first with *offset* or later; empty at the end."""
        for one in self._spools:
            if one.reach > offset and (found := one.read(offset, max_bytes)):
                return found
        return bytearray()
