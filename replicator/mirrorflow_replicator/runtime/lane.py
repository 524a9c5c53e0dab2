"""One partition on its way: what was fetched, what is in flight, what is delivered.

        ┌──────────── doubt: new connection, refusal, lost answer, pause, discontinuity ─────────────┐
        v                                                                                            │
    ASKING ── aligned ──> COPYING ────────────────────────────────────────────────────────────────────┘
        │  └─ another copier is at work ──> WAITING ── its silence ──> ASKING
        └─ error ──> STOPPED ── retriable, after a while ──> ASKING

A lane promises: nothing is sent while it is in doubt; in doubt, it asks only when all it had in flight is answered or
lost; it reads its source in order. It decides nothing about where to go on (`flow.alignment`) and does no I/O: the reader
(`kafka.source`), the pipe (`kafka.target`) and the aligner call it.
"""

import asyncio
from collections import deque

from mirrorflow_replicator.errors import (
    CorruptBatchError,
    CorruptRecordsError,
    MirrorFlowError,
    PartitionError,
)
from mirrorflow_replicator.flow.alignment import Pair
from mirrorflow_replicator.flow.identity import Anchor, Identity
from mirrorflow_replicator.flow.ladder import ladder
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.flow.position import Position
from mirrorflow_replicator.flow.report import Guarantee
from mirrorflow_replicator.flow.stream import Span, Stream
from mirrorflow_replicator.flow.transforms import Route
from mirrorflow_replicator.kafka.codes import CORRUPT_MESSAGE, INVALID_TXN_STATE
from mirrorflow_replicator.kafka.source import PARTITION_BYTES_MIN, SourceReader
from mirrorflow_replicator.kafka.target import Pipe
from mirrorflow_replicator.runtime.packing import NO_AGE_MS, Packer
from mirrorflow_replicator.runtime.pinned import Pinned
from mirrorflow_replicator.runtime.surroundings import Loss, State, Surroundings
from mirrorflow_replicator.wire.aborted import AbortedFilter
from mirrorflow_replicator.wire.batch import first_size_bytes, split
from mirrorflow_replicator.wire.fetch import FetchedPartition, FetchFrom
from mirrorflow_replicator.wire.produce import Buffer

# Fetched and not yet sent: two answers' worth, so that the next one arrives while this one leaves.
QUEUED_ANSWERS_MAX = 2
NOT_ASKED = -1
# Spans remembered of what was refused or lost, to find a record without reading the source again.
UNANSWERED_KEPT = 1024


