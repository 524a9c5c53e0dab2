"""Finds the target offset of a source record by comparing content, so that both sides can be cut there.

A stretch may begin where several consecutive records are equal on both sides. At an exact offset of the
offset map, equality there is enough. Otherwise the records are searched around a guess (offset syncs,
timestamps), and a match counts only if it is the only one, because twins cannot be told apart.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.batch import Batch
from mirrorflow_core.wire.records import decode
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_seed.verify.digests import Digested, RecordDigest
from mirrorflow_seed.verify.known_offsets import Guess
from mirrorflow_seed.verify.stretch_reader import StretchReader

# This many consecutive records identify an offset; fewer only if the partition has no more.
RUN_RECORDS: Final = 8
# Search range around a guess: offset syncs miss markers in between, and timestamps repeat.
SEARCH_BACK_OFFSETS: Final = 2_000
SEARCH_RECORDS: Final = 10_000
# Small, as each partition is read a few times; brokers return the first batch whole whatever its size.
LOOK_ANSWER_BYTES: Final = 32 << 10
SEARCH_ANSWER_BYTES: Final = 1 << 20


class RecordAt(NamedTuple):
    """The digest of a record, with its offset and timestamp."""

    digested: Digested
    timestamp: int

    @property
    def offset(self) -> int:
        """The offset on its own side."""
        return self.digested.offset

    @property
    def digest(self) -> bytes:
        """The digest of the record."""
        return self.digested.digest


class BoundaryLog:
    """One side of a partition, from its first offset to its frozen end."""

    def __init__(
        self,
        cluster: Cluster,
        partition: TopicPartition,
        begin: int,
        end: int,
        *,
        digest: RecordDigest,
        read_committed: bool,
    ) -> None:
        self.begin, self.end = begin, end
        self.partition = partition
        self._cluster = cluster
        self._digest = digest
        self._read_committed = read_committed

    async def records(self, offset: int, count: int) -> list[RecordAt]:
        """Returns up to *count* records from *offset* on.

        Raises ClusterError, CorruptRecordsError, DeletedMeanwhileError.
        """
        reader = StretchReader(
            self._cluster,
            self.partition,
            max(offset, self.begin),
            self.end,
            read_committed=self._read_committed,
            answer_bytes=LOOK_ANSWER_BYTES if count <= RUN_RECORDS else SEARCH_ANSWER_BYTES,
            reads_ahead=False,
        )
        found: list[RecordAt] = []
        try:
            while len(found) < count and (batches := await reader.more()) is not None:
                for batch in batches:
                    found += islice(self._within(batch, offset), count - len(found))
        finally:
            await reader.close()
        return found

    async def offset_at(self, timestamp: int) -> int | None:
        """The first offset with at least *timestamp* (ms); None if there is none or the leader returns an error."""
        answer = (await admin.list_offsets(self._cluster, [self.partition], timestamp))[self.partition]
        return None if answer.error or answer.offset < 0 else answer.offset

    def _within(self, batch: Batch, offset: int) -> Iterable[RecordAt]:
        for record in decode(batch):
            if offset <= record.offset < self.end:
                yield RecordAt(Digested(record.offset, self._digest.of(record)), record.timestamp)


async def locate(log: BoundaryLog, wanted: Sequence[RecordAt], guesses: Iterable[Guess]) -> int | None:
    """Returns the offset on *log* where the records *wanted*, of the other side, begin; None if undecided."""
    if not wanted:
        return None
    run = [one.digest for one in wanted]
    tried: list[Guess] = []
    for guess in guesses:
        if guess.is_exact:
            there = await log.records(guess.offset, len(run))
            if _begins_with(there, run):
                return there[0].offset
        tried.append(guess)
    by_time = await log.offset_at(wanted[0].timestamp) if wanted[0].timestamp >= 0 else None
    if by_time is not None:
        tried.append(Guess(by_time, is_exact=False))
    for guess in tried:
        region = await log.records(max(log.begin, guess.offset - SEARCH_BACK_OFFSETS), SEARCH_RECORDS)
        places = [
            at for at, one in enumerate(region) if one.digest == run[0] and _begins_with(region[at:], run)
        ]
        if len(places) == 1:
            return region[places[0]].offset
    return None


def _begins_with(there: Sequence[RecordAt], run: Sequence[bytes]) -> bool:
    """Whether *there* begins with *run*, or is a prefix of it of at least two records."""
    count = min(len(there), len(run))
    return count >= min(2, len(run)) and all(there[at].digest == run[at] for at in range(count))
