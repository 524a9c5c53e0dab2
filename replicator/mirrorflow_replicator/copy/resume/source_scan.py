"""Reads both logs to find the source offset of the record that the target has last.

`exactly_once.resumption` decides; this module reads as little as that needs: the source from the last known
pair on, and one record of the target. It reads more of the target only where the source was compacted, had an
election, or does not hold what was copied. Needs Read and Describe on the source.
"""

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from mirrorflow_core.errors import BrokerError
from mirrorflow_core.exactly_once.alignment import OffsetPair, ResumeAt, ordinal_near
from mirrorflow_core.exactly_once.identity import Identity
from mirrorflow_core.exactly_once.resumption import (
    NONE,
    BatchTimes,
    CompactedMatch,
    DenseWalk,
    Divergence,
    Mark,
    Truncation,
)
from mirrorflow_core.naming.transforms import NO_EDITS, HeaderEdits
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.aborted_transactions import AbortedFilter
from mirrorflow_core.wire.batch import Batch
from mirrorflow_core.wire.records import Record, decode
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import batches_between
from mirrorflow_kafka.admin.target_probe import EARLIEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.error_codes import OFFSET_OUT_OF_RANGE

# Copies that are compared with a compacted source at a time: about 30 MB in memory.
WINDOW_RECORDS = 100_000
# Copies that are compared by content when a copier resumes. If another producer's batch has stopped a
# partition, it is the first batch behind the stored offset, and the few records behind that are all compared.
FIRST_RECORDS = 100
DIGEST_BYTES = 16  # two different records with the same digest are less likely than a disk error


class LogExtent(NamedTuple):
    """The first offset of a partition's log and its end, as its readers see them."""

    first: int
    end: int


class _Scanned(NamedTuple):
    """A record of either log, as digests."""

    offset: int
    mark: Mark
    leader_epoch: int
    sequence: int  # NONE on the source
    is_stamped: bool  # the broker set its timestamp


async def stream_batches(
    source: Cluster, partition: TopicPartition, start: int, end: int, *, read_committed: bool
) -> AsyncIterator[Batch]:
    """Yields the batches of the stream that hold source offsets from *start* up to *end*.

    Control and aborted batches are left out.
    """
    async for batch, is_kept in _all_batches(source, partition, start, end, read_committed=read_committed):
        if is_kept and batch.count:
            yield batch


