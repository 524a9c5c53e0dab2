"""Plans which ranges of both clusters are compared; large plans are made in Spark tasks. It reads, and compares nothing.

A verification plans all partitions of the flow, a repair those that have windows that are not equal.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from mirrorflow_core.settings import SourceSettings
from mirrorflow_replicator import process
from mirrorflow_seed.settings import FlowFiles, JobSettings, flag_of, whole_of
from mirrorflow_seed.spark_errors import job_error
from mirrorflow_seed.spark_tasks import SparkTasks, run_watched
from mirrorflow_seed.verify.compared_sides import connect_clusters
from mirrorflow_seed.verify.offset_windows import KEYS_MAX, RANGE_WINDOWS, WINDOW_OFFSETS, VerifyPlanSettings
from mirrorflow_seed.verify.partition_planner import PartitionLayout, VerifyPlan
from mirrorflow_seed.verify.verify_plan import (
    joined_plan,
    limit_ranges,
    partition_layouts,
    plan_layouts,
    planning_groups,
)
from mirrorflow_seed.verify.verify_progress import VerifyProgress


@dataclass(frozen=True, slots=True)
class PlanningTasks:
    """Plans groups of partitions in Spark tasks."""

    tasks: SparkTasks
    files: FlowFiles
    progress: VerifyProgress

    def plan(
        self, groups: Sequence[list[PartitionLayout]], plan_settings: VerifyPlanSettings
    ) -> list[VerifyPlan]:
        """Returns the plan of each group. Raises JobFailedError."""
        work = partial(plan_group, plan_settings=plan_settings, files=self.files)
        return plan_in_tasks(self.tasks, work, groups, self.progress)


def plan_in_tasks(
    tasks: SparkTasks,
    plan: Callable[[list[PartitionLayout]], VerifyPlan],
    groups: Sequence[list[PartitionLayout]],
    progress: VerifyProgress,
) -> list[VerifyPlan]:
    """Returns the plan of each group, made in a Spark task. Raises JobFailedError."""
    try:
        return run_watched(tasks, plan, groups, progress.report)
    except Exception as error:
        raise job_error(error, "The job failed") from error


def plan_group(
    layouts: list[PartitionLayout], *, plan_settings: VerifyPlanSettings, files: FlowFiles
) -> VerifyPlan:
    """Plans these partitions in a Spark task. Raises ClusterError, SettingError, OSError."""
    process.tune_memory()
    return asyncio.run(_plan_layouts(files.load(), plan_settings, layouts))


async def _plan_layouts(
    settings: SourceSettings, plan_settings: VerifyPlanSettings, layouts: Sequence[PartitionLayout]
) -> VerifyPlan:
    async with connect_clusters(settings) as sides:
        return await plan_layouts(sides["source"], sides["target"], settings, plan_settings, layouts)


def plan_verification(
    settings: SourceSettings,
    job: JobSettings,
    planning_tasks: PlanningTasks | None = None,
    *,
    selects: Callable[[PartitionLayout], bool] = lambda _: True,
) -> VerifyPlan:
    """Reads both clusters and returns the plan of the partitions that *selects* selects; with *planning_tasks*, large plans are made there.

    Raises JobSettingError, SettingError, ClusterError, JobFailedError.
    """
    plan_settings = plan_settings_of(job)
    notes: list[str] = []
    layouts = list(filter(selects, asyncio.run(_partition_layouts(settings, plan_settings, notes))))
    plan_settings = limit_ranges(layouts, plan_settings)
    groups = planning_groups(layouts, plan_settings)
    if planning_tasks is None or len(groups) < 2:
        plans = [asyncio.run(_plan_layouts(settings, plan_settings, layouts))]
    else:
        plans = planning_tasks.plan(groups, plan_settings)
    return joined_plan(plans, notes)


def plan_settings_of(job: JobSettings) -> VerifyPlanSettings:
    """Returns the settings of the plan. Raises JobSettingError."""
    return VerifyPlanSettings(
        run_id=job.run_id,
        sample=job.sample,
        window_offsets=whole_of(job.extra, "window.offsets", WINDOW_OFFSETS),
        range_windows=whole_of(job.extra, "split.windows", RANGE_WINDOWS),
        keys_max=whole_of(job.extra, "keys.max", KEYS_MAX),
        timestamps=not flag_of(job.extra, "ignore.timestamps"),
    )


async def _partition_layouts(
    settings: SourceSettings, plan_settings: VerifyPlanSettings, notes: list[str]
) -> list[PartitionLayout]:
    async with connect_clusters(settings) as sides:
        return await partition_layouts(sides["source"], sides["target"], settings, plan_settings, notes)
