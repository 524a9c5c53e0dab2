"""The driver of a repair: shows what differs, and copies the records that differ to quarantine topics.

    read the rows that are not equal ──> compare their ranges again, listing all differences ──> show the plan
      ──> with repair.confirmed: create the quarantine topics ──> a Spark task for each partition copies its records

The rows are those of an earlier verification with the same run id, or, without one, of a verification that runs first. What is
equal by now is not copied. The copy itself is never written. A repair that was killed continues: each record is in its quarantine
topic once (`quarantine_writer`).

Exit status: 0 nothing differs, or each record that differs is copied, by this start or an earlier one; 1 what differs is not
covered as a whole by the copied records, for example because the source has deleted it since; 6 the plan was shown, and nothing was written; the others as those of a verification.
"""

import asyncio
import json
import logging
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.replication_policy import flow_name
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.topics.topic_configs import CLEANUP_POLICY, ConfigEntry, ConfigSource
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.configs import create_with_accepted_settings
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_seed.errors import (
    EXIT_DIFFERENT,
    EXIT_DONE,
    EXIT_PLANNED,
    EXIT_STOPPED,
    JobSettingError,
    QuarantineError,
    SeedError,
)
from mirrorflow_seed.job_report import Cost, JobPhase, RepairReport
from mirrorflow_seed.job_status_server import Display, JobStatusServer
from mirrorflow_seed.repair.quarantine_task import QuarantineResult, QuarantineTask, quarantine_partition
from mirrorflow_seed.repair.repair_plan import (
    RepairedWindow,
    RepairPlan,
    UnequalRows,
    covered_windows,
    plan_repair,
)
from mirrorflow_seed.settings import CONFIRMED_KEY, REPAIR_KEY, FlowFiles, JobSettings, flag_of
from mirrorflow_seed.signal_handlers import handling
from mirrorflow_seed.spark_errors import job_error
from mirrorflow_seed.spark_session import spark_session
from mirrorflow_seed.spark_tasks import SparkTasks, rates_of_tasks, run_watched, share_files
from mirrorflow_seed.verify.compared_sides import connect_clusters
from mirrorflow_seed.verify.comparison_tasks import compare_on_spark, compare_settings_of
from mirrorflow_seed.verify.offset_windows import WindowResult
from mirrorflow_seed.verify.partition_planner import PartitionLayout
from mirrorflow_seed.verify.planning_tasks import PlanningTasks, plan_verification
from mirrorflow_seed.verify.result_folder import ResultFolder, name_of_run
from mirrorflow_seed.verify.verification_result import unpack
from mirrorflow_seed.verify.verify_driver import StoppedError, raise_stopped, verify_flow
from mirrorflow_seed.verify.verify_progress import VerifyProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG: Final = logging.getLogger(__name__)
WINDOWS_LOGGED_MAX: Final = 100
MAX_MESSAGE_BYTES: Final = "max.message.bytes"
MAX_MESSAGE_BYTES_DEFAULT: Final = 1_048_588
HEADERS_BYTES: Final = 1 << 10  # of the two headers of a repair in a batch of one record
_INT32_MAX: Final = 2**31 - 1
# Quarantined records have their old timestamps and equal keys, and no log cleaner may delete them.
KEPT_CONFIGS: Final[Mapping[str, str]] = {
    CLEANUP_POLICY: "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
}
# Settings of a copy that would refuse old records, or that are about its own replicas or tiers.
LEFT_OUT_CONFIGS: Final = frozenset(
    {
        "message.timestamp.difference.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.after.max.ms",
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
        "local.retention.ms",
        "local.retention.bytes",
        "remote.storage.enable",
    }
)


