"""One API server that all tests of this folder share; each test has its own namespace."""

import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrorflow_operator.settings import SEED_ACCOUNT
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.installation import require_control_plane
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.skipping import skip_without

DEFINITION = Path(__file__).parents[3] / "crds" / "mirrorflows.yaml"


@pytest.fixture(scope="session")
def built() -> None:
    """Skips tests that start their own control plane where none is built."""
    skip_without(require_control_plane)


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """The shared API server; a test that kills or freezes an API server starts its own."""
    skip_without(require_control_plane)
    with ApiServer(folder=tmp_path_factory.mktemp("api-server")) as server:
        yield server


@pytest.fixture(scope="session")
def mirrorflows(api_server: ApiServer) -> ApiServer:
    """The API server with the MirrorFlow CRD."""
    apply_definition(api_server)
    return api_server


def apply_definition(server: ApiServer) -> None:
    """Applies the MirrorFlow CRD, and waits until its objects can be created."""
    server.kubectl("apply", "--server-side", f"--filename={DEFINITION}")

    def established() -> bool:
        definition = server.kubectl.get("crd", "mirrorflows.mirrorflow.io")
        conditions = definition.get("status", {}).get("conditions") or ()
        return any(
            (condition["type"], condition["status"]) == ("Established", "True") for condition in conditions
        )

    wait_until("the CRD is established", established)


@pytest.fixture
def namespace(api_server: ApiServer, request: pytest.FixtureRequest) -> Iterator[Kubectl]:
    """kubectl as administrator in a namespace of the test's own, which is deleted after the test."""
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
