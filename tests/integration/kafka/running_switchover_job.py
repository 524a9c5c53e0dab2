"""The Job of a Switchover, run as a process: its command line and its files are those that the operator plans."""

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

from mirrorflow_operator.api.load import read_documents
from mirrorflow_operator.api.mirror_pair import load_pair
from mirrorflow_operator.api.switchover import parse_switchover
from mirrorflow_operator.plan.switchover_objects import FlowOfPair, switchover_objects
from mirrorflow_operator.status.switchover_reports import SwitchoverReport, parse_switchover_report
from tests.harness.kafka.processes import free_port
from tests.integration.kafka.mirror_pairs import COMMAND_S, Pair

HOUR_MS = 3_600_000


class RunningJob:
    """One Switchover of a pair; `start` is what the kubelet does with the Job's container."""

    def __init__(
        self,
        pair: Pair,
        name: str,
        *,
        begin_until_ms: int | None = None,
        last_seen: dict[str, Any] | None = None,
        **spec: Any,
    ) -> None:
        """*spec*: of the Switchover. *last_seen*: what the operator has read from the flow's pods."""
        self.folder = pair.folder / name
        self.folder.mkdir(exist_ok=True)
        self.port = free_port()
        self._message = self.folder / "termination-log"
        until_ms = begin_until_ms or time.time_ns() // 1_000_000 + HOUR_MS
        objects = self._objects(pair, name, until_ms, spec, last_seen)
        for file, text in objects[0]["data"].items():
            # In the pod, Secrets are mounted where the properties refer to them.
            (self.folder / file).write_text(text.replace("/mnt/mirrorflow/secrets", str(pair.folder)))
        self._container = objects[-1]["spec"]["template"]["spec"]["containers"][0]

    @staticmethod
    def _objects(
        pair: Pair, name: str, begin_until_ms: int, spec: dict[str, Any], last_seen: dict[str, Any] | None
    ) -> list[dict[str, Any]]:
        loaded = load_pair(pair.file.read_text())
        request = {
            **read_documents(pair.file.read_text())[0],
            "kind": "Switchover",
            "metadata": {"name": name},
        }
        switchover = parse_switchover(
            {**request, "spec": {"pair": pair.name, "to": "west", "type": "Planned", **spec}}
        )
        flows = {
            alias: FlowOfPair(flow=flow, flow_id=flow.metadata.name, version="1")
            for alias, flow in loaded.flows.items()
        }
        return switchover_objects(
            switchover,
            loaded.pair,
            flows,
            image="replicator",
            begin_until_ms=begin_until_ms,
            last_seen=last_seen,
        )

    @contextlib.contextmanager
    def started(self) -> Iterator[subprocess.Popen[str]]:
        variables = {variable["name"]: variable["value"] for variable in self._container["env"]}
        variables |= {"HTTP_PORT": str(self.port), "TERMINATION_MESSAGE": str(self._message)}
        python, *line = self._container["command"]
        assert python == "python3"
        command = [
            sys.executable,
            *(part if part != "/etc/mirrorflow" else str(self.folder) for part in line),
        ]
        with subprocess.Popen(
            command, env={**os.environ, **variables}, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    def report(self) -> SwitchoverReport | None:
        """Returns what the running process reports; None before it listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/progress", timeout=5) as response:
                return parse_switchover_report(response.read())
        except OSError:
            return None

    def last_report(self) -> SwitchoverReport:
        report = parse_switchover_report(self._message.read_bytes())
        assert report is not None
        return report

    def ended(self) -> SwitchoverReport:
        """Runs the process to its end."""
        with self.started() as process:
            _, err = process.communicate(timeout=COMMAND_S)
            assert 0 == process.returncode, err
        return self.last_report()
