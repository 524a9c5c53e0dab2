"""Which cluster the tests, the demo and `make cluster` stand on: of `kind` where it is at hand at once, else a node of ours.

    with chosen_cluster(folder=tmp_path, name="mirrorflow-e2e", network=243) as cluster:

At hand means: Docker answers and holds an image of kind's node. The variable CLUSTER says which it must be, `kind` or
`node`; only then may kind fetch its image.
"""

import os
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Protocol, Self

from tests.harness.kafka.processes import HarnessError
from tests.harness.kubernetes.cluster import Cluster
from tests.harness.kubernetes.installation import require_control_plane, require_helm, require_node
from tests.harness.kubernetes.kind import KindCluster, docker_answers, kind_program, node_image
from tests.harness.kubernetes.kubectl import Kubectl

CHOSEN_BY: Final = "CLUSTER"
Choice = Literal["kind", "node"]


class AnyCluster(Protocol):
    """What both have; `Cluster` says what each is."""

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
    """What it would be now; half a second. Raises `HarnessError` where CLUSTER names neither."""
    match os.environ.get(CHOSEN_BY, ""):
        case "":
            return "kind" if docker_answers() and node_image() else "node"
        case "kind":
            return "kind"
        case "node":
            return "node"
        case other:
            raise HarnessError(f"CLUSTER={other} is neither kind nor node.")


def chosen_cluster(*, folder: Path, name: str = "mirrorflow", network: int = 240) -> AnyCluster:
    """Not yet started."""
    made: type[KindCluster | Cluster] = KindCluster if choice() == "kind" else Cluster
    return made(folder=folder, name=name, network=network)


def require_cluster() -> None:
    """`HarnessError` that names what the chosen one cannot be made without."""
    if choice() == "node":
        require_node()
        return
    require_control_plane()  # its kubectl
    require_helm()
    if not docker_answers():
        raise HarnessError("kind needs Docker, and no engine answers: start it, or leave CLUSTER out.")
    if kind_program() is None:
        raise HarnessError("There is no kind: `tests/harness/kubernetes/setup.sh kind` builds it.")
