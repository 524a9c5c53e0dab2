"""Runs `mirrorflow-seed seed`: starts Spark and the driver of a seed."""

import argparse
import asyncio
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mirrorflow_seed.errors import JobFailedError
from mirrorflow_seed.job_status_server import Display, JobStatusServer
from mirrorflow_seed.report import JobPhase, SeedReport
from mirrorflow_seed.seed.driver import SeedJob
from mirrorflow_seed.seed.plan import SeedTask
from mirrorflow_seed.seed.seed_task import TaskResult, WaveSettings, run_tasks
from mirrorflow_seed.seed.task_messages import Coordinator
from mirrorflow_seed.session import cause_of, driver_url, session_of
from mirrorflow_seed.settings import FlowFiles, JobSettings

if TYPE_CHECKING:
    from pyspark import SparkContext


def execute(_: argparse.Namespace, files: FlowFiles, job: JobSettings) -> int:
    """Runs the job and returns its exit status."""
    return run(files, job)


def run(
    files: FlowFiles, job: JobSettings, *, display: Display | None = None, spark: "SparkContext | None" = None
) -> int:
    """Runs a seed and returns its exit status; also called by the `mirrorflow` command.

    With *spark*, the job uses that context and leaves it open.
    """
    settings = files.load()
    coordinator = Coordinator(bytes_per_second=job.bytes_per_second or settings.bytes_per_second)
    status_server = JobStatusServer(SeedReport(run_id=job.run_id), display=display, handler=coordinator)
    try:
        with session_of(job, f"mirrorflow-seed-{job.run_id}", spark) as context:
            return asyncio.run(_job(files, job, status_server, coordinator, context).run())
    except BaseException as error:
        newest = status_server.newest
        if isinstance(newest, SeedReport) and newest.phase is JobPhase.PREPARING:
            status_server.publish(
                SeedReport(run_id=job.run_id, phase=JobPhase.FAILED, message=type(error).__name__)
            )
        raise
    finally:
        status_server.close()


def _job(
    files: FlowFiles,
    job: JobSettings,
    status_server: JobStatusServer,
    coordinator: Coordinator,
    spark: "SparkContext",
) -> SeedJob:
    def run_on_spark(tasks: Sequence[SeedTask], wave: WaveSettings) -> list[TaskResult]:
        spread = spark.parallelize(tasks, len(tasks)).mapPartitions(functools.partial(run_tasks, wave=wave))
        try:
            results: list[TaskResult] = spread.collect()
        except Exception as error:
            raise JobFailedError(f"Spark has failed the job: {cause_of(error)}") from error
        return results

    return SeedJob(
        files,
        job,
        status_server=status_server,
        coordinator=coordinator,
        run=run_on_spark,
        cancel=spark.cancelAllJobs,
        slots=lambda: int(spark.defaultParallelism),
        url=driver_url(spark, status_server.port, coordinator.path),
    )
