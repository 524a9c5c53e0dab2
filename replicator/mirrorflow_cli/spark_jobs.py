"""Runs the Spark jobs of `seed`, `archive`, `restore` and `verify`, on this machine by default, and shows their progress.

It writes the source connector's files, passes the job's settings and maps its errors. mirrorflow_seed, and
pyspark with it, is imported only when a job starts: other commands run without it. Progress is a bar on a
terminal, otherwise a line every few seconds, or JSON.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TextIO

from mirrorflow_cli.errors import EXIT_SIGNAL_BASE, EXIT_USAGE, FailedError, UsageError
from mirrorflow_cli.flow_arguments import flow_from, layout_from, valid_plan
from mirrorflow_cli.flow_flags import add_flow_arguments
from mirrorflow_cli.output import add_json_lines_argument, is_live_terminal
from mirrorflow_cli.run_process import ProcessFiles
from mirrorflow_cli.running_jobs import registered_job
from mirrorflow_core.errors import MirrorFlowError, SettingError
from mirrorflow_core.java.properties import read_size_bytes
from mirrorflow_operator.plan.properties import Plan
from mirrorflow_replicator.process import importing

LINE_EVERY_S: Final = 5.0  # seconds between lines, where the output is no terminal
STOPPED = EXIT_SIGNAL_BASE + 2


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgressFormat:
    """How one kind of report is shown.

    *line* returns its text; *done* returns (done, total), with total 0 while it is unknown.
    """

    line: Callable[[Any], str]
    done: Callable[[Any], tuple[float, float]]


class JobDisplay(Protocol):
    """Receives every report of a job."""

    def show(self, report: Any) -> None:
        """Shows *report*, the newest."""

    def close(self) -> None:
        """The job is over: no other report follows."""


def display_of(
    progress_format: JobProgressFormat, *, as_json: bool, stream: TextIO | None = None
) -> JobDisplay:
    """Returns the display that fits *stream* (default: stdout); JSON always goes to stdout."""
    if as_json:
        return JsonLines()
    shown_on = sys.stdout if stream is None else stream
    return (
        BarDisplay(progress_format, shown_on)
        if is_live_terminal(shown_on)
        else LineDisplay(progress_format, shown_on)
    )


class JsonLines:
    """Prints each report as one JSON object per line."""

    def show(self, report: Any) -> None:
        print(json.dumps(report.as_json()), flush=True)

    def close(self) -> None:
        """Does nothing: no output is held back."""


class LineDisplay:
    """Prints a line every few seconds, and one for each new phase."""

    def __init__(
        self,
        progress_format: JobProgressFormat,
        stream: TextIO,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._format = progress_format
        self._stream = stream
        self._clock = clock
        self._phase = ""
        self._shown_s = 0.0

    def show(self, report: Any) -> None:
        now_s = self._clock()
        if report.phase.value != self._phase or now_s - self._shown_s >= LINE_EVERY_S:
            self._phase, self._shown_s = report.phase.value, now_s
            print(self._format.line(report), file=self._stream, flush=True)

    def close(self) -> None:
        """Does nothing: no output is held back."""


class BarDisplay:
    """Redraws a progress bar in place."""

    def __init__(self, progress_format: JobProgressFormat, stream: TextIO) -> None:
        from rich.console import Console  # noqa: PLC0415  only a terminal needs it
        from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415

        self._format = progress_format
        self._progress = Progress(
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%  {task.description}", markup=False),
            console=Console(file=stream),
        )
        self._bar = self._progress.add_task("preparing", total=None)
        self._progress.start()

    def show(self, report: Any) -> None:
        done, total = self._format.done(report)
        self._progress.update(
            self._bar, description=self._format.line(report), total=total or None, completed=done
        )

    def close(self) -> None:
        self._progress.stop()


def add_job_arguments(parser: argparse.ArgumentParser, *, run_id: str = "name of the run in reports") -> None:
    """Adds the flags of every job; *run_id* is the help text for the run's name."""
    add_flow_arguments(parser, addresses=True)
    parser.add_argument("--run-id", metavar="ID", default="1", help=f"{run_id} (default: 1)")
    parser.add_argument(
        "--cores",
        type=_cores,
        metavar="N",
        help="maximum number of parallel tasks on this machine (default: one for each core)",
    )
    add_json_lines_argument(parser, lambda sentences: {"phase": "Failed", "message": sentences})
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="property of the job (docs/seeding.md); repeatable",
    )


