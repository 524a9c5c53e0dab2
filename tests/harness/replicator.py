"""Runs the replicator process as a user does: `python -m mirrorflow_replicator standalone|mm2` with properties files.

        with Replicator.standalone(east, west, topics="orders.*", folder=tmp_path) as replicator:
            replicator.wait_until_caught_up()

The process and its tasks always end with the tests. Every wait has a limit, and fails with the end of the log.
"""

import itertools
import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaException

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.installation import write_properties
from tests.harness.kafka.processes import WAIT_S, Child, HarnessError, family, start, unread_bytes, wait_until

HANG_S = WAIT_S
HTTP_TIMEOUT_S = 20.0
FETCH_WAIT_S = 1.0  # an idle source holds a fetch for half a second
_runs = itertools.count()


@dataclass(kw_only=True, slots=True)
class Replicator:
    """A process. *form* is `standalone` or `mm2`, and *files* are its properties. The methods of these names create
    usual ones.

    A file that is a string is written unchanged. *arguments* follow the files. *source* is the cluster of all its
    topics, if there is only one. *directory* is the working directory, to which relative paths refer.
    """

    form: str
    files: Sequence[Mapping[str, str] | str]
    folder: Path
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    name: str = "replicator"
    source: KafkaCluster | None = None
    directory: Path | None = None
    child: Child | None = field(default=None, init=False)
    _address_file: Path | None = field(default=None, init=False)
    _paths: list[Path] = field(default_factory=list, init=False)

    @classmethod
    def standalone(
        cls,
        source: KafkaCluster,
        target: KafkaCluster,
        *,
        topics: str,
        folder: Path,
        connector: Mapping[str, str] | None = None,
        worker: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Self:
        """Creates a MirrorSourceConnector from *source* to *target*. By default, aliases are the clusters' names.

        *connector* and *worker* override any line. Offsets are stored in `mm2-offsets.<source alias>.internal`.
        """
        lines = {
            "name": "MirrorSourceConnector",
            "connector.class": "MirrorSourceConnector",
            "source.cluster.alias": source.name,
            "target.cluster.alias": target.name,
            "source.cluster.bootstrap.servers": source.bootstrap,
            "target.cluster.bootstrap.servers": target.bootstrap,
            "topics": topics,
            "replication.factor": "1",
            "offset-syncs.topic.replication.factor": "1",
            "refresh.topics.interval.seconds": "2",
        } | dict(connector or {})
        process = {
            "bootstrap.servers": target.bootstrap,
            "offset.storage.topic": f"mm2-offsets.{lines['source.cluster.alias']}.internal",
            "offset.storage.replication.factor": "1",
            "offset.storage.partitions": "1",
            "mirrorflow.http.listeners": "http://127.0.0.1:0",
        } | dict(worker or {})
        return cls(
            form="standalone",
            files=(process, lines),
            folder=folder,
            environment=dict(environment or {}),
            source=source,
        )

    @classmethod
    def mm2(
        cls, properties: Mapping[str, str], *, folder: Path, environment: Mapping[str, str] | None = None
    ) -> Self:
        """Creates the dedicated mode with an mm2.properties. An HTTP server is added unless *properties* have one."""
        lines = {"mirrorflow.http.listeners": "http://127.0.0.1:0"} | dict(properties)
        return cls(form="mm2", files=(lines,), folder=folder, environment=dict(environment or {}))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.running:
            self.kill()

    # The process.

    def start(self) -> None:
        """Starts the process without waiting. It may be started again after its end."""
        if self.running:
            raise HarnessError(f"{self.name} runs already.")
        self.folder.mkdir(parents=True, exist_ok=True)
        stem = self.folder / f"{self.name}-{next(_runs)}"
        self._paths = [
            _write(stem.with_name(f"{stem.name}-{index}.properties"), lines)
            for index, lines in enumerate(self.files)
        ]
        self._address_file = stem.with_name(f"{stem.name}.http")
        self.child = start(
            self.name,
            [
                sys.executable,
                "-m",
                "mirrorflow_replicator",
                self.form,
                *map(str, self._paths),
                *self.arguments,
            ],
            log=stem.with_name(f"{stem.name}.log"),
            environment={**self.environment, "MIRRORFLOW_HTTP_FILE": str(self._address_file)},
            directory=self.directory,
        )

    def rewrite(self, index: int, lines: Mapping[str, str]) -> None:
        """Replaces one of its files atomically while it runs, like the kubelet."""
        path = self._paths[index]
        _write(path.with_suffix(".new"), lines).replace(path)

    @property
    def pid(self) -> int:
        return self._child().pid

    @property
    def running(self) -> bool:
        return self.child is not None and self.child.running

    def task_pids(self) -> list[int]:
        """Returns the processes of its tasks."""
        return [pid for pid in family(self.pid) if pid != self.pid]

    def stop(self) -> int:
        """Sends SIGTERM, waits for the end, and returns the exit status."""
        self.thaw()
        return self._child().stop()

    def kill(self) -> None:
        """Kills all its processes at once with -9."""
        for pid in reversed(family(self.pid)):
            _signal(pid, signal.SIGKILL)
        self._child().kill()

    def kill_task(self, index: int = 0) -> int:
        """Kills one task with -9, and returns its former pid."""
        pid = self.task_pids()[index]
        _signal(pid, signal.SIGKILL)
        return pid

    def freeze(self) -> None:
        """Stops all its processes with SIGSTOP. Sockets stay open without responses."""
        for pid in family(self.pid):
            _signal(pid, signal.SIGSTOP)
        self._child().frozen = True

    def freeze_between_fetches(self, source: KafkaCluster) -> None:
        """Freezes the process between two fetches.

        Waits until the only broker of *source* has responded to the open fetch, so that the process knows no later
        record.
        """
        self.freeze()
        port, deadline = int(source.bootstrap.rpartition(":")[2]), time.monotonic() + FETCH_WAIT_S

        def is_complete() -> bool:
            return time.monotonic() > deadline or any(unread_bytes(pid, port) for pid in self.task_pids())

        wait_until("the open fetch is complete", is_complete)

    def thaw(self) -> None:
        """Continues its processes with SIGCONT, the tasks last."""
        if self._child().frozen and self.running:
            for pid in family(self.pid):
                _signal(pid, signal.SIGCONT)
            self._child().frozen = False

    def log_text(self) -> str:
        """Returns its complete log since `start`."""
        return self._child().log.read_text(errors="replace") if self._child().log.exists() else ""

    # Its reports.

    @property
    def url(self) -> str:
        """Returns the address of its first HTTP listener, once it listens."""
        file = self._address_file

        def written() -> bool:
            self._child().must_run()
            return file is not None and file.exists()

        self._wait("its HTTP server listens", written)
        assert file is not None
        return file.read_text().strip()

    def rest(self, path: str, *, method: str = "GET", body: object = None) -> tuple[int, Any]:
        """Returns status and JSON (None if empty) of a response of Connect's REST API or of MirrorFlow's own paths."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.url}{path}", data=data, method=method, headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=HTTP_TIMEOUT_S) as response:
                status, text = response.status, response.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        return status, json.loads(text) if text else None

    def progress(self) -> dict[str, Any]:
        """Returns `GET /progress`."""
        return dict(self.rest("/progress")[1])

    def partitions(self) -> list[dict[str, Any]]:
        """Returns all of `GET /progress/partitions`."""
        return list(self.rest("/progress/partitions?limit=100000")[1]["partitions"])

    def partition(self, topic: str, number: int = 0) -> dict[str, Any]:
        """Returns the report of a source partition, or {} if it is not reported."""
        matching = (
            report
            for report in self.partitions()
            if (report["topic"], report["partition"]) == (topic, number)
        )
        return next(matching, {})

    def metrics(self) -> str:
        """Returns `GET /metrics` in Prometheus's text format."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=HTTP_TIMEOUT_S) as response:
            return str(response.read().decode())

    # Waits.

    def wait_until_caught_up(self, *, partitions: int = 1) -> None:
        """Waits until at least *partitions* partitions are copied to the current end of the source.

        It reads the ends from the source, because right after a load the process does not know them yet. If *source* is
        None (the mm2 form), it only uses the process's reports. In that case, call `wait_for_copy` first.
        """
        ends: dict[str, dict[int, int]] = {}

        def caught_up() -> bool:
            reports = self.partitions()
            is_reported = len(reports) >= partitions and all(
                report["sourceOffset"] is not None
                and report["lagRecords"] == 0
                and report["reachedStartEnd"]
                and report["phase"] == "copying"
                for report in reports
            )
            if not is_reported:
                return False
            try:
                self._add_ends({report["topic"] for report in reports}, ends)
            except KafkaException:
                return False  # a leader is being elected, or its broker is down
            return all(
                report["sourceOffset"] >= ends[report["topic"]].get(report["partition"], 0)
                for report in reports
            )

        self._wait("all partitions are copied", caught_up)

    def _add_ends(self, topics: set[str], ends: dict[str, dict[int, int]]) -> None:
        """Adds the ends of *topics* that *ends* lacks. A deleted topic has none."""
        missing = sorted(topics - ends.keys())
        if self.source is None:
            ends.update((topic, {}) for topic in missing)
        elif missing:
            existing = self.source.topics()
            for topic in missing:
                exists = topic in existing
                ends[topic] = self.source.end_offsets(topic, isolation=self._isolation()) if exists else {}

    def _isolation(self) -> str:
        lines = self.files[-1]
        keys = ("source.consumer.isolation.level", "consumer.isolation.level")
        if isinstance(lines, str) or not any(lines.get(key) == "read_committed" for key in keys):
            return "read_uncommitted"
        return "read_committed"

    def wait_for_copy(
        self,
        target: KafkaCluster,
        topic: str,
        count: int,
    ) -> None:
        """Waits until the end offsets of target topic *topic* add up to at least *count*."""

        def copied() -> bool:
            self._child().must_run()
            try:
                return target.total_end_offset(topic) >= count
            except KafkaException:
                return False  # a new topic has no leader yet, or its broker is down

        self._wait(f"{topic} ends at {count}", copied)

    def wait_for_phase(self, phase: str, topic: str, number: int = 0) -> dict[str, Any]:
        """Waits until a source partition is in *phase*, and returns its report."""

        def reached() -> dict[str, Any] | None:
            report = self.partition(topic, number)
            return report if report.get("phase") == phase else None

        return dict(self._wait(f"{topic}-{number} is {phase}", reached) or {})

    def _wait(self, what: str, condition: Any) -> Any:
        def alive() -> Any:
            self._child().must_run()
            return condition()

        try:
            return wait_until(f"{self.name}: {what}", alive, timeout_s=HANG_S)
        except HarnessError as error:
            raise HarnessError(f"{error}\n{self._described()}\n{self._child().tail()}") from error

    def _described(self) -> str:
        if not self.running or self._child().frozen or self._address_file is None:
            return ""
        if not self._address_file.exists():
            return "(no HTTP server)"
        try:
            names = self.rest("/connectors")[1]
            states = [self.rest(f"/connectors/{name}/status")[1] for name in names]
            return "\n".join(json.dumps(report) for report in [*states, *self.partitions()[:4]])
        except (OSError, ValueError) as error:
            return f"({error})"

    def _child(self) -> Child:
        if self.child is None:
            raise HarnessError(f"{self.name} was never started.")
        return self.child


def _write(path: Path, lines: Mapping[str, str] | str) -> Path:
    if not isinstance(lines, str):
        return write_properties(path, dict(lines))
    path.write_text(lines)
    return path


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
