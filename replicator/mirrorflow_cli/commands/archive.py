"""`mirrorflow archive`: writes a flow's topics to Parquet with Spark on this machine."""

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
    add_archive_arguments(parser, writes=False)


def add_archive_arguments(parser: argparse.ArgumentParser, *, writes: bool) -> None:
    """Adds the flags that `archive` and `restore` share.

    *writes* is true for `restore`, which writes to the target.
    """
    add_job_arguments(parser)
    add_copying_arguments(parser, writes=writes)
    parser.add_argument(
        "--archive",
        metavar="FOLDER",
        required=True,
        help="archive directory: a path or a Hadoop URI",
    )


def execute(arguments: argparse.Namespace) -> int:
    return run_archive_job(arguments, "archive.export_driver", {})


def run_archive_job(arguments: argparse.Namespace, job: str, more: dict[str, str]) -> int:
    """Runs *job* with the flags' archive and the properties *more*; returns the exit status."""
    progress_format = JobProgressFormat(line=line_of, done=lambda report: (report.done, report.partitions))
    properties = {"archive": arguments.archive, **more}
    return run_job(arguments, job, properties, display_of(progress_format, as_json=arguments.json))


def line_of(report: Any) -> str:
    parts = [
        report.phase.value.lower(),
        f"{report.done}/{report.partitions} partitions",
        f"{report.records:,} records",
        f"{report.bytes / 1e6:,.1f} MB",
    ]
    if report.gap_records:
        parts.append(f"{report.gap_records:,} offsets gone from the source")
    if report.message:
        parts.append(report.message)
    return ", ".join(parts)
