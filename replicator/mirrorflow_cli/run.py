"""`mirrorflow run`: the connectors of a flow on this machine."""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from mirrorflow_cli.display import Display, PlainDisplay
from mirrorflow_cli.errors import FailedError
from mirrorflow_cli.flows import add_flow_arguments, flow_from, layout_from
from mirrorflow_cli.json_lines import JsonDisplay
from mirrorflow_cli.runner import Runner, RunOptions
from mirrorflow_cli.table import TableDisplay
from mirrorflow_operator.plan.plan import plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `mirrorflow run`."""
    add_flow_arguments(parser, addresses=True)
    parser.add_argument(
        "--until-caught-up",
        action="store_true",
        help="exit 0 when every partition has reached the end offsets seen at start",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line on stdout")
    parser.add_argument(
        "--log", metavar="FILE", help="what the replicator logs (default: a file named at start; - is stderr)"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Run until stopped; the exit status."""
    flow = flow_from(arguments)
    planned = plan(flow, layout_from(arguments))
    with _log(arguments.log, flow.metadata.name) as log:
        for note in planned.notes:
            print(note, file=sys.stderr)
        if log is not None:
            print(f"log: {log.name}", file=sys.stderr, flush=True)
        display = _display(
            as_json=arguments.json, title=f"{flow.spec.source.alias} → {flow.spec.target.alias}"
        )
        options = RunOptions(until_caught_up=arguments.until_caught_up, log=log)
        try:
            return Runner(planned.connectors, display, options).run()
        finally:
            display.close()


def _display(*, as_json: bool, title: str) -> Display:
    if as_json:
        return JsonDisplay()
    return TableDisplay(title) if sys.stdout.isatty() else PlainDisplay()


@contextlib.contextmanager
def _log(name: str | None, flow: str) -> Iterator[IO[bytes] | None]:
    if name == "-":
        yield None
        return
    path = Path(name) if name else _state_folder() / f"{flow}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = path.open("ab", buffering=0)
    except OSError as error:
        raise FailedError(
            f"The log {path} cannot be written: {error.strerror}; choose another with --log."
        ) from error
    with log:
        yield log


def _state_folder() -> Path:
    """Where programs keep logs of a user (XDG Base Directory Specification)."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "mirrorflow"
