"""Summarizes consecutive records: count, sum of digests (any order) and chained digest (in order).

Record digests are those of `verify.digests`, keyed by the archive's id. So records of an archive can be
compared with those of any cluster without keeping them.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from mirrorflow_core.wire.records import Record
from mirrorflow_seed.verify.digests import DIGEST_BYTES, SUM_MODULUS, RecordDigest

_START: Final = bytes(DIGEST_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Count, bytes and digests of consecutive records; `sum` and `chain` are hexadecimal."""

    records: int
    bytes: int  # of keys, values and headers
    sum: str
    chain: str


class TallyBuilder:
    """Computes the tally of records of one partition, added in offset order."""

    __slots__ = ("_bytes", "_chain", "_digest", "_records", "_sum")

    def __init__(self, archive_id: str, partition: int) -> None:
        self._digest = RecordDigest(archive_id, partition)
        self._records = self._bytes = self._sum = 0
        self._chain = _START

    def add(self, record: Record) -> None:
        """Adds the next record."""
        digest = self._digest.of(record)
        self._records += 1
        self._bytes += size_bytes(record)
        self._sum = (self._sum + int.from_bytes(digest)) % SUM_MODULUS
        self._chain = blake2b(self._chain + digest, digest_size=DIGEST_BYTES).digest()

    @property
    def tally(self) -> Tally:
        """The tally of all records added so far."""
        return Tally(
            records=self._records, bytes=self._bytes, sum=f"{self._sum:032x}", chain=self._chain.hex()
        )


def size_bytes(record: Record) -> int:
    """Returns the bytes of key, value and headers, without the overhead of Kafka or Parquet."""
    _, _, key, value, headers = record
    return (
        len(key or b"")
        + len(value or b"")
        + sum(len(name) + len(content or b"") for name, content in headers)
    )
