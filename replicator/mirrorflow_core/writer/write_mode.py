"""Decides for each partition whether it is written in plain batches or in transactions, and when that changes.

Plain batches are visible at once and cost nothing, but need two conditions. Records must be young: the leader
forgets a producer, and with it the fence, by the timestamps of its records. And source offsets must run without
gaps: `end_lookup` finds a source offset by addition.
"""

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from mirrorflow_core.writer.position import WriteMode

SHORTEST_EXPIRATION_MS: Final = 3_600_000
FREQUENT_GAPS_MS: Final = 60_000  # two gaps within this time: the partition stays in transactions
CALM_MS: Final = 600_000  # so long without a gap: it may return to plain batches
COMMIT_INTERVAL_MS: Final = 250
# A transaction takes records for this part of its time limit at most, or what arrives in that time at the measured
# rate: the responses to the last ones then come before the coordinator aborts it, even if the rate falls to a fraction.
_TIMEOUT_SHARE: Final = 10
_COMMIT_SHARE: Final = 10  # commits take at most one tenth of the time


class SourceBatch(NamedTuple):
    """What decides about a batch of the source."""

    first_offset: int
    next_offset: int  # after its last record
    records: int
    leader_epoch: int
    oldest_timestamp: int  # the leader expires the producer by it

    @property
    def has_gaps(self) -> bool:
        """Whether offsets are missing between its records."""
        return self.records != self.next_offset - self.first_offset


class Write(NamedTuple):
    """The batch can be written in the partition's current mode."""


class ChangeMode(NamedTuple):
    """Wait until all is acknowledged, store a position at `next_source_offset`, and continue in this mode."""

    mode: WriteMode
    next_source_offset: int
    source_epoch: int  # leader epoch of the batch there


def plain_age_limit_ms(producer_expiration_ms: int) -> int:
    """Returns the age of records from which nothing is plain; 0 if nothing is plain at all."""
    return producer_expiration_ms // 2 if producer_expiration_ms >= SHORTEST_EXPIRATION_MS else 0


def longest_interval_ms(timeout_ms: int) -> int:
    """Returns how long a transaction takes records at most if the coordinator aborts it after *timeout_ms*."""
    return timeout_ms // _TIMEOUT_SHARE


def commit_interval_ms(commit_ms: int, timeout_ms: int) -> int:
    """Returns how long a transaction takes records if a commit takes *commit_ms*."""
    return min(max(COMMIT_INTERVAL_MS, commit_pause_ms(commit_ms)), longest_interval_ms(timeout_ms))


def commit_pause_ms(commit_ms: int) -> int:
    """Returns the time between two commits at least: they take at most a tenth of the time."""
    return commit_ms * _COMMIT_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMode:
    """The mode of a partition, and the end of the source offsets that were taken so far."""

    mode: WriteMode
    next_source_offset: int
    source_epoch: int | None  # leader epoch of the record before; -1: it has none; None: after a gap
    last_gap_ms: int | None = None  # wall clock
    stays_in_transactions: bool = False

    def decide(self, batch: SourceBatch, *, now_ms: int, age_limit_ms: int) -> Write | ChangeMode:
        """Returns what to do before the next *batch* can be taken."""
        is_old = not age_limit_ms or now_ms - batch.oldest_timestamp >= age_limit_ms
        mode = (
            WriteMode.TRANSACTION
            if is_old or batch.has_gaps or self._has_frequent_gaps(now_ms)
            else WriteMode.PLAIN
        )
        if mode is not self.mode:
            return ChangeMode(mode, batch.first_offset, batch.leader_epoch)
        if mode is WriteMode.PLAIN and self._interrupts(batch):
            return ChangeMode(WriteMode.PLAIN, batch.first_offset, batch.leader_epoch)
        return Write()

    def changed(self, change: ChangeMode, now_ms: int) -> "PartitionMode":
        """Returns the state after the position of *change* is committed."""
        is_gap = change.mode is WriteMode.TRANSACTION or change.next_source_offset != self.next_source_offset
        after = self.with_gap(now_ms) if is_gap else self
        return replace(
            after,
            mode=change.mode,
            next_source_offset=change.next_source_offset,
            source_epoch=change.source_epoch,
        )

    def with_gap(self, now_ms: int) -> "PartitionMode":
        """Returns the state after a gap of the source at *now_ms*."""
        is_frequent = self.last_gap_ms is not None and now_ms - self.last_gap_ms < FREQUENT_GAPS_MS
        return replace(
            self, last_gap_ms=now_ms, stays_in_transactions=self.stays_in_transactions or is_frequent
        )

    def _has_frequent_gaps(self, now_ms: int) -> bool:
        return (
            self.stays_in_transactions
            and self.last_gap_ms is not None
            and now_ms - self.last_gap_ms < CALM_MS
        )

    def _skips(self, batch: SourceBatch) -> bool:
        return batch.first_offset != self.next_source_offset

    def _interrupts(self, batch: SourceBatch) -> bool:
        return self._skips(batch) or batch.leader_epoch != self.source_epoch
