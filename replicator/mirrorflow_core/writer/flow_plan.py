"""What a process wants to own, and what it gets: the plan of a flow, and the start of each of its tasks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.writer.broker_requests import Producer
from mirrorflow_core.writer.claim import Claim
from mirrorflow_core.writer.position import Form, WriterPosition
from mirrorflow_core.writer.transactional_ids import TransactionalIds, WriterIds
from mirrorflow_core.writer.write_window import WritePoint


class LossPolicy(Enum):
    """What happens to a partition whose source lost or replaced records that were already copied."""

    FAIL = "fail"  # it stops
    ALERT = "alert"  # it continues with the records that replaced them
    RESTART = "restart"  # it is copied again from its beginning


class PartitionProblem(Enum):
    """Why a partition cannot be copied now."""

    SOURCE_REWRITTEN = "the source lost or replaced records that were already copied"
    TARGET_LOST_RECORDS = "lost records, and no offset map shows which"
    TARGET_CREATED_AGAIN = "was deleted and created again, so records copied before are gone from it"


class SourceLoss(NamedTuple):
    """What a partition's source no longer has as it was copied: the offset to copy next, and the one there is instead."""

    wanted: int
    found: int
    how: str


class TopicIds(NamedTuple):
    """The ids of a topic and its copy, and the name of the copy; "": unknown."""

    source: str = ""
    target: str = ""
    copy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPlan:
    """What a process wants to own: `assignment` has the partitions of each task."""

    claim: Claim
    assignment: tuple[tuple[TopicPartition, ...], ...]
    takes_over: tuple[str, ...] = ()  # ids of other flows that this one continues once they have stopped
    topic_ids: Mapping[str, TopicIds] = field(default_factory=dict)  # by the name on the source
    loss_policy: LossPolicy = LossPolicy.FAIL
    connections_max_idle_ms: int = 600_000  # of the target's brokers

    @property
    def ids(self) -> TransactionalIds:
        """The names of the flow's transactional ids."""
        return TransactionalIds(self.claim.source_alias, self.claim.group_prefix)


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
class TaskStart:
    """Where a task starts: its producers, its partitions, those that must wait, and what the loss policy was applied to."""

    producers: TaskProducers
    points: dict[TopicPartition, WritePoint]
    problems: dict[TopicPartition, PartitionProblem]
    losses: dict[TopicPartition, SourceLoss] = field(default_factory=dict)
    topic_ids: Mapping[str, TopicIds] = field(default_factory=dict)


def position_at(
    partition: TopicPartition,
    point: WritePoint,
    producers: TaskProducers,
    *,
    form: Form,
    time_ms: int,
    java_offset: int | None = None,
    topic_ids: TopicIds = TopicIds(),  # noqa: B008 it is immutable
    left: bool = False,
) -> WriterPosition:
    """Return the position of a task's partition at *point*; *java_offset* is its last offset by default."""
    return WriterPosition(
        topic=partition.topic,
        partition=partition.partition,
        next_source_offset=point.next_source_offset,
        java_offset=point.next_source_offset - 1 if java_offset is None else java_offset,
        source_epoch=point.source_epoch,
        target_end=point.target_end,
        target_epoch=point.target_epoch,
        target_topic=topic_ids.copy,
        source_topic_id=topic_ids.source,
        target_topic_id=topic_ids.target,
        writer=producers.ids,
        form=form,
        producer_id=producers.plain.producer_id,
        producer_epoch=producers.plain.epoch,
        sequence=point.sequence,
        left=left,
        time_ms=time_ms,
    )
