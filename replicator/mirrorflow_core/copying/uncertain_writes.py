"""What one session does not know of the batches that a partition has sent, and what it must not do because of that.

While something is uncertain, the acknowledged records do not show where the partition continues: the session ends, and the next
one finds in the logs what was written (`writer.session_end_reason`).

    may it continue?           `end_reason`: when nothing is in flight any more
    may they be committed?     `uncommittable_reason`: its records in the open transaction; a batch in flight may be one of them
    may a position be stored?  `remain`: one without records, which later sessions take for the truth
"""

from dataclasses import dataclass
from typing import NamedTuple

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.writer import session_end_reason
from mirrorflow_core.writer.stream import Span, Stream


class Repeat(NamedTuple):
    """A response which says that the leader already had the batch: what was sent, and where the leader's batch lies."""

    span: Span
    base_offset: int
    is_foreign: bool = False  # the leader's batch was found to be of another producer


@dataclass(slots=True)
class UncertainWrites:
    """The responses of one session that are missing, or that say something else than what was sent."""

    lost_batches: int = 0  # without a known outcome
    repeat: Repeat | None = None  # the leader reported another batch with these numbers
    refused_next: int | None = None  # the ordinal refused as out of order although it was the next one

    def note_lost(self) -> None:
        """Counts a batch without a known outcome."""
        self.lost_batches += 1

    def note_repeat(self, span: Span, base_offset: int) -> None:
        """Notes that the leader had *span* already, at *base_offset*. The first repeat of a session is examined."""
        self.repeat = self.repeat or Repeat(span, base_offset)

    def note_foreign_repeat(self) -> None:
        """Marks the repeat as foreign: the batch in the leader's log is another producer's."""
        if self.repeat is not None:
            self.repeat = self.repeat._replace(is_foreign=True)

    def note_out_of_order(self, ordinal: int) -> None:
        """Notes that the leader refused the batch that begins at *ordinal* as out of order."""
        self.refused_next = ordinal

    def aligned(self) -> None:
        """Notes that the numbers begin anew after the last acknowledged record."""
        self.refused_next = None

    def remain(self, stream: Stream | None) -> bool:
        """Returns whether what counts as acknowledged may not be in the target, or is not all that is there.

        A refusal is no doubt: what was acknowledged before it is there.
        """
        return bool(self.lost_batches or self.repeat or (stream is not None and stream.has_fallen_back))

    def end_reason(
        self,
        target: TopicPartition,
        stream: Stream | None,
        *,
        has_new_leader: bool,
        has_diverged: bool,
    ) -> str | None:
        """Returns why the session must end because of partition *target*; None if it need not."""
        return session_end_reason.session_end_reason(
            target,
            stream,
            has_lost_responses=self.lost_batches > 0,
            has_new_leader=has_new_leader,
            has_repeat=self.repeat is not None,
            refused_next=self.refused_next,
            has_diverged=has_diverged,
        )

    def uncommittable_reason(
        self, target: TopicPartition, stream: Stream | None, *, has_new_leader: bool
    ) -> str | None:
        """Returns why a transaction with records of partition *target* must not be committed; None if it may.

        Repeats and refusals do not matter: a repeat is of a plain batch, and a batch that was refused is not in the transaction.
        """
        has_in_flight = stream is not None and bool(stream.in_flight)
        return session_end_reason.session_end_reason(
            target,
            stream,
            has_lost_responses=has_in_flight or self.lost_batches > 0,
            has_new_leader=has_new_leader,
        )
