"""Copies one partition: holds what was fetched, what is in flight and what is delivered.

        ┌──────────── doubt: new connection, refusal, lost answer, pause, discontinuity ─────────────┐
        v                                                                                            │
    ASKING ── it is known where to continue ──> COPYING ─────────────────────────────────────────────┘
        └─ error ──> STOPPED ── retriable, after a pause ──> ASKING

Guarantees: a partition copier in doubt sends nothing, and continues only when everything it had in flight is answered
or lost; it reads its source in order. It does no I/O and does not decide where to continue (`copy.writer_resumer` does):
the reader (`client.broker_reader`), the pipe (`client.broker_writer`) and the resumer call it.
"""

import asyncio
from collections.abc import Sequence

from mirrorflow_core.errors import CorruptBatchError, MirrorFlowError, PartitionError
from mirrorflow_core.offset_map import MapStream
from mirrorflow_core.partitions import OffsetPair, TopicPartition
from mirrorflow_core.stall_detection import Obstacle, ObstacleKind, Stalled
from mirrorflow_core.transforms import RenameRule
from mirrorflow_core.wire.fetch import FetchedPartition, FetchFrom
from mirrorflow_core.wire.produce import Buffer
from mirrorflow_core.writer.form import ChangeForm
from mirrorflow_core.writer.stream import UNKNOWN_RUN, EpochRun, Span, Stream
from mirrorflow_kafka.client.broker_reader import PARTITION_BYTES_MIN, BrokerReader
from mirrorflow_kafka.client.broker_writer import Pipe
from mirrorflow_kafka.client.error_codes import (
    CORRUPT_MESSAGE,
    INVALID_TXN_STATE,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    name_of,
)
from mirrorflow_replicator.copy.batch_packer import Packer
from mirrorflow_replicator.copy.copier_context import (
    CopierContext,
    CopierState,
    DetectedLoss,
    RefusedRecords,
    Repeat,
)
from mirrorflow_replicator.copy.form_tracker import FormTracker, TransactionMember
from mirrorflow_replicator.copy.read_cursor import ReadCursor

# Fetched and not yet sent: two responses' worth, so that the next one arrives while this one is being sent.
QUEUED_ANSWERS_MAX = 2
NOT_ASKED = -1


