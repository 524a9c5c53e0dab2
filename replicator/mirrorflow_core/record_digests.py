"""Computes digests of records, which a verification compares.

A digest is computed over the canonical form of a record. Each length precedes its content and a null has length -1,
so no two records have the same form:

    partition INT32, timestamp INT64, key length INT32, value length INT32, number of headers INT32, key, value,
    of each header: name length INT32, value length INT32, name, value

The timestamp type is not part of it: a copy always has CreateTime, with the time that the source's consumers
see. Digests are BLAKE2b of 16 bytes, keyed by the run id, so that no writer can prepare
records that collide in a later run.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from mirrorflow_core.transforms import NO_EDITS, HeaderEdits
from mirrorflow_core.wire.batch import Batch
from mirrorflow_core.wire.records import Record, decode

DIGEST_BYTES: Final = 16
SUM_MODULUS: Final = 1 << 128  # sums of digests are modulo this
NO_TIMESTAMP: Final = -(2**63)  # replaces all timestamps if the target sets its own

_FIXED = struct.Struct(">iqiii")
_HEADER = struct.Struct(">ii")
_NULL: Final = -1
_new = tuple.__new__  # faster than the constructor; it runs once per record


class DigestedRecord(NamedTuple):
    """A record's offset on its own side, and its digest."""

    offset: int
    digest: bytes


class RecordDigester:
    """Computes digests of records of one partition in one run; *edits* are the flow's changes to headers."""

    __slots__ = ("_edits", "_keyed", "_partition", "_timestamps")

    def __init__(
        self, run_id: str, partition: int, *, edits: HeaderEdits = NO_EDITS, timestamps: bool = True
    ) -> None:
        self._keyed = blake2b(digest_size=DIGEST_BYTES, key=blake2b(run_id.encode()).digest())
        self._partition = partition
        self._edits = edits
        self._timestamps = timestamps

    @property
    def allows_byte_comparison(self) -> bool:
        """Whether batches of equal bytes have equal digests: no header is edited, and timestamps are compared."""
        return self._timestamps and not self._edits

    def digest(self, record: Record) -> bytes:
        keyed = self._keyed.copy()
        keyed.update(self.canonical_form(record))
        return keyed.digest()

    def digest_key(self, key: bytes | None) -> bytes:
        keyed = self._keyed.copy()
        keyed.update(b"-" if key is None else b"+" + key)
        return keyed.digest()

    def digest_batch(self, batch: Batch) -> Iterator[DigestedRecord]:
        """Yields the digests of the batch's records, in order. Raises CorruptRecordsError."""
        keyed, parts = self.new_hash, self.parts
        for record in decode(batch):
            digest = keyed()
            for part in parts(record):
                digest.update(part)
            yield _new(DigestedRecord, (record[0], digest.digest()))

    def canonical_form(self, record: Record) -> bytes:
        """Returns the canonical form of *record*, which the module's docstring defines."""
        return b"".join(self.parts(record))

    @property
    def new_hash(self) -> Callable[[], Any]:
        """Returns a hash to which the parts of a record are added."""
        return self._keyed.copy

    def parts(self, record: Record) -> Iterable[bytes]:
        """Returns the canonical form in pieces, which avoids one copy of a large value."""
        _, timestamp, key, value, headers = record
        if not self._timestamps:
            timestamp = NO_TIMESTAMP
        if self._edits:
            headers = self._edits.edited(headers)
        fixed = _FIXED.pack(
            self._partition,
            timestamp,
            _NULL if key is None else len(key),
            _NULL if value is None else len(value),
            len(headers),
        )
        if not headers:
            return (fixed + (key or b""), value or b"")
        parts = [fixed, key or b"", value or b""]
        for name, content in headers:
            parts += (
                _HEADER.pack(len(name), _NULL if content is None else len(content)) + name,
                content or b"",
            )
        return parts


def size_bytes(record: Record) -> int:
    """Returns the bytes of key, value and headers, without the overhead of Kafka or Parquet."""
    _, _, key, value, headers = record
    return (
        len(key or b"")
        + len(value or b"")
        + sum(len(name) + len(content or b"") for name, content in headers)
    )
