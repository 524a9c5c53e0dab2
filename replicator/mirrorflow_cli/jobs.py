"""Runs the Spark jobs of `seed`, `archive`, `restore` and `verify` on this machine.

It writes the source connector's files, passes the job's settings and maps its errors. mirrorflow_seed, and
pyspark with it, is imported only when a job starts: other commands run without it.
"""

import argparse
import importlib
import tempfile
from pathlib import Path

from mirrorflow_cli.errors import EXIT_SIGNAL_BASE, EXIT_USAGE, FailedError, UsageError
from mirrorflow_cli.files import ProcessFiles
from mirrorflow_cli.flow_plans import valid_plan
from mirrorflow_cli.flows import add_flow_arguments, flow_from, layout_from
from mirrorflow_cli.job_display import JobDisplay
from mirrorflow_core.java.property_reader import read_size_bytes

STOPPED = EXIT_SIGNAL_BASE + 2


def add_job_arguments(
    parser: argparse.ArgumentParser, *, run_id: str = "what the run is called in reports"
) -> None:
    """Adds the flags of every job; *run_id* is the help text for the run's name."""
    add_flow_arguments(parser, addresses=True)
    parser.add_argument("--run-id", metavar="ID", default="1", help=f"{run_id} (default: 1)")
    parser.add_argument(
        "--cores", type=_cores, metavar="N", help="tasks at once (default: as many as this machine has)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line on stdout")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="one property of the job (docs/seeding.md)",
    )


def add_copying_arguments(parser: argparse.ArgumentParser, *, writes: bool = True) -> None:
    """Adds the flags of jobs that copy.

    *writes*: the job writes to the target, where other producers may have written before.
    """
    parser.add_argument(
        "--rate", metavar="BYTES", type=_rate, help="bytes per second, for the whole job: 50000000, 50Mi"
    )
    if writes:
        parser.add_argument(
            "--foreign-records",
            choices=("refuse", "accept"),
            default="refuse",
            help="target topics that hold records of others (default: refuse)",
        )


def _cores(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of cores; write 1 or more")
    return int(text)


def _rate(text: str) -> int:
    rate = read_size_bytes(text)
    if rate is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes; write for example 50Mi")
    return rate


def run_job(arguments: argparse.Namespace, job: str, properties: dict[str, str], display: JobDisplay) -> int:
    """Runs *job*, a module of mirrorflow_seed with a `run` function, until it ends; returns the exit status.

    *properties* are the job's own, besides those of the flags above. *display* receives each report and is
    closed. Raises UsageError, FailedError, and the replicator's errors.
    """
    try:
        return _run(arguments, job, properties, display)
    finally:
        display.close()


def _run(arguments: argparse.Namespace, job: str, properties: dict[str, str], display: JobDisplay) -> int:
    from mirrorflow_seed import errors, settings  # noqa: PLC0415 see the module

    given = _facts_of_flow(arguments) | properties
    for pair in arguments.set:
        key, found, value = pair.partition("=")
        if not found:
            raise UsageError(f"--set {pair} is not KEY=VALUE.")
        given[key] = value
    given.setdefault("master", f"local[{arguments.cores or '*'}]")
    source = valid_plan(flow_from(arguments), layout_from(arguments)).connectors[0]
    with tempfile.TemporaryDirectory(prefix="mirrorflow-") as folder:
        files = ProcessFiles(folder=Path(folder), connectors=(source.name,))
        files.write(source.worker_properties, {source.name: source.connector_properties})
        try:
            from mirrorflow_seed.session import require_spark  # noqa: PLC0415

            require_spark()
            command = importlib.import_module(f"mirrorflow_seed.{job}")
            flow_files = settings.FlowFiles(
                worker=str(files.worker), source=str(files.connector(source.name))
            )
            status = int(command.run(flow_files, settings.job_of(given), display=display.show))
        except errors.SeedError as error:
            kind = UsageError if error.status == EXIT_USAGE else FailedError
            raise kind(str(error)) from error
    return STOPPED if status == errors.EXIT_STOPPED else status


def _facts_of_flow(arguments: argparse.Namespace) -> dict[str, str]:
    """Returns the properties for flags that several jobs have."""
    given = {"run.id": arguments.run_id}
    if getattr(arguments, "rate", None) is not None:
        given["bytes.per.second"] = str(arguments.rate)
    if hasattr(arguments, "foreign_records"):
        given["foreign.records"] = arguments.foreign_records
    return given
