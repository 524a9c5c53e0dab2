"""What a process wants to own, and what it gets: the plan of a flow, and the start of each task session."""

from collections.abc import Mapping
from dataclasses import field, replace
from enum import Enum
from typing import NamedTuple

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.partitions import UNKNOWN, OffsetPair, TopicPartition
from mirrorflow_core.settings import LossPolicy
from mirrorflow_core.source_epochs import SourceEpochs
from mirrorflow_core.writer.broker_requests import Producer
from mirrorflow_core.writer.claim import Claim
from mirrorflow_core.writer.position import WriteMode, WriterPosition
from mirrorflow_core.writer.stream import Stream
from mirrorflow_core.writer.transactional_ids import TransactionalIds, WriterIds


class PartitionProblem(Enum):
    """Why a partition cannot be copied now."""

    SOURCE_REWRITTEN = "the source lost or replaced records that were already copied"
    SOURCE_CREATED_AGAIN = "the source topic was deleted and created again"
    TARGET_LOST_RECORDS = "lost records, and no offset map shows which"
    TARGET_TRIMMED = "has no record any more of the time since the last stored position, so what was copied since is unknown"
    TARGET_TAKEN = "another source topic was copied into it"
    TARGET_CREATED_AGAIN = "was deleted and created again, so records copied before are gone from it"


class SourceLoss(NamedTuple):
    """Why a partition cannot continue as if nothing was lost: the offset to copy next, and the one there is instead."""

    wanted: int
    found: int
    problem: PartitionProblem


class TopicIds(NamedTuple):
    """The ids of a topic and its copy, and the name of the copy; "": unknown."""

    source: str = ""
    target: str = ""
    copy: str = ""


def was_recreated(known_id: str, present_id: str) -> bool:
    """Returns whether a topic has another id (or a copy another name) than before; "" is unknown."""
    return bool(known_id and present_id) and known_id != present_id


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPlan:
    """What a process wants to own: `assignment` has the partitions of each task.

    Those in `unavailable` cannot be read or written now. They are not taken, and wait for another session.
    """

    claim: Claim
    assignment: tuple[tuple[TopicPartition, ...], ...]
    unavailable: Mapping[TopicPartition, MirrorFlowError] = field(default_factory=dict)
    takes_over: tuple[str, ...] = ()  # ids of other flows that this one continues once they have stopped
    topic_ids: Mapping[str, TopicIds] = field(default_factory=dict)  # by the name on the source
    loss_policy: LossPolicy = LossPolicy.FAIL
    reads_source: bool = True  # False: nothing is copied any more, and the source may be lost

    @property
    def ids(self) -> TransactionalIds:
        """The names of the flow's transactional ids."""
        return TransactionalIds(self.claim.source_alias)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProducers:
    """The two producers of a running task."""

    transactional: Producer
    plain: Producer

    @property
    def all(self) -> tuple[Producer, Producer]:
        """Both."""
        return self.transactional, self.plain

    @property
    def ids(self) -> WriterIds:
        """Their transactional ids."""
        return WriterIds(self.transactional.transactional_id, self.plain.transactional_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePoint:
    """How far a partition is written: the state after its last acknowledged record.

    A session begins at a point: its stream continues after `last_record`. `point_after` returns the point that the stream has
    reached, `position_at` the position that is stored of a point.
    """

    next_source_offset: int
    source_epoch: int  # leader epoch of the last record; -1: unknown
    epochs: SourceEpochs = ()  # of all that is copied
    sequence: int  # the last one of the present plain producer epoch; -1: none yet
    target_end: int
    target_epoch: int
    records: int = UNKNOWN  # copied in this count
    generation: int = UNKNOWN  # which count, for offset maps; a new one where `records` is unknown
    records_end: int = UNKNOWN  # of the target, after the last copied record
    plain_start: int = UNKNOWN  # of the target: no plain batch of the present epoch lies before it
    revision: int = 0  # of the position that is stored
    was_cut_off: bool = False  # the last writer has not left; it may not have written its last offset sync

    @property
    def last_record(self) -> OffsetPair:
        """The last record before the point."""
        return OffsetPair(
            self.next_source_offset - 1, self.records - 1, self.records_end - 1, self.source_epoch
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStart:
    """Where a task session starts: its producers, its partitions, those that have stopped, and what the loss policy was applied to.

    Those in `waiting`, with the reason, are not taken: their last writers may not be fenced. Only another session may write to them.
    """

    producers: TaskProducers
    points: dict[TopicPartition, WritePoint]
    problems: dict[TopicPartition, PartitionProblem]
    waiting: dict[TopicPartition, MirrorFlowError] = field(default_factory=dict)
    losses: dict[TopicPartition, SourceLoss] = field(default_factory=dict)
    topic_ids: Mapping[str, TopicIds] = field(default_factory=dict)
    owners: Mapping[TopicPartition, str] = field(
        default_factory=dict
    )  # topics that were copied into their copies
    unfenced_reason: str | None = (
        None  # why other writers are not fenced, so that records are copied at least once
    )


def point_after(start: WritePoint, stream: Stream, *, sequence: int, target_epoch: int) -> WritePoint:
    """Returns the point after the last acknowledged record of *stream*, which began at *start*.

    After a loss, the previous epoch is kept until a record is copied, so that a second loss is found. An epoch that is known
    counts: batches of it can be in flight, and the next session finds how many are on the target.
    """
    delivered = stream.delivered
    is_start = delivered.source_offset + 1 == start.next_source_offset and delivered.source_epoch == UNKNOWN
    return replace(
        start,
        next_source_offset=delivered.source_offset + 1,
        source_epoch=start.source_epoch if is_start else delivered.source_epoch,
        epochs=start.epochs if is_start else stream.epochs,
        sequence=sequence,
        target_end=delivered.target_offset + 1,
        target_epoch=target_epoch,
        records=delivered.ordinal + 1,
    )


def start_position(
    partition: TopicPartition,
    point: WritePoint,
    producers: TaskProducers,
    *,
    time_ms: int,
    topic_ids: TopicIds,
) -> WriterPosition:
    """Returns the position that is stored when a session starts at *point*."""
    point = replace(point, target_end=point.records_end)
    return position_at(
        partition, point, producers, mode=WriteMode.PLAIN, time_ms=time_ms, topic_ids=topic_ids
    )


def position_at(
    partition: TopicPartition,
    point: WritePoint,
    producers: TaskProducers,
    *,
    mode: WriteMode,
    time_ms: int,
    java_offset: int | None = None,
    topic_ids: TopicIds = TopicIds(),  # noqa: B008 it is immutable
    left: bool = False,
) -> WriterPosition:
    """Returns the position of a task's partition at *point*; *java_offset* is its last offset by default."""
    return WriterPosition(
        topic=partition.topic,
        partition=partition.partition,
        next_source_offset=point.next_source_offset,
        java_offset=point.next_source_offset - 1 if java_offset is None else java_offset,
        source_epoch=point.source_epoch,
        epochs=point.epochs,
        target_end=point.target_end,
        target_epoch=point.target_epoch,
        target_topic=topic_ids.copy,
        source_topic_id=topic_ids.source,
        target_topic_id=topic_ids.target,
        writer=producers.ids,
        mode=mode,
        producer_id=producers.plain.producer_id,
        producer_epoch=producers.plain.epoch,
        sequence=point.sequence,
        plain_start=point.plain_start,
        records=point.records,
        generation=point.generation,
        left=left,
        time_ms=time_ms,
        revision=point.revision,
    )
