"""Chooses the cluster of the tests, the demo and `make cluster`: kind if Docker has its image, else MirrorFlow's own node.

        with chosen_cluster(folder=tmp_path, name="mirrorflow-e2e", network=243) as cluster:

kind is the default where Docker responds and has kind's node image. The variable CLUSTER (`kind` or `node`) overrides this;
only with CLUSTER=kind may kind pull its image.
"""

import os
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Protocol, Self

from tests.harness.kafka.processes import HarnessError
from tests.harness.kubernetes.cluster import Cluster
from tests.harness.kubernetes.installation import require_control_plane, require_helm, require_node
from tests.harness.kubernetes.kind import KindCluster, docker_responds, kind_program, node_image
from tests.harness.kubernetes.kubectl import Kubectl

CHOSEN_BY: Final = "CLUSTER"
Choice = Literal["kind", "node"]


class AnyCluster(Protocol):
    """The interface of both clusters. `Cluster` documents it."""

    kubectl: Kubectl

    @property
    def kubeconfig(self) -> Path: ...
    @property
    def node_ip(self) -> str: ...
    @property
    def host_ip(self) -> str: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def up(self, *, outlive: bool) -> None: ...
    def down(self) -> None: ...
    def load(self, *archives: Path) -> None: ...
    def tag(self, image: str, other: str) -> None: ...
    def pids(self, component: str) -> list[int]: ...


def choice() -> Choice:
    """Returns the choice within half a second. Raises `HarnessError` if CLUSTER has a different value."""
    match os.environ.get(CHOSEN_BY, ""):
        case "":
            return "kind" if docker_responds() and node_image() else "node"
        case "kind":
            return "kind"
        case "node":
            return "node"
        case unknown:
            raise HarnessError(f"CLUSTER={unknown} is neither kind nor node.")


def chosen_cluster(*, folder: Path, name: str = "mirrorflow", network: int = 240) -> AnyCluster:
    """Returns the chosen cluster, which is not yet started."""
    cluster_class: type[KindCluster | Cluster] = KindCluster if choice() == "kind" else Cluster
    return cluster_class(folder=folder, name=name, network=network)


def require_cluster() -> None:
    """Raises `HarnessError` with what is missing for the chosen cluster."""
    if choice() == "node":
        require_node()
        return
    require_control_plane()  # for its kubectl
    require_helm()
    if not docker_responds():
        raise HarnessError("kind needs Docker, and no engine responds: start it, or leave CLUSTER out.")
    if kind_program() is None:
        raise HarnessError("kind is missing: `tests/harness/kubernetes/setup.sh kind` builds it.")
