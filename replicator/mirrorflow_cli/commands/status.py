"""`mirrorflow status`: prints the flows that run on this machine for this user, and their progress."""

import argparse
import time
from collections.abc import Sequence
from typing import Any

from mirrorflow_cli.errors import EXIT_DONE, FailedError
from mirrorflow_cli.output import add_json_argument, print_json, print_table
from mirrorflow_cli.run_causes import causes, notes
from mirrorflow_cli.run_process import RunningFlow, running_flows
from mirrorflow_cli.run_progress import Progress
from mirrorflow_replicator.http.progress_text import lag_text, reasons, state_of

COLUMNS = (
    "flow",
    "state",
    "partitions",
    "lag",
    "records/s",
    "copied",
    "running for",
    "run pid",
    "replicator pid",
    "address",
)
DISPENSABLE = ("address", "copied", "run pid", "records/s")  # where a terminal is narrow


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("flow", metavar="FLOW", nargs="?", help="flow name (default: all flows)")
    add_json_argument(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Prints the flows. Raises FailedError if the named flow does not run here."""
    flows = [running_flow for running_flow in running_flows() if arguments.flow in (None, running_flow.name)]
    if arguments.flow is not None and not flows:
        raise FailedError(
            f"No flow {arguments.flow} runs on this machine for this user; `mirrorflow status` lists those that do."
        )
    running = [(flow, flow.progress()) for flow in flows]
    if arguments.json:
        print_json({"flows": [_as_json(flow, progress) for flow, progress in running]})
        return EXIT_DONE
    if not running:
        print("No flow runs on this machine for this user; `mirrorflow run` starts one.")
        return EXIT_DONE
    now_ms = time.time_ns() // 1_000_000
    rows = [_row(flow, progress, now_ms) for flow, progress in running]
    print_table(COLUMNS, rows, dispensable=DISPENSABLE)
    for flow, progress in running:
        for sentence in problems(flow, progress):
            print(f"{flow.name}: {sentence}")
    return EXIT_DONE


def problems(flow: RunningFlow, progress: Progress | None) -> list[str]:
    """Returns why records are not copied, and the warnings of all connectors."""
    if progress is None:
        return [*flow.problems]
    return [*(cause.line for cause in causes(progress)), *notes(progress)]


def _row(flow: RunningFlow, progress: Progress | None, now_ms: int) -> Sequence[str]:
    age = f"{max(0, now_ms - flow.began_ms) // 1000}s"
    process = (age, str(flow.pid or "-"), str(flow.replicator_pid or "-"), flow.url or "-")
    if progress is None:
        return (flow.name, "starting" if flow.problems else "not answering", "?", "?", "?", "?", *process)
    summary = progress.summary
    return (
        flow.name,
        "waiting" if progress.is_standby else ", ".join((state_of(summary), *reasons(summary))),
        str(progress.partitions_total),
        lag_text(summary),
        f"{summary.get('recordsPerSecond', 0):,.0f}",
        f"{summary.get('records', 0):,}",
        *process,
    )


def _as_json(flow: RunningFlow, progress: Progress | None) -> dict[str, Any]:
    """Returns a flow's JSON object; `progress` is the summary of `/progress`, null without a response."""
    return {
        "flow": flow.name,
        "pid": flow.pid,
        "replicatorPid": flow.replicator_pid,
        "beganMs": flow.began_ms,
        "url": flow.url,
        "progress": None if progress is None else dict(progress.summary),
        "problems": problems(flow, progress),
    }
