"""Writes one partition: holds what is in flight and what is delivered, and in which mode the next batch is written.

A partition has a `PartitionWriter` as soon as it is known where it begins in this start of its task. Guarantees: batches
are sent in the order of the source, under consecutive numbers, and only while the partition is being copied. It does no
I/O: the pipe (`client.broker_writer`) takes batches from it and reports what became of them, and the task's writer
(`copy.task_transaction`) changes its mode.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mirrorflow_core.errors import PartitionError
from mirrorflow_core.offset_map import MapStream
from mirrorflow_core.partitions import OffsetPair
from mirrorflow_core.stall_detection import Obstacle, ObstacleKind
from mirrorflow_core.wire.produce import Buffer
from mirrorflow_core.writer.stream import Span, Stream
from mirrorflow_core.writer.write_mode import ChangeMode
from mirrorflow_kafka.client.broker_writer import Pipe
from mirrorflow_kafka.client.error_codes import (
    CORRUPT_MESSAGE,
    INVALID_TXN_STATE,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    name_of,
)
from mirrorflow_replicator.copy.batch_packer import ANY_AGE_MS, NO_AGE_MS
from mirrorflow_replicator.copy.copier_context import CopierState, Repeat
from mirrorflow_replicator.copy.write_mode_tracker import WriteModeTracker

if TYPE_CHECKING:
    from mirrorflow_replicator.copy.partition_copier import PartitionCopier


class PartitionWriter:
    """The batches of *copier* in this start of its task, with the callbacks of its pipe and of the task's writer.

    Its membership in the task's transaction:

        out ── change of mode ──> wanted ── joined ──> inside ── commit ──> held ── marker written ──> inside, or out
    """

    def __init__(
        self,
        copier: "PartitionCopier",
        pipe: Pipe,
        mode: WriteModeTracker,
        stream: Stream,
        map_stream: MapStream,
    ) -> None:
        self.copier = copier
        self.source, self.target = copier.source, copier.target
        self.target_topic, self.partition = copier.target
        self.context, self.packer = copier.context, copier.packer
        self.pipe = pipe
        self.mode = mode
        self.stream = stream
        self.map_stream = map_stream  # names what this start of the task copies in offset maps
        # Nothing is sent: a commit is under way, or a transaction is open that the partition is not in.
        self.is_held = False
        self.transactional_id: str | None = None
        self.repeat: Repeat | None = (
            None  # the leader reported another batch with these numbers: to be examined
        )
        self.single_in_flight = True  # the leader may not remember the producer
        self.refused_next = -1  # the ordinal refused as out of order although it was the next one
        self.lost_batches = 0  # batches without a known outcome
        # Source offset behind the last record that is committed in a transaction, or where this start begins.
        self._committed_next = stream.delivered.source_offset + 1
        self._heard_ms = 0  # wall clock of the leader's last confirmation, or earlier
        self._sent_ms = 0  # when the oldest batch in flight was sent, or before

    @property
    def is_drained(self) -> bool:
        """Returns whether everything sent is answered or lost: only then can it be determined where to continue."""
        return not self.stream.in_flight

    @property
    def has_uncertain_writes(self) -> bool:
        """Returns whether what counts as acknowledged may not be in the target, or is not all that is there."""
        return bool(self.lost_batches or self.repeat or self.stream.has_fallen_back)

    @property
    def settled_next_offset(self) -> int:
        """The source offset behind the last record that no abort can remove."""
        return self.stream.delivered.source_offset + 1 if self.mode.is_plain else self._committed_next

    # -- the pipe: client.broker_writer.WrittenPartition

    def next_batch(self) -> Buffer | None:
        """Returns the next batch to write, which then counts as in flight; None if there is none now."""
        copier, stream, context, packer = self.copier, self.stream, self.context, self.packer
        if copier.state is not CopierState.COPYING or self.is_held:
            return None
        if self.mode.is_plain and context.now_ms - self._heard_ms > context.plain_age_limit_ms:
            # The last confirmation is so old that the leader may have forgotten the producer.
            self.single_in_flight = True
        if stream.in_flight and self.single_in_flight:
            return None
        packer.hold_back_before(self._old_before_ms)
        packer.merge_up_to(self.pipe.request_bytes)
        if not self._is_in_right_mode():
            return None
        try:
            packed = packer.next(stream)
        except PartitionError as error:
            if not stream.in_flight:
                copier.stop(error)
            return None
        finally:
            copier.count_buffered()
        if packed is None:
            if packer.needs_transaction and self.mode.is_plain:
                self._want_change(self.mode.refuse_plain(stream.next_offset))
            elif packer.needs_transaction:
                context.writer.want(self)
            elif copier.is_full:
                copier.read_on()
            return None
        data, span = packed
        if not stream.in_flight:
            self._sent_ms = context.now_ms
        stream.take(span)
        self.mode.taken(span.base_offset + span.count, span.source_epoch)
        if self.transactional_id is not None:
            context.writer.sent(span.size_bytes)
        if packer:
            self.pipe.ready(self)
        if copier.is_full and copier.has_room:
            copier.read_on()
        return data

    @property
    def _old_before_ms(self) -> int:
        """Batches with a timestamp below this go inside the transaction."""
        if not self.mode.is_plain:
            return ANY_AGE_MS
        return self.context.old_before_ms if self.context.is_fenced else NO_AGE_MS

    def _is_in_right_mode(self) -> bool:
        """Returns whether the next batch may be written in the current mode; if not, asks for the change."""
        packer, context = self.packer, self.context
        if packer.front is None:
            return True
        change = self.mode.check(
            packer.front,
            self.stream.next_offset,
            now_ms=context.now_ms,
            age_limit_ms=context.plain_age_limit_ms,
        )
        if change is not None:
            self._want_change(change)
        return change is None

    def _want_change(self, change: ChangeMode) -> None:
        """Asks for another mode, once everything in flight is acknowledged."""
        if not self.stream.in_flight:
            self.mode.want(change)
            self.is_held = True
            self.context.writer.want(self)

    def acknowledged(self, base_offset: int, append_time_ms: int) -> None:
        """Counts the oldest batch in flight as delivered, unless the leader took another batch for it."""
        copier, stream, context = self.copier, self.stream, self.context
        if append_time_ms == -1:
            context.log_append_time_topics.discard(self.target_topic)
        elif context.may_be_another(self):
            self.repeat = self.repeat or Repeat(stream.suspect(), base_offset)
            copier.resync()
            return
        span, continues = stream.acknowledge(base_offset)
        if stream.delivered.ordinal != span.last:
            # It follows a refused batch, at the place of that one: nothing counts as delivered before a resync.
            self.lost_batches += 1
            copier.resync()
            return
        self.single_in_flight = self._may_be_forgotten(span)
        # The response may have been in transit for long: what it confirms is only certain for the time the
        # batch was sent.
        self._heard_ms = self._sent_ms
        copier.delivered(span)
        if context.syncs is not None:
            context.syncs.delivered(copier, span, base_offset)
        if not continues:
            copier.resync()  # another producer has written to this partition
        elif copier.state is not CopierState.COPYING or self.is_held:
            copier.resume_when_drained()
        elif self.packer:
            self.pipe.ready(self)

    def _may_be_forgotten(self, span: Span) -> bool:
        """Returns whether the leader, after *span*, may soon not remember the producer of plain batches."""
        is_old = self.context.now_ms - span.max_timestamp >= self.context.plain_age_limit_ms
        return self.mode.is_plain and is_old

    def refused(self, code: int, message: str, records: Sequence[int] = ()) -> None:
        """Handles the refusal of the oldest batch in flight; *records* are the indexes of its refused records."""
        copier = self.copier
        copier.note_obstacle(Obstacle(kind=ObstacleKind.WRITE_REFUSED, name=name_of(code), message=message))
        is_committed = code == INVALID_TXN_STATE
        is_first = not self.stream.has_refusals
        span = self.stream.refuse(is_absent=is_committed)
        if is_first and code == OUT_OF_ORDER_SEQUENCE_NUMBER:
            self.refused_next = span.first
        if is_committed:
            self.context.writer.ended_elsewhere()
            copier.resync()
            return
        copier.note_refusal(records)
        if code == CORRUPT_MESSAGE:
            self.packer.verify()
        self.context.on_produce_error(copier, code, message, span)
        if copier.state is CopierState.COPYING:
            copier.delay()
        copier.resync()

    def lost(self) -> None:
        """Handles a lost response to the oldest batch in flight."""
        self.lost_batches += 1
        self.stream.refuse()
        self.copier.resync()

    # -- the task's writer

    def join(self) -> None:
        """Sends everything inside the task's transaction from now on."""
        self.is_held = False
        self.transactional_id = self.packer.producer.transactional_id
        self.packer.set_transactional(transactional=True)
        self.pipe.ready(self)

    def hold(self) -> None:
        """Sends nothing until `release`: a commit follows."""
        self.is_held = True

    def release(self, *, marked: bool) -> None:
        """Ends the hold after a commit. *marked*: only its marker lies behind what was delivered."""
        self.is_held = False
        self.leave_transaction()
        if marked:
            self.stream.pass_markers(1)
            self.context.changed(self.copier)
        self.pipe.ready(self)

    def leave_transaction(self) -> None:
        """Forgets whether it is in a transaction."""
        self.transactional_id = None
        self.packer.set_transactional(transactional=False)

    def committed(self, next_source_offset: int) -> None:
        """Notes that the position *next_source_offset* is committed, with all records before it."""
        self._committed_next = next_source_offset

    def change_mode(self, change: ChangeMode) -> None:
        """Continues in another mode; the position at which it changes is committed."""
        stream = self.stream
        stream.pass_over(change.next_source_offset, change.source_epoch)
        self.mode.apply(change, stream.next_ordinal, self.context.now_ms)
        self.single_in_flight = True  # the leader may never have seen the producer of this mode
        self._number()
        if self.packer.has_encoded:  # with the numbers of the former producer
            self.copier.read_again(stream.next_offset, stream.delivered.source_epoch)

    def _number(self) -> None:
        is_counted = self.mode.is_plain and self.context.is_fenced  # the end lookup counts its offsets
        self.packer.number_by(self.mode.producer, self.mode.first_ordinal, merges_across_gaps=not is_counted)

    # -- the partition copier

    def write_through(self, pipe: Pipe) -> None:
        """Writes through *pipe* from now on."""
        self.pipe = pipe

    def note_foreign(self, repeat: Repeat) -> None:
        """Notes that the batch that was there already is another producer's."""
        self.repeat = repeat._replace(is_foreign=True)

    def align(self, pair: OffsetPair, *, is_open: bool) -> None:
        """Continues behind *pair*; if the task's open transaction has the partition, inside of it only."""
        self.stream.align(pair)
        self.refused_next = -1
        self._number()
        self.single_in_flight = True
        self.context.update_clock()
        self._heard_ms = self.context.now_ms
        self.is_held = is_open
        if is_open:
            self.context.writer.want(self)
