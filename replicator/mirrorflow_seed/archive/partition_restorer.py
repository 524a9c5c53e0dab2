"""Restores the partitions of an archive in Spark tasks: several partitions at once, the files of one in order."""

import logging
from collections.abc import Mapping
from dataclasses import replace

from mirrorflow_core.errors import FlowTakenError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_seed.archive.manifest import ArchivedPartition, Manifest, part_of
from mirrorflow_seed.archive.restore_point import damaged_file
from mirrorflow_seed.archive.restore_task import PartitionRestored, RestoreTask, restore_group
from mirrorflow_seed.errors import FlowLostError, JobFailedError
from mirrorflow_seed.job_report import Cost
from mirrorflow_seed.job_status_server import JobReporter
from mirrorflow_seed.seed.seed_task_attempt import PartitionOutcome, WaveSettings
from mirrorflow_seed.seed.task_messages import Coordinator
from mirrorflow_seed.spark_errors import job_error
from mirrorflow_seed.spark_tasks import SparkTasks, rates_of_tasks, run_watched
from mirrorflow_seed.storage_folder import StorageFolder

log = logging.getLogger("mirrorflow.restore")


class PartitionRestorer:
    """Restores the partitions of *manifest*, an archive in *folder*, with *tasks*, and reports what they have done.

    *names* are those of topics, source -> target, *next_offsets* the source offsets where the flow continues, for partitions it has
    copied.
    """

    def __init__(
        self,
        tasks: SparkTasks,
        folder: StorageFolder,
        manifest: Manifest,
        *,
        wave: WaveSettings,
        names: Mapping[str, str],
        next_offsets: Mapping[TopicPartition, int],
        bytes_per_second: int | None,
        coordinator: Coordinator,
        reporter: JobReporter,
    ) -> None:
        self.is_stopped = False
        self.files_done = 0
        self._tasks = tasks
        self._folder = folder
        self._manifest = manifest
        self._wave = wave
        self._names = names
        self._next_offsets = next_offsets
        self._bytes_per_second = bytes_per_second
        self._coordinator = coordinator
        self._reporter = reporter
        self._ends: dict[int, int] = {}  # of partitions, by index

    def run(self) -> None:
        """Restores all partitions, unless it is stopped. Raises SeedError."""
        if self.is_stopped:
            return
        groups = self._groups()
        self._ends = {
            task.index: task.archived.end for group in groups for task in group if task.archived.files
        }
        self._reporter.running(total=sum(len(group) for group in groups))
        try:
            results = run_watched(self._tasks, restore_group, groups, self._watch)
        except Exception as error:
            if self.is_stopped:
                return  # Spark reports the cancelled tasks as a failure
            raise job_error(error, "The restore has failed") from error
        for task, restored in zip(
            (task for group in groups for task in group),
            (restored for group in results for restored in group),
            strict=False,  # a task ends with the first partition that is not complete
        ):
            self._take(task, restored)
        self._publish("")

    def stop(self) -> None:
        """Lets Spark cancel the tasks."""
        self.is_stopped = True
        log.info("stopping: Spark cancels the tasks")
        self._tasks.cancel()

    def _groups(self) -> list[tuple[RestoreTask, ...]]:
        """Returns the partitions of each task: one; with a rate, those of each slot, as all tasks may run at once."""
        wanted = {
            key: archived for key, archived in self._manifest.partitions.items() if key.topic in self._names
        }
        # Largest first, so that the last partitions to start are short.
        largest_first = sorted(
            wanted, key=lambda key: (-sum(file.size_bytes for file in wanted[key].files), key)
        )
        rate, count = self._bytes_per_second, len(largest_first)
        if rate is not None:
            count = min(self._tasks.slots, count)
        made = [self._task(index, key, wanted[key]) for index, key in enumerate(largest_first)]
        groups = [made[first::count] for first in range(count)]
        sizes = [sum(file.tally.bytes for task in group for file in task.archived.files) for group in groups]
        return [
            tuple(replace(task, bytes_per_second=of_group) for task in group)
            for group, of_group in zip(groups, rates_of_tasks(rate, sizes), strict=True)
        ]

    def _task(self, index: int, key: TopicPartition, archived: ArchivedPartition) -> RestoreTask:
        return RestoreTask(
            wave=self._wave,
            address=self._folder.address,
            index=index,
            of=key,
            part=part_of(self._manifest, key.topic, archived),
            first=self._first_file(key, archived),
            bytes_per_second=None,
        )

    def _first_file(self, key: TopicPartition, archived: ArchivedPartition) -> int:
        """Returns the index of the file with the next offset; at most the last, which the target may have lost."""
        next_offset = self._next_offsets.get(key)
        if next_offset is None:
            return 0
        if next_offset > archived.end:
            return len(archived.files)  # the connector has copied beyond the archive
        restored = sum(file.end <= next_offset for file in archived.files)
        return min(restored, max(0, len(archived.files) - 1))

    def _take(self, task: RestoreTask, restored: PartitionRestored) -> None:
        """Adds the result of one partition. Raises SeedError if it is not complete."""
        for report in restored.reports:
            self._coordinator.receive(report)
        self.files_done += restored.files_done
        if restored.damaged:
            raise damaged_file(self._folder, restored.damaged)
        result = restored.result
        if result is None or result.outcome is PartitionOutcome.DONE:
            return
        if result.reason == FlowTakenError.reason:
            raise FlowLostError
        if result.outcome is PartitionOutcome.FAILED:
            raise JobFailedError(f"{task.of} cannot be restored: {result.message}")
        raise JobFailedError(f"{task.of} makes no progress: {result.message or 'its tasks end too early'}")

    def _watch(self, problem: str) -> None:
        self._publish(problem)
        if self.is_stopped:  # also what has begun since the signal
            self._tasks.cancel()

    def _publish(self, problem: str) -> None:
        records, size_bytes, seconds = self._coordinator.totals
        offsets = dict(self._coordinator.next_offsets)
        self._reporter.running(
            done=sum(offsets.get(index, -1) >= end for index, end in self._ends.items()),
            records=records,
            bytes=size_bytes,
            cost=Cost(executor_seconds=seconds, bytes_read=size_bytes, bytes_written=size_bytes),
            message=problem,
        )
