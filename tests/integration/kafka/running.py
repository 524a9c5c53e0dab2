"""`mirrorflow run --json` as a separate process, and its output so far."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from tests.harness.kafka.cluster import KafkaCluster

STOP_WAIT_S = 40.0  # the command's own grace period is 30 s


class RunningCommand:
    """A context manager that ends the process and its children."""

    def __init__(self, flow: Path, folder: Path, *arguments: str | Path) -> None:
        self.log = folder / "replicator.log"
        self._out, self._err = folder / "run.json", folder / "run.err"
        self._command = [
            str(Path(sys.executable).parent / "mirrorflow"), "run", "-f", str(flow), "--json",
            "--log", str(self.log), *(str(argument) for argument in arguments),
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
                os.kill(self._process.pid, signal.SIGKILL)  # the child process ends with it
            self._process.wait(STOP_WAIT_S)

    @property
    def pid(self) -> int:
        """The process id of the command itself."""
        assert self._process is not None
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Returns whether the command has ended for any reason."""
        return self._process is None or self._process.poll() is not None

    def events(self, event: str) -> list[dict[str, Any]]:
        """Returns the events of one kind printed so far, in order."""
        lines = self._out.read_text().splitlines()
        return [
            record
            for record in (json.loads(line) for line in lines if line.endswith("}"))
            if record["event"] == event
        ]

    def companion(self, connector: str) -> dict[str, Any]:
        """Returns the last event of *connector*, or an empty one before the first."""
        events = [event for event in self.events("companion") if event["connector"] == connector]
        return events[-1] if events else {}

    def is_running(self, connector: str) -> bool:
        """Returns whether *connector* reports the state RUNNING."""
        return bool(self.companion(connector).get("state") == "RUNNING")

    @property
    def moved_offsets(self) -> int:
        """Returns the number of offsets set for groups of the target."""
        return int((self.companion("MirrorCheckpointConnector").get("groups") or {}).get("moved", 0))

    def stop(self) -> int:
        """Sends Ctrl-C and returns the exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(STOP_WAIT_S)

    def output(self) -> str:
        """Returns the command's output and the replicator's log, for failure messages."""
        files = (self._out, self._err, self.log)
        return "\n".join(file.read_text(errors="replace")[-3000:] for file in files if file.exists())


def beats(cluster: KafkaCluster) -> int:
    """Returns the number of heartbeats in *cluster*."""
    return cluster.total_end_offset("heartbeats")
