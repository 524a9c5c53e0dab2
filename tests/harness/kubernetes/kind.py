"""A cluster of `kind` with the interface of `cluster.Cluster`.

        with KindCluster(folder=tmp_path) as cluster:
            cluster.load(archive)
            cluster.kubectl("get", "nodes")

Images are pulled only if CLUSTER=kind. Pods reach listeners of the host by the gateway of Docker's network, so Docker must
run on this machine and not in a virtual machine. Killed tests leave the cluster; the next `up` under its name removes it.
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

# A running engine responds in a tenth of a second. Tests must not wait for a missing one.
RESPONSE_WAIT_S = 5.0
COMMAND_WAIT_S = 300.0  # a minute on an idle machine, without a pull
READY_WAIT_S = 180
NODE_IMAGE = "kindest/node"
NETWORK = "kind"  # the Docker network of all kind clusters


def kind_program() -> Path | None:
    """Returns the path of `kind`, from PATH or as built by `setup.sh kind`."""
    path = shutil.which("kind")
    if path is not None:
        return Path(path)
    return KIND / "kind" if (KIND / ".complete").exists() else None


def docker_responds() -> bool:
    """Returns whether a Docker engine responds."""
    return shutil.which("docker") is not None and bool(
        _docker_output("version", "--format={{.Server.Version}}")
    )


def node_image() -> str:
    """Returns the newest node image of Docker, or an empty text if there is none."""
    tags = _docker_output("image", "ls", "--format={{.Tag}}", NODE_IMAGE).split()
    numbers = {tuple(int(part) for part in tag[1:].split(".")): tag for tag in tags if _is_version(tag)}
    return f"{NODE_IMAGE}:{numbers[max(numbers)]}" if numbers else ""


class KindCluster:
    """A kind cluster called *name*. Several may run. *network* selects the addresses of its pods and Services."""

    def __init__(self, *, folder: Path, name: str = "mirrorflow", network: int = 240) -> None:
        self._folder, self.name, self._network = folder.resolve(), name, network
        self.kubectl = Kubectl(kubeconfig=self.kubeconfig)

    @property
    def kubeconfig(self) -> Path:
        """Returns the kubeconfig of the administrator, at the same path as for MirrorFlow's own node."""
        return self._folder / "pki" / "administrator.kubeconfig"

    @property
    def node_ip(self) -> str:
        """Returns the address at which the host reaches NodePorts."""
        networks = self._node()["NetworkSettings"]["Networks"]
        return str(networks[NETWORK]["IPAddress"])

    @property
    def host_ip(self) -> str:
        """Returns the address at which pods reach listeners of the host, once the cluster is up."""
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
        """Starts a new cluster, and returns when pods can run. Only `down` ends it, regardless of *outlive*."""
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
        """Ends the cluster if it exists, and removes its files."""
        if self.exists():
            self._kind("delete", "cluster")
        shutil.rmtree(self._folder, ignore_errors=True)

    def exists(self) -> bool:
        """Returns whether Docker has a container of its node."""
        return bool(
            _docker_output("container", "ls", "--all", "--quiet", f"--filter=name=^{self._container}$")
        )

    def load(self, *archives: Path) -> None:
        """Imports images into the node, from archives of `docker save` or in the OCI format."""
        for archive in archives:
            self._kind("load", "image-archive", str(archive))

    def tag(self, image: str, other: str) -> None:
        """Adds the name *other* to the node's *image*."""
        command = ("ctr", "--namespace=k8s.io", "images", "tag", "--force", image, other)
        _run("docker", "exec", self._container, *command)

    def pids(self, component: str) -> list[int]:
        """Returns the host's process ids of the node's *component*, such as kube-apiserver.

        Freezing them needs root.
        """
        return [pid for pid in family(int(self._node()["State"]["Pid"])) if program_of(pid) == component]

    @property
    def _container(self) -> str:
        return f"{self.name}-control-plane"

    def _node(self) -> dict[str, Any]:
        return dict(json.loads(_run("docker", "container", "inspect", self._container))[0])

    def _settings(self) -> dict[str, Any]:
        # By default, kubelet updates a volume a minute after its Secret has changed.
        kubelet = {"kind": "KubeletConfiguration", "syncFrequency": "5s", "fileCheckFrequency": "5s"}
        return {
            "kind": "Cluster",
            "apiVersion": "kind.x-k8s.io/v1alpha4",
            "networking": {
                "podSubnet": f"10.{self._network}.64.0/18",
                "serviceSubnet": f"10.{self._network}.128.0/18",
                "kubeProxyMode": "nftables",
            },
            "kubeadmConfigPatches": [json.dumps(kubelet)],
            "nodes": [{"role": "control-plane"}],
        }

    def _kind(self, *arguments: str) -> None:
        program = kind_program()
        if program is None:
            raise HarnessError("kind is missing: `tests/harness/kubernetes/setup.sh kind` builds it.")
        _run(str(program), *arguments, f"--name={self.name}")


def _is_version(tag: str) -> bool:
    return tag.startswith("v") and all(part.isdigit() for part in tag[1:].split("."))


def _docker_output(*arguments: str) -> str:
    """Returns Docker's output, or an empty text if it fails or does not respond in time."""
    try:
        process = subprocess.run(
            ["docker", *arguments], capture_output=True, text=True, timeout=RESPONSE_WAIT_S, check=False
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return ""
    return process.stdout.strip() if process.returncode == 0 else ""


def _run(*command: str) -> str:
    process = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_WAIT_S, check=False)
    if process.returncode:
        raise HarnessError(f"{' '.join(command)} failed:\n{process.stderr.strip()}")
    return process.stdout
