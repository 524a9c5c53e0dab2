"""Starts the process of a flow's connectors, restarts it with backoff, and lists the flows that run here.

The process ends with the runner: the kernel sends SIGKILL (`exit_with_parent`), and its stdin closes. It has its
own process group, so Ctrl-C reaches only the runner, which then stops it gracefully.

Its files are the properties of worker and connectors, the HTTP address, which the process writes itself, and
the log. Properties hold references, never a resolved secret, and only the current user can read them. The
process keeps its log open, so a large log is copied and then truncated (like logrotate's copytruncate). Lines
written between the two steps, a few at most, are lost from the copy.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from mirrorflow_cli.errors import FailedError
from mirrorflow_cli.prepared_replicator import REPLICATOR as PROGRAM
from mirrorflow_cli.prepared_replicator import ChildOfCommand, PreparedReplicator, start_replicator
from mirrorflow_cli.run_progress import Progress, progress_of, read_progress
from mirrorflow_core.backoff import backoff_s
from mirrorflow_core.java.properties import format_properties
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_replicator.worker import running_processes

# The children of a run have its log open, too. The kernel ends them with it, in a moment if it was killed.
LOCK_WAIT_S, LOCK_POLL_S = 0.5, 0.05
LOG_BYTES_MAX = 10 * 1024 * 1024  # some 60,000 lines
KEPT_MAX = 3  # NAME.1 is the newest
RUNS_MAX = 100  # of one flow at a time; each has a log of its own
RESTART_BACKOFF_MIN_S = 0.5
RESTART_BACKOFF_MAX_S = 30.0  # contacts a broken cluster twice a minute, and notices its recovery soon
# A process that ran this long was working, so its next end restarts the backoff from the minimum.
HEALTHY_AFTER_S = 60.0
EXIT_SETTINGS = 2  # exit status of the replicator for an invalid setting, which no restart fixes
TAIL_BYTES = 4_096  # bytes at the end of the log in which to search for the last error
# Start of a line that the replicator logs; lines of a traceback and its exit message do not match.
_LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ([A-Z]+) ")
_ROUTINE_LEVELS = frozenset({"INFO", "DEBUG"})
WRITTEN_MAX_MS = 60_000  # a replicator writes its progress every 5 s; an older one says nothing about now
MODE = "standalone"
REPLICATOR = (*PROGRAM, MODE)


class LogInUseError(FailedError):
    """Another run writes the log."""


class LogFile:
    """The log file at *path*, created if missing, and locked: a second run would rotate it away from the first.

    Raises FailedError if it cannot be written, or another run writes it.
    """

    def __init__(self, path: Path, *, max_bytes: int = LOG_BYTES_MAX) -> None:
        self.path = path
        self._max_bytes = self._rotated_at_bytes = max_bytes
        try:
            self.file: IO[bytes] = path.open("ab", buffering=0)
        except OSError as error:
            raise FailedError(
                f"The log {path} cannot be written: {error.strerror}; choose another with --log."
            ) from error
        deadline_s = time.monotonic() + LOCK_WAIT_S
        while not _lock(self.file):
            if time.monotonic() >= deadline_s:
                self.file.close()
                raise LogInUseError(f"The log {path} is written by another run; choose another with --log.")
            time.sleep(LOCK_POLL_S)

    @property
    def size_bytes(self) -> int:
        return os.fstat(self.file.fileno()).st_size

    def rotate_if_large(self) -> bool:
        """Rotates the file if it is too large; returns whether it did.

        Raises OSError, as on a full disk; it is tried again when the file has grown by a tenth of the limit.
        """
        size_bytes = self.size_bytes
        if size_bytes < self._rotated_at_bytes:
            return False
        self._rotated_at_bytes = size_bytes + self._max_bytes // 10 + 1
        new = self.path.with_name(f"{self.path.name}.new")
        try:
            shutil.copyfile(self.path, new)
        except OSError:
            new.unlink(missing_ok=True)
            raise
        for number in range(KEPT_MAX, 1, -1):
            older = self._rotated(number - 1)
            if older.exists():
                older.replace(self._rotated(number))
        new.replace(self._rotated(1))
        self.file.truncate(0)
        self._rotated_at_bytes = self._max_bytes
        return True

    def close(self) -> None:
        self.file.close()

    def _rotated(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


def _lock(file: IO[bytes]) -> bool:
    """Locks *file* for this run; returns False if another run holds it. Devices such as /dev/null are shared."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return not stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except OSError:  # a file system without locks
        return True
    return True


