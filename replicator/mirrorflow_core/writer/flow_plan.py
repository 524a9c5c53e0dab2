"""What a process wants to own, and what it gets: the plan of a flow, and the start of each of its tasks."""

from dataclasses import dataclass
from enum import Enum

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
    TARGET_LOST_RECORDS = "the target lost records, and no offset map shows which"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPlan:
    """What a process wants to own: `assignment` has the partitions of each task."""

    claim: Claim
    assignment: tuple[tuple[TopicPartition, ...], ...]
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
    def ids(self) -> WriterIds:
        """Their transactional ids."""
        return WriterIds(self.transactional.transactional_id, self.plain.transactional_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStart:
    """Where a task starts: its producers, its partitions, those that must wait, and how often records were lost."""

    producers: TaskProducers
    points: dict[TopicPartition, WritePoint]
    problems: dict[TopicPartition, PartitionProblem]
    losses: tuple[TopicPartition, ...] = ()  # partitions to which the loss policy was applied


def position_at(
    partition: TopicPartition,
    point: WritePoint,
    producers: TaskProducers,
    *,
    form: Form,
    time_ms: int,
    java_offset: int | None = None,
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
        writer=producers.ids,
        form=form,
        producer_id=producers.plain.producer_id,
        producer_epoch=producers.plain.epoch,
        sequence=point.sequence,
        left=left,
        time_ms=time_ms,
    )
