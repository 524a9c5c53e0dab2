"""Process 1 of a cluster's node, inside its namespaces. It starts the components, and restarts those that end.

`python -m tests.harness.kubernetes.node FOLDER` reads FOLDER/node.json, which `node_settings` writes, and never
returns. If it is killed, its containers, mounts, firewall rules and interfaces are removed with its namespaces.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.requests import is_ready

API_WAIT_S = 180.0  # three seconds on an idle machine; longer while a whole suite runs on two cores
RESTART_PAUSE_S = 0.5  # a component that ends at once must not use a whole core
TMPFS = ("/run", "/var/lib/cni")  # so that the host's folders stay unchanged


def main(folder: Path) -> None:
    """Runs the node of *folder* until it is killed."""
    settings = json.loads((folder / "node.json").read_text())
    _prepare(folder)
    children: dict[int, tuple[subprocess.Popen[bytes], str, Sequence[str]]] = {}

    def start(name: str, command: Sequence[str]) -> None:
        with (folder / "log" / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        # The module subprocess reaps child processes without a reference, and their end would then be missed.
        children[child.pid] = (child, name, command)

    for name, command in settings["first"].items():
        start(name, command)
    authority = Path(settings["authority"])
    wait_until(
        "the API server is ready", lambda: is_ready(settings["server"], authority), timeout_s=API_WAIT_S
    )
    for name, command in settings["then"].items():
        start(name, command)
    while True:
        pid, status = os.wait()
        if pid in children:
            child, name, command = children.pop(pid)
            child.returncode = status
            print(f"{name} ended ({status}) and is restarted.", flush=True)
            time.sleep(RESTART_PAUSE_S)
            start(name, command)


def _prepare(folder: Path) -> None:
    """Creates mounts and the loopback interface in the node's namespaces."""
    subprocess.run(["mount", "--make-rshared", "/"], check=True)
    for path in TMPFS:
        Path(path).mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path], check=True)
    Path("/run/lock").mkdir()
    subprocess.run(["mount", "--bind", str(folder / "log"), "/var/log"], check=True)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
