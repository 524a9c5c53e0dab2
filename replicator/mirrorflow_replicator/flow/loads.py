"""What partitions cost, measured from outside of whoever copies them: the ends of their logs, positions, samples of records.

    ends at two looks ──> offsets per second, smoothed ──┐
    positions, ends   ──> offsets behind ────────────────┼──> load: bytes per second
    a few batches     ──> bytes per offset ──────────────┘

So it does not matter on which node, or by whose task, a partition is copied. Rates are of what comes, not of what is copied: a task
that cannot keep up shows by what it has before it. Pure: times are given.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mirrorflow_replicator.flow.partitions import TopicPartition

NEWEST = (
    0.3  # how much the newest look counts against all before; 1/e of an old one is gone after three looks
)
CATCH_UP_S = 600.0  # what is behind counts as if it were to be copied in so long
RECORD_BYTES = 1_000.0  # where nothing is known of any record


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What looks have shown so far. Offsets are counted, of which a record takes one."""

    at_s: float = 0.0
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    per_s: Mapping[TopicPartition, float] = field(default_factory=dict)

    def looked(self, ends: Mapping[TopicPartition, int], now_s: float) -> "Rates":
        """After a look at *now_s*, where the logs had *ends*; partitions that are not among them are forgotten."""
        passed_s = max(now_s - self.at_s, 1e-3)
        per_s = {}
        for one, end in ends.items():
            if one not in self.ends:
                continue
            # A topic that was made anew begins with 0 again.
            rate = max(0, end - self.ends[one]) / passed_s
            before = self.per_s.get(one, rate)
            per_s[one] = before + NEWEST * (rate - before)
        return Rates(at_s=now_s, ends=dict(ends), per_s=per_s)


def behind(
    ends: Mapping[TopicPartition, int],
    copied: Mapping[TopicPartition, int],
    before: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Offsets to be copied yet, where somebody copies: *copied* is the last offset copied, *before* that of the look before.

    What has stopped makes no work, however much is before it.
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
    """Bytes per second of each partition with a rate; *behind* are offsets to be copied yet, *record_bytes* is as far as known."""
    known = list(record_bytes.values())
    average = sum(known) / len(known) if known else RECORD_BYTES
    return {
        one: (rate + max(0, behind.get(one, 0)) / CATCH_UP_S) * record_bytes.get(one, average)
        for one, rate in per_s.items()
    }
