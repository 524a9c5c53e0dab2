"""What makes two records equal, as a digest: key, value, headers in their order, timestamp, partition.

The canonical form has every length before its content, and a null has length -1, so that no two records share one:

    partition INT32, timestamp INT64, key length INT32, value length INT32, number of headers INT32, key, value,
    of each header: name length INT32, value length INT32, name, value

The timestamp's type is not part of it: a copy always has CreateTime, with the time that the source's consumers see.
Digests are BLAKE2b of 16 bytes, keyed by the run: who can write records cannot make two that collide in the next run.
"""

import struct
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Final, NamedTuple

from mirrorflow_replicator.flow.transforms import NO_EDITS, HeaderEdits
from mirrorflow_replicator.wire.batch import Batch
from mirrorflow_replicator.wire.records import Record, decode

DIGEST_BYTES: Final = 16
SUM_MODULUS: Final = 1 << 128  # sums of digests wrap there
NO_TIMESTAMP: Final = -(2**63)  # in the place of every timestamp where the target sets its own

_FIXED = struct.Struct(">iqiii")
_HEADER = struct.Struct(">ii")
_NULL: Final = -1
_new = tuple.__new__  # one for each record


class Digested(NamedTuple):
    """A record's offset on its own side, and its digest."""

    offset: int
    digest: bytes


class RecordDigest:
    """Digests of the records of one partition in one run. *edits* is what the flow does to headers on the way."""

    __slots__ = ("_edits", "_keyed", "_partition", "_timestamps")

    def __init__(
        self, run_id: str, partition: int, *, edits: HeaderEdits = NO_EDITS, timestamps: bool = True
    ) -> None:
        self._keyed = blake2b(digest_size=DIGEST_BYTES, key=blake2b(run_id.encode()).digest())
        self._partition = partition
        self._edits = edits
        self._timestamps = timestamps

    @property
    def is_plain(self) -> bool:
        """Whether equal bytes of two batches are equal records: nothing is changed on the way, nothing left out."""
        return self._timestamps and not self._edits

    def of(self, record: Record) -> bytes:
        """The digest of one record."""
        keyed = self._keyed.copy()
        keyed.update(self.canonical(record))
        return keyed.digest()

    def of_key(self, key: bytes | None) -> bytes:
        """The digest of a key alone."""
        keyed = self._keyed.copy()
        keyed.update(b"-" if key is None else b"+" + key)
        return keyed.digest()

    def of_batch(self, batch: Batch) -> Iterator[Digested]:
        """The digests of its records, in order. Raises CorruptRecordsError."""
        keyed, parts = self._keyed.copy, self._parts
        for record in decode(batch):
            digest = keyed()
            for part in parts(record):
                digest.update(part)
            yield _new(Digested, (record[0], digest.digest()))

    def canonical(self, record: Record) -> bytes:
        """See the module."""
        return b"".join(self._parts(record))

    def _parts(self, record: Record) -> Iterable[bytes]:
        """The canonical form in pieces, so that a large value is not copied once more."""
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
