"""The environment of the demo and the end-to-end tests: a cluster, two secured Kafka clusters and MirrorFlow by Helm.

        with Stage(folder=tmp_path, name="mirrorflow-e2e", network=243) as stage:
            stage.apply(stage.flow("east-to-west", ["orders"]))

The brokers run on the host; pods reach them by the host's address on the link to the node. A stage needs root and what
`setup.sh cluster` and `setup.sh packages` provide, or else kind (see `choosing`). It starts in half a minute with built images.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes import flows
from tests.harness.kubernetes.choosing import AnyCluster, chosen_cluster, require_cluster
from tests.harness.kubernetes.cluster import Cluster
from tests.harness.kubernetes.images import require_builder
from tests.harness.kubernetes.installation import require_node
from tests.harness.kubernetes.kubectl import Kubectl, KubectlError
from tests.harness.kubernetes.release import Release

FLOWS = "flows"
WAIT_S = 120.0  # ten seconds on an idle machine; longer while a whole suite runs on two cores
OPERATOR = "app.kubernetes.io/name=mirrorflow-operator"
PORT = 8080  # the HTTP port of each connector
SIDES = ("east", "west")
Object = dict[str, Any]


def require_stage() -> None:
    """Raises `HarnessError` with what is missing for a stage."""
    require_cluster()
    require_builder()


def require_nodes() -> None:
    """Raises `HarnessError` with what is missing for a stage with workers."""
    require_node()
    require_builder()


@dataclass(kw_only=True, slots=True)
class Stage:
    """A stage with the chart's *values*, and with options of both KafkaClusters in *brokers*. *workers* need
    MirrorFlow's own nodes.

    `kubectl` is the administrator's, in the namespace of the flows, which enforces the restricted Pod Security
    Standard.
    """

    folder: Path
    name: str
    network: int
    workers: int = 0
    values: Mapping[str, Any] = field(default_factory=dict)
    brokers: Mapping[str, Any] = field(default_factory=dict)
    cluster: AnyCluster = field(init=False)
    release: Release = field(init=False)
    east: KafkaCluster = field(init=False)
    west: KafkaCluster = field(init=False)
    kubectl: Kubectl = field(init=False)
    _ends: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False)

    def __post_init__(self) -> None:
        """Creates the parts without starting them."""
        if self.workers:
            self.cluster = Cluster(
                folder=self.folder, name=self.name, network=self.network, workers=self.workers
            )
        else:
            self.cluster = chosen_cluster(folder=self.folder, name=self.name, network=self.network)
        self.release = Release(cluster=self.cluster, values=self.values)
        self.kubectl = self.cluster.kubectl.within(FLOWS)

    def __enter__(self) -> Self:
        try:
            self.start_cluster()
            self.start_kafka()
            self.release.load_images()
            self.release.install()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends everything that was started."""
        self._ends.close()

    def start_cluster(self) -> None:
        """Starts the cluster, and creates the namespace of the flows."""
        require_nodes() if self.workers else require_stage()
        self._ends.enter_context(self.cluster)
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        self.cluster.kubectl.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": FLOWS, "labels": labels}}
        )

    def start_kafka(self) -> None:
        """Starts both Kafka clusters, and creates their Secrets."""
        self.east, self.west = (
            self._ends.enter_context(flows.secured(name, self.cluster.host_ip, **self.brokers))
            for name in SIDES
        )
        for cluster in (self.east, self.west):
            self.apply(*flows.secrets_of(cluster))

    # Actions of a user.

    def flow(self, name: str, topics: Sequence[str], **spec: Any) -> Object:
        """Creates a flow from east to west (see `flows.flow`)."""
        return flows.flow(name, flows.side(self.east), flows.side(self.west), topics, **spec)

    def apply(self, *objects: Object) -> None:
        """Applies *objects* like `kubectl apply --server-side`."""
        for item in objects:
            self.kubectl.apply(item)

    def patch(self, name: str, spec: Mapping[str, Any]) -> None:
        """Merges *spec* into the spec of the MirrorFlow."""
        text = flows.merge_patch(spec)
        self.kubectl("patch", "mirrorflow", name, "--type=merge", f"--patch={text}")

    def wait_for(self, name: str, condition: str, *, timeout_s: float = WAIT_S) -> None:
        """Waits for a condition of the MirrorFlow with `kubectl wait --for=condition=...`."""
        self.kubectl(
            "wait",
            f"--for=condition={condition}",
            f"mirrorflow/{name}",
            f"--timeout={timeout_s:.0f}s",
            timeout_s=timeout_s + 10,
        )

    def delete(self, name: str) -> None:
        """Deletes the MirrorFlow, and returns when its pods are deleted."""
        self.kubectl("delete", "mirrorflow", name, "--ignore-not-found")
        wait_until(
            f"{name} has no pods",
            lambda: not self.kubectl.get("pods", f"--selector=mirrorflow.io/flow={name}")["items"],
            timeout_s=WAIT_S,
        )

    # The state of the cluster.

    def resource(self, name: str) -> Object:
        """Returns the current MirrorFlow."""
        return dict(self.kubectl.get("mirrorflow", name))

    def pods(self, flow: str, connector: str = "") -> list[Object]:
        """Returns the flow's pods that are not being deleted."""
        selector = f"mirrorflow.io/flow={flow}" + (
            f",mirrorflow.io/connector={connector}" if connector else ""
        )
        pods = self.kubectl.get("pods", f"--selector={selector}")["items"]
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def progress(self, pod: Object) -> Object:
        """Returns the connector's report to the operator, read through the API server, or an empty one without a
        response.
        """
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        try:
            return dict(
                self.kubectl.read(f"/api/v1/namespaces/{namespace}/pods/{name}:{PORT}/proxy/progress")
            )
        except KubectlError:
            return {}

    def described(self) -> str:
        """Describes the cluster after a failure, with resources, events and the last lines of logs."""
        parts = [
            _command_and_output(self.kubectl, "get", "mirrorflows", "--output=yaml"),
            _command_and_output(self.kubectl, "get", "mirrorpairs,switchovers", "--output=yaml"),
            _command_and_output(self.kubectl, "get", "pods,deployments,jobs", "--output=wide"),
            _command_and_output(self.kubectl, "get", "events", "--sort-by=.lastTimestamp"),
            _command_and_output(
                self.kubectl, "logs", "--selector=mirrorflow.io/flow", "--tail=15", "--prefix"
            ),
            _command_and_output(
                self.kubectl, "logs", "--selector=mirrorflow.io/switchover", "--tail=40", "--prefix"
            ),
            _command_and_output(self.release.kubectl, "get", "pods", "--output=wide"),
            _command_and_output(
                self.release.kubectl, "logs", f"--selector={OPERATOR}", "--tail=60", "--prefix"
            ),
        ]
        return "\n\n".join(parts)

    def kill(self, pod: Object) -> None:
        """Kills all processes of *pod* with -9 from the host. The kubelet restarts it."""
        for pid in processes_of(pod):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _command_and_output(kubectl: Kubectl, *arguments: str) -> str:
    try:
        return f"kubectl {' '.join(arguments)}\n{kubectl(*arguments)}"
    except (KubectlError, subprocess.TimeoutExpired) as error:
        return f"kubectl {' '.join(arguments)}: {error}"


def processes_of(pod: Object) -> list[int]:
    """Returns the processes in the pod's control group, except the pause container, which holds its network."""
    uid = pod["metadata"]["uid"]
    group_names = (f"pod{uid}", f"pod{uid.replace('-', '_')}")  # by the cgroup drivers cgroupfs and systemd
    pids = []
    for file in Path("/proc").glob("[0-9]*/cgroup"):
        try:
            groups = file.read_text()
            program = (file.parent / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if (
            any(group_name in groups for group_name in group_names)
            and program
            and b"pause" not in program.split(b"\0")[0]
        ):
            pids.append(int(file.parent.name))
    return pids