async def _all_batches(
    source: Cluster, partition: TopicPartition, start: int, end: int, *, read_committed: bool
) -> AsyncIterator[tuple[Batch, bool]]:
    """Yields every batch, and whether its records belong to the stream.

    Records that compaction removed count as well.
    """
    aborted = AbortedFilter()
    fed: object = None
    async for batch, answer in batches_between(source, partition, start, end, read_committed=read_committed):
        if answer is not fed:
            aborted.feed(answer.aborted)
            fed = answer
        kept = aborted.delivers(batch) if read_committed else not batch.is_control
        yield batch, kept


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceScan:
    """Scans the logs of one partition. *extent* is the source's now; *identity* wrote the copies.

    *is_compacted*: the source is compacted, or may be. *header_edits*: the edits applied to the source's
    headers when they were copied; None if unknown, then headers are not compared.
    """

    source: Cluster
    partition: TopicPartition
    target: Cluster
    target_partition: TopicPartition
    identity: Identity
    extent: LogExtent
    is_compacted: bool
    read_committed: bool
    header_edits: HeaderEdits | None

    async def find(self, at: ResumeAt) -> OffsetPair | Divergence:
        """Returns the pair of *at*, or where the source no longer holds what was copied.

        Raises UndecidedError, ClusterError.
        """
        if self.extent.first > at.known.source_offset + 1:
            return await self._match(at)
        walk = await self._walk(at)
        if not walk.is_dense:
            return await self._match(at)
        pair, is_last_copied = None, False
        if walk.found != NONE:
            pair = OffsetPair(walk.found, at.ordinal, at.target_offset, max(walk.epochs))
            is_one_log = len(walk.epochs) == 1 and at.known.source_epoch in {NONE, *walk.epochs}
            is_last_copied = await self._is_copied(pair)
            if is_one_log and is_last_copied and await self._are_copied(at, walk.times):
                return pair
        found = await self.difference(at.known, at)
        if pair is not None and found.target_offset == NONE:
            return pair
        if self.is_compacted or not (await self._walk(at)).is_dense:
            # Compaction removed records before they were copied (a new leader may still have some), or after
            # they were counted: the comparison was not record by record.
            return await self._match(at)
        if pair is None:
            return found
        return found._replace(is_source_intact=is_last_copied or self._is_intact(found, at.known))

    def _is_intact(self, found: Divergence, known: OffsetPair) -> bool | None:
        """Returns whether the source's log is still the one that was copied.

        It is if its leader epoch is that of the last equal record. None: unknown, as one of the epochs is.
        The flow may have copied from a leader of a later epoch that has lost its log in an unclean election
        since.
        """
        leader_epoch = self.source.metadata.leader_epoch(*self.partition)
        epoch = known.source_epoch if found.source_epoch == NONE else found.source_epoch
        return None if NONE in {leader_epoch, epoch} else epoch == leader_epoch

    async def first_difference(self, truncation: Truncation, newest: OffsetPair) -> int:
        """Returns the first source offset where the source differs from what was copied up to *newest*.

        Raises ClusterError.

        The result is too low where records cannot be compared, because one of the logs lacks some: copying
        again loses nothing.
        """
        kept, offset, is_exact = truncation
        if is_exact:
            return offset
        if self.extent.first > kept.source_offset + 1:
            return min(self.extent.first, offset)
        return min((await self.difference(kept, newest)).offset, offset)

    async def _walk(self, at: ResumeAt) -> DenseWalk:
        walk = DenseWalk(at)
        start = at.known.source_offset + 1
        async for batch, kept in _all_batches(
            self.source, self.partition, start, self.extent.end, read_committed=self.read_committed
        ):
            if batch.magic == 2:  # its header has the record count
                spans = [
                    (batch.base_offset, batch.next_offset, batch.count if kept else None, batch.max_timestamp)
                ]
            else:
                spans = [
                    (one.offset, one.offset + 1, 1 if kept else None, one.timestamp)
                    for one in decode(batch)
                    if one.offset >= start
                ]
            if not all(
                walk.take(first, after, records=records, leader_epoch=batch.leader_epoch, max_timestamp=time)
                for first, after, records, time in spans
            ):
                break
        return walk

    async def _is_copied(self, pair: OffsetPair) -> bool:
        """Returns whether the record at the source offset of *pair* is the one at its target offset.

        True if compaction removed the copy.
        """
        async for copy in self._copies(pair.target_offset, pair.target_offset + 1):
            async for found in self._records(pair.source_offset):
                return found.offset == pair.source_offset and _are_equal(found, copy)
            return False
        return True

    async def _are_copied(self, at: ResumeAt, times: BatchTimes) -> bool:
        """Returns whether the copies behind the known pair match the source.

        The first ones are compared by content, all by timestamp.
        """
        end = min(at.target_offset, at.known.target_offset + FIRST_RECORDS)
        if (await self.difference(at.known, replace(at, target_offset=end))).target_offset != NONE:
            return False
        async for batch in self._own_batches(at.known.target_offset + 1, at.target_offset + 1):
            if batch.is_log_append_time:
                continue
            first = ordinal_near(batch.base_sequence, at.ordinal)
            if not batch.is_dense or times.of(first, first + batch.count - 1) != batch.max_timestamp:
                return False
        return True

    async def difference(self, known: OffsetPair, newest: OffsetPair | ResumeAt) -> Divergence:
        """Compares what was copied after *known*, up to *newest*, with the source, record by record.

        In the result, `offset` is the source offset behind the last equal record; `target_offset` is where
        the first copy lies that differs, NONE if there is none.
        """
        ordinal, next_offset, epoch, found = known.ordinal, known.source_offset + 1, NONE, None
        records = aiter(self._records(next_offset))
        async for copy in self._copies(known.target_offset + 1, newest.target_offset + 1):
            copied = ordinal_near(copy.sequence, newest.ordinal)
            while ordinal < copied:
                found = await anext(records, None)
                ordinal += 1
            if found is None or not _are_equal(found, copy):
                return Divergence(next_offset, copy.offset, epoch)
            next_offset, epoch = found.offset + 1, found.leader_epoch
        return Divergence(next_offset, source_epoch=epoch)

    async def _match(self, at: ResumeAt) -> OffsetPair:
        match, floor, end = CompactedMatch(at), at.known.target_offset + 1, at.target_offset + 1
        while end > floor:
            first = max(floor, end - WINDOW_RECORDS)
            copies, is_stamped = await self._window(first, end, at.ordinal)
            start = match.look(copies, is_oldest=first == floor)
            async for found in self._records(max(start, self.extent.first)):
                mark = found.mark._replace(timestamp=NONE) if is_stamped else found.mark
                if not match.take(found.offset, mark, found.leader_epoch):
                    break
            end = first
        return match.result(self.partition)

    async def _window(self, first: int, end: int, ordinal: int) -> tuple[list[tuple[int, Mark]], bool]:
        """Returns the copies at target offsets from *first* up to *end*, with ordinals near *ordinal*.

        The second value is True if their timestamps were left out.
        """
        copies, is_stamped = [], False
        async for copy in self._copies(first, end):
            copies.append((ordinal_near(copy.sequence, ordinal), copy.mark))
            is_stamped |= copy.is_stamped
        if is_stamped:
            copies = [(ordinal, mark._replace(timestamp=NONE)) for ordinal, mark in copies]
        return copies, is_stamped

    async def _records(self, start: int) -> AsyncIterator[_Scanned]:
        """Yields the records of the stream from source offset *start* on, as they would be copied."""
        async for batch in stream_batches(
            self.source, self.partition, start, self.extent.end, read_committed=self.read_committed
        ):
            for record in decode(batch):
                if record.offset >= start:
                    mark = _mark(record, self.header_edits)
                    yield _Scanned(record.offset, mark, batch.leader_epoch, NONE, is_stamped=False)

    async def _copies(self, start: int, end: int) -> AsyncIterator[_Scanned]:
        """Yields the flow's records at target offsets from *start* up to *end* that retention has left."""
        edits = None if self.header_edits is None else NO_EDITS
        async for batch in self._own_batches(start, end):
            for record in decode(batch):
                if start <= record.offset < end:
                    # Compaction keeps offsets and the batch's first sequence number, so the sequence number
                    # of each record is known.
                    sequence = batch.base_sequence + record.offset - batch.base_offset
                    yield _Scanned(
                        record.offset, _mark(record, edits), NONE, sequence, batch.is_log_append_time
                    )

    async def _own_batches(self, start: int, end: int) -> AsyncIterator[Batch]:
        """Yields the batches of `identity` at target offsets from *start* up to *end*."""
        identity = self.identity
        async for batch in self._target_batches(start, end):
            writer = (batch.producer_id, batch.producer_epoch)
            if not batch.is_control and writer == (identity.producer_id, identity.producer_epoch):
                yield batch

    async def _target_batches(self, start: int, end: int) -> AsyncIterator[Batch]:
        while True:
            try:
                async for batch, _ in batches_between(self.target, self.target_partition, start, end):
                    yield batch
                    start = batch.next_offset
            except BrokerError as error:
                first = await self._target_first() if error.code == OFFSET_OUT_OF_RANGE else start
                if first <= start:
                    raise
                start = first
            else:
                return

    async def _target_first(self) -> int:
        listed = await admin.list_offsets(self.target, [self.target_partition], EARLIEST)
        return listed[self.target_partition].offset


def _are_equal(found: _Scanned, copy: _Scanned) -> bool:
    """Returns whether *copy* is a copy of *found*; the target may have replaced its timestamp."""
    expected = found.mark._replace(timestamp=copy.mark.timestamp) if copy.is_stamped else found.mark
    return expected == copy.mark


def _mark(record: Record, header_edits: HeaderEdits | None) -> Mark:
    headers = () if header_edits is None else header_edits.edited(record.headers)
    parts = (record.key, record.value, *(item for header in headers for item in header))
    key = b"" if record.key is None else _digest(record.key)
    return Mark(key, _digest(*parts), record.timestamp)


def _digest(*parts: bytes | None) -> bytes:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        digest.update(b"-;" if part is None else b"%d;" % len(part))
        digest.update(part or b"")
    return digest.digest()
