"""The driver of a verification: plans, compares in a Spark job, and writes the result.

It writes nothing to either cluster. Exit status: 0 all compared windows are equal; 1 a window is not equal or
is undecided; 2 the settings are invalid; 3 stopped by a signal; 4 it could not compare; 5 no topic is selected.
"""

import json
import logging
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mirrorflow_core.errors import AuthenticationFailedError, SettingError, UnreachableError
from mirrorflow_core.replication_policy import flow_name
from mirrorflow_core.settings import SourceSettings
from mirrorflow_seed.errors import EXIT_DIFFERENT, EXIT_DONE, EXIT_STOPPED, FileSystemError
from mirrorflow_seed.job_report import Cost, JobPhase, OutcomeCounts, VerifyReport
from mirrorflow_seed.job_status_server import Display, JobStatusServer
from mirrorflow_seed.settings import FlowFiles, JobSettings
from mirrorflow_seed.signal_handlers import handling
from mirrorflow_seed.spark_session import driver_address, spark_session
from mirrorflow_seed.spark_tasks import SparkTasks, share_files
from mirrorflow_seed.verify.comparison_tasks import compare_on_spark, compare_settings_of
from mirrorflow_seed.verify.partition_planner import VerifyPlan
from mirrorflow_seed.verify.planning_tasks import PlanningTasks, plan_verification
from mirrorflow_seed.verify.result_folder import ResultFolder
from mirrorflow_seed.verify.verification_result import VerificationResult, VerifyTaskResult, WindowSummary
from mirrorflow_seed.verify.verify_progress import VerifyProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STOPPED: Final = "Stopped by a signal; the next run starts over."
_LOG: Final = logging.getLogger(__name__)
VerifyFunction = Callable[
    [FlowFiles, JobSettings, "SparkSession", VerifyProgress, ResultFolder], VerificationResult
]


class StoppedError(BaseException):
    """A signal arrived. It is no `Exception`, which py4j would treat as a lost connection within a call to the JVM."""


def run(
    files: FlowFiles,
    job: JobSettings,
    *,
    display: Display | None = None,
    spark: "SparkSession | None" = None,
    verify: "VerifyFunction | None" = None,
) -> int:
    """Runs a verification and returns its exit status; also called by the `mirrorflow` command.

    With *spark*, or an active session, the job uses that and leaves it open. *verify* plans and compares, by
    default `verify_flow`.

    Raises SeedError, MirrorFlowError.
    """
    progress = VerifyProgress()
    status_server = JobStatusServer(VerifyReport(run_id=job.run_id), display=display, handler=progress)
    try:
        with handling(raise_stopped, signal.SIGTERM):
            verification = _verify(files, job, status_server, progress, spark, verify)
    except StoppedError:
        _publish_end(status_server, JobPhase.PAUSED, STOPPED)
        return EXIT_STOPPED
    except KeyboardInterrupt:
        _publish_end(status_server, JobPhase.PAUSED, STOPPED)
        raise
    except Exception as error:
        # The report is public, so it has only messages that name no topic: errors of clusters and folders.
        is_public = isinstance(
            error, (UnreachableError, AuthenticationFailedError, SettingError, FileSystemError)
        )
        message = str(error) if is_public else f"{type(error).__name__}; the log has the details."
        _publish_end(status_server, JobPhase.FAILED, message)
        raise
    else:
        status_server.publish(verification.report)
        return EXIT_DONE if verification.is_equal else EXIT_DIFFERENT
    finally:
        status_server.close()


def _verify(
    files: FlowFiles,
    job: JobSettings,
    status_server: JobStatusServer,
    progress: VerifyProgress,
    spark: "SparkSession | None",
    verify: "VerifyFunction | None",
) -> VerificationResult:
    result = ResultFolder(job)
    result.prepare()
    with spark_session(job, f"mirrorflow-verify-{job.run_id}", spark) as session:
        progress.connect(status_server.url_for_tasks(*driver_address(session)), status_server.publish)
        progress.begin(VerifyReport(run_id=job.run_id))
        verification = (verify or verify_flow)(files, job, session, progress, result)
        # In a cluster without an output folder, this line is all that is kept of the result. It has no record data.
        _LOG.info("%s", json.dumps(verification.as_json(has_keys=False)))
    result.write(verification)
    return verification


def verify_flow(
    files: FlowFiles,
    job: JobSettings,
    spark: "SparkSession",
    progress: VerifyProgress,
    result: ResultFolder,
) -> VerificationResult:
    """Plans and compares source and target, and writes the table of *result*. Raises SeedError, SettingError, ClusterError."""
    began = time.perf_counter()
    settings = files.load()
    task_files = share_files(spark, files, are_mounted=job.has_mounted_files)
    tasks = SparkTasks(spark)
    verify_plan = plan_verification(settings, job, PlanningTasks(tasks, task_files, progress))
    progress.begin(first_report(job, verify_plan))
    results = compare_on_spark(
        tasks,
        verify_plan.ranges,
        task_files,
        compare_settings_of(settings, job),
        progress,
        result.begin_table(flow_name(settings.flow)),
    )
    result.complete_table(results, verify_plan.undecided)
    return combine_results(settings, job, verify_plan, results, time.perf_counter() - began)


def first_report(job: JobSettings, verify_plan: VerifyPlan) -> VerifyReport:
    """Returns the report of the plan, before anything is compared."""
    expected = len(verify_plan.undecided) + sum(verify_range.windows for verify_range in verify_plan.ranges)
    return VerifyReport(
        run_id=job.run_id,
        phase=JobPhase.RUNNING,
        windows=OutcomeCounts(total=expected, undecided=len(verify_plan.undecided)),
    )


def combine_results(
    settings: SourceSettings,
    job: JobSettings,
    verify_plan: VerifyPlan,
    results: Sequence[VerifyTaskResult],
    seconds: float,
) -> VerificationResult:
    """Combines the plan and the results of all tasks into the result of the run."""
    return VerificationResult(
        run_id=job.run_id,
        flow=flow_name(settings.flow),
        source_alias=settings.source_alias,
        target_alias=settings.target_alias,
        sample=job.sample,
        summaries=[WindowSummary.of(verify_plan.undecided), *(result.windows for result in results)],
        partitions=verify_plan.partitions,
        behind=sum(result.behind for result in results),
        notes=verify_plan.notes,
        cost=Cost(
            executor_seconds=sum(result.seconds for result in results),
            bytes_read=sum(result.bytes_read for result in results),
        ),
        seconds=seconds,
        task_memory_bytes=max((result.memory_bytes for result in results), default=0),
    )


def _publish_end(status_server: JobStatusServer, phase: JobPhase, message: str) -> None:
    newest = status_server.newest
    assert isinstance(newest, VerifyReport)
    status_server.publish(replace(newest, phase=phase, message=message))


def raise_stopped(*_: object) -> None:
    """Raises StoppedError; a signal handler."""
    raise StoppedError
