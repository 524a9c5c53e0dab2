"""`mirrorflow archive`: appends a flow's topics to an archive of Parquet files, with Spark on this machine."""

import argparse
import math
from typing import Any

from mirrorflow_cli.spark_jobs import (
    JobProgressFormat,
    add_copying_arguments,
    add_job_arguments,
    display_of,
    run_job,
)
from mirrorflow_operator.api.workloads import ConnectorKind
from mirrorflow_operator.plan.properties import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_archive_arguments(parser, writes=False)
    parser.add_argument(
        "--follow", action="store_true", help="add what is new to the archive again and again, until Ctrl-C"
    )
    parser.add_argument(
        "--interval",
        metavar="SECONDS",
        type=_seconds,
        help="with --follow, time between the starts of two increments (default: 60)",
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.001 <= seconds <= 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; write a number of seconds")
    return seconds


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
        help="archive directory: a path, or an address such as s3://bucket/folder",
    )
    parser.add_argument(
        "--no-groups", action="store_true", help="leave the offsets of the flow's consumer groups alone"
    )


def execute(arguments: argparse.Namespace) -> int:
    more = {"archive.follow": "true"} if arguments.follow else {}
    if arguments.interval is not None:
        more["archive.interval.ms"] = f"{arguments.interval * 1000:g}"
    return run_archive_job(arguments, "archive.export_driver", more)


def run_archive_job(arguments: argparse.Namespace, job: str, more: dict[str, str]) -> int:
    """Runs *job* with the flags' archive and the properties *more*; returns the exit status."""
    progress_format = JobProgressFormat(line=line_of, done=lambda report: (report.done, report.partitions))
    properties = {"archive": arguments.archive, **more}
    if arguments.no_groups:
        properties["archive.groups"] = ""
    display = display_of(progress_format, as_json=arguments.json)
    return run_job(arguments, job, properties, display, flow_properties=group_properties)


def group_properties(plan: Plan) -> dict[str, str]:
    """Returns the groups whose offsets the flow translates, as properties of the job; none without a checkpoint connector."""
    for connector in plan.connectors:
        properties = connector.connector_properties
        if connector.kind is ConnectorKind.CHECKPOINT and properties.get("enabled", "true").lower() == "true":
            return {
                "archive.groups": properties["groups"],
                "archive.groups.exclude": properties["groups.exclude"],
            }
    return {"archive.groups": ""}


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
