"""The state machine of one copied partition: it is copied, waits for its resume position, or has stopped.

The way of a batch:

    client.broker_reader   fetches
    read_cursor            finds the batches in the response
    batch_packer           makes the batches to send
    partition_writer       holds them until they are acknowledged
    client.broker_writer   puts batches of several partitions into one produce request (`core.wire.produce`)

        ┌── resync: new connection, refusal, lost response, pause, discontinuity ──────────────────────┐
        v                                                                                              │
    RESUMING ── it is known where to continue ──> COPYING ─────────────────────────────────────────────┘
        └─ error ──> STOPPED ── retriable, after a pause ──> RESUMING

Guarantees: a partition copier that is RESUMING sends nothing, and continues only when everything it had in flight is answered
or lost; its source is read in order. It does no I/O and does not decide where to continue (`copy.partition_resumer` does):
the reader (`client.broker_reader`), the resumer and its `PartitionWriter` call it.
"""

import asyncio
from collections.abc import Sequence

from mirrorflow_core.errors import CorruptBatchError, MirrorFlowError, PartitionError
from mirrorflow_core.partitions import OffsetPair, TopicPartition
from mirrorflow_core.stall_detection import Obstacle, Stalled
from mirrorflow_core.transforms import RenameRule
from mirrorflow_core.wire.fetch import FetchFrom, PartitionFetchResponse
from mirrorflow_core.writer.stream import Span, Stream
from mirrorflow_kafka.client.broker_reader import PARTITION_BYTES_MIN, BrokerReader
from mirrorflow_kafka.client.broker_writer import Pipe
from mirrorflow_replicator.copy.batch_packer import Packer
from mirrorflow_replicator.copy.copier_context import CopierContext, CopierState, DetectedLoss, RefusedRecords
from mirrorflow_replicator.copy.partition_writer import PartitionWriter
from mirrorflow_replicator.copy.read_cursor import ReadCursor
from mirrorflow_replicator.copy.write_mode_tracker import WriteModeTracker

# Fetched and not yet sent: two responses' worth, so that the next one arrives while this one is being sent.
QUEUED_RESPONSES_MAX = 2
UNKNOWN_EPOCH = -1


