"""Process 1 of a cluster's node, inside its namespaces: starts the components, and starts again those that end.

`python -m tests.harness.kubernetes.node FOLDER` reads FOLDER/node.json (`node_settings` writes it) and never returns. Who
ends it ends all: containers, mounts, firewall rules and interfaces go with its namespaces.
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

API_WAIT_S = 180.0  # three seconds alone; more when a whole suite runs on two cores
RESTART_PAUSE_S = 0.5  # what ends at once must not take a core for itself
TMPFS = ("/run", "/var/lib/cni")  # the host keeps its own


def main(folder: Path) -> None:
    """Runs the node of *folder* for ever."""
    settings = json.loads((folder / "node.json").read_text())
    _prepare(folder)
    children: dict[int, tuple[subprocess.Popen[bytes], str, Sequence[str]]] = {}

    def start(name: str, command: Sequence[str]) -> None:
        with (folder / "log" / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        # Kept, because subprocess reaps what it drops, and its end would be missed.
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
            print(f"{name} ended ({status}) and is started again.", flush=True)
            time.sleep(RESTART_PAUSE_S)
            start(name, command)


def _prepare(folder: Path) -> None:
    """Mounts and the loopback interface, all in the node's own namespaces."""
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
