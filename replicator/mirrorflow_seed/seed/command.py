"""Runs `mirrorflow-seed seed`: starts Spark and the driver of a seed."""

import argparse
import asyncio
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mirrorflow_seed.errors import JobFailedError
from mirrorflow_seed.outlet import Display, Outlet
from mirrorflow_seed.report import JobPhase, SeedReport
from mirrorflow_seed.seed.chain import Ended, Order, copy
from mirrorflow_seed.seed.driver import SeedJob
from mirrorflow_seed.seed.plan import Chain
from mirrorflow_seed.seed.task_messages import Desk
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
    desk = Desk(bytes_per_second=job.bytes_per_second or settings.bytes_per_second)
    outlet = Outlet(SeedReport(run_id=job.run_id), display=display, orders=desk)
    try:
        with session_of(job, f"mirrorflow-seed-{job.run_id}", spark) as context:
            return asyncio.run(_job(files, job, outlet, desk, context).run())
    except BaseException as error:
        newest = outlet.newest
        if isinstance(newest, SeedReport) and newest.phase is JobPhase.PREPARING:
            outlet.say(SeedReport(run_id=job.run_id, phase=JobPhase.FAILED, message=type(error).__name__))
        raise
    finally:
        outlet.close()


def _job(files: FlowFiles, job: JobSettings, outlet: Outlet, desk: Desk, spark: "SparkContext") -> SeedJob:
    def run_chains(chains: Sequence[Chain], order: Order) -> list[Ended]:
        chained = spark.parallelize(chains, len(chains)).mapPartitions(functools.partial(copy, order=order))
        try:
            ended: list[Ended] = chained.collect()
        except Exception as error:
            raise JobFailedError(f"Spark has given the job up: {cause_of(error)}") from error
        return ended

    return SeedJob(
        files,
        job,
        outlet=outlet,
        desk=desk,
        run=run_chains,
        cancel=spark.cancelAllJobs,
        slots=lambda: int(spark.defaultParallelism),
        url=driver_url(spark, outlet.port, desk.path),
    )
