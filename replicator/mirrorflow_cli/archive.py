"""`mirrorflow archive`: a flow's topics written to Parquet, by Spark on this machine."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from mirrorflow_cli.jobs import add_job_arguments, run_job

LINE_EVERY_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `mirrorflow archive`."""
    add_archive_arguments(parser)


def add_archive_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of both `archive` and `restore`."""
    add_job_arguments(parser)
    parser.add_argument(
        "--archive",
        metavar="FOLDER",
        required=True,
        help="its folder: a path, or an address that Spark knows",
    )
    parser.add_argument("--run-id", metavar="ID", default="1", help="what the run is called in reports")
    parser.add_argument("--rate", metavar="BYTES", type=int, help="bytes per second, for the whole job")


def execute(arguments: argparse.Namespace) -> int:
    """Export; the exit status."""
    return run_archive_job(arguments, "archive.exporting", {})


def run_archive_job(arguments: argparse.Namespace, job: str, more: dict[str, str]) -> int:
    """Run *job* with the properties that the flags stand for, and *more*."""
    properties = {"run.id": arguments.run_id, "archive": address_of(arguments.archive), **more}
    if arguments.rate is not None:
        properties["bytes.per.second"] = str(arguments.rate)
    return run_job(arguments, job, properties, _show_json if arguments.json else _Lines().show)


def address_of(folder: str) -> str:
    """A path of this machine as Spark takes it, whatever its default file system is; an address stays."""
    return (
        folder
        if "://" in folder or folder.startswith("file:")
        else Path(folder).expanduser().resolve().as_uri()
    )


def _show_json(report: Any) -> None:
    print(json.dumps(report.as_json()), flush=True)


class _Lines:
    """On a terminal one line that is drawn anew; else a line every few seconds, and one for each new phase."""

    def __init__(self) -> None:
        self._phase = ""
        self._shown_s = 0.0
        self._is_terminal = sys.stdout.isatty()

    def show(self, report: Any) -> None:
        now_s, phase = time.monotonic(), report.phase.value
        is_new = phase != self._phase
        if self._is_terminal:
            print(f"\r\x1b[K{line_of(report)}", end="\n" if report.message else "", flush=True)
        elif is_new or now_s - self._shown_s >= LINE_EVERY_S:
            self._shown_s = now_s
            print(line_of(report), flush=True)
        self._phase = phase


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