class Lane:
    """See the module."""

    def __init__(self, source: TopicPartition, route: Route, around: Surroundings) -> None:
        self.source = source
        self.topic, self.partition = source
        self.target_topic = route.name
        self.target = TopicPartition(route.name, source.partition)
        self.state = State.ASKING
        self.around = around
        self.packer = Packer(self.topic, self.partition, route.name, route.edits)
        self.pin = Pinned(self)
        self.transactional_id: str | None = None
        self.stream: Stream | None = None
        self.anchor: Anchor | None = None
        self.position: Position | None = None  # as last written, or found
        self.initial = False  # it was there when the flow began
        self.source_topic_id = ""
        self.target_epoch = NOT_ASKED  # of the target's leader, when it was last asked
        self.reader: SourceReader | None = None
        self.pipe: Pipe | None = None
        self.error: MirrorFlowError | None = None
        self.doubts = 0  # an answer to a question of before the last one is void
        self.is_halted = False  # it was stopped, and nothing has shown yet that the cause is gone
        self.alert: PartitionError | None = None  # the newest loss that it went on after, by policy
        self.alerted_ms = self.losses = 0
        self.loss: Loss | None = None  # to be dealt with when it is clear what the target has
        self.leader_epoch = self.fetch_offset = self.last_epoch = -1
        self.fetch_bytes = 0
        self.source_end = self.log_start = -1
        self.start_end = -1  # the source's end when the task began
        self.alone = True  # one batch in flight: the leader does not remember us
        self.single_writer = False
        self.guarantee_reason = ""
        self.refusals = 0  # in a row
        self.lost_batches = 0  # of which nobody knows whether they are there, so far
        self.unanswered: deque[Span] = deque(maxlen=UNANSWERED_KEPT)
        self.records = self.bytes = self.skipped = self.lost_records = self.refused_writes = 0
        self.record_timestamp_ms = -1
        self.latency_ms = self.age_ms = -1.0
        self.heard_ms = 0  # wall clock, when the leader said last what it has
        self.drained = asyncio.Event()  # it is leaving and has nothing in flight
        self._aborted = AbortedFilter()
        self._counted_bytes = 0
        self._is_full = False

    # -- reading: kafka.source.Partition

    def wanted(self) -> FetchFrom | None:
        """Where to fetch from next; None while in doubt or full."""
        self._is_full = self.packer.queued_bytes >= self._queued_bytes_max or self.packer.is_ended
        if self.state is not State.COPYING or self._is_full:
            return None
        assert self.reader is not None
        size = max(self.fetch_bytes, self.reader.partition_bytes)
        return FetchFrom(self.fetch_offset, self.leader_epoch, self.last_epoch, size)

    @property
    def _queued_bytes_max(self) -> int:
        size = PARTITION_BYTES_MIN if self.reader is None else self.reader.partition_bytes
        return QUEUED_ANSWERS_MAX * size

    def is_coming(self) -> bool:
        """Whether it will want more at any moment."""
        return self.state in {State.ASKING, State.COPYING}

    def fetched(self, answer: FetchedPartition, asked_offset: int) -> None:
        """Queue what is to be copied of an answer, also while the target is asked again: beside what is kept."""
        takes = self.state is State.COPYING or (self.state is State.ASKING and self.packer)
        if not takes or asked_offset != self.fetch_offset:
            return
        if answer.error or answer.diverging is not None or answer.preferred_replica >= 0:
            self.around.source_trouble(self, answer.error, answer)
            return
        self.source_end = answer.last_stable_offset if self.around.read_committed else answer.high_watermark
        self.log_start = answer.log_start_offset
        if len(answer.records):
            try:
                self._queue(answer)
            except CorruptRecordsError as error:
                self.packer.end_with(self._corrupt(error))
            self._count_buffered()
            assert self.pipe is not None
            self.pipe.ready(self)
        else:
            self._recovered()

    def _queue(self, answer: FetchedPartition) -> None:
        batches = split(answer.records)
        if not batches:
            # Even the first was cut off: a batch larger than what we ask for is served whole only when it comes first.
            self.fetch_bytes = max(first_size_bytes(answer.records), 2 * self.fetch_bytes)
            return
        packer, stream = self.packer, self.stream
        assert stream is not None
        committed = self.around.read_committed
        if committed:
            self._aborted.feed(answer.aborted)
        for batch in batches:
            next_offset = batch.next_offset
            if next_offset <= self.fetch_offset:
                continue
            kept = self._aborted.delivers(batch) if committed else not batch.is_control
            if kept and batch.count:
                packer.add(batch)
            else:
                self.skipped += batch.count
                packer.pass_over(next_offset, stream)
                self.around.changed(self)
            self.fetch_offset = next_offset
            self.last_epoch = batch.leader_epoch

    def _corrupt(self, error: CorruptRecordsError) -> CorruptBatchError:
        return CorruptBatchError(
            topic=self.topic, partition=self.partition, offset=self.fetch_offset, problem=str(error)
        )

    # -- writing: kafka.target.Partition

    def connected(self) -> None:
        """A new connection to the target's leader."""
        self.doubt()

    def next_batch(self) -> Buffer | None:
        """The next batch to write, which then counts as in flight."""
        stream, around, packer = self.stream, self.around, self.packer
        if self.state is not State.COPYING or stream is None or self.pin.is_held:
            return None
        if around.now_ms - self.heard_ms > around.old_after_ms:
            # So long ago that somebody else may have written since, and the leader have forgotten that.
            if not stream.in_flight:
                self._ask_again()
            return None
        if stream.in_flight and (self.alone or self.single_writer):
            return None
        packer.old_before_ms = around.pin_before_ms
        try:
            packed = packer.next(stream)
        except PartitionError as error:
            if not stream.in_flight:
                self.stop(error)
            return None
        finally:
            self._count_buffered()
        if packed is None:
            if packer.needs_pin:
                self.pin.want()
            elif self._is_full:
                self._hungry()
            return None
        data, span = packed
        stream.take(span)
        if packer.old_before_ms == NO_AGE_MS:
            self.pin.judge(span)
        if packer and self.pipe is not None:
            self.pipe.ready(self)
        if self._is_full and packer.queued_bytes < self._queued_bytes_max // 2:
            self._hungry()
        return data

    def _hungry(self) -> None:
        self._is_full = False
        if self.reader is not None:
            self.reader.changed(self.topic, self.partition)

    @property
    def guarantee(self) -> Guarantee:
        """What holds now."""
        return Guarantee.SINGLE_WRITER if self.single_writer else Guarantee.EXACTLY_ONCE

    def acknowledged(self, base_offset: int) -> None:
        """The oldest batch in flight is delivered."""
        assert self.stream is not None
        span, continues = self.stream.acknowledge(base_offset)
        if self.stream.delivered.ordinal != span.last:
            # It follows a refused one where that one should be: the target is asked before anything counts.
            self.unanswered.append(span)
            self.lost_batches += 1
            self.doubt()
            return
        self.alone = False
        if self.error is not None and self.state is not State.STOPPED:
            self._recovered()
        self.refusals = 0
        _, count, _, _, timestamp, size_bytes, _ = span
        self.records += count
        self.bytes += size_bytes
        self.record_timestamp_ms = timestamp
        around = self.around
        self.heard_ms = around.now_ms
        self.latency_ms = around.now_ms - timestamp
        around.changed(self)
        if around.syncs is not None:
            around.syncs.delivered(self, span, base_offset)
        if not continues:
            # Somebody else has written here: a foreign producer, or a copier that the leader did not know.
            self.doubt()
        elif self.state is not State.COPYING or self.pin.is_held:
            self._ask_when_drained()
        elif self.packer and self.pipe is not None:
            self.pipe.ready(self)

    def refused(self, code: int, message: str) -> None:
        """The oldest batch in flight was refused."""
        assert self.stream is not None
        is_committed = code == INVALID_TXN_STATE and self.around.can_pin
        span = self.stream.refuse(is_absent=is_committed)
        self.unanswered.append(span)
        if is_committed and self.around.pinning is not None:
            # Somebody else has committed the transaction it was in: no copier is in the way of another.
            self.around.pinning.ended_elsewhere()
            self.doubt()
            return
        self.refused_writes += 1
        self.packer.verifies |= code == CORRUPT_MESSAGE
        self.around.refused(self, code, message, span)
        if self.state is State.COPYING:
            self.refusals += 1
        self.doubt()

    def lost(self) -> None:
        """The oldest batch in flight has no answer."""
        assert self.stream is not None
        self.lost_batches += 1
        self.unanswered.append(self.stream.refuse())
        self.doubt()

    # -- what the aligner does

    def doubt(self) -> None:
        """Nothing more is written before the target was asked, from now on."""
        self._forget()
        self._ask_again()

    def _ask_again(self) -> None:
        """As `doubt`, and keep what was fetched: it is sent at once if the target says what it said before."""
        self.doubts += 1
        self.pin.doubted()
        if self.state is State.COPYING:
            self.state = State.ASKING
            if self.reader is not None:
                self.reader.changed(self.topic, self.partition)
        self._ask_when_drained()

    def _ask_when_drained(self) -> None:
        self._note_drained()
        if not self.is_drained:
            return
        if self.pin.is_held and self.around.pinning is not None:
            self.around.pinning.emptied(self)
        if self.state is State.ASKING:
            self.around.doubtful(self)

    @property
    def is_drained(self) -> bool:
        """Whether all that was sent is answered or lost: only then the target can be asked."""
        return self.stream is None or not self.stream.in_flight

    def ladder(self) -> tuple[Pair, ...]:
        """Known pairs of the stream that the anchor begins, newest first, the anchor last."""
        assert self.anchor is not None
        return ladder(self.anchor, self.position, self.stream)

    def resume(
        self, identity: Identity, pair: Pair, *, alone: bool, is_open: bool = False, grown: int = 0
    ) -> None:
        """Copy on after *pair*, which the target has last; the rest is for `Pinned.found`."""
        if self.stream is None:
            self.stream = Stream(pair)
        keeps = bool(self.packer) and pair == self.stream.delivered
        if keeps:
            grown -= self.stream.markers
        else:
            self.stream.align(pair)
            self._forget()
            self.fetch_offset, self.last_epoch = self.stream.next_offset, -1
        self.packer.identity = identity
        self.unanswered.clear()
        self.alone = alone
        self.state = State.COPYING
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
        """Copy nothing more until the error is gone."""
        self.state = State.STOPPED
        self.is_halted, self.error = True, error
        self.around.stopped(self, error)
        self._forget()
        if self.reader is not None:
            self.reader.changed(self.topic, self.partition)
        self.around.changed(self)

    def _note_drained(self) -> None:
        if self.state is State.LEAVING and self.is_drained:
            self.drained.set()

    def lose(self, loss: Loss) -> None:
        """Source records are gone; what becomes of it is decided when it is clear what the target has."""
        self.loss = loss
        self.doubt()

    def go_on_after(self, error: PartitionError) -> None:
        """Records are lost, or may be, and the policy is to go on: that is said, and counted, and stops nothing."""
        self.alert, self.alerted_ms = error, self.around.now_ms
        self.losses += 1
        self.around.stopped(self, error)
        self.around.changed(self)

    def leave(self) -> None:
        """Take and send nothing more; what is in flight may still arrive."""
        self.state = State.LEAVING
        self._note_drained()
        self._forget()

    def wait(self) -> None:
        """Another copier is at work."""
        if self.state is not State.WAITING:
            self.state = State.WAITING
            self._forget()
            self.around.changed(self)

    def _recovered(self) -> None:
        """It goes on, whatever held it up."""
        if self.error is not None:
            self.is_halted, self.error = False, None
            self.around.changed(self)

    def note(self, error: MirrorFlowError) -> None:
        """What holds it up for now; what has stopped it remains the news until it moves."""
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
