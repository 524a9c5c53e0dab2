"""`mirrorflow run`: runs the connectors of a flow on this machine until they are stopped, and shows their progress.

The replicator starts first, and the flow is read meanwhile: this module therefore imports little.
"""

import argparse
import math
from contextlib import nullcontext

from mirrorflow_cli.errors import UsageError
from mirrorflow_cli.flow_flags import add_flow_arguments
from mirrorflow_cli.output import add_json_lines_argument
from mirrorflow_cli.prepared_replicator import PreparedReplicator
from mirrorflow_replicator.logs import FORMAT_VARIABLE, FORMATS, LEVEL_VARIABLE, NUMBERS
from mirrorflow_replicator.process import importing

PORT_MAX = 65_535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flow_arguments(parser, addresses=True)
    parser.add_argument(
        "--until-caught-up",
        action="store_true",
        help="exit 0 when every partition has reached the end offsets seen at start",
    )
    parser.add_argument(
        "--time-limit",
        metavar="SECONDS",
        type=seconds_above_zero,
        help="with --until-caught-up: exit 1 after SECONDS (default: no limit)",
    )
    parser.add_argument(
        "--http-port",
        metavar="PORT",
        type=tcp_port,
        default=0,
        help="port for /progress, /metrics and Connect's REST API on 127.0.0.1 (default: a free port)",
    )
    add_json_lines_argument(parser, lambda sentences: {"event": "failed", "message": sentences})
    parser.add_argument(
        "--log",
        metavar="FILE",
        help='log file (default: generated; its path is printed at start; "-" for stderr)',
    )
    parser.add_argument(
        "--log-level",
        metavar="LEVEL",
        type=str.upper,
        choices=[*NUMBERS],
        help=f"{', '.join(NUMBERS)} (default: INFO)",
    )
    parser.add_argument("--log-format", choices=FORMATS, help="log format (default: text)")


def execute(arguments: argparse.Namespace) -> int:
    if arguments.time_limit is not None and not arguments.until_caught_up:
        raise UsageError("--time-limit requires --until-caught-up.")
    environment = _log_environment(arguments)
    # Another program that calls this command is not forked, and gets a process only for a valid flow.
    starting = PreparedReplicator(environment) if arguments.is_own_process else nullcontext()
    with starting as prepared:
        with importing():
            from mirrorflow_cli.flow_runner import run_flow  # noqa: PLC0415 while the replicator imports its modules

        return run_flow(arguments, environment, prepared)


def _log_environment(arguments: argparse.Namespace) -> dict[str, str]:
    given = {LEVEL_VARIABLE: arguments.log_level, FORMAT_VARIABLE: arguments.log_format}
    return {name: value for name, value in given.items() if value}


def seconds_above_zero(text: str) -> float:
    """Parses a number of seconds above 0. Raises argparse.ArgumentTypeError."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def tcp_port(text: str) -> int:
    """Parses a TCP port. Raises argparse.ArgumentTypeError."""
    if not text.isdecimal() or not 0 < int(text) <= PORT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 1 to {PORT_MAX}")
    return int(text)
