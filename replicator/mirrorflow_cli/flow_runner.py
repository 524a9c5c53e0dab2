"""Runs the connectors of a flow in one replicator until they are stopped, and shows their progress.

All connectors run in one process (docs/decisions/010-one-process-on-a-laptop.md). One loop in one thread
starts the process when it is due, detects its end, polls progress and shows it. SIGINT or SIGTERM stops it
gracefully (SIGTERM to the process, then a grace period); a second signal kills it. The process does not outlive
the runner (`run_process`).

For `run --until-caught-up`, progress alone decides whether the run is over and has succeeded. Only records
count: checkpoints and heartbeats never end, so neither they nor their errors matter. A run does not succeed
while a topic of the flow is not copied, and does not fail while any partition can still catch up.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import field
from pathlib import Path
from types import FrameType

from mirrorflow_cli.errors import EXIT_DONE, EXIT_FAILED, EXIT_SIGNAL_BASE, EXIT_USAGE
from mirrorflow_cli.flow_arguments import flow_from, layout_from, valid_plan
from mirrorflow_cli.output import is_live_terminal
from mirrorflow_cli.prepared_replicator import PreparedReplicator
from mirrorflow_cli.run_causes import causes
from mirrorflow_cli.run_display import Display, JsonDisplay, PlainDisplay
from mirrorflow_cli.run_process import (
    EXIT_SETTINGS,
    REPLICATOR,
    LogFile,
    ProcessFiles,
    ReplicatorProcess,
    log_of_flow,
    registered,
)
from mirrorflow_cli.run_progress import Progress, line_of, read_progress
from mirrorflow_core.errors import (
    ClusterChangedError,
    FlowExistsError,
    InvalidSettingError,
    RefusedSettingError,
    SameClusterError,
    UnsupportedBrokerError,
)
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_operator.plan.properties import ConnectorPlan
from mirrorflow_replicator.http.progress_text import counted

TICK_S = 0.1  # largest delay in noticing a signal, the process's end or the end of catching up
PROGRESS_INTERVAL_S = 1.0
CATCH_UP_INTERVAL_S = 0.25  # a script waits for the result
GRACE_S = 30.0  # Kubernetes' default; in-flight requests end within the brokers' 30 s
KILLED_WITHIN_S = 10.0  # a process that survives SIGKILL longer is stuck in the kernel
HTTP_LISTENERS = "mirrorflow.http.listeners"
# A blocker may end by itself within this time after it was first reported: a refused creation is tried again after
# 1, 3 and 7 s, and brokers that start do not know all of their topics yet.
HEALS_WITHIN_S = 15.0
# Topics are listed again 2 s after the start, and 2 s later: then `topics` is probably mistyped.
LISTED_AGAIN_WITHIN_S = 5.0
# Reasons that only a user can remove.
_FINAL = frozenset(
    error.reason
    for error in (
        ClusterChangedError,
        FlowExistsError,
        InvalidSettingError,
        RefusedSettingError,
        SameClusterError,
        UnsupportedBrokerError,
    )
)
NOTHING_SELECTED = "nothing selected"


def run_flow(
    arguments: argparse.Namespace, environment: Mapping[str, str], prepared: PreparedReplicator | None
) -> int:
    """Runs the flow of *arguments*, first in *prepared*; returns the exit status. *environment*: more variables for the replicator.

    Raises CommandError, InvalidSpecError.
    """
    flow = flow_from(arguments)
    planned = valid_plan(flow, layout_from(arguments))
    log = _log(arguments.log, flow.metadata.name)
    for note in planned.notes:
        print(note, file=sys.stderr)
    if log is not None:
        print(f"log: {log.path}", file=sys.stderr, flush=True)
    title = f"{flow.spec.source.alias} → {flow.spec.target.alias}"
    display = _display(as_json=arguments.json, title=title, waits_for_end=arguments.until_caught_up)
    options = RunOptions(
        until_caught_up=arguments.until_caught_up,
        time_limit_s=arguments.time_limit,
        http_port=arguments.http_port,
        name=flow.metadata.name,
        log=log,
        environment=environment,
        prepared=prepared,
    )
    try:
        return Runner(planned.connectors, display, options).run()
    finally:
        display.close()
        if log is not None:
            log.close()


def _display(*, as_json: bool, title: str, waits_for_end: bool) -> Display:
    """Returns the display for stdout. *waits_for_end*: the run may soon fail with the cause that is seen now."""
    if as_json:
        return JsonDisplay()
    if is_live_terminal(sys.stdout):
        from mirrorflow_cli.run_table import TableDisplay  # noqa: PLC0415 rich, for terminals alone

        return TableDisplay(title)
    return PlainDisplay(hold_s=HEALS_WITHIN_S if waits_for_end else 0.0)


def _log(name: str | None, flow: str) -> LogFile | None:
    if name == "-":
        return None
    return LogFile(Path(name)) if name else log_of_flow(flow)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How to run the flow `name`.

    `log` None sends the replicator's log to stderr. `command` is called with the property files, unless `prepared` is there.
    """

    until_caught_up: bool = False
    time_limit_s: float | None = None  # applies to catching up
    http_port: int = 0  # on the loopback address; 0: any free port
    name: str | None = None  # None: `mirrorflow status` does not show the flow
    log: LogFile | None = None
    environment: Mapping[str, str] = field(default_factory=dict)  # more variables for the process
    command: Sequence[str] = REPLICATOR
    prepared: PreparedReplicator | None = None  # the first process