def run(
    files: FlowFiles, job: JobSettings, *, display: Display | None = None, spark: "SparkSession | None" = None
) -> int:
    """Runs a repair and returns its exit status. Raises SeedError, MirrorFlowError."""
    if not job.output:
        raise JobSettingError(
            key="output",
            problem="it is not set, and a repair reads the result of a verification there",
            action="name the folder of the result (--out)",
        )
    if job.archive:
        raise JobSettingError(
            key=REPAIR_KEY,
            problem="it copies from the source, and the comparison is with an archive",
            action="verify without the archive, or restore from it",
        )
    status_server = JobStatusServer(RepairReport(run_id=job.run_id), display=display)
    repair = _Repair(files, job, status_server)
    try:
        with handling(raise_stopped, signal.SIGTERM):
            return repair.run(spark)
    except StoppedError:
        repair.publish(phase=JobPhase.PAUSED, message="Stopped by a signal; the next start continues.")
        return EXIT_STOPPED
    except (SeedError, MirrorFlowError) as error:
        # The report is public, and the message of an error may name a topic.
        repair.publish(
            phase=JobPhase.FAILED, message=f"{type(error).__name__}; the log of the job has the details."
        )
        raise
    finally:
        status_server.close()


class _Repair:
    """One repair: its settings, its report, and the steps in their order."""

    def __init__(self, files: FlowFiles, job: JobSettings, status_server: JobStatusServer) -> None:
        self._files = files
        self._job = job
        self._settings = files.load()
        self._result = ResultFolder(job)
        self._status_server = status_server
        self._report = RepairReport(run_id=job.run_id)
        self._covered: list[
            RepairedWindow
        ] = []  # by the records that this start or an earlier one has copied

    def run(self, spark: "SparkSession | None") -> int:
        """Runs all steps. Raises SeedError, MirrorFlowError."""
        self._result.prepare()
        with spark_session(self._job, f"mirrorflow-repair-{self._job.run_id}", spark) as session:
            self.publish(phase=JobPhase.RUNNING)
            if not self._result.is_complete:
                self._verify(session)
            rows = self._rows()
            if not rows:
                self.publish(
                    phase=JobPhase.SUCCEEDED, message="All windows are equal: nothing is to be repaired."
                )
                return EXIT_DONE
            tasks = SparkTasks(session)
            task_files = share_files(session, self._files, are_mounted=self._job.has_mounted_files)
            windows, starts = self._differing_windows(tasks, task_files, rows)
            deleted = rows.deleted(starts)
            self._covered = covered_windows(self._result.read_repair())
            known = {window.key for window in self._covered}
            # The source does not have them any more, and an earlier start has copied what differed.
            copied_before = [window for window in deleted if window.key in known]
            plan = plan_repair(
                self._job.run_id, windows, deleted=[window for window in deleted if window.key not in known]
            )
            self._show(plan)
            if not plan.records:
                self._covered = copied_before + rows.covered(plan, starts)
                return self._end_without_records(plan)
            if not flag_of(self._job.extra, CONFIRMED_KEY):
                self.publish(
                    phase=JobPhase.SUCCEEDED,
                    message=f"{plan.records} records differ and would be copied to quarantine topics; nothing was written.{plan.rest}",
                )
                return EXIT_PLANNED
            sizes = asyncio.run(_create_topics(self._settings, plan))
            results = self._copy(tasks, task_files, plan, sizes)
            incomplete = {partition for partition, result in results.items() if result.deleted}
            self._covered = copied_before + rows.covered(plan, starts, incomplete)
            return self._end(plan, list(results.values()))

    def _verify(self, session: "SparkSession") -> None:
        """Runs the verification that no earlier run with this id has completed. Raises SeedError, MirrorFlowError."""
        verification = verify_flow(self._files, self._job, session, self._progress(), self._result)
        self._result.write(verification)

    def _progress(self) -> VerifyProgress:
        """Returns what receives the reports of comparing tasks: problems of Spark are those of the repair."""
        return VerifyProgress(lambda report: self.publish(message=report.message))

    def _rows(self) -> UnequalRows:
        """Returns the rows of the result that are not equal. Raises JobSettingError if they are those of a different flow."""
        rows = list(self._result.unequal_rows())
        flow = flow_name(self._settings.flow)
        if others := sorted({row.flow for row in rows} - {flow}):
            raise JobSettingError(
                key="output",
                problem=f"the result of run {self._job.run_id} is that of {others[0]}, not of {flow}",
                action="name the folder and the run id of a verification of this flow",
            )
        return UnequalRows(rows)

    def _differing_windows(
        self, tasks: SparkTasks, task_files: FlowFiles, rows: UnequalRows
    ) -> tuple[list[WindowResult], dict[TopicPartition, int]]:
        """Compares the ranges of *rows* again.

        Returns the windows that are not equal, with all their differences, and where the source's partitions begin now.
        """
        starts: dict[TopicPartition, int] = {}

        def selects(layout: PartitionLayout) -> bool:
            starts[layout.source] = layout.source_offsets.start
            return layout.source in rows.partitions

        settings, job, progress = self._settings, self._job, self._progress()
        # A sample chooses windows; here they are known.
        whole = replace(job, sample=1.0)
        verify_plan = plan_verification(
            settings,
            whole,
            PlanningTasks(tasks, task_files, progress),
            selects=selects,
        )
        results = compare_on_spark(
            tasks,
            [verify_range for verify_range in verify_plan.ranges if rows.cover(verify_range)],
            task_files,
            replace(compare_settings_of(settings, job), lists_all=True),
            progress,
            None,
        )
        listed = (window for result in results for window in unpack(result.listed))
        return [window for window in (*verify_plan.undecided, *listed) if rows.cover(window)], starts

    def _show(self, plan: RepairPlan) -> None:
        """Shows the plan before anything is written: in the log, in the result's folder, and to the display."""
        for window in plan.windows[:WINDOWS_LOGGED_MAX]:
            _LOG.info("%s", json.dumps(window.as_json()))
        for deleted in plan.deleted[:WINDOWS_LOGGED_MAX]:
            _LOG.warning("Cannot be repaired any more: %s", json.dumps(deleted.as_json()))
        self._write(plan, copied=0)
        self.publish(windows=len(plan.windows), differing=plan.records, plan=plan)

    def _copy(
        self, tasks: SparkTasks, task_files: FlowFiles, plan: RepairPlan, sizes: Mapping[str, int]
    ) -> dict[TopicPartition, QuarantineResult]:
        """Copies the records of all partitions, the largest first; returns the result of each partition of the source.

        Raises JobFailedError.
        """
        repairs = sorted(plan.partitions, key=lambda repair: -repair.records)
        rates = rates_of_tasks(
            self._job.bytes_per_second or self._settings.bytes_per_second,
            [repair.records for repair in repairs],
        )
        inputs = [
            QuarantineTask(
                repair=repair,
                topic=plan.topics[repair.target_topic],
                max_bytes=sizes[repair.target_topic],
                run=name_of_run(plan.run_id),
                bytes_per_second=rate,
            )
            for repair, rate in zip(repairs, rates, strict=True)
        ]
        work = partial(quarantine_partition, files=task_files)
        try:
            results = run_watched(tasks, work, inputs, lambda problem: self.publish(message=problem))
        except Exception as error:
            raise job_error(error, "The repair has failed") from error
        return {repair.source: result for repair, result in zip(repairs, results, strict=True)}

    def _end_without_records(self, plan: RepairPlan) -> int:
        message = plan.rest.strip() or "All windows are equal by now, or repaired: nothing is to be repaired."
        self._write(plan, copied=0)
        self.publish(phase=JobPhase.SUCCEEDED, message=message)
        return EXIT_DIFFERENT if plan.rest else EXIT_DONE

    def _end(self, plan: RepairPlan, results: Sequence[QuarantineResult]) -> int:
        """Reports what was copied, and returns the exit status."""
        added, repeated, deleted = (
            sum(getattr(result, name) for result in results) for name in ("copied", "found", "deleted")
        )
        message = f"{added + repeated} records that differ are in quarantine topics"
        message += f", {repeated} of them since an earlier start." if repeated else "."
        if deleted:
            message += f" {deleted} could not be copied: the source has deleted them meanwhile."
        self._write(plan, copied=added + repeated, deleted=deleted)
        self.publish(
            phase=JobPhase.SUCCEEDED,
            copied=added + repeated,
            cost=Cost(
                executor_seconds=sum(result.seconds for result in results),
                bytes_read=sum(result.bytes_read for result in results),
                bytes_written=sum(result.bytes_written for result in results),
            ),
            message=message + plan.rest,
        )
        return EXIT_DIFFERENT if deleted or plan.rest else EXIT_DONE

    def _write(self, plan: RepairPlan, **counts: int) -> None:
        """Writes the plan with *counts*, and which windows are covered, for the next start."""
        covered = [window.as_json() for window in self._covered]
        self._result.write_repair({**plan.as_json(), **counts, "coveredWindows": covered})

    def publish(self, **changes: Any) -> None:
        """Publishes the report with *changes*."""
        self._report = replace(self._report, **changes)
        self._status_server.publish(self._report)


