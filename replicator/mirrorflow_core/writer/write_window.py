"""The plain batches of one partition: which are in flight, which are acknowledged, and what comes next.

Batches are numbered by one producer epoch. A leader that remembers this epoch refuses every batch that does not
continue the last one; a leader that remembers nothing accepts any. So only one batch is in flight until the leader
is known to remember the producer: before the first acknowledgement, and again when the last acknowledged batch is
old enough to be forgotten.
"""

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from mirrorflow_core.writer.form import SourceBatch
from mirrorflow_core.writer.transaction_log import SEQUENCES

APPENDED_NOW: Final = -1  # `log_append_time` of an append to a topic with CreateTime


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePoint:
    """How far a partition is written: the state behind its last acknowledged record."""

    next_source_offset: int
    source_epoch: int  # leader epoch of the last record; -1: unknown
    sequence: int  # the last one of the present producer epoch; -1: none yet
    target_end: int
    target_epoch: int
    max_timestamp: int = -1  # of the last plain batch in the present epoch


class SentBatch(NamedTuple):
    """A batch of the window with the sequence of its first record."""

    batch: SourceBatch
    base_sequence: int


class Acknowledgement(NamedTuple):
    """The answer to a batch. `leader_epoch` is that of the appended batch, as far as known."""

    base_offset: int
    log_append_time: int
    leader_epoch: int


class Advanced(NamedTuple):
    """The batch, and every batch before it, is in the log."""


class ForeignRecords(NamedTuple):
    """Another producer has written to the partition; the writer asks the leader for its own last sequence."""


class ForeignProducer(NamedTuple):
    """Another process writes under our producer id and epoch, so the leader took our batch for a repeat.

    The batch is not in the log. Continue behind the acknowledged records, in a new epoch, without a lookup.
    """


@dataclass(slots=True, kw_only=True)
class WriteWindow:
    """The window of one partition. `depth` is the number of batches in flight once the leader knows the producer."""

    acknowledged: WritePoint
    depth: int
    age_limit_ms: int
    stamps_time: bool = False  # the target's topic has LogAppendTime
    in_flight: deque[SentBatch] = field(default_factory=deque)
    unresolved: list[SentBatch] = field(default_factory=list)  # refused, or without an answer
    lost_sequence: int | None = None  # the last one of a batch whose answer is lost
    foreign_records: bool = False

    @property
    def next_sequence(self) -> int:
        """The sequence of the next record."""
        sent = sum(one.batch.records for one in self.in_flight)
        return (self.acknowledged.sequence + 1 + sent) % SEQUENCES

    @property
    def needs_resync(self) -> bool:
        """Whether nothing may be sent before the leader was asked, which needs an empty window."""
        return bool(self.unresolved) or self.foreign_records

    @property
    def is_idle(self) -> bool:
        """Whether every batch that was sent is acknowledged."""
        return not self.in_flight and not self.needs_resync

    @property
    def is_certain(self) -> bool:
        """Whether no batch without an answer can still be appended: its sequences are taken since.

        Until then the same records must follow under the same sequences: no other form, no gap, no end.
        """
        if self.lost_sequence is None:
            return True
        return (self.acknowledged.sequence - self.lost_sequence) % SEQUENCES < SEQUENCES // 2

    def has_room(self, wall_ms: int) -> bool:
        """Return whether another batch may be sent now."""
        if self.needs_resync:
            return False
        return len(self.in_flight) < (self.depth if self._is_remembered(wall_ms) else 1)

    def _is_remembered(self, wall_ms: int) -> bool:
        point = self.acknowledged
        return point.sequence >= 0 and (self.stamps_time or wall_ms - point.max_timestamp < self.age_limit_ms)

    def send(self, batch: SourceBatch) -> SentBatch:
        """Put *batch* in flight and return it with its sequence."""
        sent = SentBatch(batch, self.next_sequence)
        self.in_flight.append(sent)
        return sent

    def acknowledge(self, answer: Acknowledgement) -> Advanced | ForeignRecords | ForeignProducer:
        """Take the successful answer to the oldest batch in flight."""
        sent = self.in_flight.popleft()
        point = self.acknowledged
        expected = point.target_end + sum(one.batch.records for one in self.unresolved)
        is_repeat = answer.log_append_time != APPENDED_NOW and not self.stamps_time
        if (is_repeat and not self._was_sent_before(sent)) or answer.base_offset < expected:
            return ForeignProducer()
        self.foreign_records |= answer.base_offset > expected
        if not self.unresolved:
            self.acknowledged = replace(
                advanced(point, (sent,)),
                target_end=answer.base_offset + sent.batch.records,
                target_epoch=answer.leader_epoch,
            )
        else:
            self.unresolved.append(sent)
        return ForeignRecords() if self.foreign_records else Advanced()

    def _was_sent_before(self, sent: SentBatch) -> bool:
        """Whether these sequences were sent before, without an answer: a repeat is then our own."""
        if self.lost_sequence is None:
            return False
        return (self.lost_sequence - sent.base_sequence) % SEQUENCES < SEQUENCES // 2

    def move(self, *, next_source_offset: int, source_epoch: int, target_end: int, target_epoch: int) -> None:
        """Continue elsewhere: behind a gap of the source, or behind a transaction. The window is idle and certain."""
        assert self.is_idle, "batches in flight would be forgotten"
        self.acknowledged = replace(
            self.acknowledged,
            next_source_offset=next_source_offset,
            source_epoch=source_epoch,
            target_end=target_end,
            target_epoch=target_epoch,
        )

    def lose(self, *, is_refused: bool) -> None:
        """Take a refusal of the oldest batch in flight, or the loss of its answer."""
        sent = self.in_flight.popleft()
        self.unresolved.append(sent)
        if not is_refused:
            self.lost_sequence = (sent.base_sequence + sent.batch.records - 1) % SEQUENCES

    def resume(self, last_sequence: int, *, target_end: int, target_epoch: int) -> bool:
        """Continue behind *last_sequence*, which is in the log below *target_end*; the window is not in flight.

        Returns False if that sequence cannot be ours.
        """
        copied = (last_sequence - self.acknowledged.sequence) % SEQUENCES
        kept: list[SentBatch] = []
        for sent in self.unresolved:
            if copied <= 0:
                break
            kept.append(sent)
            copied -= sent.batch.records
        if copied != 0:
            return False
        self.acknowledged = replace(
            advanced(self.acknowledged, kept), target_end=target_end, target_epoch=target_epoch
        )
        self.unresolved, self.foreign_records = [], False
        return True


def after_transaction_batch(
    point: WritePoint, batch: SourceBatch, base_offset: int, leader_epoch: int
) -> WritePoint | None:
    """Return the point behind a batch of a transaction; None: the target has lost records before it."""
    if base_offset < point.target_end:
        return None
    return replace(
        point,
        next_source_offset=batch.next_offset,
        source_epoch=batch.leader_epoch,
        target_end=base_offset + batch.records,
        target_epoch=leader_epoch,
    )


def advanced(point: WritePoint, batches: "tuple[SentBatch, ...] | list[SentBatch]") -> WritePoint:
    """Return *point* after *batches* were acknowledged, without what only the answer knows."""
    if not batches:
        return point
    last = batches[-1]
    return replace(
        point,
        next_source_offset=last.batch.next_offset,
        source_epoch=last.batch.leader_epoch,
        sequence=(last.base_sequence + last.batch.records - 1) % SEQUENCES,
        max_timestamp=last.batch.max_timestamp,
    )
