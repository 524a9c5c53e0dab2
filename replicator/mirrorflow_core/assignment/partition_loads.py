"""Estimates the load of partitions from their end offsets, stored offsets and samples of records.

    end offsets over time ──> offsets per second, smoothed ──┐
    stored, end offsets   ──> lag in offsets ────────────────┼──> load: bytes per second
    a few batches         ──> bytes per offset ──────────────┘

So the node or task that copies a partition does not matter. Rates measure what is produced, not what is
copied: a task that cannot keep up shows by its lag. This module does no I/O and reads no clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mirrorflow_core.partitions import TopicPartition

NEWEST = 0.3  # weight of the newest sample; after three samples an old one has about 1/e of its weight
CATCH_UP_S = 600.0  # lag counts as if it were to be copied within this time
RECORD_BYTES = 1_000.0  # used where no record was sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Smoothed rates in offsets per second, by partition; a record takes one offset."""

    at_s: float = 0.0
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    per_s: Mapping[TopicPartition, float] = field(default_factory=dict)

    def looked(self, ends: Mapping[TopicPartition, int], now_s: float) -> "Rates":
        """Return the rates updated with end offsets *ends* at *now_s*; other partitions are dropped."""
        passed_s = max(now_s - self.at_s, 1e-3)
        per_s = {}
        for one, end in ends.items():
            if one not in self.ends:
                continue
            # A re-created topic starts at offset 0 again.
            rate = max(0, end - self.ends[one]) / passed_s
            before = self.per_s.get(one, rate)
            per_s[one] = before + NEWEST * (rate - before)
        return Rates(at_s=now_s, ends=dict(ends), per_s=per_s)


def behind(
    ends: Mapping[TopicPartition, int],
    copied: Mapping[TopicPartition, int],
    before: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return the lag in offsets of partitions that make progress.

    *copied* is the last offset copied, *before* that of the previous sample. A partition that makes no
    progress causes no load, whatever its lag.
    """
    return {
        one: max(0, end - copied[one] - 1)
        for one, end in ends.items()
        if one in copied and copied[one] != before.get(one)
    }


def loads(
    per_s: Mapping[TopicPartition, float],
    behind: Mapping[TopicPartition, int],
    record_bytes: Mapping[TopicPartition, float],
) -> dict[TopicPartition, float]:
    """Return bytes per second of each partition with a rate.

    *behind*: lag in offsets; *record_bytes*: where known.
    """
    known = list(record_bytes.values())
    average = sum(known) / len(known) if known else RECORD_BYTES
    return {
        one: (rate + max(0, behind.get(one, 0)) / CATCH_UP_S) * record_bytes.get(one, average)
        for one, rate in per_s.items()
    }
