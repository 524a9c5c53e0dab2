"""`mirrorflow seed`: fill the target with what the source has, by Spark on this machine."""

import argparse
import json
import sys
import time
from typing import Any

from mirrorflow_cli.jobs import add_job_arguments, run_job

LINE_EVERY_S = 5.0  # where nobody redraws


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `mirrorflow seed`."""
    add_job_arguments(parser)
    parser.add_argument("--run-id", metavar="ID", default="1", help="what the run is called in reports")
    parser.add_argument("--rate", metavar="BYTES", type=int, help="bytes per second, for the whole job")
    parser.add_argument(
        "--foreign-records",
        choices=("refuse", "accept"),
        default="refuse",
        help="target topics that hold records of others (default: refuse)",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Run until the target has caught up; the exit status."""
    properties = {"run.id": arguments.run_id, "foreign.records": arguments.foreign_records}
    if arguments.rate is not None:
        properties["bytes.per.second"] = str(arguments.rate)
    display = _JsonLines() if arguments.json else _Bar() if sys.stdout.isatty() else _Lines()
    try:
        return run_job(arguments, "seed.command", properties, display.show)
    finally:
        display.close()


class _JsonLines:
    def show(self, report: Any) -> None:
        print(json.dumps(report.as_json()), flush=True)

    def close(self) -> None:
        """Nothing is held back."""


class _Lines:
    """A line every few seconds, and one for each new phase."""

    def __init__(self) -> None:
        self._phase = ""
        self._shown_s = 0.0

    def show(self, report: Any) -> None:
        now_s = time.monotonic()
        if report.phase.value != self._phase or now_s - self._shown_s >= LINE_EVERY_S:
            self._phase, self._shown_s = report.phase.value, now_s
            print(line_of(report), flush=True)

    def close(self) -> None:
        """Nothing is held back."""


class _Bar:
    """A bar over all records, redrawn in place."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415 for a terminal alone

        self._progress = Progress(BarColumn(), TextColumn("{task.percentage:>3.0f}%  {task.description}"))
        self._bar = self._progress.add_task("preparing", total=None)
        self._progress.start()

    def show(self, report: Any) -> None:
        total = report.records + report.remaining_records
        self._progress.update(
            self._bar, description=line_of(report), total=total or None, completed=report.records
        )

    def close(self) -> None:
        self._progress.stop()


def line_of(report: Any) -> str:
    """A report in words."""
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
