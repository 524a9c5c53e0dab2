"""Copies one partition: holds what was fetched, what is in flight and what is delivered.

        ┌──────────── doubt: new connection, refusal, lost answer, pause, discontinuity ─────────────┐
        v                                                                                            │
    ASKING ── aligned ──> COPYING ────────────────────────────────────────────────────────────────────┘
        │  └─ another copier is active ──> WAITING ── it has stopped ──> ASKING
        └─ error ──> STOPPED ── retriable, after a pause ──> ASKING

Guarantees: a partition copier in doubt sends nothing, and asks the target only when everything it had in
flight is answered or lost; it reads its source in order. It does no I/O and does not decide where to continue
(`exactly_once.alignment` does): the reader (`client.broker_reader`), the pipe (`client.broker_writer`) and
the resumer (`copy.resume.resumer`) call it.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from mirrorflow_core.errors import CorruptBatchError, MirrorFlowError, PartitionError
from mirrorflow_core.exactly_once.alignment import OffsetPair
from mirrorflow_core.exactly_once.identity import Anchor, Identity
from mirrorflow_core.exactly_once.resume_points import ladder
from mirrorflow_core.exactly_once.stream import Span, Stream
from mirrorflow_core.naming.transforms import RenameRule
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.position import Position
from mirrorflow_core.stall_detection import Obstacle, ObstacleKind, Stalled
from mirrorflow_core.wire.fetch import FetchedPartition, FetchFrom
from mirrorflow_core.wire.produce import Buffer
from mirrorflow_core.writer.form import ChangeForm
from mirrorflow_kafka.client.broker_reader import PARTITION_BYTES_MIN, BrokerReader
from mirrorflow_kafka.client.broker_writer import Pipe
from mirrorflow_kafka.client.error_codes import (
    CORRUPT_MESSAGE,
    INVALID_TXN_STATE,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    name_of,
)
from mirrorflow_replicator.copy.batch_packer import NO_AGE_MS, Packer
from mirrorflow_replicator.copy.copier_context import (
    CopierContext,
    CopierState,
    DetectedLoss,
    RefusedRecords,
    Repeat,
)
from mirrorflow_replicator.copy.form_tracker import FormTracker
from mirrorflow_replicator.copy.read_cursor import ReadCursor
from mirrorflow_replicator.copy.transaction_member import TransactionMember

# Fetched and not yet sent: two responses' worth, so that the next one arrives while this one is being sent.
QUEUED_ANSWERS_MAX = 2
NOT_ASKED = -1
# Refused or lost spans that are kept, to find a record without reading the source again.
UNANSWERED_KEPT = 1024


class PartitionCopier:
    """The state of one partition of a task, with the callbacks of its reader, its pipe and the resumer."""

    def __init__(self, source: TopicPartition, route: RenameRule, around: CopierContext) -> None:
        self.source = source
        self.topic, self.partition = source
        self.target_topic = route.name
        self.target = TopicPartition(route.name, source.partition)
        self.state = CopierState.ASKING
        self.around = around
        self.packer = Packer(self.topic, self.partition, route.name, route.edits)
        self.pin = TransactionMember(self)
        self.form: FormTracker | None = None  # of a task that is the only writer of its partitions
        self.transactional_id: str | None = None
        self.stream: Stream | None = None
        self.anchor: Anchor | None = None
        self.position: Position | None = None  # as last written, or read at start
        self.initial = False  # the partition existed when the flow began
        self.source_topic_id = ""
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
        # Its source is compacted, or may be: another copier may have read other records of it.
        self.is_compacted = False
        # Acknowledged, but the target is asked before they count as delivered.
        self.uncertain: deque[Span] = deque(maxlen=UNANSWERED_KEPT)
        self.cursor = ReadCursor(source, read_committed=around.read_committed)
        self.start_end = -1  # the source's end when the task began
        self.alone = True  # one batch in flight: the leader does not remember this identity
        self.single_writer = False
        self.guarantee_reason = ""
        self.refusals = 0  # in a row
        self.refused_next = -1  # the ordinal refused as out of order although it was the next one
        self.refused_records: Sequence[int] = ()  # of the newest refused batch, where the target names them
        self.skip: RefusedRecords | None = None  # left out when it is known what the target has
        self.lost_batches = 0  # batches without a known outcome, since the start
        self.unanswered: deque[Span] = deque(maxlen=UNANSWERED_KEPT)
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
        self.packer.limit, self.packer.codecs_allowed = earlier.packer.limit, earlier.packer.codecs_allowed
        self.packer.raw, self.packer.coalesced = earlier.packer.raw, earlier.packer.coalesced
        self.packer.reencoded = earlier.packer.reencoded
        self.form = earlier.form

    # -- reading: client.broker_reader.Partition

    def wanted(self) -> FetchFrom | None:
        """Returns where to fetch from next; None while in doubt or full."""
        self._writes_first = self._writes_first and bool(self.packer)
        self._is_full = (
            self.packer.queued_bytes >= self._queued_bytes_max or self.packer.is_ended or self._writes_first
        )
        if self.state is not CopierState.COPYING or self._is_full:
            return None
        assert self.reader is not None
        return self.cursor.request(self.reader.partition_bytes)

    @property
    def _queued_bytes_max(self) -> int:
        size = PARTITION_BYTES_MIN if self.reader is None else self.reader.partition_bytes
        return QUEUED_ANSWERS_MAX * size

    def is_coming(self) -> bool:
        """Returns whether it may want to fetch more at any moment."""
        return self.state in {CopierState.ASKING, CopierState.COPYING}

    def fetched(self, answer: FetchedPartition, asked_offset: int) -> None:
        """Queues the records of a fetch response.

        While the target is asked again, a response is queued only behind records that are kept.
        """
        takes = self.state is CopierState.COPYING or (self.state is CopierState.ASKING and self.packer)
        if not takes or asked_offset != self.cursor.offset:
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
        if around.now_ms - self.heard_ms > around.forgotten_after_ms:
            # The last confirmation is so old that another copier may have written since and the leader may
            # have forgotten it.
            if not stream.in_flight:
                self._ask_again()
            return None
        if stream.in_flight and (self.alone or self.single_writer or self.is_compacted):
            return None
        packer.old_before_ms = self.pin.old_before_ms
        if self.form is not None and not self._is_in_right_form(self.form, stream):
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
            if packer.needs_pin and self.form is not None and self.form.is_plain:
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
        if self.form is not None:
            self.form.taken(span.base_offset + span.count, span.source_epoch)
        elif packer.old_before_ms == NO_AGE_MS:
            self.pin.judge(span)
        if packer and self.pipe is not None:
            self.pipe.ready(self)
        if self._is_full and packer.queued_bytes < self._queued_bytes_max // 2:
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
            form.change = change
            self.pin.hold()
            self.pin.want()

    def change_form(self, change: ChangeForm) -> None:
        """Continues in another form; the position at which it changes is committed."""
        form, stream = self.form, self.stream
        assert form is not None
        assert stream is not None
        stream.pass_over(change.next_source_offset, change.source_epoch)
        form.apply(change, stream.next_ordinal, self.around.now_ms)
        self._number_by(form)
        if self.packer.has_encoded:  # with the numbers of the former producer
            self._forget()
            self.cursor.seek(stream.next_offset, stream.delivered.source_epoch)
            if self.reader is not None:
                self.reader.changed(self.topic, self.partition)

    def _number_by(self, form: FormTracker) -> None:
        self.packer.identity, self.packer.first_ordinal = form.identity, form.first_ordinal
        self.packer.keeps_stretches = form.is_plain

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
            span = stream.suspect()
            if not self.is_compacted:
                self.repeat = self.repeat or Repeat(span, base_offset)
            self.uncertain.append(span)
            self.unanswered.append(span)
            self.doubt()
            return
        span, continues = stream.acknowledge(base_offset)
        if stream.delivered.ordinal != span.last:
            # It follows a refused batch, at the place of that one: ask the target before anything counts as
            # delivered.
            self.uncertain.append(span)
            self.unanswered.append(span)
            self.lost_batches += 1
            self.doubt()
            return
        self._count(span)
        self.alone = self.form is not None and self._may_be_forgotten(self.form, span)
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
            if self.form is not None:
                self.form.found_foreign_records(self.around.now_ms)
            # Another producer, or a copier that the leader did not remember, has written to this partition.
            self.doubt()
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
        self.obstacle = refused.after(self.obstacle)
        is_committed = code == INVALID_TXN_STATE and self.around.can_pin
        is_first = not self.stream.has_refusals
        span = self.stream.refuse(is_absent=is_committed)
        if is_first and code == OUT_OF_ORDER_SEQUENCE_NUMBER:
            self.refused_next = span.first
        self.unanswered.append(span)
        if is_committed and self.around.pinning is not None:
            # Another copier committed the transaction it was in, which is normal: all copiers share it.
            self.around.pinning.ended_elsewhere()
            self.doubt()
            return
        self.refused_writes += 1
        self.packer.verifies |= code == CORRUPT_MESSAGE
        self.around.refused(self, code, message, span)
        if self.state is CopierState.COPYING:
            self.refusals += 1
        self.doubt()

    def lost(self) -> None:
        """Handles a lost answer to the oldest batch in flight."""
        assert self.stream is not None
        self.lost_batches += 1
        self.unanswered.append(self.stream.refuse())
        self.doubt()

    # -- called by the resumer

    def doubt(self) -> None:
        """Drops what was fetched and writes nothing more before the target was asked."""
        self._forget()
        self._ask_again()

    def _ask_again(self) -> None:
        """As `doubt`, but keeps what was fetched: it is sent at once if the target's answer is unchanged."""
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
        if self.pin.is_held and self.around.pinning is not None:
            self.around.pinning.emptied(self)
        if self.state is CopierState.ASKING:
            self.around.doubtful(self)

    @property
    def is_drained(self) -> bool:
        """Returns whether everything sent is answered or lost: only then can the target be asked."""
        return self.stream is None or not self.stream.in_flight

    def ladder(self) -> tuple[OffsetPair, ...]:
        """Returns the known offset pairs of the current stream, newest first, its anchor last."""
        assert self.anchor is not None
        return ladder(self.anchor, self.position, self.stream)

    def resume(
        self, identity: Identity, pair: OffsetPair, *, alone: bool, is_open: bool = False, grown: int = 0
    ) -> None:
        """Continues copying behind *pair*, the last record on the target.

        *is_open* and *grown* are passed to `TransactionMember.found`.
        """
        if self.stream is None:
            self.stream = Stream(pair, counts_strays=self.form is not None)
        elif self.form is not None:
            self.form.rewind(pair.source_offset + 1)
        keeps = bool(self.packer) and pair[:3] == self.stream.delivered[:3]
        if keeps:
            grown -= self.stream.markers
        else:
            self.stream.align(pair)
            self._forget()
            self.cursor.seek(self.stream.next_offset, pair.source_epoch)
        if pair.ordinal + 1 == self.refused_next:
            self.pin.refused_by_a_leader_that_expects_it(self.refused_next)
        self.refused_next = -1
        for span in self.uncertain:
            if span.last <= pair.ordinal:
                self._count(span)
        self.uncertain.clear()
        self.packer.identity = identity
        if self.form is not None:
            self._number_by(self.form)
        self.unanswered.clear()
        self.alone = alone
        self.state = CopierState.COPYING
        self.around.look_at_clock()
        self.heard_ms = self.around.now_ms
        self.pin.found(is_open=is_open, grown=grown)
        if not self.is_halted:
            self.error = None
        self.around.changed(self)
        if self.around.syncs is not None:
            self.around.syncs.aligned(self, pair)
        if self.reader is not None:
            self.reader.changed(self.topic, self.partition)
        if keeps and self.pipe is not None:
            self.pipe.ready(self)

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

    def go_on_after(self, error: PartitionError) -> None:
        """Counts and reports a loss, or a possible one, after which the loss policy continues copying."""
        self.alert, self.alerted_ms = error, self.around.now_ms
        self.losses += 1
        self.around.stopped(self, error)
        self.around.changed(self)

    def leave(self) -> None:
        """Takes and sends nothing more; answers to what is in flight are still handled."""
        self.state = CopierState.LEAVING
        self._note_drained()
        self._forget()

    def wait(self) -> None:
        """Waits because another copier is active."""
        if self.state is not CopierState.WAITING:
            self.state = CopierState.WAITING
            self._forget()
            self.around.changed(self)

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
        self.around.buffered_bytes += self.packer.queued_bytes - self._counted_bytes
        self._counted_bytes = self.packer.queued_bytes