class Runner:
    """Keeps *connectors* running, with the source connector first; `run` returns the exit status."""

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
        self._began_s = clock()
        self._polled_at_s = -PROGRESS_INTERVAL_S
        self._shown_at_s = -PROGRESS_INTERVAL_S
        self._blocker: str | None = None
        self._blocked_since_s = self._began_s
        self._outcome = ""  # why the run has failed

    def run(self) -> int:
        """Runs until caught up (if requested), a signal, or an invalid setting that no restart fixes.

        Returns the exit status. Must be called in the main thread.
        """
        before = {
            number: signal.signal(number, self._note)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        try:
            with tempfile.TemporaryDirectory(prefix="mirrorflow-") as folder:
                process = self._prepare(Path(folder))
                with self._registered(process):
                    try:
                        status = self._loop(process)
                    finally:
                        self._stop(process)
                    self._report_end(status)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return status

    def _registered(self, process: ReplicatorProcess) -> AbstractContextManager[object]:
        name = self._options.name
        return nullcontext() if name is None else registered(name, process.files)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)

    def _prepare(self, folder: Path) -> ReplicatorProcess:
        files = ProcessFiles(folder=folder, connectors=tuple(plan.name for plan in self._connectors))
        # Worker properties differ only in offset storage, where the source connector's applies.
        files.write(
            {
                **self._connectors[0].worker_properties,
                HTTP_LISTENERS: f"http://127.0.0.1:{self._options.http_port}",
            },
            {plan.name: plan.connector_properties for plan in self._connectors},
        )
        return ReplicatorProcess(
            files,
            command=self._options.command,
            environment=self._options.environment,
            log=self._options.log,
            prepared=self._options.prepared,
            clock=self._clock,
        )

    def _loop(self, process: ReplicatorProcess) -> int:
        while not self._signals:
            status = process.ended()
            if status is not None:
                is_final = status == EXIT_SETTINGS
                restarts_in_s = None if is_final else process.restarts_in_s
                self._display.ended(status, process.last_log_line(), restarts_in_s)
                if is_final:
                    return EXIT_USAGE
            if process.start_if_due():
                self._display.started(process.pid or 0, process.starts)
            # A full disk must not stop copying; rotation is tried again.
            with suppress(OSError):
                process.rotate_log()
            done = self._poll(process)
            if done is not None:
                return done
            time.sleep(TICK_S)
        return EXIT_SIGNAL_BASE + self._signals[0]

    def _poll(self, process: ReplicatorProcess) -> int | None:
        """Polls progress if it is due; returns the exit status if the run is over."""
        now_s = self._clock()
        interval_s = CATCH_UP_INTERVAL_S if self._options.until_caught_up else PROGRESS_INTERVAL_S
        if now_s - self._polled_at_s < interval_s:
            return None
        self._polled_at_s = now_s
        progress = self._progress(process)
        outcome = None
        if self._options.until_caught_up:
            if blocker(progress) != self._blocker:
                self._blocker, self._blocked_since_s = blocker(progress), now_s
            outcome = verdict(progress, blocked_s=now_s - self._blocked_since_s)
        if outcome is None and self._is_late(now_s):
            outcome = late(progress, f"{self._options.time_limit_s:g} s")
        if progress is not None and (outcome is not None or now_s - self._shown_at_s >= PROGRESS_INTERVAL_S):
            self._shown_at_s = now_s
            self._display.progress(progress)
        if outcome is None:
            return None
        self._outcome = outcome
        return EXIT_FAILED if outcome else EXIT_DONE

    def _report_end(self, status: int) -> None:
        """Displays how a run until caught up has ended, as its last line."""
        if status == EXIT_FAILED and self._outcome:
            self._display.failed(self._outcome)
        elif status == EXIT_DONE:
            self._display.caught_up()

    def _is_late(self, now_s: float) -> bool:
        limit_s = self._options.time_limit_s
        return limit_s is not None and now_s - self._began_s >= limit_s

    def _progress(self, process: ReplicatorProcess) -> Progress | None:
        url = process.files.url() if process.running else None
        return None if url is None else read_progress(url)

    def _stop(self, process: ReplicatorProcess) -> None:
        received = len(self._signals)
        if process.running:
            self._display.stopping(is_interrupted=signal.SIGINT in self._signals)
        process.signal(signal.SIGTERM)
        self._wait_for_end(process, GRACE_S, lambda: len(self._signals) > received)
        process.signal(signal.SIGKILL)
        self._wait_for_end(process, KILLED_WITHIN_S, lambda: False)

    def _wait_for_end(
        self, process: ReplicatorProcess, within_s: float, is_interrupted: Callable[[], bool]
    ) -> None:
        deadline_s = self._clock() + within_s
        while self._clock() < deadline_s and not is_interrupted():
            if process.ended() is not None or not process.running:
                return
            time.sleep(TICK_S)


