"""Tracks where one partition is read in the source, how much may be queued, and which batches of a response are copied.

The cursor moves only forward, over records and over what the stream leaves out (markers, aborted records). It
knows the leader epoch of the record before it. So a source whose log was truncated and rewritten reports that
in its next fetch response (KIP-595, `DivergingEpoch`) instead of returning other records at the same offsets.
"""

from typing import Final

from mirrorflow_core.copying.batch_packer import Packer
from mirrorflow_core.copying.event_log import EventLog
from mirrorflow_core.errors import CorruptBatchError, CorruptRecordsError
from mirrorflow_core.partitions import UNKNOWN, TopicPartition
from mirrorflow_core.wire.batch import Batch, header_of
from mirrorflow_core.wire.fetch import FETCH_BYTES_MAX, AbortedFilter, FetchFrom, PartitionFetchResponse
from mirrorflow_core.writer.stream import Stream

RESPONSE_BYTES_MIN: Final = 1 << 20  # as Java's max.partition.fetch.bytes
# Fetched and not yet sent: two responses' worth, so that the next one arrives while this one is being sent.
QUEUED_RESPONSES_MAX: Final = 2


class ReadCursor:
    """The next source offset to fetch, and the ends of the source's log as of the last response."""

    __slots__ = (
        "_aborted", "_counted_to", "_partition", "_read_committed", "_request_bytes_min", "_response_bytes", "_writes_first",
        "end_offset", "high_watermark", "is_full", "is_waiting", "last_epoch", "leader_epoch", "log_start", "offset",
    )  # fmt: skip

    def __init__(self, partition: TopicPartition, *, read_committed: bool) -> None:
        self.offset = UNKNOWN
        self.last_epoch = UNKNOWN  # leader epoch of the record before `offset`
        self.leader_epoch = UNKNOWN  # of the source's leader, by metadata
        self.end_offset = UNKNOWN  # last stable offset with read_committed, else the high watermark
        self.high_watermark = UNKNOWN
        self.log_start = UNKNOWN
        self._partition = partition
        self._read_committed = read_committed
        self._aborted = AbortedFilter()
        self._request_bytes_min = 0
        self._counted_to = UNKNOWN  # batches that end before it, and are not copied, are counted
        self._response_bytes = RESPONSE_BYTES_MIN
        self._writes_first = False  # what was read is written before more is read
        self.is_full = False  # it reads no more until there is room
        self.is_waiting = False  # it reads no more until the source's leader was looked up

    def request(self, response_bytes: int, packer: Packer, log: EventLog) -> FetchFrom | None:
        """Returns what to fetch next; None while *packer* has enough, or it waits. Adds what has changed to *log*.

        It is at most *response_bytes*, unless the next batch is known to be larger.
        """
        before = self._response_bytes, self._writes_first, self.is_full
        self._response_bytes = response_bytes
        self._writes_first = self._writes_first and bool(packer)
        self.is_full = (
            packer.queued_bytes >= QUEUED_RESPONSES_MAX * response_bytes
            or packer.is_ended
            or self._writes_first
        )
        if log.events is not None and before != (response_bytes, self._writes_first, self.is_full):
            log.events.append(("next_fetch", (response_bytes,), {}))
        if self.is_full or self.is_waiting:
            return None
        size = max(self._request_bytes_min, response_bytes)
        return FetchFrom(self.offset, self.leader_epoch, self.last_epoch, size)

    def has_room(self, packer: Packer) -> bool:
        """Returns whether half of what *packer* may queue is sent, so that it reads on."""
        return packer.queued_bytes < QUEUED_RESPONSES_MAX * self._response_bytes // 2

    def read_on(self) -> None:
        """Reads more again, until it is full."""
        self.is_full = False

    def write_first(self, packer: Packer) -> bool:
        """Returns whether records were read before the source lost them: they are written before more is read."""
        self._writes_first = bool(packer)
        return self._writes_first

    def seek(self, offset: int, last_epoch: int) -> None:
        """Continues at *offset*, after a record of leader epoch *last_epoch* (-1: unknown)."""
        self.offset, self.last_epoch = offset, last_epoch
        self.is_waiting = False

    def wait_for_leader(self) -> None:
        """Reads no more until the source's leader was looked up: the broker would refuse each fetch at once."""
        self.is_waiting = True

    def note_end(self, end_offset: int) -> None:
        """Notes where the source's log ends; -1: unknown."""
        self.end_offset, self.high_watermark = end_offset, UNKNOWN

    def note_leader_epoch(self, epoch: int) -> None:
        """Notes the leader epoch of the source, by metadata."""
        self.leader_epoch, self.is_waiting = epoch, False

    def note_ends(self, response: PartitionFetchResponse) -> None:
        """Notes where the source's log begins and ends now, by a *response* without an error."""
        self.end_offset = response.last_stable_offset if self._read_committed else response.high_watermark
        self.high_watermark = response.high_watermark
        self.log_start = response.log_start_offset

    @property
    def is_held_back(self) -> bool:
        """Whether an open transaction of the source hides records from a reader of committed ones."""
        return 0 <= self.end_offset < self.high_watermark

    def take(self, response: PartitionFetchResponse, packer: Packer, stream: Stream, log: EventLog) -> int:
        """Adds the batches of *response* to *packer*, and their headers to *log*; returns the number of records that are not copied.

        Raises CorruptBatchError if the first batch cannot be one, a marker cannot be read, or what is skipped is damaged.
        """
        self.note_ends(response)
        if not len(response.records):
            return 0
        try:
            return self._take_batches(response, packer, stream, log)
        except CorruptRecordsError as error:
            topic, partition = self._partition
            raise CorruptBatchError(
                topic=topic, partition=partition, offset=self.offset, problem=str(error)
            ) from error

    def _take_batches(
        self, response: PartitionFetchResponse, packer: Packer, stream: Stream, log: EventLog
    ) -> int:
        try:
            batches = packer.split(response.records)
        except CorruptRecordsError as error:
            if log.events is not None:
                log.events.append(("corrupt", str(error)))
            raise
        if not batches:
            # Even the first batch was cut off: a batch larger than the requested size is returned whole only
            # if it is the first of the response.
            first_bytes = packer.first_size_bytes(response.records)
            if log.events is not None:
                log.events.append(("cut_off", first_bytes))
            # A damaged length may be of any size.
            self._request_bytes_min = min(max(first_bytes, 2 * self._request_bytes_min), FETCH_BYTES_MAX)
            return 0
        if self._request_bytes_min:
            # Batches of this size are still expected; a larger length was a damaged one, or of an exception.
            self._request_bytes_min = max(batch.size_bytes for batch in batches)
        if log.events is not None:
            log.add_headers([header_of(batch) for batch in batches])
        if self._read_committed:
            self._aborted.feed(response.aborted)
        skipped = 0
        for batch in batches:
            next_offset = batch.next_offset
            if next_offset <= self.offset:
                self._verify_skipped(batch, packer, log)
                continue
            kept = self._aborted.delivers(batch) if self._read_committed else not batch.is_control
            if kept and batch.count:
                packer.add(batch)
            else:
                self._verify_skipped(batch, packer, log)
                if next_offset > self._counted_to:  # it may be fetched again, after a resync
                    skipped += batch.count
                    self._counted_to = next_offset
                packer.pass_over(next_offset, batch.leader_epoch, stream)
            self.offset = next_offset
            self.last_epoch = batch.leader_epoch
        return skipped

    def _verify_skipped(self, batch: Batch, packer: Packer, log: EventLog) -> None:
        try:
            packer.verify_skipped(batch)
        except CorruptBatchError:
            if log.events is not None:
                log.events.append(("damaged", batch.base_offset))
            raise
