"""All tests of this folder share one API server, and each test has its own namespace."""

import re
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from mirrorflow_operator.settings import SEED_ACCOUNT
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.installation import require_control_plane
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.operator_process import OperatorProcess
from tests.harness.kubernetes.skipping import skip_without
from tests.integration.kubernetes.spark_jobs import SETTINGS

DEFINITIONS = Path(__file__).parents[3] / "crds"


@pytest.fixture(scope="session")
def built() -> None:
    """Skips tests that start their own control plane if none is built."""
    skip_without(require_control_plane)


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """The shared API server. A test that kills or freezes an API server starts its own."""
    skip_without(require_control_plane)
    with ApiServer(folder=tmp_path_factory.mktemp("api-server")) as server:
        yield server


@pytest.fixture(scope="session")
def mirrorflows(api_server: ApiServer) -> ApiServer:
    """The API server with MirrorFlow's CRDs."""
    apply_definition(api_server)
    return api_server


def apply_definition(server: ApiServer) -> None:
    """Applies MirrorFlow's CRDs, and waits until their objects can be created."""
    server.kubectl("apply", "--server-side", f"--filename={DEFINITIONS}")
    wait_until_established(server)


def wait_until_established(server: ApiServer) -> None:
    """Waits until the objects of MirrorFlow's CRDs can be created."""

    def established(name: str) -> bool:
        definition = server.kubectl.get("crd", name)
        conditions = definition.get("status", {}).get("conditions") or ()
        return any(
            (condition["type"], condition["status"]) == ("Established", "True") for condition in conditions
        )

    for path in DEFINITIONS.iterdir():
        name = f"{path.stem}.mirrorflow.io"
        wait_until(f"the CRD {name} is established", partial(established, name))


@pytest.fixture
def namespace(api_server: ApiServer, request: pytest.FixtureRequest) -> Iterator[Kubectl]:
    """kubectl as administrator in a namespace of the test, which is deleted after the test."""
    stem = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())[:40].strip("-")
    name = f"{stem}-{uuid.uuid4().hex[:8]}"
    api_server.kubectl("create", "namespace", name)
    yield api_server.kubectl.within(name)
    api_server.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def team(namespace: Kubectl) -> Kubectl:
    """A namespace with the drivers' ServiceAccount, as the chart creates it."""
    namespace("create", "serviceaccount", SEED_ACCOUNT)
    return namespace


@pytest.fixture(scope="module")
def operator_of_jobs(
    mirrorflows: ApiServer, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """One operator for the tests of a module about Spark jobs, except for tests that kill their operator."""
    name = request.module.__name__.rpartition(".")[2].replace("_", "-")
    user = mirrorflows.user(f"operator-of-{name}", groups=["system:masters"])
    folder = tmp_path_factory.mktemp("operator")
    with OperatorProcess(kubeconfig=user.kubeconfig, folder=folder, environment=SETTINGS) as process:
        process.wait_until_leading()
        yield process


@pytest.fixture
def flows(operator_of_jobs: OperatorProcess, team: Kubectl) -> Kubectl:
    """The namespace `team`, served by the operator of the module."""
    operator_of_jobs.child.must_run()
    return team
