"""Starts child processes that cannot outlive the tests, measures their costs, and reserves ports.

The harness starts all processes with `start`. The kernel kills a process when the thread that started it ends, so start
it from the main thread. Costs are read from /proc and include child processes.
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
from typing import NamedTuple, TypeVar

T = TypeVar("T")
STOP_WAIT_S = 60.0  # a broker under load needs seconds to transfer its leaderships; a minute is a hang
# This limit ends a hang and measures nothing. With a whole suite on two cores, a second may take half a minute.
WAIT_S = 300.0
POLL_S = 0.2
# This range is below the ephemeral ports. Otherwise a client's connection could take the port of a broker that is down.
PORTS_FIRST, PORTS_PER_WORKER, WORKERS_MAX = 20_000, 1_500, 8
# The part of a failed test's log that is kept, from its end.
KEPT_LOG_BYTES = 4 << 20

_reserved: dict[int, socket.socket] = {}


class HarnessError(Exception):
    """The harness itself failed. The message has the end of the log with the cause."""


def wait_until(
    what: str, condition: Callable[[], T], *, timeout_s: float = WAIT_S, poll_s: float = POLL_S
) -> T:
    """Returns the first true result of *condition*. Raises `HarnessError` with *what* after *timeout_s*."""
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise HarnessError(f"Waited {timeout_s:g} s for: {what}.")
        time.sleep(poll_s)
    return result


def free_port() -> int:
    """Returns a free port.

    The port stays reserved among harnesses until this process ends, even while no process listens on it.
    """
    for port in random.sample(_ports(), PORTS_PER_WORKER):
        # A name in the abstract namespace is a lock that the kernel releases with the process.
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
    """Returns this worker's block. The lock in `free_port` separates two test runs on one machine."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    first = PORTS_FIRST + int(worker) % WORKERS_MAX * PORTS_PER_WORKER
    return range(first, first + PORTS_PER_WORKER)


def accepts(port: int) -> bool:
    """Returns whether a process listens on 127.0.0.1:*port*."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def frozen(pids: Sequence[int]) -> Iterator[None]:
    """Stops *pids*, at least one, with SIGSTOP until the end of the block.

    Their connections stay open without responses.
    """
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
    """One process that the harness has started."""

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
        """Kills the process with -9, and waits for its end."""
        self.process.kill()
        self.process.wait(STOP_WAIT_S)
        self.frozen = False

    def stop(self, timeout_s: float = STOP_WAIT_S) -> int:
        """Sends SIGTERM, waits, and returns the exit status.

        If the process does not end, kills it and raises `HarnessError`.
        """
        self.thaw()
        self.process.terminate()
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise HarnessError(f"{self.name} did not end in {timeout_s:g} s.\n{self.tail()}") from error

    def freeze(self) -> None:
        """Sends SIGSTOP. Connections stay open without responses."""
        self.process.send_signal(signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        if self.frozen:
            self.process.send_signal(signal.SIGCONT)
            self.frozen = False

    def tail(self, lines: int = 30) -> str:
        """Returns the last lines of its log."""
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def must_run(self) -> None:
        """Raises `HarnessError` with the end of the log if the process has ended."""
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
    """Starts *command* with its output appended to *log*. The kernel kills it when the calling thread ends."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *command],
            stdin=stdin,
            stdout=output if stdout is None else stdout,
            stderr=output,
            env=None if environment is None else {**os.environ, **environment},
            cwd=directory,
            start_new_session=True,  # Ctrl-C reaches only the tests, which then end their child processes
        )
    child = Child(name=name, process=process, log=log)
    CHILDREN.append(child)
    return child


# All processes that this process has started. The logs of a failed test are found by them.
CHILDREN: list[Child] = []


@cache
def log_folder() -> Path:
    """Returns a folder for logs. They are kept until this process ends."""
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
    """Returns *pid* and all its living descendants."""
    pids = [pid]
    for member in pids:
        for task in Path(f"/proc/{member}/task").glob("*/children"):
            try:
                pids.extend(int(child) for child in task.read_text().split())
            except (FileNotFoundError, ProcessLookupError):
                continue
    return pids


def program_of(pid: int) -> str:
    """Returns the name of the program that *pid* runs, or an empty text after its end."""
    try:
        return Path(Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]).name
    except (FileNotFoundError, ProcessLookupError):
        return ""


class CpuTimes(NamedTuple):
    """CPU seconds in user mode and in the kernel."""

    user_s: float
    system_s: float


def cpu_times(pid: int) -> CpuTimes:
    """Returns the times of *pid* and its descendants, including ended ones that were waited for."""
    user = system = 0
    for member in family(pid):
        try:
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        user += int(fields[11]) + int(fields[13])  # utime, cutime: proc(5)
        system += int(fields[12]) + int(fields[14])  # stime, cstime
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    return CpuTimes(user / ticks_per_s, system / ticks_per_s)


def cpu_s(pid: int) -> float:
    """Returns user and system seconds of *pid* and its descendants, including ended ones that were waited for."""
    return sum(cpu_times(pid))


def unread_bytes(pid: int, port: int) -> int:
    """Returns the number of bytes from IPv4 *port* that sockets of *pid* have received but the process has not read."""
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
    """Returns the unread bytes in the sockets of the server of *port*. Java also uses IPv6 sockets for IPv4."""
    total = 0
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()  # number, local address:port, remote, state, tx:rx ...: proc(5)
            if fields[3] == "01" and int(fields[1].rpartition(":")[2], 16) == port:
                total += int(fields[4].rpartition(":")[2], 16)
    return total


def sockets_to(pid: int, port: int) -> set[str]:
    """Returns the inodes of the established IPv4 sockets of *pid* and its descendants to *port*.

    A new connection has a new inode.
    """
    inodes = set()
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
            is_connected = fields[3] == "01" and int(fields[2].rpartition(":")[2], 16) == port
            if is_connected and f"socket:[{fields[9]}]" in own:
                inodes.add(fields[9])
    return inodes


def pss_bytes(pid: int) -> int:
    """Returns the proportional set size of *pid* and its descendants, which is the memory that would be free after
    their end.
    """
    total = 0
    for member in family(pid):
        try:
            rollup = Path(f"/proc/{member}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)
    return total * 1024
