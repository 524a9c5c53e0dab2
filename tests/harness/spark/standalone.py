"""A standalone Spark cluster whose workers behave like different machines. Each has its own network and its own /tmp.

It needs root. No executor finds the driver's temporary folder, and 127.0.0.1 is a different machine for each worker.
"""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from tests.harness.kafka.processes import Child, family, free_port, start, wait_until

NETWORK: Final = "10.213.77"
ADDRESS: Final = f"{NETWORK}.1"  # this machine's address for the workers
BRIDGE: Final = "mf-spark"
LIGHT_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@contextmanager
def bridge() -> Iterator[str]:
    """Creates a network for workers, and yields this machine's address in it."""
    _ip(f"link add {BRIDGE} type bridge")
    try:
        _ip(f"addr add {ADDRESS}/24 dev {BRIDGE}")
        _ip(f"link set {BRIDGE} up")
        yield ADDRESS
    finally:
        _ip(f"link del {BRIDGE}")


@dataclass(kw_only=True, slots=True)
class SparkCluster:
    """A master on this machine, and *workers* with *cores* each in their own namespaces. It needs `bridge`."""

    folder: Path  # for logs
    spark_home: Path
    workers: int = 2
    cores: int = 1
    url: str = field(init=False)
    _web_port: int = field(init=False)
    _children: list[Child] = field(default_factory=list, init=False)
    _namespaces: list[str] = field(default_factory=list, init=False)

    def __enter__(self) -> Self:
        port, self._web_port = free_port(), free_port()
        self.url = f"spark://{ADDRESS}:{port}"
        web = ("--webui-port", str(self._web_port))
        self._start("master", [], "master.Master", ["--host", ADDRESS, "--port", str(port), *web])
        for number in range(self.workers):
            self._start_worker(number)
        wait_until("all workers are registered", lambda: len(self.state()["workers"]) == self.workers)
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            end(child)
        for namespace in self._namespaces:
            _ip(f"netns del {namespace}")

    def state(self) -> dict[str, Any]:
        """Returns the master's state: workers, activeapps, completedapps."""
        try:
            with urllib.request.urlopen(f"http://{ADDRESS}:{self._web_port}/json/", timeout=10) as response:
                state: dict[str, Any] = json.loads(response.read())
        except OSError:
            state = {"workers": []}
        return state

    def submit(self, arguments: Sequence[str], *, log: Path, conf: Sequence[str] = ()) -> Child:
        """Starts `spark-submit` with `mirrorflow-seed` and *arguments*, like a user."""
        import mirrorflow_seed

        program = Path(mirrorflow_seed.__file__).with_name("__main__.py")
        confs = [part for setting in conf for part in ("--conf", setting)]
        command = [str(self.spark_home / "bin" / "spark-submit"), "--master", self.url, *confs, str(program)]
        environment = {"SPARK_HOME": str(self.spark_home), "PYSPARK_PYTHON": sys.executable}
        return start("spark-submit", [*command, *arguments], log=log, environment=environment)

    def _start_worker(self, number: int) -> None:
        namespace, address = f"{BRIDGE}-{number}", f"{NETWORK}.{number + 2}"
        _ip(f"netns add {namespace}")
        self._namespaces.append(namespace)
        _ip(f"link add {namespace} type veth peer name eth0 netns {namespace}")
        _ip(f"link set {namespace} master {BRIDGE} up")
        _ip(f"-n {namespace} addr add {address}/24 dev eth0")
        for device in ("lo", "eth0"):
            _ip(f"-n {namespace} link set {device} up")
        _ip(f"-n {namespace} route add default via {ADDRESS}")
        # `ip netns exec` has its own mount namespace.
        own_tmp = 'mount -t tmpfs none /tmp && exec "$@"'
        within = ["ip", "netns", "exec", namespace, "sh", "-c", own_tmp, "sh"]
        resources = ["--cores", str(self.cores), "--memory", "1g", "--work-dir", "/tmp/work"]
        address_options = ["--host", address, "--webui-port", "8081"]
        self._start(namespace, within, "worker.Worker", [*address_options, *resources, self.url])

    def _start(self, name: str, within: Sequence[str], program: str, arguments: Sequence[str]) -> None:
        command = [str(self.spark_home / "bin" / "spark-class"), f"org.apache.spark.deploy.{program}"]
        environment = {
            "SPARK_HOME": str(self.spark_home),
            "SPARK_DAEMON_JAVA_OPTS": LIGHT_JVM,
            "SPARK_DAEMON_MEMORY": "256m",
        }
        log = self.folder / f"{name}.log"
        self._children.append(start(name, [*within, *command, *arguments], log=log, environment=environment))


def end(child: Child) -> None:
    """Kills *child* and its descendants: a JVM, and the Python tasks that it has started."""
    for pid in family(child.pid):
        _kill(pid)
    child.kill()


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True, capture_output=True)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        return
