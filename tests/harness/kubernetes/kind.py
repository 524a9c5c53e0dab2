"""A cluster of `kind`, where Docker runs and a node image is at hand: the same as `cluster.Cluster`, made by others.

    with KindCluster(folder=tmp_path) as cluster:
        cluster.load(archive)
        cluster.kubectl("get", "nodes")

Nothing is pulled but where `kind` was asked for by name. Pods find what listens on the host by the gateway of Docker's
network, so Docker must run on this machine, not in a virtual machine beside it. Who kills the tests leaves the cluster; the
next `up` under its name removes it.
"""

import json
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.harness.kafka.processes import HarnessError, family, program_of
from tests.harness.kubernetes.installation import KIND
from tests.harness.kubernetes.kubectl import Kubectl

ANSWER_WAIT_S = (
    5.0  # an engine that is there answers in a tenth of a second; whether it is must not keep tests waiting
)
COMMAND_WAIT_S = 300.0  # a minute alone, without a pull
READY_WAIT_S = 180
NODE_IMAGE = "kindest/node"
NETWORK = "kind"  # Docker's, of all kind clusters


def kind_program() -> Path | None:
    """`kind` on the path, or the one that `setup.sh kind` has built."""
    found = shutil.which("kind")
    if found is not None:
        return Path(found)
    return KIND / "kind" if (KIND / ".complete").exists() else None


def docker_answers() -> bool:
    """Whether there is an engine."""
    return shutil.which("docker") is not None and bool(_asked("version", "--format={{.Server.Version}}"))


def node_image() -> str:
    """The newest node image that the engine holds; empty where it has none."""
    tags = _asked("image", "ls", "--format={{.Tag}}", NODE_IMAGE).split()
    numbers = {tuple(int(part) for part in tag[1:].split(".")): tag for tag in tags if _is_version(tag)}
    return f"{NODE_IMAGE}:{numbers[max(numbers)]}" if numbers else ""


class KindCluster:
    """`name` is kind's; two may run side by side. *network* gives their pods and Services addresses of their own."""

    def __init__(self, *, folder: Path, name: str = "mirrorflow", network: int = 240) -> None:
        self._folder, self.name, self._network = folder.resolve(), name, network
        self.kubectl = Kubectl(kubeconfig=self.kubeconfig)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's, at the place where a node of ours has it."""
        return self._folder / "pki" / "administrator.kubeconfig"

    @property
    def node_ip(self) -> str:
        """Where the host finds NodePorts."""
        networks = self._node()["NetworkSettings"]["Networks"]
        return str(networks[NETWORK]["IPAddress"])

    @property
    def host_ip(self) -> str:
        """Where pods find what listens on the host, once the cluster is up."""
        networks = self._node()["NetworkSettings"]["Networks"]
        return str(networks[NETWORK]["Gateway"])

    def __enter__(self) -> Self:
        try:
            self.up(outlive=False)
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def up(self, *, outlive: bool) -> None:
        """Starts it anew, and returns when pods can run. Nothing ends it but `down`, whatever *outlive* says."""
        self.down()
        self.kubeconfig.parent.mkdir(parents=True)
        settings = self._folder / "kind.yaml"
        settings.write_text(json.dumps(self._settings()))
        image = node_image()
        self._kind(
            "create",
            "cluster",
            f"--config={settings}",
            f"--kubeconfig={self.kubeconfig}",
            f"--wait={READY_WAIT_S}s",
            *([f"--image={image}"] if image else []),
        )
        self.kubectl.within("kube-system")(
            "rollout", "status", "deployment/coredns", f"--timeout={READY_WAIT_S}s", timeout_s=READY_WAIT_S
        )

    def down(self) -> None:
        """Ends it and removes all that it was; nothing to do is fine."""
        if self.exists():
            self._kind("delete", "cluster")
        shutil.rmtree(self._folder, ignore_errors=True)

    def exists(self) -> bool:
        """Whether Docker has its node."""
        return bool(_asked("container", "ls", "--all", "--quiet", f"--filter=name=^{self._container}$"))

    def load(self, *archives: Path) -> None:
        """Gives the node images, as `docker save` or an OCI archive has them."""
        for archive in archives:
            self._kind("load", "image-archive", str(archive))

    def tag(self, image: str, other: str) -> None:
        """The node's *image* is known as *other*, too."""
        command = ("ctr", "--namespace=k8s.io", "images", "tag", "--force", image, other)
        _run("docker", "exec", self._container, *command)

    def pids(self, component: str) -> list[int]:
        """Processes of the node's own *component*, such as kube-apiserver, as the host numbers them; to freeze them needs root."""
        return [pid for pid in family(int(self._node()["State"]["Pid"])) if program_of(pid) == component]

    @property
    def _container(self) -> str:
        return f"{self.name}-control-plane"

    def _node(self) -> dict[str, Any]:
        return dict(json.loads(_run("docker", "container", "inspect", self._container))[0])

    def _settings(self) -> dict[str, Any]:
        # By its own rhythm a changed Secret takes a minute to reach a volume; tests have less patience.
        patience = {"kind": "KubeletConfiguration", "syncFrequency": "5s", "fileCheckFrequency": "5s"}
        return {
            "kind": "Cluster",
            "apiVersion": "kind.x-k8s.io/v1alpha4",
            "networking": {
                "podSubnet": f"10.{self._network}.64.0/18",
                "serviceSubnet": f"10.{self._network}.128.0/18",
                "kubeProxyMode": "nftables",
            },
            "kubeadmConfigPatches": [json.dumps(patience)],
            "nodes": [{"role": "control-plane"}],
        }

    def _kind(self, *arguments: str) -> None:
        program = kind_program()
        if program is None:
            raise HarnessError("There is no kind: `tests/harness/kubernetes/setup.sh kind` builds it.")
        _run(str(program), *arguments, f"--name={self.name}")


def _is_version(tag: str) -> bool:
    return tag.startswith("v") and all(part.isdigit() for part in tag[1:].split("."))


def _asked(*arguments: str) -> str:
    """Docker's answer; empty where it gives none in time."""
    try:
        done = subprocess.run(
            ["docker", *arguments], capture_output=True, text=True, timeout=ANSWER_WAIT_S, check=False
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_WAIT_S, check=False)
    if done.returncode:
        raise HarnessError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
    return done.stdout