def log_of_flow(name: str) -> LogFile:
    """Returns the log of a run of the flow *name*: NAME.log, or NAME-2.log while another run of it writes that.

    Raises FailedError.
    """
    try:
        folder = running_processes.state_folder()
    except RuntimeError as error:
        raise FailedError(
            "This user has no home directory for a log; set XDG_STATE_HOME, or choose a file with --log."
        ) from error
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise FailedError(
            f"The log folder {folder} cannot be created: {error.strerror}; choose a file with --log."
        ) from error
    for number in range(1, RUNS_MAX):
        with contextlib.suppress(LogInUseError):
            return LogFile(folder / (f"{name}.log" if number == 1 else f"{name}-{number}.log"))
    return LogFile(folder / f"{name}-{RUNS_MAX}.log")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFiles:
    """The files in *folder*; *connectors* are connector names."""

    folder: Path
    connectors: tuple[str, ...]

    @property
    def worker(self) -> Path:
        """The path of worker.properties for `standalone`."""
        return self.folder / "worker.properties"

    def connector(self, name: str) -> Path:
        """Returns the path of the connector.properties of connector *name* for `standalone`."""
        return self.folder / f"{name}.properties"

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of `standalone`: the worker file, then the connector files."""
        return (str(self.worker), *(str(self.connector(name)) for name in self.connectors))

    @property
    def environment(self) -> dict[str, str]:
        """The variables with the paths of files that the process writes."""
        return {"MIRRORFLOW_HTTP_FILE": str(self.http)}

    @property
    def http(self) -> Path:
        """The path that the process writes its HTTP address to."""
        return self.folder / "url"

    @property
    def pid(self) -> Path:
        """The path of the file with the replicator's process id."""
        return self.folder / "pid"

    def write(self, worker: Mapping[str, str], connectors: Mapping[str, Mapping[str, str]]) -> None:
        """Writes the property files; *connectors* is connector name -> properties."""
        files = {self.worker: worker} | {self.connector(name): connectors[name] for name in self.connectors}
        for path, properties in files.items():
            path.touch(mode=0o600)
            path.write_text(format_properties(properties), encoding="ascii")

    def url(self) -> str | None:
        """Returns the address of the process's HTTP server, or None until the process has written it."""
        try:
            return self.http.read_text(encoding="utf-8").strip() or None
        except FileNotFoundError:
            return None

    def replicator_pid(self) -> int | None:
        """Returns the process id of the running replicator, or None if none runs."""
        try:
            return int(self.pid.read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return None

    def forget_process(self) -> None:
        """Deletes the address and the process id, so that neither of an ended process is used."""
        self.http.unlink(missing_ok=True)
        self.pid.unlink(missing_ok=True)


class ReplicatorProcess:
    """A replicator process that is kept running. Times are in seconds of *clock*."""

    def __init__(
        self,
        files: ProcessFiles,
        *,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: LogFile | None,
        prepared: PreparedReplicator | None,
        clock: Callable[[], float],
    ) -> None:
        self.files = files
        self.starts = 0
        self._command = tuple(command)
        self._environment = environment
        self._log = log
        self._prepared = prepared
        self._clock = clock
        self._process: ChildOfCommand | None = None
        self._started_at_s = 0.0
        self._start_at_s = clock()
        self._quick_ends = 0  # in a row
        self._log_start = 0

    def start_if_due(self) -> bool:
        """Starts the process if it does not run and its backoff is over; returns whether it did."""
        if self._process is not None or self._clock() < self._start_at_s:
            return False
        self.files.forget_process()
        self._log_start = 0 if self._log is None else self._log.size_bytes
        self._process = self._take_prepared() or start_replicator(
            [*self._command, *self.files.arguments],
            {**self._environment, **self.files.environment},
            stdin=subprocess.PIPE,
            output=self._output,
        )
        with contextlib.suppress(OSError):  # a full disk; only `mirrorflow status` lacks the number
            self.files.pid.write_text(str(self._process.pid), encoding="ascii")
        self._started_at_s = self._clock()
        self.starts += 1
        return True

    @property
    def _output(self) -> int:
        return (sys.stderr if self._log is None else self._log.file).fileno()

    def _take_prepared(self) -> ChildOfCommand | None:
        if self._prepared is None:
            return None
        return self._prepared.take([MODE, *self.files.arguments], self.files.environment, output=self._output)

    def ended(self) -> int | None:
        """Returns the exit status if the process has ended since the last call, and schedules its restart.

        A negative status is the signal. Returns None otherwise.
        """
        if self._process is None or (status := self._process.poll()) is None:
            return None
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None
        self.files.forget_process()
        now_s = self._clock()
        self._quick_ends = 1 if now_s - self._started_at_s >= HEALTHY_AFTER_S else self._quick_ends + 1
        self._start_at_s = now_s + backoff_s(
            self._quick_ends, lowest_s=RESTART_BACKOFF_MIN_S, highest_s=RESTART_BACKOFF_MAX_S
        )
        return status

    @property
    def restarts_in_s(self) -> float:
        """Seconds until the process may start again."""
        return max(0.0, self._start_at_s - self._clock())

    @property
    def running(self) -> bool:
        """Whether the process was started and `ended` has not yet seen its end."""
        return self._process is not None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def signal(self, number: signal.Signals) -> None:
        """Sends *number* if the process runs."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def last_log_line(self) -> str:
        """Returns the log line since the last start that best explains the end; "" if the log is not a file, or is gone.

        This is the newest warning, error, last line of a traceback or unformatted line; failing that, the
        last line.
        """
        if self._log is None or self._log.size_bytes <= self._log_start:
            return ""
        start = max(self._log_start, self._log.size_bytes - TAIL_BYTES)
        try:
            with self._log.path.open("rb") as log:
                log.seek(start)
                text = log.read().decode("utf-8", "replace")
        except OSError:  # it was moved or deleted; the replicator is restarted nevertheless
            return ""
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        if start > self._log_start:
            lines = lines[1:] or lines  # The first line may be incomplete.
        levels = [_level_and_text(line) for line in lines]
        return next(
            (message for level, message in reversed(levels) if level not in _ROUTINE_LEVELS),
            levels[-1][1] if levels else "",
        )

    def rotate_log(self) -> None:
        """Rotates the log if it is large. Raises OSError."""
        if self._log is not None and self._log.rotate_if_large():
            self._log_start = 0


def _level_and_text(line: str) -> tuple[str, str]:
    """Returns a log line's level ("" for any other line) and the text to show."""
    logged = _LOGGED.match(line)
    if logged is not None:
        return logged.group(1), line
    try:
        entry = json.loads(line) if line.startswith("{") else {}
        return str(entry["level"]), str(entry["message"])
    except (ValueError, KeyError):
        return "", line


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningFlow:
    """A flow that runs here now; `url` is None until its replicator has written its HTTP address.

    A replicator without a runner has no `pid`, and `written` is what it wrote last; `problems` explain why it shows no flow.
    """

    name: str
    pid: int | None  # of `mirrorflow run`
    replicator_pid: int | None  # None while it waits for a restart
    began_ms: int  # wall clock
    url: str | None = None
    written: Mapping[str, Any] | None = None
    problems: tuple[str, ...] = ()

    def progress(self) -> Progress | None:
        """Reads its progress; None if it does not answer now."""
        if self.written is not None:
            return progress_of(self.written["summary"], self.written["table"])
        return None if self.url is None else read_progress(self.url)


def registered(name: str, files: ProcessFiles) -> contextlib.AbstractContextManager[Path | None]:
    """Registers the flow *name* for `running_flows` inside the block, if this user has a folder to write to.

    *files* are those of its process.
    """
    return running_processes.registered_if_possible({"flow": name, "urlFile": str(files.http)})


def running_flows() -> tuple[RunningFlow, ...]:
    """Returns all running flows, by name, then oldest first."""
    flows = [flow for fields in running_processes.registered_processes() for flow in _flows_of(fields)]
    return tuple(sorted(flows, key=lambda flow: (flow.name, flow.began_ms)))


def _flows_of(fields: Mapping[str, Any]) -> Iterator[RunningFlow]:
    """Yields the flows of one registered process; none if its fields are not those of this version."""
    with contextlib.suppress(KeyError, TypeError):
        if "urlFile" in fields:
            files = ProcessFiles(folder=Path(fields["urlFile"]).parent, connectors=())
            yield RunningFlow(
                name=fields["flow"],
                pid=fields["pid"],
                replicator_pid=files.replicator_pid(),
                began_ms=fields["beganMs"],
                url=files.url(),
            )
            return
        written = fields.get("progress", {})
        is_fresh = time.time_ns() // 1_000_000 - written.get("writtenMs", 0) <= WRITTEN_MAX_MS
        shown = written.get("connectors", ()) if is_fresh else ()
        plain = RunningFlow(
            name=fields["form"],
            pid=None,
            replicator_pid=fields["pid"],
            began_ms=fields["beganMs"],
            problems=tuple(written.get("warnings", ())) if is_fresh and not shown else (),
        )
        for flow in shown:
            yield replace(plain, name=flow["summary"]["flow"], written=flow)
        if not shown:
            yield plain
