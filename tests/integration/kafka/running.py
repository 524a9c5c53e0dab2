"""`mirrorflow run --json` as a process of its own, and what it has said so far."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from tests.harness.kafka.cluster import KafkaCluster

STOP_WAIT_S = 40.0  # its own grace period is 30 s


class RunningCommand:
    """A context manager: at the end nothing of it runs any more."""

    def __init__(self, flow: Path, folder: Path, *arguments: str | Path) -> None:
        self.log = folder / "replicator.log"
        self._out, self._err = folder / "run.json", folder / "run.err"
        self._command = [
            str(Path(sys.executable).parent / "mirrorflow"), "run", "-f", str(flow), "--json",
            "--log", str(self.log), *(str(one) for one in arguments),
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)  # its child goes with it
            self._process.wait(STOP_WAIT_S)

    @property
    def pid(self) -> int:
        """The process id of the command itself."""
        assert self._process is not None
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the command has ended, however that came."""
        return self._process is None or self._process.poll() is not None

    def events(self, event: str) -> list[dict[str, Any]]:
        """Those said so far, in order."""
        lines = self._out.read_text().splitlines()
        return [
            one for one in (json.loads(line) for line in lines if line.endswith("}")) if one["event"] == event
        ]

    def companion(self, connector: str) -> dict[str, Any]:
        """What *connector* has said last; empty before its first word."""
        said = [one for one in self.events("companion") if one["connector"] == connector]
        return said[-1] if said else {}

    def is_running(self, connector: str) -> bool:
        """Whether *connector* says so of itself."""
        return bool(self.companion(connector).get("state") == "RUNNING")

    @property
    def moved(self) -> int:
        """How many offsets groups of the target were given."""
        return int((self.companion("MirrorCheckpointConnector").get("groups") or {}).get("moved", 0))

    def stop(self) -> int:
        """Ctrl-C; the exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(STOP_WAIT_S)

    def said(self) -> str:
        """All that it has printed and its replicator has logged, for whom a test fails."""
        files = (self._out, self._err, self.log)
        return "\n".join(file.read_text(errors="replace")[-3000:] for file in files if file.exists())


def beats(cluster: KafkaCluster) -> int:
    """How many heartbeats *cluster* holds."""
    return cluster.total_end_offset("heartbeats")
