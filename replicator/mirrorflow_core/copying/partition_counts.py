"""What a partition has copied, skipped and lost, over all sessions of its task. Nothing here decides what it does next."""

from dataclasses import dataclass

from mirrorflow_core.errors import PartitionError
from mirrorflow_core.writer.stream import Span


@dataclass(slots=True)
class PartitionCounts:
    """The counts of one partition, and its newest alert. A later session continues them."""

    records: int = 0  # acknowledged, as `bytes`
    bytes: int = 0
    skipped_records: int = 0  # of the source that are not copied: markers, and what a consumer cannot read
    lost_records: int = 0
    losses: int = 0
    refused_writes: int = 0
    alert: PartitionError | None = None  # the newest loss after which it continued, by loss policy
    alerted_ms: int = 0  # wall clock
    record_timestamp_ms: int = -1  # of the newest acknowledged record
    age_ms: float = -1.0  # of the newest record when it was sent
    latency_ms: float = -1.0  # of the newest record: its age when it was acknowledged

    def note_sent(self, span: Span, now_ms: int) -> None:
        """Notes the age of the newest record of *span*, a batch that is sent."""
        self.age_ms = now_ms - span.max_timestamp

    def note_acknowledged(self, span: Span, now_ms: int) -> None:
        """Counts *span*, a batch that is on the target."""
        self.records += span.count
        self.bytes += span.size_bytes
        self.record_timestamp_ms = span.max_timestamp
        self.latency_ms = now_ms - span.max_timestamp

    def note_skipped(self, records: int) -> None:
        """Counts *records* of the source that are not copied."""
        self.skipped_records += records

    def note_refused(self) -> None:
        """Counts a batch that the target has refused."""
        self.refused_writes += 1

    def note_loss(self, error: PartitionError, now_ms: int, *, lost_records: int) -> None:
        """Counts a loss, or a possible one, after which the loss policy continues copying."""
        self.alert, self.alerted_ms = error, now_ms
        self.losses += 1
        self.lost_records += lost_records
