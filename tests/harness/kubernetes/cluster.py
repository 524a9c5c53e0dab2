"""A real one-node Kubernetes cluster in Linux namespaces of its own: pods run, DNS answers, volumes follow their Secrets.

    with Cluster(folder=tmp_path) as cluster:
        cluster.load(archive)
        cluster.kubectl("get", "nodes")

The node is one process tree in mount, process and network namespaces of its own. So the host keeps its firewall, mounts and
ports, and ending one process ends everything. The host reaches the API server, pods and Services by their own addresses,
over a pair of interfaces. Needs root, and what `setup.sh cluster` builds and installs. Up in some fifteen seconds.
"""

import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.harness.kafka.processes import HarnessError, family, program_of, wait_until
from tests.harness.kubernetes.authority import Authority
from tests.harness.kubernetes.image import write_image
from tests.harness.kubernetes.installation import NODE, cgroup_hierarchies, require_node
from tests.harness.kubernetes.kubectl import Kubectl, KubectlError
from tests.harness.kubernetes.node_settings import PAUSE_IMAGE, Node

HERE = Path(__file__).parent
READY_WAIT_S = 300.0  # fifteen seconds alone; more when a whole suite runs on two cores
END_WAIT_S = 60.0
SOCKET_PATH_MAX = (
    86  # of the kernel's 107, for kubelet makes longer ones beside it: kubelet/pod-resources/1234567890
)
IMAGES = {"pause": PAUSE_IMAGE, "coredns": "localhost/coredns:1"}