def blocker(progress: Progress | None) -> str | None:
    """Returns the transient condition that blocks the run now; None without one."""
    if progress is None:
        return None
    if progress.uncopied:
        return "uncopied"
    return progress.reason if progress.nothing_selected is None else NOTHING_SELECTED


def verdict(progress: Progress | None, *, blocked_s: float) -> str | None:
    """Returns why the run has failed, "" if it has succeeded, None while waiting may still help.

    *progress*: that of the source connector, None if it did not answer. *blocked_s*: seconds since its `blocker`
    was first reported.
    """
    if progress is None:
        return None
    if progress.caught_up:
        return ""
    heals_within_s = LISTED_AGAIN_WITHIN_S if blocker(progress) == NOTHING_SELECTED else HEALS_WITHIN_S
    return _failure(progress, is_settled=blocked_s >= heals_within_s)


def late(progress: Progress | None, limit: str) -> str:
    """Returns that a run has not caught up within *limit*, and why."""
    if progress is None:
        return f"Not caught up within {limit}: the replicator has not answered yet."
    why = next((cause.line for cause in causes(progress)), "")
    if not why and progress.is_standby:
        why = " ".join(progress.warnings)
    return f"Not caught up within {limit}: {why or line_of(progress) + '.'}"


def _failure(progress: Progress, *, is_settled: bool) -> str | None:
    if progress.uncopied:
        if not is_settled or not (progress.all_stopped or progress.behind == 0):
            return None
        topics = "1 topic is" if progress.uncopied_total == 1 else f"{progress.uncopied_total} topics are"
        return f"{progress.connector}: {topics} not copied; first: {progress.uncopied[0]}"
    if progress.nothing_selected is not None:
        return progress.nothing_selected if is_settled else None
    if progress.problem is not None and progress.partitions_total == 0:
        return progress.problem if is_settled or progress.reason in _FINAL else None
    if progress.all_stopped:
        first = progress.all_stopped[0]
        stopped = len(progress.all_stopped)
        return (
            f"{counted(stopped, 'partition')} stopped before catching up; first:"
            f" {first.get('message') or first.get('reason')}"
        )
    return None
