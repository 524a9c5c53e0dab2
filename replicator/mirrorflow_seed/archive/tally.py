"""What a stretch of records adds up to: how many, the sum of their digests in any order, and a digest of their order.

The digest of a record is `verify.digests`', keyed by the archive's id, so that a stretch of an archive and the same stretch
of any cluster can be compared without their records.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from mirrorflow_replicator.wire.records import Record
from mirrorflow_seed.verify.digests import DIGEST_BYTES, SUM_MODULUS, RecordDigest

_START: Final = bytes(DIGEST_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Of consecutive records. `sum` and `chain` in hexadecimal digits."""

    records: int
    bytes: int  # of keys, values and headers
    sum: str
    chain: str


class Tallying:
    """Counts records of one partition, in the order of offsets."""

    __slots__ = ("_bytes", "_chain", "_digest", "_records", "_sum")

    def __init__(self, archive_id: str, partition: int) -> None:
        self._digest = RecordDigest(archive_id, partition)
        self._records = self._bytes = self._sum = 0
        self._chain = _START

    def add(self, record: Record) -> None:
        """The next one."""
        digest = self._digest.of(record)
        self._records += 1
        self._bytes += size_bytes(record)
        self._sum = (self._sum + int.from_bytes(digest)) % SUM_MODULUS
        self._chain = blake2b(self._chain + digest, digest_size=DIGEST_BYTES).digest()

    @property
    def tally(self) -> Tally:
        """Of all that was added."""
        return Tally(
            records=self._records, bytes=self._bytes, sum=f"{self._sum:032x}", chain=self._chain.hex()
        )


def size_bytes(record: Record) -> int:
    """What a record holds, without what Kafka or Parquet add."""
    _, _, key, value, headers = record
    return (
        len(key or b"")
        + len(value or b"")
        + sum(len(name) + len(content or b"") for name, content in headers)
    )
