"""The errors of partitions whose records are lost on either side, or whose copy belongs to another source."""

from typing import Final, NamedTuple

from mirrorflow_core.copying.session import CopySession
from mirrorflow_core.errors import (
    MirrorFlowError,
    PartitionError,
    SourceDataLostError,
    TargetDataLostError,
    TargetTakenError,
)
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import LossPolicy
from mirrorflow_core.writer.flow_plan import PartitionProblem, SourceLoss

PROBLEMS_OF_TARGET: Final = {
    PartitionProblem.TARGET_LOST_RECORDS,
    PartitionProblem.TARGET_TRIMMED,
    PartitionProblem.TARGET_CREATED_AGAIN,
}


class DetectedLoss(NamedTuple):
    """Lost source records: the offset to be read next, the offset there is instead, and how it came about."""

    wanted: int
    found: int
    how: str

    @property
    def is_trimmed(self) -> bool:
        """Whether records before `found` were deleted; otherwise the log was truncated to it."""
        return self.wanted < self.found


def detected_loss(wanted: int, log_start: int | None, log_end: int | None) -> DetectedLoss | None:
    """Returns what is lost if offset *wanted* is not in the source's log; None if it is, or the log could not be read."""
    if log_start is None or log_end is None or log_start <= wanted <= log_end:
        return None
    if wanted < log_start:
        return DetectedLoss(wanted, log_start, "source records were deleted before they were copied")
    return DetectedLoss(wanted, log_end, "the source's log was truncated")


def problem_error(
    source: TopicPartition, target_topic: str, problem: PartitionProblem, session: CopySession
) -> MirrorFlowError:
    """Returns why *source* cannot be copied in this session."""
    loss = session.start.losses.get(source)
    if loss is not None:
        return loss_error(source, target_topic, loss, session)
    if problem is PartitionProblem.TARGET_TAKEN:
        return TargetTakenError(
            topic=source.topic,
            partition=source.partition,
            target_topic=target_topic,
            owner=session.start.owners[source],
        )
    return TargetDataLostError(
        topic=source.topic, partition=source.partition, target_topic=target_topic, how=problem.value
    )


def loss_error(
    source: TopicPartition, target_topic: str, loss: SourceLoss, session: CopySession
) -> PartitionError:
    """Returns the error of a *loss* that a takeover has found."""
    if loss.problem not in PROBLEMS_OF_TARGET:
        return source_lost(source, DetectedLoss(loss.wanted, loss.found, loss.problem.value), session)
    return TargetDataLostError(
        topic=source.topic,
        partition=source.partition,
        target_topic=target_topic,
        how=loss.problem.value,
        then=_then(session.loss_policy),
    )


def source_lost(source: TopicPartition, loss: DetectedLoss, session: CopySession) -> SourceDataLostError:
    """Returns the error of a *loss* that a fetch has shown."""
    return SourceDataLostError(
        topic=source.topic,
        partition=source.partition,
        wanted=loss.wanted,
        found=loss.found,
        how=loss.how,
        then=_then(session.loss_policy),
    )


def _then(policy: LossPolicy) -> str | None:
    if policy is LossPolicy.FAIL:
        return None
    return f"continues, as mirrorflow.source.loss.policy={policy.value} says"
