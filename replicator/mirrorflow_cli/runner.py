"""Runs the connectors of a plan on this machine until told to stop, and says how they get on.

All of them in one process (docs/decisions/010-one-process-on-a-laptop.md). One loop in one thread: start it when it is
due, notice that it died, ask for progress, show it. SIGINT or SIGTERM stops in order (SIGTERM to the process, then a grace
period); a second one kills. The process does not outlive the runner (`process`).
"""

import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from mirrorflow_cli.display import Display
from mirrorflow_cli.errors import EXIT_DONE, EXIT_FAILED, EXIT_SIGNAL_BASE
from mirrorflow_cli.files import ProcessFiles
from mirrorflow_cli.process import EXIT_SETTINGS, REPLICATOR, ReplicatorProcess
from mirrorflow_cli.progress import Progress, read_progress
from mirrorflow_cli.verdict import verdict
from mirrorflow_operator.plan.plan import ConnectorPlan

TICK_S = 0.1  # how late a signal, a death or the end of catching up may be noticed
PROGRESS_INTERVAL_S = 1.0
CATCH_UP_INTERVAL_S = 0.25  # a script waits for the answer
GRACE_S = 30.0  # Kubernetes' default; in-flight requests end within the brokers' 30 s
KILLED_WITHIN_S = 10.0  # SIGKILL needs no consent; longer means a process stuck in the kernel
HTTP_LISTENERS: Mapping[str, str] = {"mirrorflow.http.listeners": "http://127.0.0.1:0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How to run. `log` None sends what the replicator logs to stderr. `command` is what gets the files."""

    until_caught_up: bool = False
    log: IO[bytes] | None = None
    command: Sequence[str] = REPLICATOR


class Runner:
    """Keeps *connectors*, the source connector first, running; `run` returns the exit status."""

    def __init__(
        self,
        connectors: Sequence[ConnectorPlan],
        display: Display,
        options: RunOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connectors = tuple(connectors)
        self._display = display
        self._options = options
        self._clock = clock
        self._signals: list[int] = []
        self._asked_at_s = -PROGRESS_INTERVAL_S
        self._shown_at_s = -PROGRESS_INTERVAL_S

    def run(self) -> int:
        """Run until caught up (if asked), a signal, or a setting that no restart heals. Must be in the main thread."""
        before = {
            number: signal.signal(number, self._note)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        try:
            with tempfile.TemporaryDirectory(prefix="mirrorflow-") as folder:
                process = self._prepare(Path(folder))
                try:
                    status = self._loop(process)
                finally:
                    self._stop(process)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return status

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)

    def _prepare(self, folder: Path) -> ReplicatorProcess:
        files = ProcessFiles(folder=folder, connectors=tuple(plan.name for plan in self._connectors))
        # A worker's properties differ between connectors only in where positions are kept, which is the source connector's.
        files.write(
            {**self._connectors[0].worker_properties, **HTTP_LISTENERS},
            {plan.name: plan.connector_properties for plan in self._connectors},
        )
        return ReplicatorProcess(
            files, command=self._options.command, log=self._options.log, clock=self._clock
        )

    def _loop(self, process: ReplicatorProcess) -> int:
        while not self._signals:
            status = process.ended()
            if status is not None:
                self._display.ended(status, process.last_words(), process.restarts_in_s)
                if status == EXIT_SETTINGS:
                    return EXIT_FAILED
            if process.start_if_due():
                self._display.started(process.pid or 0, process.starts)
            done = self._look(process)
            if done is not None:
                return done
            time.sleep(TICK_S)
        return EXIT_SIGNAL_BASE + self._signals[0]

    def _look(self, process: ReplicatorProcess) -> int | None:
        """Ask for progress if it is time; the exit status if there is nothing more to wait for."""
        now_s = self._clock()
        interval_s = CATCH_UP_INTERVAL_S if self._options.until_caught_up else PROGRESS_INTERVAL_S
        if now_s - self._asked_at_s < interval_s:
            return None
        self._asked_at_s = now_s
        seen = self._progress(process)
        over = verdict(seen) if self._options.until_caught_up else None
        if seen is not None and (over is not None or now_s - self._shown_at_s >= PROGRESS_INTERVAL_S):
            self._shown_at_s = now_s
            self._display.progress(seen)
        if over is None:
            return None
        if over.failure:
            self._display.failed(over.failure)
            return EXIT_FAILED
        self._display.caught_up()
        return EXIT_DONE

    def _progress(self, process: ReplicatorProcess) -> Progress | None:
        url = process.files.url() if process.running else None
        return None if url is None else read_progress(url)

    def _stop(self, process: ReplicatorProcess) -> None:
        asked = len(self._signals)
        if process.running:
            self._display.stopping()
        process.signal(signal.SIGTERM)
        self._wait_for_end(process, GRACE_S, lambda: len(self._signals) > asked)
        process.signal(signal.SIGKILL)
        self._wait_for_end(process, KILLED_WITHIN_S, lambda: False)

    def _wait_for_end(
        self, process: ReplicatorProcess, within_s: float, impatient: Callable[[], bool]
    ) -> None:
        deadline_s = self._clock() + within_s
        while self._clock() < deadline_s and not impatient():
            if process.ended() is not None or not process.running:
                return
            time.sleep(TICK_S)