class PartitionCopier:
    """The state of one partition of a task, with the callbacks of its reader and the resumer."""

    def __init__(self, source: TopicPartition, route: RenameRule, context: CopierContext) -> None:
        self.source = source
        self.topic, self.partition = source
        self.target_topic = route.name
        self.target = TopicPartition(route.name, source.partition)
        self.state = CopierState.RESUMING
        self.context = context
        self.packer = Packer(self.topic, self.partition, route.name, context.plain_producer, route.edits)
        self.writing: PartitionWriter | None = None  # None: it has not begun in this start of the task
        self.target_epoch = UNKNOWN_EPOCH  # the newest known leader epoch of the target partition
        self.reader: BrokerReader | None = None
        self.pipe: Pipe | None = None
        self.error: MirrorFlowError | None = None
        self.obstacle: Obstacle | None = None  # the newest one since the last progress
        self.stalled: Stalled | None = None  # why it makes no progress; set by `stall_watch`
        self.resyncs = 0  # generation counter: an awaited result of an earlier generation is discarded
        self.is_halted = False  # it was stopped, and nothing has shown yet that the cause is gone
        self.alert: PartitionError | None = None  # the newest loss after which it continued, by loss policy
        self.alerted_ms = self.losses = 0
        self.loss: DetectedLoss | None = None  # handled when it is known where to continue
        self.cursor = ReadCursor(source, read_committed=context.read_committed)
        self.start_end = -1  # the source's end when the task began
        self.refusals = 0  # in a row
        self.failed_starts = (
            0  # starts of the task that left it out, although nothing was wrong with it before them
        )
        self.refused_records: Sequence[int] = ()  # of the newest refused batch, where the target names them
        self.skip: RefusedRecords | None = None  # left out when it is known where to continue
        self.records = self.bytes = self.skipped = self.lost_records = self.refused_writes = 0
        self.record_timestamp_ms = -1
        self.latency_ms = self.age_ms = -1.0
        self.drained = asyncio.Event()  # it is leaving and has nothing in flight
        self.is_full = False  # it reads no more until there is room
        self._counted_bytes = 0
        self._writes_first = False
        self._earlier_mode: WriteModeTracker | None = None

    def inherit(self, earlier: "PartitionCopier") -> None:
        """Continues the counts of the copier that the task had of this partition before, and what it has learned."""
        self.records, self.bytes, self.skipped = earlier.records, earlier.bytes, earlier.skipped
        self.lost_records, self.losses = earlier.lost_records, earlier.losses
        self.refused_writes = earlier.refused_writes
        self.failed_starts = earlier.failed_starts
        self.alert, self.alerted_ms = earlier.alert, earlier.alerted_ms
        self.packer.inherit(earlier.packer)
        self._earlier_mode = earlier.mode

    # -- leaders, by the broker routes

    def read_by(self, reader: "BrokerReader") -> None:
        """Fetches through *reader* from now on."""
        self.reader = reader

    def write_through(self, pipe: "Pipe") -> None:
        """Writes through *pipe* from now on, after a resync."""
        self.pipe = pipe
        if self.writing is not None:
            self.writing.write_through(pipe)
        self.resync()

    # -- reading: client.broker_reader.Partition

    def wanted(self) -> FetchFrom | None:
        """Returns where to fetch from next; None while it is RESUMING or full."""
        self._writes_first = self._writes_first and bool(self.packer)
        size = self._response_bytes
        self.is_full = (
            self.packer.queued_bytes >= QUEUED_RESPONSES_MAX * size
            or self.packer.is_ended
            or self._writes_first
        )
        if self.state is not CopierState.COPYING or self.is_full:
            return None
        return self.cursor.request(size)

    @property
    def _response_bytes(self) -> int:
        """The size of a fetch response for it; before it has a reader, the smallest one."""
        return PARTITION_BYTES_MIN if self.reader is None else self.reader.partition_bytes

    def is_coming(self) -> bool:
        """Returns whether it may want to fetch more at any moment."""
        return self.state in {CopierState.RESUMING, CopierState.COPYING}

    def fetched(self, response: PartitionFetchResponse, asked_offset: int) -> None:
        """Queues the records of a fetch response."""
        writing = self.writing
        if writing is None or self.state is not CopierState.COPYING or asked_offset != self.cursor.offset:
            return
        if response.error or response.diverging is not None or response.preferred_replica >= 0:
            self.context.on_fetch_error(self, response.error, response)
            return
        try:
            self.skipped += self.cursor.take(response, self.packer, writing.stream)
        except CorruptBatchError as error:
            self.packer.end_with(error)
        if not len(response.records):
            self._recovered()
            if self.cursor.is_held_back:
                self.context.changed(self)
            return
        self.context.changed(self)
        self.count_buffered()
        writing.pipe.ready(writing)

    @property
    def has_room(self) -> bool:
        """Returns whether half of what may be queued is sent, so that it reads on."""
        return self.packer.queued_bytes < QUEUED_RESPONSES_MAX * self._response_bytes // 2

    def read_on(self) -> None:
        """Reads again, after it was full."""
        self.is_full = False
        self._notify_reader()

    def read_again(self, offset: int, last_epoch: int) -> None:
        """Drops what was fetched, and reads it again from *offset* on, behind a record of *last_epoch*."""
        self._forget()
        self.cursor.seek(offset, last_epoch)
        self._notify_reader()

    def _notify_reader(self) -> None:
        if self.reader is not None:
            self.reader.changed(self.topic, self.partition)

    # -- writing: client.broker_writer.ConnectedPartition, and `writing`

    def connected(self) -> None:
        """Called on a new connection to the target's leader."""
        self.resync()

    @property
    def mode(self) -> WriteModeTracker | None:
        """The mode in which it is written, or was in an earlier start of the task; None: it has never begun."""
        return self._earlier_mode if self.writing is None else self.writing.mode

    @property
    def stream(self) -> Stream | None:
        """What it has sent in this start of the task; None: it has not begun."""
        return None if self.writing is None else self.writing.stream

    @property
    def is_held(self) -> bool:
        """Returns whether it sends nothing until a commit."""
        return self.writing is not None and self.writing.is_held

    @property
    def settled_next_offset(self) -> int:
        """The source offset behind the last record that no abort can remove; -1: it has not begun."""
        return -1 if self.writing is None else self.writing.settled_next_offset

    def delivered(self, span: Span) -> None:
        """Counts *span*, which the target has acknowledged."""
        self.records += span.count
        self.bytes += span.size_bytes
        self.record_timestamp_ms = span.max_timestamp
        self.latency_ms = self.context.now_ms - span.max_timestamp
        if self.error is not None and self.state is not CopierState.STOPPED:
            self._recovered()
        self.refusals = 0
        self.context.changed(self)

    def note_refusal(self, records: Sequence[int]) -> None:
        """Counts a refused batch; *records* are the indexes of its refused records."""
        self.refused_records = records
        self.refused_writes += 1

    # -- obstacles

    def note_obstacle(self, obstacle: Obstacle | None) -> None:
        """Notes what it has met since the last progress; None: it has made progress."""
        self.obstacle = None if obstacle is None else obstacle.after(self.obstacle)

    def note_stall(self, stalled: "Stalled | None") -> None:
        """Notes why it makes no progress; None: it does."""
        self.stalled = stalled

    # -- called by the resumer

    def resync(self) -> None:
        """Drops what was fetched, and writes nothing more until the resumer has determined where to continue."""
        self._forget()
        self.resyncs += 1
        if self.writing is not None:
            self.writing.leave_transaction()
        if self.state is CopierState.COPYING:
            self.state = CopierState.RESUMING
            self._notify_reader()
        self.resume_when_drained()

    def resume_when_drained(self) -> None:
        """Has the resumer determine where to continue, if that is unknown and nothing is in flight."""
        self._note_drained()
        if not self.is_drained:
            return
        if self.writing is not None and self.writing.is_held:
            self.context.writer.emptied(self.writing)
        if self.state is CopierState.RESUMING:
            self.context.schedule_resume(self)

    @property
    def is_drained(self) -> bool:
        """Returns whether everything sent is answered or lost: only then can it be determined where to continue."""
        return self.writing is None or self.writing.is_drained

    def note_start_end(self, end_offset: int) -> None:
        """Notes where the source ended when the task began."""
        self.start_end = end_offset
        self.cursor.note_end(end_offset)

    def note_target_epoch(self, epoch: int) -> None:
        """Notes a leader epoch of the target partition."""
        self.target_epoch = max(self.target_epoch, epoch)

    def retry(self) -> None:
        """Has the resumer determine again where to continue, if the partition was stopped."""
        if self.state is CopierState.STOPPED:
            self.state = CopierState.RESUMING

    def delay(self) -> None:
        """Counts as one more refusal in a row, by which the next attempt is delayed."""
        self.refusals += 1

    def note_progress(self) -> None:
        """The next attempt is not delayed."""
        self.refusals = 0

    def leave_out(self, records: RefusedRecords) -> None:
        """Leaves *records* out once it is known where to continue."""
        self.skip = records

    def take_loss(self) -> DetectedLoss | None:
        """Returns the loss that is to be handled, once."""
        loss, self.loss = self.loss, None
        return loss

    def take_skip(self) -> RefusedRecords | None:
        """Returns the records that are to be left out, once."""
        skip, self.skip = self.skip, None
        return skip

    def resume(
        self, writing: PartitionWriter, pair: OffsetPair, *, is_open: bool = False, was_cut_off: bool = False
    ) -> None:
        """Continues copying behind *pair*, the last record on the target.

        *is_open*: the task's open transaction has the partition. *was_cut_off*: its last writer has not left.
        """
        self.writing = writing
        self.failed_starts = 0
        writing.align(pair, is_open=is_open)
        self.cursor.seek(writing.stream.next_offset, pair.source_epoch)
        self.state = CopierState.COPYING
        if not self.is_halted:
            self.error = None
        self.context.changed(self)
        if self.context.syncs is not None:
            self.context.syncs.aligned(self, writing.map_stream, pair, was_cut_off=was_cut_off)
        self._notify_reader()

    def stop(self, error: MirrorFlowError) -> None:
        """Stops copying until *error* is resolved."""
        self.state = CopierState.STOPPED
        self.is_halted, self.error = True, error
        self.context.stopped(self, error)
        self._forget()
        self._notify_reader()
        self.context.changed(self)

    def count_start(self) -> None:
        """Counts a start of the task which may leave it out once more, until it begins."""
        self.failed_starts += 1

    def wait(self, error: MirrorFlowError) -> None:
        """Copies nothing while *error* lasts, because this start of the task left it out."""
        self.state, self.is_halted, self.error = CopierState.RESUMING, False, error
        self.context.changed(self)

    def _note_drained(self) -> None:
        if self.state is CopierState.LEAVING and self.is_drained:
            self.drained.set()

    def lose(self, loss: DetectedLoss) -> None:
        """Notes that source records are gone.

        The loss policy applies once it is known where to continue.
        """
        self.loss = loss
        self.resync()

    def write_first(self) -> None:
        """Stops reading until everything that was read is written."""
        self._writes_first = True

    def go_on_after(self, error: PartitionError, *, lost_records: int = 0) -> None:
        """Counts and reports a loss, or a possible one, after which the loss policy continues copying."""
        self.alert, self.alerted_ms = error, self.context.now_ms
        self.losses += 1
        self.lost_records += lost_records
        self.context.stopped(self, error)
        self.context.changed(self)

    def leave(self) -> None:
        """Takes and sends nothing more; responses to what is in flight are still handled."""
        self.state = CopierState.LEAVING
        self._note_drained()
        self._forget()

    def _recovered(self) -> None:
        """Clears the error: it copies again."""
        if self.error is not None:
            self.is_halted, self.error = False, None
            self.context.changed(self)

    def note(self, error: MirrorFlowError) -> None:
        """Notes an error that delays copying.

        An error that stopped the partition stays until it copies again.
        """
        if self.is_halted:
            return
        self.error = error
        self.context.changed(self)

    def _forget(self) -> None:
        self.packer.clear()
        self.count_buffered()

    def count_buffered(self) -> None:
        """Counts what is queued now for the memory of the task."""
        self.context.count_buffered(self.packer.queued_bytes - self._counted_bytes)
        self._counted_bytes = self.packer.queued_bytes
