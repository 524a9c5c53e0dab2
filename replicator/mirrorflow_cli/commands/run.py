"""`mirrorflow run`: runs the connectors of a flow on this machine."""

import argparse
import math
import sys
from pathlib import Path

from mirrorflow_cli.errors import UsageError
from mirrorflow_cli.flow_plans import valid_plan
from mirrorflow_cli.flows import add_flow_arguments, flow_from, layout_from
from mirrorflow_cli.run_display import Display, JsonDisplay, PlainDisplay, TableDisplay
from mirrorflow_cli.run_process import LogFile
from mirrorflow_cli.runner import Runner, RunOptions
from mirrorflow_cli.running_flows import state_folder
from mirrorflow_replicator.process.log_setup import FORMAT_VARIABLE, FORMATS, LEVEL_VARIABLE, NUMBERS

PORT_MAX = 65_535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `mirrorflow run`."""
    add_flow_arguments(parser, addresses=True)
    parser.add_argument(
        "--until-caught-up",
        action="store_true",
        help="exit 0 when every partition has reached the end offsets seen at start",
    )
    parser.add_argument(
        "--time-limit",
        metavar="SECONDS",
        type=positive,
        help="with --until-caught-up: exit 1 when it takes longer (default: no limit)",
    )
    parser.add_argument(
        "--http-port",
        metavar="PORT",
        type=port,
        default=0,
        help="of /progress, /metrics and Connect's REST API on 127.0.0.1 (default: any that is free)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line on stdout")
    parser.add_argument(
        "--log", metavar="FILE", help="what the replicator logs (default: a file named at start; - is stderr)"
    )
    parser.add_argument(
        "--log-level",
        metavar="LEVEL",
        type=str.upper,
        choices=[*NUMBERS],
        help=f"{', '.join(NUMBERS)} (default: INFO)",
    )
    parser.add_argument("--log-format", choices=FORMATS, help="of the log (default: text)")


def execute(arguments: argparse.Namespace) -> int:
    """Runs until stopped and returns the exit status."""
    if arguments.time_limit is not None and not arguments.until_caught_up:
        raise UsageError("--time-limit is of --until-caught-up: give both, or neither.")
    flow = flow_from(arguments)
    planned = valid_plan(flow, layout_from(arguments))
    log = _log(arguments.log, flow.metadata.name)
    for note in planned.notes:
        print(note, file=sys.stderr)
    if log is not None:
        print(f"log: {log.path}", file=sys.stderr, flush=True)
    display = _display(as_json=arguments.json, title=f"{flow.spec.source.alias} → {flow.spec.target.alias}")
    options = RunOptions(
        until_caught_up=arguments.until_caught_up,
        time_limit_s=arguments.time_limit,
        http_port=arguments.http_port,
        name=flow.metadata.name,
        log=log,
        environment=_log_environment(arguments),
    )
    try:
        return Runner(planned.connectors, display, options).run()
    finally:
        display.close()
        if log is not None:
            log.close()


def _log_environment(arguments: argparse.Namespace) -> dict[str, str]:
    given = {LEVEL_VARIABLE: arguments.log_level, FORMAT_VARIABLE: arguments.log_format}
    return {name: value for name, value in given.items() if value}


def positive(text: str) -> float:
    """Parses a number of seconds above 0. Raises argparse.ArgumentTypeError."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return seconds


def port(text: str) -> int:
    """Parses a TCP port. Raises argparse.ArgumentTypeError."""
    if not text.isdecimal() or not 0 < int(text) <= PORT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: 1 to {PORT_MAX}")
    return int(text)


def _display(*, as_json: bool, title: str) -> Display:
    if as_json:
        return JsonDisplay()
    return TableDisplay(title) if sys.stdout.isatty() else PlainDisplay()


def _log(name: str | None, flow: str) -> LogFile | None:
    if name == "-":
        return None
    return LogFile(Path(name) if name else state_folder() / f"{flow}.log")
