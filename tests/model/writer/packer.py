"""A packer for the model: its batches have record numbers instead of bytes."""

from collections.abc import Sequence
from typing import Any

from mirrorflow_core.copying.batch_packer import Packer
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.batch import Batch
from mirrorflow_core.writer.broker_requests import Producer
from mirrorflow_core.writer.stream import Span, Stream, sequence_of
from tests.model.writer.partition_logs import ProducedBatch, SourceRecords


class ModelPacker(Packer):
    """The packer of one partition; batches have at most *max_records*."""

    def __init__(
        self, partition: TopicPartition, plain: Producer, max_records: int, record_bytes: int
    ) -> None:
        super().__init__(*partition, partition.topic, plain)
        self.max_records = max_records
        self._record_bytes = record_bytes
        self._fetched: dict[Batch, SourceRecords] = {}

    def split(self, records: Any) -> Sequence[Batch]:
        """The batches of a fetch response."""
        batches: Sequence[SourceRecords] = records
        self._fetched |= {fetched.batch: fetched for fetched in batches}
        return [fetched.batch for fetched in batches]

    def verify_skipped(self, batch: Batch) -> None:
        """The batches of the model have no bytes."""

    def clear(self) -> None:
        super().clear()
        self._fetched.clear()

    def next(self, stream: Stream) -> Any:
        """The next batch, as a `ProducedBatch`, and its span."""
        self.needs_transaction = False
        if not self._queue:
            return None
        batch, next_offset, skipped = self._queue[0]
        if batch.max_timestamp < self.old_before_ms and not self.transactional:
            self.needs_transaction = True
            return None
        fetched = self._fetched[batch]
        offsets, numbers = fetched.from_offset(stream.next_offset, self.max_records)
        is_whole = numbers[-1:] == fetched.numbers[-1:] or not numbers
        if is_whole:
            self._take(1)
        if not numbers:
            stream.pass_over(next_offset, batch.leader_epoch)
            return None
        span = Span(
            first=stream.next_ordinal,
            count=len(offsets),
            base_offset=offsets[0],
            next_offset=next_offset if is_whole else offsets[-1] + 1,
            max_timestamp=batch.max_timestamp,
            size_bytes=len(offsets) * self._record_bytes,
            offsets=offsets,
            source_epoch=batch.leader_epoch,
            skipped_epochs=skipped if is_whole else (),
        )
        produced = ProducedBatch(
            self.producer.producer_id,
            self.producer.epoch,
            sequence_of(span.first - self.first_ordinal),
            span.max_timestamp,
            self.transactional,
            numbers,
            self.producer.transactional_id,
        )
        return produced, span
