"""A real Kubernetes cluster in its own Linux namespaces: pods run, DNS resolves, volumes follow their Secrets.

        with Cluster(folder=tmp_path, workers=1) as cluster:
            cluster.load(archive)
            cluster.kubectl("get", "nodes")
            cluster.workers[0].crash()

Each node is one process tree in its own mount, process and network namespaces. So the host keeps its firewall, mounts and
ports, and ending one process ends a node. The host reaches the API server, pods and Services by their addresses, over a
pair of interfaces. It needs root and what `setup.sh cluster` builds and installs. It starts in some fifteen seconds.
"""

import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.harness.kafka.processes import HarnessError, wait_until
from tests.harness.kubernetes.authority import Authority
from tests.harness.kubernetes.image import write_image
from tests.harness.kubernetes.installation import NODE, require_node
from tests.harness.kubernetes.kubectl import Kubectl, KubectlError
from tests.harness.kubernetes.node_settings import PAUSE_IMAGE, Node
from tests.harness.kubernetes.running_node import RunningNode

HERE = Path(__file__).parent
READY_WAIT_S = 300.0  # fifteen seconds on an idle machine; longer while a whole suite runs on two cores
SOCKET_PATH_MAX = 86  # the kernel allows 107; kubelet adds paths such as kubelet/pod-resources/1234567890
IMAGES = {"pause": PAUSE_IMAGE, "coredns": "localhost/coredns:1"}


class Cluster:
    """A cluster whose first node, interface, namespace and control groups are called *name*. Several clusters may run.

    *workers*, at most three, are called `<name>-2` and so on. The kernel limits these names to 15 characters.
    """

    def __init__(
        self, *, folder: Path, name: str = "mirrorflow", network: int = 240, workers: int = 0
    ) -> None:
        self._folder = folder.resolve()
        control = Node(folder=self._folder, name=name, network=network)
        self._control = RunningNode(control)
        self.workers = [
            RunningNode(
                Node(
                    folder=self._folder / f"node{number}",
                    name=f"{name}-{number}",
                    network=network,
                    number=number,
                ),
                control,
            )
            for number in range(2, 2 + workers)
        ]
        self.kubectl = Kubectl(kubeconfig=self.kubeconfig)

    @property
    def kubeconfig(self) -> Path:
        """Returns the kubeconfig of the administrator."""
        return self._folder / "pki" / "administrator.kubeconfig"

    @property
    def node_ip(self) -> str:
        """Returns the address at which the host reaches NodePorts."""
        return self._control.node.ip

    @property
    def host_ip(self) -> str:
        """Returns the address at which pods reach listeners of the host, once the cluster is up."""
        return self._control.node.host_ip

    def __enter__(self) -> Self:
        try:
            self.up(outlive=False)
        except BaseException:
            self._end()  # the logs stay, and explain the error
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def up(self, *, outlive: bool) -> None:
        """Starts a new cluster, and returns when pods can run.

        The cluster ends with this thread, unless it must *outlive* the thread.
        """
        require_node()
        for running in self._nodes:
            if len(str(running.node.socket)) > SOCKET_PATH_MAX:
                raise HarnessError(
                    f"The path {running.node.socket} is too long for a socket: use a shorter folder."
                )
        self.down()
        authority = Authority(self._folder / "pki")
        for running in self._nodes:
            running.node.folder.mkdir(exist_ok=True)
            running.node.configure(authority)
        control = self._control.node
        authority.kubeconfig(authority.user("administrator", groups=["system:masters"]), control.server)
        for running in self._nodes:
            running.start(outlive=outlive)
        self._provide_images(*self._nodes)
        for running in self._nodes:
            self.wait_until_ready(running)
        system = self.kubectl.within("kube-system")
        system.apply((HERE / "dns.yaml").read_text().replace("DNS_IP", control.dns_ip))
        system(
            "rollout",
            "status",
            "deployment/coredns",
            f"--timeout={READY_WAIT_S:.0f}s",
            timeout_s=READY_WAIT_S,
        )

    def down(self) -> None:
        """Ends the cluster if it exists, and removes its files."""
        self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def load(self, *archives: Path) -> None:
        """Imports images into the nodes, from archives of `docker save` or in the OCI format."""
        for archive in archives:
            for running in self._nodes:
                running.ctr("images", "import", str(archive))

    def tag(self, image: str, other: str) -> None:
        """Adds the name *other* to the nodes' *image*."""
        for running in self._nodes:
            running.ctr("images", "tag", "--force", image, other)

    def pids(self, component: str) -> list[int]:
        """Returns the processes of the first node's *component*, such as kube-apiserver, for tests that freeze or kill them."""
        return self._control.pids(component)

    def wait_until_ready(self, running: RunningNode) -> None:
        """Waits until pods can run on that node."""
        name = running.node.name
        wait_until(f"{name} is ready", lambda: self._node_is_ready(name), timeout_s=READY_WAIT_S, poll_s=0.2)

    @property
    def _nodes(self) -> list[RunningNode]:
        return [self._control, *self.workers]

    def _end(self) -> None:
        for running in self._nodes[::-1]:
            running.end()

    def _provide_images(self, *nodes: RunningNode) -> None:
        for program, image in IMAGES.items():
            write_image(self._folder / f"{program}.tar", image, NODE / program)
        for running in nodes:
            wait_until("containerd responds", running.containerd_responds, timeout_s=READY_WAIT_S)
            for program in IMAGES:
                running.ctr("images", "import", str(self._folder / f"{program}.tar"))

    def _node_is_ready(self, name: str) -> bool:
        """Returns whether pods can run. Then the node has no taint, and the namespace has its ServiceAccount and CA."""
        try:
            node = self.kubectl.get("node", name)
            self.kubectl.get("serviceaccount", "default")
            self.kubectl.get("configmap", "kube-root-ca.crt")
        except KubectlError:
            return False
        ready = {condition["type"]: condition["status"] for condition in node["status"]["conditions"]}.get(
            "Ready"
        )
        return ready == "True" and not node["spec"].get("taints")