def add_copying_arguments(parser: argparse.ArgumentParser, *, writes: bool = True) -> None:
    """Adds the flags of jobs that copy.

    *writes*: the job writes to the target, where other producers may have written before.
    """
    parser.add_argument(
        "--rate",
        metavar="BYTES",
        type=_rate,
        help="bytes per second for the whole job, for example 50000000 or 50Mi",
    )
    if writes:
        parser.add_argument(
            "--foreign-records",
            choices=("refuse", "accept"),
            default="refuse",
            help="how to handle target topics with foreign records (default: refuse)",
        )


def _cores(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of cores; write 1 or more")
    return int(text)


def _rate(text: str) -> int:
    rate = read_size_bytes(text)
    if rate is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes; write for example 50Mi")
    return rate


def run_job(
    arguments: argparse.Namespace,
    job: str,
    properties: dict[str, str],
    display: JobDisplay,
    *,
    flow_properties: Callable[[Plan], dict[str, str]] = lambda _: {},
) -> int:
    """Runs *job*, a module of mirrorflow_seed with a `run` function, until it ends; returns the exit status.

    *properties* are the job's own, besides those of the flags above; *flow_properties* returns those that the flow has,
    which the others override. *display* receives each report and is closed. Raises UsageError, FailedError,
    SettingError.
    """
    try:
        return _run(arguments, job, properties, display, flow_properties)
    finally:
        display.close()


def _run(
    arguments: argparse.Namespace,
    job: str,
    properties: dict[str, str],
    display: JobDisplay,
    flow_properties: Callable[[Plan], dict[str, str]],
) -> int:
    with importing():
        from mirrorflow_seed import errors, settings  # noqa: PLC0415  imported only when a job starts
        from mirrorflow_seed.spark_session import imported_job  # noqa: PLC0415

    plan = valid_plan(flow_from(arguments), layout_from(arguments))
    given = flow_properties(plan) | _flag_properties(arguments) | properties
    for pair in arguments.set:
        key, separator, value = pair.partition("=")
        if not separator:
            raise UsageError(f"--set {pair} is not KEY=VALUE.")
        given[key] = value
    if arguments.cores:
        given.setdefault("master", f"local[{arguments.cores}]")
    source = plan.connectors[0]
    with tempfile.TemporaryDirectory(prefix="mirrorflow-") as folder:
        files = ProcessFiles(folder=Path(folder), connectors=(source.name,))
        files.write(source.worker_properties, {source.name: source.connector_properties})
        try:
            command = imported_job(job)
            flow_files = settings.FlowFiles(
                worker=str(files.worker), source=str(files.connector(source.name))
            )
            with registered_job(plan.flow) as registration:

                def show(report: Any) -> None:
                    registration.write(report)
                    display.show(report)

                status = int(command.run(flow_files, settings.job_of(given), display=show))
        except errors.SeedError as error:
            if error.status == EXIT_USAGE:
                raise UsageError(str(error)) from error
            raise FailedError(str(error), status=error.status) from error
        except SettingError:
            raise
        except MirrorFlowError as error:
            raise FailedError(str(error), status=errors.EXIT_FAILED) from error
    return STOPPED if status == errors.EXIT_STOPPED else status


def _flag_properties(arguments: argparse.Namespace) -> dict[str, str]:
    """Returns the properties for flags that several jobs have."""
    given = {"run.id": arguments.run_id}
    if getattr(arguments, "rate", None) is not None:
        given["bytes.per.second"] = str(arguments.rate)
    if hasattr(arguments, "foreign_records"):
        given["foreign.records"] = arguments.foreign_records
    return given
