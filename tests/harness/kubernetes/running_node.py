"""One node of a cluster as a process tree in its own namespaces, and its virtual network links.

        node = RunningNode(Node(folder=folder, name="mirrorflow", network=240))
        node.start(outlive=False)

Each node has a link to the host. A worker has a second link to node 1 for all traffic within the cluster, because the host
routes nothing between them.
"""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

from tests.harness.kafka.processes import HarnessError, family, program_of, wait_until
from tests.harness.kubernetes.installation import cgroup_hierarchies
from tests.harness.kubernetes.node_settings import Node

REPOSITORY = Path(__file__).parents[3]
END_WAIT_S = 60.0


class RunningNode:
    """A node. *control* is node 1 for a worker, and None for node 1. The settings must be written before `start`."""

    def __init__(self, node: Node, control: Node | None = None) -> None:
        self.node, self._control = node, control
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, outlive: bool) -> None:
        """Starts the node and returns at once. The node ends with this thread, unless it must *outlive* the thread."""
        (self.node.folder / "log" / "pods").mkdir(parents=True, exist_ok=True)
        self._make_cgroups()
        self._make_network()
        end_with_parent = [] if outlive else ["setpriv", "--pdeathsig", "KILL", "--"]
        namespaces = [
            "nsenter",
            f"--net=/run/netns/{self.node.name}",
            "unshare",
            "--mount",
            "--pid",
            "--fork",
        ]
        program = [sys.executable, "-m", "tests.harness.kubernetes.node", str(self.node.folder)]
        with (self.node.folder / "log" / "node.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*end_with_parent, *namespaces, "--kill-child", "--mount-proc", *program],
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        (self.node.folder / "pid").write_text(str(self._process.pid))

    def end(self) -> None:
        """Ends the processes, if any, and removes what the kernel does not remove with them."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(END_WAIT_S)
            self._process = None
        pid = self._pid()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            wait_until("the node has ended", lambda: self._pid() is None, timeout_s=END_WAIT_S)
        for group in self._cgroups():
            for path, _, _ in list(os.walk(group))[::-1]:
                wait_until(f"{path} is empty", partial(_is_removed, Path(path)), timeout_s=END_WAIT_S)
        for command in (f"netns del {self.node.name}", f"link del {self.node.name}"):
            subprocess.run(["ip", *command.split()], check=False, capture_output=True)

    def crash(self) -> None:
        """Ends the node like a power cut.

        Its links go down before its processes end, so that no peer receives a FIN.
        """
        if self._control is not None:
            _ip(f"-n {self._control.name} link set {self._link} down")
        _ip(f"link set {self.node.name} down")
        self.end()

    def pids(self, component: str) -> list[int]:
        """Returns the processes of the node's *component*, such as kube-apiserver."""
        return [
            pid
            for pid in family(self._process.pid if self._process is not None else self._pid() or 0)
            if program_of(pid) == component
        ]

    def containerd_responds(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise HarnessError(f"The node has ended: see {self.node.folder}/log.")
        try:
            self.ctr("version")
        except HarnessError:
            return False
        return True

    def ctr(self, *arguments: str) -> None:
        """Runs containerd's client. Raises `HarnessError` with its message."""
        command = ["ctr", f"--address={self.node.socket}", "--namespace=k8s.io", *arguments]
        process = subprocess.run(command, check=False, capture_output=True, text=True)
        if process.returncode:
            raise HarnessError(f"ctr {' '.join(arguments)} failed: {process.stderr.strip()}")

    @property
    def _link(self) -> str:
        """Returns the interface of node 1 that leads to this worker."""
        return f"node{self.node.number}"

    def _pid(self) -> int | None:
        """Returns the id of an earlier run's outermost process if it runs. A zombie or a reused id does not count."""
        try:
            pid = int((self.node.folder / "pid").read_text())
            command = Path(f"/proc/{pid}/cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError, ValueError):
            return None
        return pid if f"kubernetes.node\0{self.node.folder}" in command else None

    def _make_network(self) -> None:
        node = self.node
        _ip(f"netns add {node.name}")
        _ip(f"link add {node.name} type veth peer name eth0 netns {node.name}")
        _ip(f"address add {node.host_ip}/30 dev {node.name}")
        _ip(f"link set {node.name} up")
        _ip(f"-n {node.name} address add {node.ip}/30 dev eth0")
        _ip(f"-n {node.name} link set eth0 up")
        _ip(f"-n {node.name} route add default via {node.host_ip}")
        _ip(f"route add {node.pods} via {node.ip}")
        if self._control is None:
            _ip(f"route add {node.services} via {node.ip}")
        else:
            self._join(self._control)

    def _join(self, control: Node) -> None:
        """Creates the link to node 1.

        Over its own link, the worker reaches the addresses that the host has on node 1's link.
        """
        node, link = self.node, self._link
        _ip(f"-n {control.name} link add {link} type veth peer name eth1 netns {node.name}")
        _ip(f"-n {control.name} link set {link} up")
        _ip(f"-n {control.name} route add {node.ip} dev {link} src {control.ip}")
        _ip(f"-n {control.name} route add {node.pods} via {node.ip}")
        _ip(f"-n {node.name} link set eth1 up")
        _ip(f"-n {node.name} route add {control.ip} dev eth1 src {node.ip}")
        _ip(f"-n {node.name} route add {node.cluster} via {control.ip} src {node.ip}")
        _ip(f"-n {node.name} route add {control.host_ip} via {node.host_ip}")

    def _cgroups(self) -> list[Path]:
        """Returns the node's group in each hierarchy."""
        return [hierarchy / self.node.name for hierarchy in cgroup_hierarchies()]

    def _make_cgroups(self) -> None:
        for group in self._cgroups():
            group.mkdir(exist_ok=True)
            for setting in ("cpuset.cpus", "cpuset.mems"):  # in version 1, these are empty in a new group
                if group.parent.name == "cpuset":
                    (group / setting).write_text((group.parent / setting).read_text())


def _ip(command: str) -> None:
    process = subprocess.run(["ip", *command.split()], check=False, capture_output=True, text=True)
    if process.returncode:
        raise HarnessError(f"ip {command} failed: {process.stderr.strip()}")


def _is_removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False  # a process in the group has not ended yet
    return True
