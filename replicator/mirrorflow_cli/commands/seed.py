"""`mirrorflow seed`: fills the target with the source's records, with Spark on this machine."""

import argparse
from typing import Any

from mirrorflow_cli.spark_jobs import (
    JobProgressFormat,
    add_copying_arguments,
    add_job_arguments,
    display_of,
    run_job,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job_arguments(parser)
    add_copying_arguments(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Runs until the target has caught up and returns the exit status."""
    progress_format = JobProgressFormat(
        line=line_of, done=lambda report: (report.records, report.records + report.remaining_records)
    )
    return run_job(arguments, "seed.seed_driver", {}, display_of(progress_format, as_json=arguments.json))


def line_of(report: Any) -> str:
    parts = [
        report.phase.value.lower(),
        f"{report.done}/{report.partitions} partitions",
        f"{report.records:,} records",
        f"{report.remaining_records:,} left",
        f"{report.bytes_per_second / 1e6:,.1f} MB/s",
    ]
    if report.estimated_seconds is not None:
        parts.append(f"about {report.estimated_seconds:,.0f} s to go")
    if report.gap_records:
        parts.append(f"{report.gap_records:,} gone from the source")
    if report.message:
        parts.append(report.message)
    return ", ".join(parts)
