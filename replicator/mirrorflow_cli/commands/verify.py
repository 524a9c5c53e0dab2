"""`mirrorflow verify`: compares both clusters of a flow with Spark on this machine.

It writes to neither cluster. Exit status: 0 every compared window is equal; 1 a window is not equal, or is
undecided; 2 the arguments or the file are invalid; 4 it could not compare; 5 no topic is selected.
"""

import argparse
import sys
from typing import Any

from mirrorflow_cli.spark_jobs import JobProgressFormat, JsonLines, add_job_arguments, display_of, run_job
from mirrorflow_replicator.http.progress_text import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job_arguments(parser, run_id="name of the run; it decides which windows a sample contains")
    parser.add_argument(
        "--sample", metavar="SHARE", help="fraction of windows to compare, for example 0.1 (default: 1)"
    )
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        help="write the table of windows (Parquet), verification.json and report.html below it",
    )
    parser.add_argument(
        "--archive", metavar="FOLDER", help="compare the target with this archive instead of the source"
    )
    parser.add_argument("--ignore-timestamps", action="store_true", help="do not compare timestamps")
    parser.add_argument(
        "--decode-all", action="store_true", help="decode every record, even in byte-identical batches"
    )


def execute(arguments: argparse.Namespace) -> int:
    properties = {}
    if arguments.sample is not None:
        properties["sample"] = arguments.sample
    if arguments.out is not None:
        properties["output"] = arguments.out
    for key, is_set in (
        ("ignore.timestamps", arguments.ignore_timestamps),
        ("decode.all", arguments.decode_all),
    ):
        if is_set:
            properties[key] = "true"
    job = "verify.verify_driver"
    if arguments.archive is not None:
        job, properties["archive"] = "archive.archive_verification", arguments.archive
    if arguments.json:
        return run_job(arguments, job, properties, JsonLines())
    verdict = _Verdict()
    status = run_job(arguments, job, properties, verdict)
    print(verdict.message)
    if arguments.out is not None:
        from mirrorflow_seed.verify.result_folder import output_folder  # noqa: PLC0415 the extra `seed`

        print(f"Result: {output_folder(properties['output'], arguments.run_id)}")
    return status


class _Verdict:
    """Shows progress on stderr and keeps the last message for stdout."""

    def __init__(self) -> None:
        self.message = ""
        self._display = display_of(
            JobProgressFormat(line=line_of, done=lambda report: (_compared(report), report.windows.total)),
            as_json=False,
            stream=sys.stderr,
        )

    def show(self, report: Any) -> None:
        self.message = report.message or self.message
        self._display.show(report)

    def close(self) -> None:
        self._display.close()


def _compared(report: Any) -> int:
    windows = report.windows
    return int(windows.equal + windows.reordered + windows.different + windows.undecided)


def line_of(report: Any) -> str:
    """Returns a progress report as one line of text, without its message."""
    windows = report.windows
    counts = {name: getattr(windows, name) for name in ("different", "reordered", "undecided")}
    return ", ".join(
        [
            report.phase.value.lower(),
            f"{_compared(report)} of {counted(windows.total, 'window')}",
            *(f"{count} {name}" for name, count in counts.items() if count),
            f"{report.source_records:,} + {report.target_records:,} records",
        ]
    )
