"""Child processes that cannot outlive the tests, what they cost, and ports that no other harness takes.

Everything the harness starts goes through `start`: the kernel kills it when the thread that started it ends, so start
from the main thread. Costs are read from /proc and include children.
"""

import atexit
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
STOP_WAIT_S = 60.0  # a broker that hands over its leaders under load takes seconds; a minute is a hang
# Ends a hang and measures nothing: on two cores that run a whole suite, a second takes half a minute at times.
WAIT_S = 300.0
POLL_S = 0.2
# Below the ephemeral range, or a client's own connection could take the port of a broker that is down for a moment.
# Each process that shares the tests draws from a block of its own.
PORTS_FIRST, PORTS_PER_WORKER, WORKERS_MAX = 20_000, 1_500, 8
# What is kept of a failed test's log, from its end.
KEPT_LOG_BYTES = 4 << 20

_reserved: dict[int, socket.socket] = {}


class HarnessError(Exception):
    """The harness itself failed: the message has the end of the log that says why."""


def wait_until(
    what: str, condition: Callable[[], T], *, timeout_s: float = WAIT_S, poll_s: float = POLL_S
) -> T:
    """The first true result of *condition*; `HarnessError` naming *what* after *timeout_s*."""
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise HarnessError(f"Waited {timeout_s:g} s in vain: {what}.")
        time.sleep(poll_s)
    return result


def free_port() -> int:
    """A free port that stays reserved among harnesses until this process ends, whether or not anything listens on it."""
    for port in random.sample(_ports(), PORTS_PER_WORKER):
        # A name in the abstract namespace is a lock that the kernel lets go of with the process.
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            lock.bind(f"\0mirrorflow-harness-port-{port}")
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
        except OSError:
            lock.close()
            continue
        _reserved[port] = lock
        return port
    raise HarnessError(f"No free port in {_ports()}.")


def _ports() -> range:
    """This worker's block; two test runs on one machine may share it, and the lock in `free_port` keeps them apart."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    first = PORTS_FIRST + int(worker) % WORKERS_MAX * PORTS_PER_WORKER
    return range(first, first + PORTS_PER_WORKER)


def accepts(port: int) -> bool:
    """Whether someone listens on 127.0.0.1:*port*."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def frozen(pids: Sequence[int]) -> Iterator[None]:
    """SIGSTOP, and SIGCONT at the end: connections of *pids* stay open and nothing answers. There has to be one at least."""
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@dataclass(kw_only=True, slots=True)
class Child:
    """One process the harness has started."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    frozen: bool = field(default=False, init=False)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """kill -9, and gone on return."""
        self.process.kill()
        self.process.wait(STOP_WAIT_S)
        self.frozen = False

    def stop(self, timeout_s: float = STOP_WAIT_S) -> int:
        """SIGTERM, wait; the exit status. `HarnessError`, and kill -9, when it does not end."""
        self.thaw()
        self.process.terminate()
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise HarnessError(f"{self.name} did not end in {timeout_s:g} s.\n{self.tail()}") from error

    def freeze(self) -> None:
        """SIGSTOP: its connections stay open and nothing answers."""
        self.process.send_signal(signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        if self.frozen:
            self.process.send_signal(signal.SIGCONT)
            self.frozen = False

    def tail(self, lines: int = 30) -> str:
        """The end of its log."""
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def must_run(self) -> None:
        """`HarnessError` with the end of the log if it has ended."""
        if not self.running:
            raise HarnessError(f"{self.name} ended with status {self.process.returncode}.\n{self.tail()}")


def start(
    name: str,
    command: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = None,
    directory: Path | None = None,
) -> Child:
    """Starts *command*, output appended to *log*; it is killed when the calling thread ends, however that happens."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *command],
            stdin=stdin,
            stdout=output if stdout is None else stdout,
            stderr=output,
            env=None if environment is None else {**os.environ, **environment},
            cwd=directory,
            start_new_session=True,  # Ctrl-C is for the tests, which then end their children in order
        )
    child = Child(name=name, process=process, log=log)
    CHILDREN.append(child)
    return child


# All that this process has started, for the logs of a test that fails.
CHILDREN: list[Child] = []


@cache
def log_folder() -> Path:
    """Where logs go that must outlive what they are about: until this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="mirrorflow-logs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def keep_logs(children: Sequence[Child], folder: Path) -> None:
    """Copies the end of each child's log into *folder*, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for child in children:
        if child.log.exists():
            kept = child.log.read_bytes()[-KEPT_LOG_BYTES:]
            (folder / f"{child.name}-{child.pid}.log".replace("/", "_")).write_bytes(kept)


def family(pid: int) -> list[int]:
    """*pid* and all its living descendants."""
    found = [pid]
    for member in found:
        for task in Path(f"/proc/{member}/task").glob("*/children"):
            try:
                found.extend(int(child) for child in task.read_text().split())
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def program_of(pid: int) -> str:
    """The name of the program that *pid* runs; empty when it has ended."""
    try:
        return Path(Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]).name
    except (FileNotFoundError, ProcessLookupError):
        return ""


def cpu_s(pid: int) -> float:
    """User and system seconds of *pid* and its descendants, those that ended and were waited for included."""
    ticks = 0
    for member in family(pid):
        try:
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks += sum(int(value) for value in fields[11:15])  # utime, stime, cutime, cstime: proc(5)
    return ticks / os.sysconf("SC_CLK_TCK")


def unread_bytes(pid: int, port: int) -> int:
    """What has come from IPv4 *port* to sockets of *pid*, which has not taken it yet."""
    own = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            own.add(str(link.readlink()))
        except FileNotFoundError:
            continue
    total = 0
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()  # ... remote address:port, state, tx:rx, ... inode: proc(5)
        if f"socket:[{fields[9]}]" in own and int(fields[2].rpartition(":")[2], 16) == port:
            total += int(fields[4].rpartition(":")[2], 16)
    return total


def arrived_bytes(port: int) -> int:
    """What lies unread in the sockets of the server of *port*; Java's are of IPv6, also for addresses of IPv4."""
    total = 0
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()  # number, local address:port, remote, state, tx:rx ...: proc(5)
            if fields[3] == "01" and int(fields[1].rpartition(":")[2], 16) == port:
                total += int(fields[4].rpartition(":")[2], 16)
    return total


def sockets_to(pid: int, port: int) -> set[str]:
    """The established IPv4 sockets of *pid* and its descendants to *port*, by inode: a new connection is a new one."""
    found = set()
    for member in family(pid):
        own = set()
        try:
            links = [str(link.readlink()) for link in Path(f"/proc/{member}/fd").iterdir()]
            own = {link for link in links if link.startswith("socket:")}
            lines = Path(f"/proc/{member}/net/tcp").read_text().splitlines()[1:]
        except (FileNotFoundError, ProcessLookupError):
            continue
        for line in lines:
            fields = line.split()
            is_there = fields[3] == "01" and int(fields[2].rpartition(":")[2], 16) == port
            if is_there and f"socket:[{fields[9]}]" in own:
                found.add(fields[9])
    return found


def pss_bytes(pid: int) -> int:
    """Proportional set size of *pid* and its descendants: what the machine would get back if they ended."""
    total = 0
    for member in family(pid):
        try:
            rollup = Path(f"/proc/{member}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)
    return total * 1024
