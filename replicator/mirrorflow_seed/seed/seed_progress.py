"""The progress of a seed over its waves, and how long its tasks have made none."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Final

from mirrorflow_seed.job_report import Cost, JobPhase, SeedReport
from mirrorflow_seed.seed.seed_plan import SeedRange, lag_of
from mirrorflow_seed.seed.seed_task_attempt import PartitionOutcome, PartitionResult

RATE_WINDOW_S: Final = 15.0  # covers several commits and position writes


class StallTimer:
    """Measures for how long running tasks have made no progress; waiting for executors does not count."""

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._left: int | None = None

    def stalled_for_s(self, left: int, *, active: int, now_s: float) -> float:
        """Returns the seconds without progress.

        *left* is the number of offsets to copy, *active* that of running tasks.
        """
        if left != self._left or not active:
            self._left, self._since_s = left, now_s
        return now_s - self._since_s


class SeedProgress:
    """The progress of one run over all its waves."""

    def __init__(self, run_id: str) -> None:
        self.ranges: tuple[SeedRange, ...] = ()  # of the latest wave
        self.wave = 0  # its number, from 1
        self.next_offsets: dict[int, int] = {}
        self.partition_results: dict[int, PartitionResult] = {}  # the latest of each seed_range
        self.gap_records = 0
        self._reached: set[int] = set()
        self._first_ends: dict[int, int] = {}
        self._first_starts: dict[int, int] = {}
        self._run_id = run_id
        self._samples: deque[tuple[float, int, int]] = deque()

    def begin_wave(self, ranges: Sequence[SeedRange]) -> None:
        """Sets the ranges of a wave that is about to begin."""
        self.wave += 1
        self.ranges = tuple(ranges)
        for seed_range in ranges:
            self._first_ends.setdefault(seed_range.index, seed_range.end)
            self._first_starts.setdefault(seed_range.index, seed_range.start)
            self.note_offset(seed_range.index, seed_range.start)

    def note_offset(self, index: int, offset: int) -> None:
        """Records that range *index* is copied at least up to *offset*."""
        next_offset = max(offset, self.next_offsets.get(index, 0))
        self.next_offsets[index] = next_offset
        if next_offset >= self._first_ends.get(index, 0):
            self._reached.add(index)

    def add_results(self, partition_results: Sequence[PartitionResult]) -> None:
        """Adds the results of a task that has ended."""
        for result in partition_results:
            self.partition_results[result.index] = result
            self.gap_records += result.gap_records
            if result.next_offset is not None:
                self.note_offset(result.index, result.next_offset)

    @property
    def lag(self) -> int:
        """The number of offsets left to copy in the latest wave, without failed partitions."""
        failed = {result.index for result in self.failed}
        return lag_of(
            [seed_range for seed_range in self.ranges if seed_range.index not in failed], self.next_offsets
        )

    @property
    def _copied_offsets(self) -> int:
        """The number of offsets that were copied since the first wave began."""
        return sum(
            max(0, self.next_offsets.get(index, 0) - start) for index, start in self._first_starts.items()
        )

    @property
    def has_unfinished(self) -> bool:
        """Whether a range of the latest wave still needs a task after its last one has ended unfinished.

        One whose copy has been found complete since gets no task, so its result stays.
        """
        return any(
            result.outcome is PartitionOutcome.UNFINISHED
            and self.next_offsets.get(result.index, 0) < self.ranges[result.index].end
            for result in self.partition_results.values()
        )

    @property
    def failed(self) -> tuple[PartitionResult, ...]:
        """The results of ranges whose copy has failed."""
        return tuple(
            result for result in self.partition_results.values() if result.outcome is PartitionOutcome.FAILED
        )

    def report(
        self,
        phase: JobPhase,
        totals: tuple[int, int, float],
        *,
        active: int,
        now_s: float,
        blocked: Mapping[str, int] | None = None,
        message: str = "",
    ) -> SeedReport:
        """Returns the current report.

        *totals* are records, bytes and seconds of all tasks so far; *blocked* counts tasks by error reason.
        """
        records, size, seconds = totals
        if phase is JobPhase.PAUSED:
            # Cancelled tasks had reported records whose transactions were aborted since.
            records = min(records, self._copied_offsets)
        records_per_s, bytes_per_s = self._rates(records, size, now_s)
        return SeedReport(
            run_id=self._run_id,
            phase=phase,
            wave=self.wave,
            partitions=len(self.ranges),
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
            message=message or _message(self.failed, blocked or {}),
        )

    def _rates(self, records: int, size: int, now_s: float) -> tuple[float, float]:
        samples = self._samples
        samples.append((now_s, records, size))
        while samples[0][0] < now_s - RATE_WINDOW_S:
            samples.popleft()
        since_s, records_then, size_then = samples[0]
        elapsed_s = now_s - since_s
        if elapsed_s <= 0:
            return 0.0, 0.0
        return max(0.0, (records - records_then) / elapsed_s), max(0.0, (size - size_then) / elapsed_s)

    def _estimate(self, records_per_s: float, active: int) -> float | None:
        """Returns the seconds to the end at this rate, but at least those of the largest partition's one task."""
        if records_per_s <= 0:
            return None
        largest = max(
            (seed_range.end - self.next_offsets.get(seed_range.index, 0) for seed_range in self.ranges),
            default=0,
        )
        return max(self.lag / records_per_s, largest * max(1, active) / records_per_s)


def _message(failed: Sequence[PartitionResult], blocked: Mapping[str, int]) -> str:
    """Returns the counts of failed partitions and blocked tasks by reason; only the driver's log names them."""
    by_reason = Counter(result.reason for result in failed)
    stopped = (
        f"{count} partition{' has' if count == 1 else 's have'} stopped: {reason}"
        for reason, count in sorted(by_reason.items())
    )
    waiting = (
        f"{count} task{' is' if count == 1 else 's are'} held up: {reason}"
        for reason, count in sorted(blocked.items())
    )
    return "; ".join((*stopped, *waiting))
