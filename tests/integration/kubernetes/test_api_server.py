"""The harness's API server works. Every other test of this folder relies on it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.kafka.processes import HarnessError, wait_until
from tests.harness.kubernetes import installation
from tests.harness.kubernetes.api_server import ApiServer, RequestKind
from tests.harness.kubernetes.kubectl import Kubectl, KubectlError

ROOT = Path(__file__).parents[3]
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "idle"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "idle"}},
        "template": {
            "metadata": {"labels": {"app": "idle"}},
            "spec": {"containers": [{"name": "idle", "image": "idle:1"}]},
        },
    },
}


def test_controllers_create_and_delete_pods_of_a_deployment(namespace: Kubectl):
    """Owner references and garbage collection are real. Only nodes are missing."""
    namespace.apply(DEPLOYMENT)

    def pods() -> int:
        return len(namespace.get("pods", "--selector=app=idle")["items"])

    wait_until("both pods exist", lambda: pods() == 2)
    namespace("delete", "deployment", "idle")
    wait_until("both pods are gone", lambda: pods() == 0)


def test_a_user_may_do_only_what_a_role_grants(api_server: ApiServer, namespace: Kubectl):
    """Users can be created at any time, and RBAC decides."""
    alice = api_server.user("alice", groups=["staff"]).within(namespace.namespace)
    namespace("create", "role", "reader", "--verb=get,list", "--resource=configmaps")
    namespace("create", "rolebinding", "staff", "--role=reader", "--group=staff")

    assert alice.get("configmaps")["kind"] == "List"
    with pytest.raises(KubectlError, match='User "alice" cannot list resource "secrets"'):
        alice("get", "secrets")


def test_the_audit_log_has_the_allowed_requests_of_a_user(api_server: ApiServer, namespace: Kubectl):
    """A role is exactly sufficient if it grants these requests and no others. Refused requests are not listed."""
    bob = api_server.user("bob").within(namespace.namespace)
    namespace("create", "role", "writer", "--verb=create,get", "--resource=configmaps")
    namespace("create", "rolebinding", "bob", "--role=writer", "--user=bob")

    bob("create", "configmap", "mine")
    bob.get("configmap", "mine")
    with pytest.raises(KubectlError):
        bob("get", "secrets")

    def requested() -> frozenset[RequestKind]:
        return frozenset(kind for kind in api_server.allowed_requests("bob") if kind.resource == "configmaps")

    expected = {RequestKind(verb=verb, group="", resource="configmaps") for verb in ("create", "get")}
    wait_until("the log has both requests", lambda: requested() == expected)
    assert "secrets" not in {kind.resource for kind in api_server.allowed_requests("bob")}


@pytest.mark.usefixtures("built")
def test_a_killed_api_server_restarts_with_its_objects(tmp_path: Path):
    """Its port stays the same, so that clients reconnect."""
    with ApiServer(folder=tmp_path, controllers=False) as server:
        server.kubectl("create", "configmap", "kept")
        server.api.kill()
        with pytest.raises(KubectlError):
            server.kubectl("get", "configmaps", "--request-timeout=2s")

        server.restart_api()

        assert server.kubectl.get("configmap", "kept")["metadata"]["name"] == "kept"


@pytest.mark.usefixtures("built")
def test_no_process_outlives_killed_tests(tmp_path: Path):
    """kill -9 of the test's process ends etcd, the API server and the controllers."""
    program = (
        "import pathlib, sys, tests.harness.kubernetes.api_server as harness\n"
        "with harness.ApiServer(folder=pathlib.Path(sys.argv[1])) as server:\n"
        "    print(server.etcd.pid, server.api.pid, server.controller_manager.pid, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as tests:
        assert tests.stdout is not None
        pids = [int(pid) for pid in tests.stdout.readline().split()]
        tests.kill()

    assert len(pids) == 3
    wait_until("all three have ended", lambda: not any(_lives(pid) for pid in pids))


def _lives(pid: int) -> bool:
    """Returns whether the process runs. A zombie has no command line."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_missing_control_plane_is_reported_with_the_command_to_build_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(installation, "CONTROL", tmp_path)

    with pytest.raises(HarnessError, match=r"setup\.sh"):
        installation.require_control_plane()


@pytest.mark.parametrize(("value", "required"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_ci_requires_a_cluster(monkeypatch: pytest.MonkeyPatch, value: str | None, *, required: bool):
    """REQUIRE_CLUSTER=1 turns a skipped test into a failure."""
    monkeypatch.delenv(installation.REQUIRED_BY, raising=False)
    if value is not None:
        monkeypatch.setenv(installation.REQUIRED_BY, value)

    assert installation.cluster_is_required() is required
