"""Decides where a flow that was written by sequence numbers continues with one owner.

Its last generation has numbered all records of a partition: behind a known record, the last sequence number in the target
says how many more were written. The source then shows which offset follows.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from mirrorflow_core.partitions import UNKNOWN, Position, TopicPartition
from mirrorflow_core.writer.identity import Decisions
from mirrorflow_core.writer.transaction_log import SEQUENCES, LogBatch, Marker


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedRecord:
    """The last record of a partition that is known to be in the target, with its ordinal in a generation.

    `is_last`: its copier has stopped, and nothing was written behind it.
    """

    source_offset: int
    source_epoch: int
    ordinal: int
    target_offset: int
    generation: int
    is_last: bool


def last_known(
    positions: Mapping[TopicPartition, Position], foreign: Container[TopicPartition], decisions: Decisions
) -> dict[TopicPartition, NumberedRecord]:
    """Returns the last known record of each partition whose newest position an earlier release has stored, or none.

    *foreign* are partitions with a position of an owner or of Java, or whose position was altered: these are obeyed.
    """
    found: dict[TopicPartition, NumberedRecord] = {}
    for partition in {*positions, *decisions.partitions()}:
        position = positions.get(partition)
        if partition in foreign or (position is not None and position.sequence == UNKNOWN):
            continue
        anchor = decisions.newest_anchor(partition, decisions.last_generation)
        if position is not None and (
            anchor is None or (position.epoch, position.sequence) >= (anchor.generation, anchor.ordinal - 1)
        ):
            found[partition] = NumberedRecord(
                source_offset=position.source_offset,
                source_epoch=position.source_epoch,
                ordinal=position.sequence,
                target_offset=position.target_offset,
                generation=position.epoch,
                is_last=position.left,
            )
        elif anchor is not None:
            pair = anchor.as_pair()
            found[partition] = NumberedRecord(
                source_offset=pair.source_offset,
                source_epoch=UNKNOWN,
                ordinal=pair.ordinal,
                target_offset=pair.target_offset,
                generation=anchor.generation,
                is_last=False,
            )
    return found


def records_behind(known: NumberedRecord, batches: Iterable[LogBatch], producer: tuple[int, int]) -> int:
    """Returns how many records *producer* has written in *batches*, behind the known one, without aborted ones."""
    last = committed = known.ordinal % SEQUENCES
    for batch in batches:
        if batch.marker is not None:
            if batch.producer_id == producer[0]:
                last = committed = committed if batch.marker is Marker.ABORT else last
        elif (batch.producer_id, batch.producer_epoch) == producer:
            last = batch.last_sequence
            if not batch.is_transactional:
                committed = last
    return (last - known.ordinal) % SEQUENCES
