"""The processes that a trial kills and freezes: the brokers of each side, `mirrorflow run` of each flow, and the
commands.

Calls do not wait. `tick` resumes or restarts a process when its time is over.
"""

import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.actors import Side
from tests.harness.kafka.processes import Child, HarnessError, family, start

RESTART_S = 1.0  # the time after which a flow that has ended by itself is restarted, like by a supervisor
SWITCHOVER, DIVERGED = "switchover", "diverged"
PROGRAM = Path(sys.executable).parent / "mirrorflow"
_runs = itertools.count()


@dataclass(slots=True, kw_only=True)
class MemberSide(Side):
    """A member of the pair. At most one broker is unavailable, or all of them while the member is lost."""

    is_lost: bool = False

    def strike(self, choice: int, *, leads: bool, freeze: bool, away_s: float) -> int:
        """Kills or freezes a broker and returns its id, or returns 0 while another broker or the cluster is
        unavailable.
        """
        if self.is_lost:
            return 0
        # The zero-argument form does not work in a class with slots, which is created twice.
        return Side.strike(self, choice, leads=leads, freeze=freeze, away_s=away_s)

    def tick(self) -> None:
        if not self.is_lost:
            Side.tick(self)

    def lose(self, *, freeze: bool) -> None:
        """Kills or freezes all brokers at once, including one that was already unavailable."""
        for broker in self.cluster.nodes.values():
            if freeze and broker.running:
                broker.freeze()
            elif broker.running:
                broker.kill()
        self.unavailable_id, self.is_lost = 0, True

    def come_back(self) -> None:
        """Starts or resumes all brokers, without waiting."""
        for broker in self.cluster.nodes.values():
            if broker.running:
                broker.thaw()
            else:
                broker.launch()
        self.is_lost = False


@dataclass(slots=True, kw_only=True)
class FlowProcess:
    """`mirrorflow run` of a flow, which is restarted whenever it has ended."""

    name: str
    file: Path
    folder: Path
    child: Child | None = field(default=None, init=False)
    frozen_pids: list[int] = field(default_factory=list, init=False)
    return_s: float = field(default=0.0, init=False)
    ends: int = field(default=0, init=False)  # the process has ended by itself

    @property
    def is_wanted(self) -> bool:
        """Returns whether it was started. A started process is kept running."""
        return self.child is not None

    @property
    def is_up(self) -> bool:
        """Returns whether it runs and is not frozen."""
        return self.child is not None and self.child.running and not self.frozen_pids

    def start(self) -> None:
        run = next(_runs)
        self.child = start(
            self.name,
            [
                str(PROGRAM), "run", "-f", str(self.file), "--json",
                "--secrets", str(self.folder), "--log", str(self.folder / f"{self.name}-{run}.log"),
            ],
            log=self.folder / f"{self.name}-{run}.out",
        )  # fmt: skip

    def kill(self, choice: int, away_s: float) -> bool:
        """Kills all its processes, or only its child processes, which it starts again."""
        if not self.is_up:
            return False
        assert self.child is not None
        pids = family(self.child.pid)
        for pid in reversed(pids[1:]):
            send(pid, signal.SIGKILL)
        if choice % 2 or len(pids) == 1:
            self.child.kill()
            self.return_s = time.monotonic() + away_s
        return True

    def freeze(self, away_s: float) -> bool:
        if not self.is_up:
            return False
        assert self.child is not None
        self.frozen_pids = family(self.child.pid)
        for pid in self.frozen_pids:
            send(pid, signal.SIGSTOP)
        self.return_s = time.monotonic() + away_s
        return True

    def tick(self) -> None:
        if self.child is None:
            return
        now = time.monotonic()
        if not self.child.running and now >= self.return_s:
            if self.return_s == 0.0:
                self.ends += 1
                self.return_s = now + RESTART_S
                return
            self.return_s = 0.0
            self.start()
        elif self.frozen_pids and now >= self.return_s:
            self.thaw()

    def thaw(self) -> None:
        for pid in self.frozen_pids:
            send(pid, signal.SIGCONT)
        self.frozen_pids, self.return_s = [], 0.0

    def end(self) -> None:
        """Kills all its processes."""
        if self.child is not None and self.child.running:
            for pid in reversed(family(self.child.pid)):
                send(pid, signal.SIGKILL)
            self.child.kill()


class PairCommand:
    """A run of `mirrorflow switchover`, or of `mirrorflow diverged`, which writes no report."""

    def __init__(self, pair: Path, folder: Path, *arguments: str, command: str = SWITCHOVER) -> None:
        number = next(_runs)
        self.name = f"{command}-{number}"
        self.report_file = folder / f"{self.name}.json"
        self.began_s = time.monotonic()
        self.frozen_until_s = 0.0
        self._out = folder / f"{self.name}.out"
        line = [str(PROGRAM), command, *arguments, "-f", str(pair), "--secrets", str(folder)]
        line += ["--report", str(self.report_file)] if command == SWITCHOVER else []
        self.child = start(self.name, line, log=self._out)
        self._read_bytes = 0

    @property
    def is_frozen(self) -> bool:
        return self.child.frozen

    @property
    def seconds(self) -> float:
        """Returns the time since its start."""
        return time.monotonic() - self.began_s

    @property
    def has_ended(self) -> bool:
        return not self.child.running

    def new_lines(self) -> list[str]:
        """Returns the complete lines that it has printed since the last call."""
        with self._out.open("rb") as file:
            file.seek(self._read_bytes)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        return whole.decode().splitlines()

    def output(self) -> str:
        return self._out.read_text(errors="replace")

    def report(self) -> dict[str, Any]:
        """Returns its report, or {} if it ended before it has written one."""
        return dict(json.loads(self.report_file.read_text())) if self.report_file.exists() else {}

    def kill(self) -> None:
        self.child.kill()

    def interrupt(self) -> None:
        """Sends Ctrl-C."""
        send(self.child.pid, signal.SIGINT)

    def freeze(self, away_s: float) -> None:
        self.child.freeze()
        self.frozen_until_s = time.monotonic() + away_s

    def tick(self) -> None:
        if self.child.frozen and time.monotonic() >= self.frozen_until_s:
            self.child.thaw()


def switchover_status(pair: Path, folder: Path) -> dict[str, Any]:
    """Returns `mirrorflow switchover status --json`. Raises HarnessError."""
    command = PairCommand(pair, folder, "status")
    if status := command.child.process.wait(120):
        raise HarnessError(f"mirrorflow switchover status ended with {status}:\n{command.output()}")
    return command.report()


def send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def state_in(line: str) -> str:
    """Returns the state in a line of the command's display, or "" if the line shows none."""
    parts: Sequence[str] = line.split(maxsplit=2)
    return parts[1] if len(parts) > 1 and parts[0].endswith("Z") and ":" in parts[0] else ""
