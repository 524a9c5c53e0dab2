"""Starts the runner as a process, with `replicator_stub.py` in place of the replicator.

The process is forked from a server that has imported this module, because the import takes a third of a second.
"""

import multiprocessing
import os
import sys
from collections.abc import Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from mirrorflow_cli import flow_runner
from mirrorflow_cli.flow_runner import Runner, RunOptions
from mirrorflow_cli.run_display import JsonDisplay
from mirrorflow_cli.run_process import LogFile
from mirrorflow_operator.api.workloads import ConnectorKind
from mirrorflow_operator.plan.properties import ConnectorPlan

STUB = Path(__file__).with_name("replicator_stub.py")
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload([__name__])
PLANS = [
    ConnectorPlan(
        name=kind.value,
        kind=kind,
        worker_properties={"bootstrap.servers": "a:1"},
        connector_properties=properties,
    )
    for kind, properties in (
        (ConnectorKind.SOURCE, {"x": "${dir:/a:b}"}),
        (ConnectorKind.HEARTBEAT, {"y": "1"}),
    )
]


def start(
    folder: Path, mode: str, *, until: bool, time_limit_s: float | None, environment: Mapping[str, str]
) -> ForkServerProcess:
    """Starts a runner.

    *folder* becomes the `TMPDIR` of the runner and contains its output in the files `out` and `err`.
    """
    environment = {**os.environ, "TMPDIR": str(folder), **environment}
    for name in ("out", "err"):
        (folder / name).touch()
    process = SERVER.Process(target=_run, args=(folder, mode, until, time_limit_s, environment))
    process.start()
    return process


def _run(
    folder: Path,
    mode: str,
    until: bool,  # noqa: FBT001 a process takes its arguments by position
    time_limit_s: float | None,
    environment: Mapping[str, str],
) -> None:
    os.environ.update(environment)
    for stream, name in ((sys.stdout, "out"), (sys.stderr, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY), stream.fileno())
    flow_runner.HEALS_WITHIN_S = 1.0
    options = RunOptions(
        until_caught_up=until,
        time_limit_s=time_limit_s,
        log=LogFile(folder / "log"),
        command=(sys.executable, str(STUB), mode),
    )
    sys.exit(Runner(PLANS, JsonDisplay(), options).run())