async def _create_topics(settings: SourceSettings, plan: RepairPlan) -> dict[str, int]:
    """Creates the quarantine topics, and returns the size of the largest batch of each, by the copy. Raises QuarantineError, ClusterError."""
    async with connect_clusters(settings) as sides:
        source, target = sides["source"], sides["target"]
        topics = plan.topics
        sources = {repair.target_topic: repair.source.topic for repair in plan.partitions}
        await source.refresh(sources.values())
        await target.refresh([*topics, *topics.values()])
        described = await admin.describe_topic_configs(target, topics)
        # As many as both have: a copy that lacks partitions lacks their records, too.
        counts = {copy: max(_partitions(source, sources[copy]), _partitions(target, copy)) for copy in topics}
        missing = [
            admin.NewTopic(
                name=name,
                partitions=counts[copy],
                replication_factor=_replicas(target, copy, settings),
                configs=quarantine_configs(described.get(copy, ())),
            )
            for copy, name in topics.items()
            if target.leader(name, 0) is None
        ]
        outcome = await create_with_accepted_settings(target, missing)
        for name, refusal in outcome.refused.items():
            target.raise_for(refusal.code, "CreateTopics", name, message=refusal.message)
        for sentence in outcome.settings:
            _LOG.warning("%s", sentence)
        for name in topics.values():
            await admin.wait_for_leaders(target, name)
        created = await admin.describe_topic_configs(target, topics.values())
        for copy, name in topics.items():
            _require_kept(name, created.get(name, ()), _partitions(target, name), counts[copy])
        return {copy: _batch_bytes(created.get(name, ())) for copy, name in topics.items()}


