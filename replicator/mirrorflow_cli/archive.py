"""`mirrorflow archive`: a flow's topics written to Parquet, by Spark on this machine."""

import argparse
from typing import Any

from mirrorflow_cli.job_display import Telling, display_of
from mirrorflow_cli.jobs import add_copying_arguments, add_job_arguments, run_job


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `mirrorflow archive`."""
    add_archive_arguments(parser, writes=False)


def add_archive_arguments(parser: argparse.ArgumentParser, *, writes: bool) -> None:
    """The flags of both `archive` and `restore`, which *writes* to the target."""
    add_job_arguments(parser)
    add_copying_arguments(parser, writes=writes)
    parser.add_argument(
        "--archive",
        metavar="FOLDER",
        required=True,
        help="its folder: a path, or an address that Spark knows",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Export; the exit status."""
    return run_archive_job(arguments, "archive.exporting", {})


def run_archive_job(arguments: argparse.Namespace, job: str, more: dict[str, str]) -> int:
    """Run *job* with the archive that the flags name, and *more*."""
    telling = Telling(line=line_of, done=lambda report: (report.done, report.partitions))
    properties = {"archive": arguments.archive, **more}
    return run_job(arguments, job, properties, display_of(telling, as_json=arguments.json))


def line_of(report: Any) -> str:
    """A report in words."""
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
