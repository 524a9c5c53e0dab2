"""What an unplanned switchover loses: what is known of the source's ends, and where the copies were cut off.

A source that is lost cannot be asked, so it is unknown how much it had. What is known is a lower bound: the last end of each
partition that was seen, by whom and when. The cut is exact, as the flow has ended when it is read: the target has everything before it.
Numbers are of offsets. An offset is a record, or a marker of a transaction; compaction and aborted transactions leave gaps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.json_fields import by_partition, decoded

NAMES_MAX: Final = 5  # partitions that a sentence names


class EndEvidence(Enum):
    """Who has seen the last end of a partition; the value is its name in reports."""

    SOURCE = "source"  # its leader, during the assessment
    FLOW = "flow"  # a process of the flow, in a response before it lost the source
    NONE = "none"  # unknown: only that everything up to `copied` existed is certain


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLoss:
    """What is known of one partition of the source. Offsets are exclusive."""

    topic: str
    partition: int
    copied: int  # the next source offset that the target does not have; 0: it has none
    source_end: int | None = None  # as last seen
    evidence: EndEvidence = EndEvidence.NONE
    seen_ms: int | None = None  # until when that is known; None: unknown

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def lost_offsets(self) -> int:
        """How many offsets are known to be missing on the target."""
        return 0 if self.source_end is None else max(0, self.source_end - self.copied)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossAssessment:
    """What is known to be lost, of all partitions of a flow, sorted by topic and partition."""

    partitions: tuple[PartitionLoss, ...]
    is_source_answering: bool = False  # all of its partitions: a planned switchover may be possible

    def __post_init__(self) -> None:
        assert list(self.partitions) == sorted(self.partitions, key=lambda loss: loss.topic_partition)

    @property
    def lost_offsets(self) -> int:
        """How many offsets are known to be lost; there may be more."""
        return sum(loss.lost_offsets for loss in self.partitions)

    @property
    def lost_partitions(self) -> tuple[PartitionLoss, ...]:
        """The partitions of which something is known to be lost, the largest loss first."""
        lost = [loss for loss in self.partitions if loss.lost_offsets]
        return tuple(sorted(lost, key=lambda loss: -loss.lost_offsets))

    @property
    def known_until_ms(self) -> int | None:
        """When anything was seen of the source for the last time; None: unknown."""
        return max((loss.seen_ms for loss in self.partitions if loss.seen_ms is not None), default=None)

    def sentence(self, source: str) -> str:
        """Returns the loss for its user."""
        lost = self.lost_partitions
        if lost:
            names = ", ".join(f"{loss.topic_partition}: {loss.lost_offsets}" for loss in lost[:NAMES_MAX])
            rest = f" and {len(lost) - NAMES_MAX} more" if len(lost) > NAMES_MAX else ""
            known = f"At least {self.lost_offsets} offsets of {_counted(len(lost))} are lost ({names}{rest})."
        else:
            known = "No offset is known to be lost."
        unseen = sum(loss.source_end is None for loss in self.partitions)
        blind = f" The end is unknown for {_counted(unseen)}." if unseen else ""
        since_ms = self.known_until_ms
        if since_ms is None:
            return f"{known}{blind} It is not known when {source} was seen last."
        since = datetime.fromtimestamp(since_ms // 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        return f"{known}{blind} Nothing is known of {source} since {since}."


def _counted(partitions: int) -> str:
    return "1 partition" if partitions == 1 else f"{partitions} partitions"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCut:
    """Where the copy of one partition ended, when the flow had ended. Offsets are exclusive.

    Everything before `copied` on the source is on the target, before `target_end`. What the source has from `copied` on never
    crossed; what the target has from `target_end` on, applications have written there.
    """

    topic: str  # on both sides: a pair does not rename
    partition: int
    source_topic_id: str  # "": unknown
    copied: int  # 0: nothing was copied
    target_topic_id: str
    target_end: int  # of the log, after the markers of the end

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


def cut_off(loss: LossAssessment, cuts: Sequence[PartitionCut]) -> LossAssessment:
    """Returns *loss* after the flow has ended at *cuts*: what it has copied since the assessment is not lost."""
    copied = {cut.topic_partition: cut.copied for cut in cuts}
    return replace(
        loss,
        partitions=tuple(
            replace(partition, copied=max(partition.copied, copied.get(partition.topic_partition, 0)))
            for partition in loss.partitions
        ),
    )


def loss_fields(loss: LossAssessment) -> dict[str, Any]:
    """Returns *loss* as fields of JSON."""
    return {
        "is_source_answering": loss.is_source_answering,
        "partitions": [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "copied": partition.copied,
                "source_end": partition.source_end,
                "evidence": partition.evidence.value,
                "seen_ms": partition.seen_ms,
            }
            for partition in loss.partitions
        ],
    }


def loss_of(fields: dict[str, Any]) -> LossAssessment:
    """Returns the loss that *fields* of JSON describe. Raises ValueError."""
    return decoded(LossAssessment, {**fields, "partitions": by_partition(fields)})