def quarantine_configs(entries: Sequence[ConfigEntry]) -> dict[str, str]:
    """Returns the settings of a quarantine topic: those of the copy, *entries*, but it keeps all records, and larger batches."""
    configs = {
        entry.name: entry.value
        for entry in entries
        if entry.source is ConfigSource.TOPIC
        and entry.value is not None
        and entry.name not in LEFT_OUT_CONFIGS
    }
    size = min(_INT32_MAX, _batch_bytes(entries) + HEADERS_BYTES)
    return {**configs, **KEPT_CONFIGS, MAX_MESSAGE_BYTES: str(size)}


def _batch_bytes(entries: Sequence[ConfigEntry]) -> int:
    named = {entry.name: entry.value for entry in entries}
    return int(named.get(MAX_MESSAGE_BYTES) or MAX_MESSAGE_BYTES_DEFAULT)


def _require_kept(name: str, entries: Sequence[ConfigEntry], partitions: int, wanted: int) -> None:
    """Raises QuarantineError unless topic *name* keeps all records and has the copy's number of partitions."""
    named = {entry.name: entry.value for entry in entries}
    for key, value in KEPT_CONFIGS.items():
        if named.get(key) != value:
            raise QuarantineError(
                topic=name,
                problem=f"{key} is {named.get(key)}, so the target would delete or change records",
                action=f"set it to {value}",
            )
    if partitions < wanted:
        raise QuarantineError(
            topic=name,
            problem=f"it has {partitions} partitions, and the copy has {wanted}",
            action="add the partitions that it lacks, or verify and repair under a different run id",
        )


def _partitions(cluster: Cluster, topic: str) -> int:
    """Returns the number of partitions of *topic*; 0 if it does not exist."""
    known = cluster.metadata.topics.get(topic)
    return 0 if known is None else len(known.partitions)


def _replicas(cluster: Cluster, copy: str, settings: SourceSettings) -> int:
    known = cluster.metadata.topics.get(copy)
    replicas = [len(partition.replicas) for partition in known.partitions.values()] if known else []
    return max(replicas, default=settings.replication_factor)
