"""Computes the report of a seed from the reports of its tasks and the offsets stored on the target. Pure."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Final

from mirrorflow_seed.report import Cost, JobPhase, SeedReport
from mirrorflow_seed.seed.plan import SeedShare, lag_of
from mirrorflow_seed.seed.seed_task import PartitionOutcome, PartitionResult

WINDOW_S: Final = 15.0  # of the rate: covers several commits and offset writes


class StallTimer:
    """Measures for how long running tasks have made no progress; waiting for executors does not count."""

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._left = -1

    def still_s(self, left: int, *, active: int, now_s: float) -> float:
        """Seconds without progress; *left* is the number of offsets to copy, *active* that of running tasks."""
        if left != self._left or not active:
            self._left, self._since_s = left, now_s
        return now_s - self._since_s


class SeedProgress:
    """The progress of one run."""

    def __init__(self, run_id: str) -> None:
        self.shares: tuple[SeedShare, ...] = ()  # of the latest wave
        self.next_offsets: dict[int, int] = {}
        self.partition_results: dict[int, PartitionResult] = {}  # the latest of each share
        self.gap_records = 0
        self._reached: set[int] = set()
        self._first_ends: dict[int, int] = {}
        self._run_id = run_id
        self._samples: deque[tuple[float, int, int]] = deque()

    def plan(self, shares: Sequence[SeedShare]) -> None:
        """Sets the shares of a wave that is about to begin."""
        self.shares = tuple(shares)
        for share in shares:
            self._first_ends.setdefault(share.index, share.end)
            self.reached(share.index, share.start)

    def reached(self, index: int, offset: int) -> None:
        """Notes that the copy of share *index* has reached at least *offset*."""
        at = self.next_offsets[index] = max(offset, self.next_offsets.get(index, -1))
        if at >= self._first_ends.get(index, 0):
            self._reached.add(index)

    def take(self, partition_results: Sequence[PartitionResult]) -> None:
        """Adds the receipts of a task that has ended."""
        for result in partition_results:
            self.partition_results[result.index] = result
            self.gap_records += result.gap_records
            self.reached(result.index, result.next_offset)

    @property
    def lag(self) -> int:
        """Offsets left to copy in the latest wave, without failed partitions."""
        failed = {one.index for one in self.failed}
        return lag_of([share for share in self.shares if share.index not in failed], self.next_offsets)

    @property
    def failed(self) -> tuple[PartitionResult, ...]:
        """The receipts of shares that cannot be copied any further."""
        return tuple(one for one in self.partition_results.values() if one.outcome is PartitionOutcome.FAILED)

    def report(
        self,
        phase: JobPhase,
        totals: tuple[int, int, float],
        *,
        active: int,
        now_s: float,
        held_up: Mapping[str, int] | None = None,
        message: str = "",
    ) -> SeedReport:
        """Returns the current report.

        *totals* are records, bytes and seconds of all tasks so far; *held_up* counts tasks by error reason.
        """
        records, size, seconds = totals
        records_per_s, bytes_per_s = self._rates(records, size, now_s)
        return SeedReport(
            run_id=self._run_id,
            phase=phase,
            partitions=len(self.shares),
            done=len(self._reached),
            lost=len(self.failed),
            records=records,
            bytes=size,
            remaining_records=self.lag,
            records_per_second=records_per_s,
            bytes_per_second=bytes_per_s,
            estimated_seconds=self._estimate(records_per_s, active) if phase is JobPhase.RUNNING else None,
            gap_records=self.gap_records,
            cost=Cost(executor_seconds=seconds, bytes_read=size, bytes_written=size),
            message=message or _message(self.failed, held_up or {}),
        )

    def _rates(self, records: int, size: int, now_s: float) -> tuple[float, float]:
        samples = self._samples
        samples.append((now_s, records, size))
        while samples[0][0] < now_s - WINDOW_S:
            samples.popleft()
        since_s, records_then, size_then = samples[0]
        elapsed_s = now_s - since_s
        if elapsed_s <= 0:
            return 0.0, 0.0
        return max(0.0, (records - records_then) / elapsed_s), max(0.0, (size - size_then) / elapsed_s)

    def _estimate(self, records_per_s: float, active: int) -> float | None:
        """Seconds to the end at this rate, and at least those of the largest partition, which has one task."""
        if records_per_s <= 0:
            return None
        largest = max((share.end - self.next_offsets.get(share.index, 0) for share in self.shares), default=0)
        return max(self.lag / records_per_s, largest * max(1, active) / records_per_s)


def _message(failed: Sequence[PartitionResult], held_up: Mapping[str, int]) -> str:
    """Counts of stopped partitions and held-up tasks by reason; only the driver's log names them."""
    by_reason = Counter(one.reason for one in failed)
    stopped = (
        f"{count} partition{' has' if count == 1 else 's have'} stopped: {reason}"
        for reason, count in sorted(by_reason.items())
    )
    waiting = (
        f"{count} task{' is' if count == 1 else 's are'} held up: {reason}"
        for reason, count in sorted(held_up.items())
    )
    return "; ".join((*stopped, *waiting))