class Cluster:
    """`name` is the node's, and that of the host's interface, namespace and control groups; two may run side by side."""

    def __init__(self, *, folder: Path, name: str = "mirrorflow", network: int = 240) -> None:
        self._node = Node(folder=folder.resolve(), name=name, network=network)
        self._process: subprocess.Popen[bytes] | None = None
        self.kubectl = Kubectl(kubeconfig=self.kubeconfig)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self._node.folder / "pki" / "administrator.kubeconfig"

    @property
    def node_ip(self) -> str:
        """Where the host finds NodePorts."""
        return self._node.ip

    @property
    def host_ip(self) -> str:
        """Where pods find what listens on the host, once the cluster is up."""
        return self._node.host_ip

    def __enter__(self) -> Self:
        try:
            self.up(outlive=False)
        except BaseException:
            self._end()  # its logs stay, to explain the error
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def up(self, *, outlive: bool) -> None:
        """Starts it anew, and returns when pods can run; unless it is to *outlive* this thread, it ends with it."""
        require_node()
        if len(str(self._node.socket)) > SOCKET_PATH_MAX:
            raise HarnessError(
                f"The path {self._node.socket} is too long for a socket: use a shorter folder."
            )
        self.down()
        (self._node.folder / "log" / "pods").mkdir(parents=True)
        authority = Authority(self._node.folder / "pki")
        self._node.configure(authority)
        authority.kubeconfig(authority.user("administrator", groups=["system:masters"]), self._node.server)
        self._make_cgroups()
        self._make_network()
        self._start(outlive=outlive)
        wait_until("containerd answers", self._containerd_answers, timeout_s=READY_WAIT_S)
        for program, image in IMAGES.items():
            archive = self._node.folder / f"{program}.tar"
            write_image(archive, image, NODE / program)
            self.load(archive)
        wait_until("the node is ready", self._node_is_ready, timeout_s=READY_WAIT_S, poll_s=0.2)
        system = self.kubectl.within("kube-system")
        system.apply((HERE / "dns.yaml").read_text().replace("DNS_IP", self._node.dns_ip))
        system(
            "rollout",
            "status",
            "deployment/coredns",
            f"--timeout={READY_WAIT_S:.0f}s",
            timeout_s=READY_WAIT_S,
        )

    def down(self) -> None:
        """Ends it and removes all that it was; nothing to do is fine."""
        self._end()
        shutil.rmtree(self._node.folder, ignore_errors=True)

    def _end(self) -> None:
        """The processes, and what the kernel does not take with them."""
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
        for command in (f"netns del {self._node.name}", f"link del {self._node.name}"):
            subprocess.run(["ip", *command.split()], check=False, capture_output=True)

    def load(self, *archives: Path) -> None:
        """Gives the node images, as `docker save` or an OCI archive has them."""
        for archive in archives:
            self._ctr("images", "import", str(archive))

    def tag(self, image: str, other: str) -> None:
        """The node's *image* is known as *other*, too."""
        self._ctr("images", "tag", "--force", image, other)

    def pids(self, component: str) -> list[int]:
        """Processes of the node's own *component*, such as kube-apiserver: to be frozen, or killed and started again."""
        return [
            pid
            for pid in family(self._process.pid if self._process is not None else self._pid() or 0)
            if program_of(pid) == component
        ]

    def _start(self, *, outlive: bool) -> None:
        mortal = [] if outlive else ["setpriv", "--pdeathsig", "KILL", "--"]
        spaces = ["nsenter", f"--net=/run/netns/{self._node.name}", "unshare", "--mount", "--pid", "--fork"]
        program = [sys.executable, "-m", "tests.harness.kubernetes.node", str(self._node.folder)]
        with (self._node.folder / "log" / "node.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*mortal, *spaces, "--kill-child", "--mount-proc", *program],
                cwd=HERE.parents[2],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        (self._node.folder / "pid").write_text(str(self._process.pid))

    def _pid(self) -> int | None:
        """Whether an earlier run's outermost process lives; a zombie, or another process with its number, does not count."""
        try:
            pid = int((self._node.folder / "pid").read_text())
            command = Path(f"/proc/{pid}/cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError, ValueError):
            return None
        return pid if f"kubernetes.node\0{self._node.folder}" in command else None

    def _make_network(self) -> None:
        node = self._node
        for command in (
            f"netns add {node.name}",
            f"link add {node.name} type veth peer name eth0 netns {node.name}",
            f"address add {node.host_ip}/30 dev {node.name}",
            f"link set {node.name} up",
            f"-n {node.name} address add {node.ip}/30 dev eth0",
            f"-n {node.name} link set eth0 up",
            f"-n {node.name} route add default via {node.host_ip}",
            f"route add {node.pods} via {node.ip}",
            f"route add {node.services} via {node.ip}",
        ):
            done = subprocess.run(["ip", *command.split()], check=False, capture_output=True, text=True)
            if done.returncode:
                raise HarnessError(f"ip {command} failed: {done.stderr.strip()}")

    def _cgroups(self) -> list[Path]:
        """The node's own group in each hierarchy."""
        return [hierarchy / self._node.name for hierarchy in cgroup_hierarchies()]

    def _make_cgroups(self) -> None:
        for group in self._cgroups():
            group.mkdir(exist_ok=True)
            for setting in ("cpuset.cpus", "cpuset.mems"):  # version 1 leaves those of a new group empty
                if group.parent.name == "cpuset":
                    (group / setting).write_text((group.parent / setting).read_text())

    def _containerd_answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise HarnessError(f"The node has ended: see {self._node.folder}/log.")
        try:
            self._ctr("version")
        except HarnessError:
            return False
        return True

    def _node_is_ready(self) -> bool:
        """A node has a taint for a moment after it is ready; pods need the account and the authority of their namespace."""
        try:
            node = self.kubectl.get("node", self._node.name)
            self.kubectl.get("serviceaccount", "default")
            self.kubectl.get("configmap", "kube-root-ca.crt")
        except KubectlError:
            return False
        ready = {one["type"]: one["status"] for one in node["status"]["conditions"]}.get("Ready")
        return ready == "True" and not node["spec"].get("taints")

    def _ctr(self, *arguments: str) -> None:
        command = ["ctr", f"--address={self._node.socket}", "--namespace=k8s.io", *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise HarnessError(f"ctr {' '.join(arguments)} failed: {done.stderr.strip()}")


def _is_removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False  # a process in it has not quite ended
    return True
