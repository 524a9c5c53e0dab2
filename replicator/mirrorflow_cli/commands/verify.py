"""`mirrorflow verify`: compares both clusters of a flow with Spark on this machine, and repairs what differs.

Without `--repair --yes` it writes to neither cluster. Exit status: 0 every compared window is equal; 1 a window is not equal,
or is undecided; 2 the arguments or the file are invalid; 4 it could not compare; 5 no topic is selected. With `--repair`: 0
nothing differs, or each record that differs is copied; 1 the copied records do not cover all that differs; 6 the plan was shown.
"""

import argparse
import json
import sys
from typing import Any, Final

from mirrorflow_cli.errors import UsageError
from mirrorflow_cli.spark_jobs import (
    JobDisplay,
    JobProgressFormat,
    JsonLines,
    add_job_arguments,
    display_of,
    run_job,
)
from mirrorflow_replicator.http.progress_text import counted

WINDOWS_SHOWN_MAX: Final = 100
EXIT_PLANNED: Final = 6  # that of mirrorflow_seed.errors


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
    parser.add_argument(
        "--until",
        metavar="TIMESTAMP",
        help="with --archive, compare with what it held then, such as 2026-11-22T13:00:00Z",
    )
    parser.add_argument("--ignore-timestamps", action="store_true", help="do not compare timestamps")
    parser.add_argument(
        "--decode-all", action="store_true", help="decode every record, even in byte-identical batches"
    )
    parser.add_argument(
        "--keys",
        action="store_true",
        help="with --out, keep the keys of the first records that differ in the result, as text of at most 200 characters",
    )
    parser.add_argument(
        "--repair",
        action="store_true",
        help="show the records that differ in the result of --out and --run-id, and what would be copied where",
    )
    parser.add_argument(
        "--yes",
        action="store_true",
        help="with --repair, copy these records from the source to quarantine topics of the target",
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
        ("output.keys", arguments.keys),
    ):
        if is_set:
            properties[key] = "true"
    if arguments.repair:
        return _repair(arguments, properties)
    if arguments.yes:
        raise UsageError("--yes confirms a repair; add --repair.")
    job = "verify.verify_driver"
    if arguments.until is not None:
        if arguments.archive is None:
            raise UsageError("--until is a point in time of an archive; add --archive.")
        properties["archive.until"] = arguments.until
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


def _repair(arguments: argparse.Namespace, properties: dict[str, str]) -> int:
    """Runs a repair, and shows its plan before anything is written; returns the exit status."""
    if arguments.archive is not None:
        raise UsageError("--repair copies from the source; leave out --archive, or use mirrorflow restore.")
    if arguments.out is None:
        raise UsageError("--repair reads the result of a verification; name its folder with --out.")
    properties["repair"] = "true"
    if arguments.yes:
        properties["repair.confirmed"] = "true"
    shown = _ShownPlan(JsonLines() if arguments.json else None)
    status = run_job(arguments, "repair.repair_driver", properties, shown)
    if not arguments.json:
        print(shown.message)
        if status == EXIT_PLANNED:
            print("To copy them, add --yes.")
    return status


class _ShownPlan:
    """Shows the progress of a repair on stderr, and its plan on stdout as soon as it is made."""

    def __init__(self, json_lines: JsonLines | None) -> None:
        self.message = ""
        self._is_shown = False
        self._json_lines = json_lines
        self._display: JobDisplay = json_lines or display_of(
            JobProgressFormat(line=repair_line_of, done=lambda report: (report.copied, report.differing)),
            as_json=False,
            stream=sys.stderr,
        )

    def show(self, report: Any) -> None:
        self.message = report.message or self.message
        if report.plan is not None and not self._is_shown:
            self._is_shown = True
            if self._json_lines is not None:
                print(json.dumps({"plan": report.plan.as_json()}), flush=True)
            else:
                print("\n".join(plan_lines(report.plan)), flush=True)
        self._display.show(report)

    def close(self) -> None:
        self._display.close()


def plan_lines(plan: Any) -> list[str]:
    """Returns the plan of a repair: a line for each window that differs, and one for each topic to write."""
    lines = [_window_line(window.as_json()) for window in plan.windows[:WINDOWS_SHOWN_MAX]]
    if (more := len(plan.windows) - WINDOWS_SHOWN_MAX) > 0:
        lines.append(f"and {counted(more, 'window')} more; repair.json has all")
    lines += [_deleted_line(window.as_json()) for window in plan.deleted[:WINDOWS_SHOWN_MAX]]
    if (more := len(plan.deleted) - WINDOWS_SHOWN_MAX) > 0:
        lines.append(f"and {counted(more, 'window')} more that cannot be repaired; repair.json has all")
    for copy, topic in plan.topics.items():
        records = sum(partition.records for partition in plan.partitions if partition.target_topic == copy)
        lines.append(f"{topic}: {counted(records, 'record')} of {copy}")
    return lines


def _window_line(window: dict[str, Any]) -> str:
    kinds = [f"{window[kind]} {kind}" for kind in ("missing", "changed", "moved", "extra") if window[kind]]
    if window["reason"]:
        kinds.append(f"undecided: {window['reason']}")
    keys = "" if window["keyClass"] is None else f" (keys of class {window['keyClass']})"
    offsets = f"{window['fromOffset']} to {window['toOffset']}"
    return f"{window['topic']}-{window['partition']}, offsets {offsets}{keys}: {', '.join(kinds)}"


def _deleted_line(window: dict[str, Any]) -> str:
    begin = window["sourceFromOffset"]
    why = "has no such partition now" if begin is None else f"begins at offset {begin} now"
    offsets = f"{window['fromOffset']} to {window['toOffset']}"
    return f"{window['topic']}-{window['partition']}, offsets {offsets}: cannot be repaired any more, the source {why}"


def repair_line_of(report: Any) -> str:
    """Returns a progress report of a repair as one line of text, without its message."""
    parts = [report.phase.value.lower()]
    if report.plan is not None:
        parts += [
            f"{counted(report.windows, 'window')} not equal",
            f"{report.copied} of {counted(report.differing, 'record')} copied",
        ]
    return ", ".join(parts)


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
