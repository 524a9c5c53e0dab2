"""Where source and target belong together: the place of a source record on the target, found by what it holds.

A stretch may begin where some records in a row are the same on both sides. Where the flow has said exactly where they lie,
agreeing there is enough. Elsewhere they are searched around a guess (offset syncs, timestamps), and found only if
there is one such place: of twins nobody can tell which is meant.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.kafka import admin
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.wire.batch import Batch
from mirrorflow_replicator.wire.records import decode
from mirrorflow_seed.verify.digests import Digested, RecordDigest
from mirrorflow_seed.verify.known import Guess
from mirrorflow_seed.verify.reading import StretchReader

# So many records in a row identify a place; fewer only where the partition has no more.
RUN_RECORDS: Final = 8
# Around a guess. With offset syncs it is off by the markers in between, with timestamps by records of the same moment.
SEARCH_BACK_OFFSETS: Final = 2_000
SEARCH_RECORDS: Final = 10_000
# Ten thousand partitions are looked at twice each; brokers give the first batch whole, whatever its size.
LOOK_ANSWER_BYTES: Final = 32 << 10
SEARCH_ANSWER_BYTES: Final = 1 << 20


class Found(NamedTuple):
    """A record, and when it was written."""

    digested: Digested
    timestamp: int

    @property
    def offset(self) -> int:
        """On its own side."""
        return self.digested.offset

    @property
    def digest(self) -> bytes:
        """Of all that it is."""
        return self.digested.digest


class Log:
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

    async def records(self, offset: int, count: int) -> list[Found]:
        """Up to *count* records from *offset* on. Raises ClusterError, CorruptRecordsError, DeletedMeanwhileError."""
        reader = StretchReader(
            self._cluster,
            self.partition,
            max(offset, self.begin),
            self.end,
            read_committed=self._read_committed,
            answer_bytes=LOOK_ANSWER_BYTES if count <= RUN_RECORDS else SEARCH_ANSWER_BYTES,
            reads_ahead=False,
        )
        found: list[Found] = []
        try:
            while len(found) < count and (batches := await reader.more()) is not None:
                for batch in batches:
                    found += islice(self._within(batch, offset), count - len(found))
        finally:
            await reader.close()
        return found

    async def offset_at(self, timestamp: int) -> int | None:
        """The first offset whose record is not older than that; None if none is, or the leader cannot say."""
        answer = (await admin.list_offsets(self._cluster, [self.partition], timestamp))[self.partition]
        return None if answer.error or answer.offset < 0 else answer.offset

    def _within(self, batch: Batch, offset: int) -> Iterable[Found]:
        for record in decode(batch):
            if offset <= record.offset < self.end:
                yield Found(Digested(record.offset, self._digest.of(record)), record.timestamp)


async def place_on(log: Log, wanted: Sequence[Found], guesses: Iterable[Guess]) -> int | None:
    """Where the records *wanted*, of the other side, begin on *log*; None if that cannot be said."""
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


def _begins_with(there: Sequence[Found], run: Sequence[bytes]) -> bool:
    """Whether *there* begins with *run*, or ends within it, at its second record or later."""
    count = min(len(there), len(run))
    return count >= min(2, len(run)) and all(there[at].digest == run[at] for at in range(count))
