"""A real Kubernetes cluster in Linux namespaces of its own: pods run, DNS answers, volumes follow their Secrets.

    with Cluster(folder=tmp_path, workers=1) as cluster:
        cluster.load(archive)
        cluster.kubectl("get", "nodes")
        cluster.workers[0].crash()

Each node is one process tree in mount, process and network namespaces of its own. So the host keeps its firewall, mounts and
ports, and ending one process ends a node. The host reaches the API server, pods and Services by their own addresses,
over a pair of interfaces. Needs root, and what `setup.sh cluster` builds and installs. Up in some fifteen seconds.
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
READY_WAIT_S = 300.0  # fifteen seconds alone; more when a whole suite runs on two cores
SOCKET_PATH_MAX = (
    86  # of the kernel's 107, for kubelet makes longer ones beside it: kubelet/pod-resources/1234567890
)
IMAGES = {"pause": PAUSE_IMAGE, "coredns": "localhost/coredns:1"}


class Cluster:
    """`name` is the first node's, and that of the host's interface, namespace and control groups; two may run side by side.

    *workers*, at most three, are called `<name>-2` and so on; the kernel limits these names to 15 characters.
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
        """The administrator's."""
        return self._folder / "pki" / "administrator.kubeconfig"

    @property
    def node_ip(self) -> str:
        """Where the host finds NodePorts."""
        return self._control.node.ip

    @property
    def host_ip(self) -> str:
        """Where pods find what listens on the host, once the cluster is up."""
        return self._control.node.host_ip

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
        """Ends it and removes all that it was; nothing to do is fine."""
        self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def load(self, *archives: Path) -> None:
        """Gives the nodes images, as `docker save` or an OCI archive has them."""
        for archive in archives:
            for running in self._nodes:
                running.ctr("images", "import", str(archive))

    def tag(self, image: str, other: str) -> None:
        """The nodes' *image* is known as *other*, too."""
        for running in self._nodes:
            running.ctr("images", "tag", "--force", image, other)

    def pids(self, component: str) -> list[int]:
        """Processes of the first node's own *component*, such as kube-apiserver: to be frozen, or killed and started again."""
        return self._control.pids(component)

    def wait_until_ready(self, running: RunningNode) -> None:
        """Until pods can run on that node."""
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
            wait_until("containerd answers", running.containerd_answers, timeout_s=READY_WAIT_S)
            for program in IMAGES:
                running.ctr("images", "import", str(self._folder / f"{program}.tar"))

    def _node_is_ready(self, name: str) -> bool:
        """A node has a taint for a moment after it is ready; pods need the account and the authority of their namespace."""
        try:
            node = self.kubectl.get("node", name)
            self.kubectl.get("serviceaccount", "default")
            self.kubectl.get("configmap", "kube-root-ca.crt")
        except KubectlError:
            return False
        ready = {one["type"]: one["status"] for one in node["status"]["conditions"]}.get("Ready")
        return ready == "True" and not node["spec"].get("taints")