class PartitionCopier:
    """The state of one partition of a task, with the callbacks of its reader, its pipe and the resumer."""

    def __init__(self, source: TopicPartition, route: RenameRule, around: CopierContext) -> None:
        self.source = source
        self.topic, self.partition = source
        self.target_topic = route.name
        self.target = TopicPartition(route.name, source.partition)
        self.state = CopierState.ASKING
        self.around = around
        self.packer = Packer(self.topic, self.partition, route.name, around.plain_producer, route.edits)
        self.pin = TransactionMember(self)
        self.form: FormTracker | None = None  # None: it has not begun
        self.transactional_id: str | None = None
        self.stream: Stream | None = None
        self.map_stream: MapStream | None = None  # names what this start of the task copies in offset maps
        self.target_epoch = NOT_ASKED  # leader epoch of the target partition, when it was last asked
        self.reader: BrokerReader | None = None
        self.pipe: Pipe | None = None
        self.error: MirrorFlowError | None = None
        self.obstacle: Obstacle | None = None  # the newest one since the last progress
        self.stalled: Stalled | None = None  # why it makes no progress; set by `stall_watch`
        self.doubts = 0  # generation counter: replies to an older probe are discarded
        self.is_halted = False  # it was stopped, and nothing has shown yet that the cause is gone
        self.alert: PartitionError | None = None  # the newest loss after which it continued, by loss policy
        self.alerted_ms = self.losses = 0
        self.loss: DetectedLoss | None = None  # handled when it is known what the target has
        self.repeat: Repeat | None = None  # an answer that another batch has these numbers, to be examined
        self.cursor = ReadCursor(source, read_committed=around.read_committed)
        self.start_end = -1  # the source's end when the task began
        self.alone = True  # one batch in flight: the leader may not remember the producer
        self.refusals = 0  # in a row
        self.refused_next = -1  # the ordinal refused as out of order although it was the next one
        self.refused_records: Sequence[int] = ()  # of the newest refused batch, where the target names them
        self.skip: RefusedRecords | None = None  # left out when it is known what the target has
        self.lost_batches = 0  # batches without a known outcome, since the start
        self._committed_next = -1  # source offset behind the last record that is committed in a transaction
        self.records = self.bytes = self.skipped = self.lost_records = self.refused_writes = 0
        self.record_timestamp_ms = -1
        self.latency_ms = self.age_ms = -1.0
        self.heard_ms = 0  # wall clock of the leader's last confirmation, or earlier
        self._sent_ms = 0  # when the oldest batch in flight was sent, or before
        self.drained = asyncio.Event()  # it is leaving and has nothing in flight
        self._counted_bytes = 0
        self._is_full = self._writes_first = False

    def inherit(self, earlier: "PartitionCopier") -> None:
        """Continue the counts of the copier that the task had of this partition before, and what it has learned."""
        self.records, self.bytes, self.skipped = earlier.records, earlier.bytes, earlier.skipped
        self.lost_records, self.losses = earlier.lost_records, earlier.losses
        self.refused_writes = earlier.refused_writes
        self.alert, self.alerted_ms = earlier.alert, earlier.alerted_ms
        self.packer.inherit(earlier.packer)
        self.form = earlier.form

    # -- leaders, by the broker routes

    def read_by(self, reader: "BrokerReader") -> None:
        """Fetches through *reader* from now on."""
        self.reader = reader

    def write_through(self, pipe: "Pipe") -> None:
        """Writes through *pipe* from now on; the target is asked first."""
        self.pipe = pipe
        self.doubt()

    # -- reading: client.broker_reader.Partition

    def wanted(self) -> FetchFrom | None:
        """Returns where to fetch from next; None while in doubt or full."""
        self._writes_first = self._writes_first and bool(self.packer)
        size = self._answer_bytes
        self._is_full = (
            self.packer.queued_bytes >= QUEUED_ANSWERS_MAX * size
            or self.packer.is_ended
            or self._writes_first
        )
        if self.state is not CopierState.COPYING or self._is_full:
            return None
        return self.cursor.request(size)

    @property
    def _answer_bytes(self) -> int:
        """The size of a fetch response for it; before it has a reader, the smallest one."""
        return PARTITION_BYTES_MIN if self.reader is None else self.reader.partition_bytes

    def is_coming(self) -> bool:
        """Returns whether it may want to fetch more at any moment."""
        return self.state in {CopierState.ASKING, CopierState.COPYING}

    def fetched(self, answer: FetchedPartition, asked_offset: int) -> None:
        """Queues the records of a fetch response."""
        if self.state is not CopierState.COPYING or asked_offset != self.cursor.offset:
            return
        if answer.error or answer.diverging is not None or answer.preferred_replica >= 0:
            self.around.source_trouble(self, answer.error, answer)
            return
        assert self.stream is not None
        try:
            self.skipped += self.cursor.take(answer, self.packer, self.stream)
        except CorruptBatchError as error:
            self.packer.end_with(error)
        if not len(answer.records):
            self._recovered()
            return
        self.around.changed(self)
        self._count_buffered()
        assert self.pipe is not None
        self.pipe.ready(self)

    # -- writing: client.broker_writer.Partition

    def connected(self) -> None:
        """Called on a new connection to the target's leader: the target must be asked again."""
        self.doubt()

    def next_batch(self) -> Buffer | None:
        """Returns the next batch to write, which then counts as in flight; None if there is none now."""
        stream, around, packer = self.stream, self.around, self.packer
        if self.state is not CopierState.COPYING or stream is None or self.pin.is_held:
            return None
        assert self.form is not None
        if self.form.is_plain and around.now_ms - self.heard_ms > around.plain_age_limit_ms:
            self.alone = (
                True  # the last confirmation is so old that the leader may have forgotten the producer
            )
        if stream.in_flight and self.alone:
            return None
        packer.hold_back_before(self.pin.old_before_ms)
        if not self._is_in_right_form(self.form, stream):
            return None
        try:
            packed = packer.next(stream)
        except PartitionError as error:
            if not stream.in_flight:
                self.stop(error)
            return None
        finally:
            self._count_buffered()
        if packed is None:
            if packer.needs_pin and self.form.is_plain:
                self._want_change(self.form, stream, self.form.refuse_plain(stream.next_offset))
            elif packer.needs_pin:
                self.pin.want()
            elif self._is_full:
                self._hungry()
            return None
        data, span = packed
        if not stream.in_flight:
            self._sent_ms = around.now_ms
        stream.take(span)
        self.form.taken(span.base_offset + span.count, span.source_epoch)
        if packer and self.pipe is not None:
            self.pipe.ready(self)
        if self._is_full and packer.queued_bytes < QUEUED_ANSWERS_MAX * self._answer_bytes // 2:
            self._hungry()
        return data

    def _is_in_right_form(self, form: FormTracker, stream: Stream) -> bool:
        """Returns whether the next batch may be written in the present form; if not, asks for the change."""
        packer, around = self.packer, self.around
        if packer.front is None:
            return True
        change = form.check(
            packer.front,
            stream.next_offset,
            now_ms=around.now_ms,
            age_limit_ms=around.plain_age_limit_ms,
            is_stamped=self.target_topic in around.stamped,
        )
        if change is not None:
            self._want_change(form, stream, change)
        return change is None

    def _want_change(self, form: FormTracker, stream: Stream, change: ChangeForm) -> None:
        """Asks for another form, once everything in flight is acknowledged."""
        if not stream.in_flight:
            form.want(change)
            self.pin.hold()
            self.pin.want()

    def change_form(self, change: ChangeForm) -> None:
        """Continues in another form; the position at which it changes is committed."""
        form, stream = self.form, self.stream
        assert form is not None
        assert stream is not None
        stream.pass_over(change.next_source_offset, change.source_epoch)
        form.apply(change, stream.next_ordinal, self.around.now_ms)
        self.alone = True  # the leader may never have seen the producer of this form
        self._number_by(form)
        if self.packer.has_encoded:  # with the numbers of the former producer
            self._forget()
            self.cursor.seek(stream.next_offset, stream.delivered.source_epoch)
            if self.reader is not None:
                self.reader.changed(self.topic, self.partition)

    def _number_by(self, form: FormTracker) -> None:
        keeps_stretches = form.is_plain and self.around.is_fenced
        self.packer.number_by(form.producer, form.first_ordinal, keeps_stretches=keeps_stretches)

    def _may_be_forgotten(self, form: FormTracker, span: Span) -> bool:
        """Returns whether the leader, after *span*, may soon not remember the producer of plain batches."""
        is_old = self.around.now_ms - span.max_timestamp >= self.around.plain_age_limit_ms
        return form.is_plain and is_old and self.target_topic not in self.around.stamped

    def _hungry(self) -> None:
        self._is_full = False
        if self.reader is not None:
            self.reader.changed(self.topic, self.partition)

    def acknowledged(self, base_offset: int, append_time_ms: int) -> None:
        """Counts the oldest batch in flight as delivered, unless the leader took another batch for it."""
        stream = self.stream
        assert stream is not None
        if append_time_ms != -1 and self.around.may_be_another(self):
            self.repeat = self.repeat or Repeat(stream.suspect(), base_offset)
            self.doubt()
            return
        span, continues = stream.acknowledge(base_offset)
        if stream.delivered.ordinal != span.last:
            # It follows a refused batch, at the place of that one: ask the target before anything counts as
            # delivered.
            self.lost_batches += 1
            self.doubt()
            return
        self._count(span)
        assert self.form is not None
        self.alone = self._may_be_forgotten(self.form, span)
        if self.error is not None and self.state is not CopierState.STOPPED:
            self._recovered()
        self.refusals = 0
        around = self.around
        # The answer may have been in transit for long: what it confirms is only certain for the time the
        # batch was sent.
        self.heard_ms = self._sent_ms
        around.changed(self)
        if around.syncs is not None:
            around.syncs.delivered(self, span, base_offset)
        if not continues:
            self.doubt()  # another producer has written to this partition
        elif self.state is not CopierState.COPYING or self.pin.is_held:
            self._ask_when_drained()
        elif self.packer and self.pipe is not None:
            self.pipe.ready(self)

    def _count(self, span: Span) -> None:
        self.records += span.count
        self.bytes += span.size_bytes
        self.record_timestamp_ms = span.max_timestamp
        self.latency_ms = self.around.now_ms - span.max_timestamp

    def refused(self, code: int, message: str, records: Sequence[int] = ()) -> None:
        """Handles the refusal of the oldest batch in flight; *records* are the indexes of its refused records."""
        assert self.stream is not None
        self.refused_records = records
        refused = Obstacle(kind=ObstacleKind.WRITE_REFUSED, name=name_of(code), message=message)
        self.note_obstacle(refused)
        is_committed = code == INVALID_TXN_STATE
        is_first = not self.stream.has_refusals
        span = self.stream.refuse(is_absent=is_committed)
        if is_first and code == OUT_OF_ORDER_SEQUENCE_NUMBER:
            self.refused_next = span.first
        if is_committed:
            self.around.writer.ended_elsewhere()
            self.doubt()
            return
        self.refused_writes += 1
        if code == CORRUPT_MESSAGE:
            self.packer.verify()
        self.around.refused(self, code, message, span)
        if self.state is CopierState.COPYING:
            self.refusals += 1
        self.doubt()

    def lost(self) -> None:
        """Handles a lost answer to the oldest batch in flight."""
        assert self.stream is not None
        self.lost_batches += 1
        self.stream.refuse()
        self.doubt()

    # -- obstacles

    def note_obstacle(self, obstacle: Obstacle | None) -> None:
        """Notes what it has met since the last progress; None: it has made progress."""
        self.obstacle = None if obstacle is None else obstacle.after(self.obstacle)

    def note_stall(self, stalled: "Stalled | None") -> None:
        """Notes why it makes no progress; None: it does."""
        self.stalled = stalled

    # -- called by the task's writer

    def enter_transaction(self) -> None:
        """Sends everything inside the task's transaction from now on."""
        self.transactional_id = self.packer.producer.transactional_id
        self.packer.write_inside(is_inside=True)

    def leave_transaction(self) -> None:
        """Forgets whether it is in a transaction."""
        self.transactional_id = None
        self.packer.write_inside(is_inside=False)

    def committed(self, next_source_offset: int) -> None:
        """Notes that the position *next_source_offset* is committed, with all records before it."""
        self._committed_next = next_source_offset

    @property
    def settled_next_offset(self) -> int:
        """The source offset behind the last record that no abort can remove; -1: unknown."""
        if self.stream is None or self.form is None:
            return -1
        return self.stream.delivered.source_offset + 1 if self.form.is_plain else self._committed_next

    # -- called by the resumer

    def doubt(self) -> None:
        """Drops what was fetched and writes nothing more before the target was asked."""
        self._forget()
        self.doubts += 1
        self.pin.doubted()
        if self.state is CopierState.COPYING:
            self.state = CopierState.ASKING
            if self.reader is not None:
                self.reader.changed(self.topic, self.partition)
        self._ask_when_drained()

    def _ask_when_drained(self) -> None:
        self._note_drained()
        if not self.is_drained:
            return
        if self.pin.is_held:
            self.around.writer.emptied(self)
        if self.state is CopierState.ASKING:
            self.around.doubtful(self)

    @property
    def is_drained(self) -> bool:
        """Returns whether everything sent is answered or lost: only then can the target be asked."""
        return self.stream is None or not self.stream.in_flight

    def note_start_end(self, end_offset: int) -> None:
        """Notes where the source ended when the task began."""
        self.start_end = end_offset
        self.cursor.note_end(end_offset)

    def note_target_epoch(self, epoch: int) -> None:
        """Notes a leader epoch of the target partition of which the task has asked."""
        self.target_epoch = max(self.target_epoch, epoch)

    def begin(self, form: FormTracker, map_stream: MapStream) -> None:
        """Begins in this start of the task."""
        self.form, self.map_stream = form, map_stream

    def ask_again(self) -> None:
        """Asks the target, although it was stopped."""
        if self.state is CopierState.STOPPED:
            self.state = CopierState.ASKING

    def note_foreign(self, repeat: Repeat) -> None:
        """Notes that the batch that was there already is another producer's."""
        self.repeat = repeat._replace(is_foreign=True)

    def delay(self) -> None:
        """Counts as one more refusal in a row, by which the next attempt is delayed."""
        self.refusals += 1

    def note_progress(self) -> None:
        """The next attempt is not delayed."""
        self.refusals = 0

    def leave_out(self, records: RefusedRecords) -> None:
        """Leaves *records* out once it is known what the target has."""
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
        self,
        pair: OffsetPair,
        *,
        is_open: bool = False,
        epoch_run: EpochRun = UNKNOWN_RUN,
        was_cut_off: bool = False,
    ) -> None:
        """Continues copying behind *pair*, the last record on the target.

        *is_open*: the task's open transaction has the partition. *was_cut_off*: its last writer has not left.
        """
        assert self.form is not None
        if self.stream is None:
            self.stream = Stream(pair, epoch_run)
        else:
            self.form.rewind(pair.source_offset + 1)
        self.stream.align(pair)
        self.cursor.seek(self.stream.next_offset, pair.source_epoch)
        self.refused_next = -1
        self._number_by(self.form)
        self.alone = True
        self.state = CopierState.COPYING
        self.around.look_at_clock()
        self.heard_ms = self.around.now_ms
        self.pin.found(is_open=is_open)
        if not self.is_halted:
            self.error = None
        self.around.changed(self)
        if self.around.syncs is not None:
            self.around.syncs.aligned(self, pair, was_cut_off=was_cut_off)
        if self.reader is not None:
            self.reader.changed(self.topic, self.partition)

    def stop(self, error: MirrorFlowError) -> None:
        """Stops copying until *error* is resolved."""
        self.state = CopierState.STOPPED
        self.is_halted, self.error = True, error
        self.around.stopped(self, error)
        self._forget()
        if self.reader is not None:
            self.reader.changed(self.topic, self.partition)
        self.around.changed(self)

    def _note_drained(self) -> None:
        if self.state is CopierState.LEAVING and self.is_drained:
            self.drained.set()

    def lose(self, loss: DetectedLoss) -> None:
        """Notes that source records are gone.

        The loss policy applies once it is known what the target has.
        """
        self.loss = loss
        self.doubt()

    def write_first(self) -> None:
        """Stops reading until everything that was read is written."""
        self._writes_first = True

    def go_on_after(self, error: PartitionError, *, lost_records: int = 0) -> None:
        """Counts and reports a loss, or a possible one, after which the loss policy continues copying."""
        self.alert, self.alerted_ms = error, self.around.now_ms
        self.losses += 1
        self.lost_records += lost_records
        self.around.stopped(self, error)
        self.around.changed(self)

    def leave(self) -> None:
        """Takes and sends nothing more; answers to what is in flight are still handled."""
        self.state = CopierState.LEAVING
        self._note_drained()
        self._forget()

    def _recovered(self) -> None:
        """Clears the error: it copies again."""
        if self.error is not None:
            self.is_halted, self.error = False, None
            self.around.changed(self)

    def note(self, error: MirrorFlowError) -> None:
        """Notes an error that delays copying.

        An error that stopped the partition stays until it copies again.
        """
        if self.is_halted:
            return
        self.error = error
        self.around.changed(self)

    def _forget(self) -> None:
        self.packer.clear()
        self._count_buffered()

    def _count_buffered(self) -> None:
        self.around.count_buffered(self.packer.queued_bytes - self._counted_bytes)
        self._counted_bytes = self.packer.queued_bytes
