"""Spark jobs on this machine, for `seed`, `archive` and `restore`: the files of the source connector, the job's settings, its errors.

mirrorflow_seed, and pyspark with it, is loaded when a job starts: the rest of the command does without.
"""

import argparse
import importlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mirrorflow_cli.errors import EXIT_SIGNAL_BASE, EXIT_USAGE, FailedError, UsageError
from mirrorflow_cli.files import ProcessFiles
from mirrorflow_cli.flows import add_flow_arguments, flow_from, layout_from
from mirrorflow_operator.plan.plan import plan

STOPPED = EXIT_SIGNAL_BASE + 2


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of every job."""
    add_flow_arguments(parser, addresses=True)
    parser.add_argument(
        "--cores", type=int, metavar="N", help="tasks at once (default: as many as this machine has)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line on stdout")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="one property of the job (docs/seeding.md)",
    )


def run_job(
    arguments: argparse.Namespace, job: str, properties: dict[str, str], display: Callable[[Any], None]
) -> int:
    """Run *job*, the module of mirrorflow_seed that has its `run`, until it ends; the exit status.

    *display* is given each report. Raises UsageError, FailedError, and the replicator's errors.
    """
    from mirrorflow_seed import errors, settings  # noqa: PLC0415 see the module

    given = dict(properties)
    for pair in arguments.set:
        key, found, value = pair.partition("=")
        if not found:
            raise UsageError(f"--set {pair} is not KEY=VALUE.")
        given[key] = value
    given.setdefault("master", f"local[{arguments.cores or '*'}]")
    source = plan(flow_from(arguments), layout_from(arguments)).connectors[0]
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
            status = int(command.run(flow_files, settings.job_of(given), display=display))
        except errors.SeedError as error:
            kind = UsageError if error.status == EXIT_USAGE else FailedError
            raise kind(str(error)) from error
    return STOPPED if status == errors.EXIT_STOPPED else status
