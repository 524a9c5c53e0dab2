"""The harness's cluster works.

Pods run, Services have names, volumes are updated with their Secrets, and nothing remains afterwards.
"""

import base64
import json
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.cluster import Cluster
from tests.harness.kubernetes.helm import Helm
from tests.harness.kubernetes.image import write_image
from tests.harness.kubernetes.installation import NODE
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.skipping import skip_without_node

ROOT = Path(__file__).parents[3]
NAME, NETWORK = "mirrorflow-test", 241  # may run at the same time as a cluster of `make cluster`
IMAGE = "localhost/probe:1"
RESPONSE_WAIT_S = 10.0
READY_WAIT_S = 120.0  # seconds on an idle machine; longer while a suite runs on two cores
SERVICE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web"},
    "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8000}]},
}


def _probe(name: str) -> dict[str, Any]:
    """Returns a Deployment of two probes that mount the Secret of the same name."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": 1000,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [
                        {
                            "name": name,
                            "image": IMAGE,
                            "imagePullPolicy": "Never",
                            "readinessProbe": {
                                "httpGet": {"path": "/hostname", "port": 8000},
                                "periodSeconds": 1,
                            },
                            # With default requests, four probes would fill a node of two cores.
                            "resources": {
                                "requests": {"cpu": "10m"},
                                "limits": {"cpu": "500m", "memory": "64Mi"},
                            },
                            "volumeMounts": [{"name": "secret", "mountPath": "/secret"}],
                        }
                    ],
                    "volumes": [{"name": "secret", "secret": {"secretName": name}}],
                },
            },
        },
    }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with the probe's image. It ends with the tests in any case."""
    skip_without_node()
    folder = tmp_path_factory.mktemp("cluster")
    archive = tmp_path_factory.mktemp("images") / "probe.tar"
    write_image(archive, IMAGE, NODE / "probe")
    with Cluster(folder=folder, name=NAME, network=NETWORK) as cluster:
        cluster.load(archive)
        yield cluster


@pytest.fixture(scope="module")
def web(cluster: Cluster) -> Kubectl:
    """kubectl with two ready probe pods of the Service `web`, which mount a Secret."""
    kubectl = cluster.kubectl
    kubectl("create", "secret", "generic", "web", "--from-literal=password=first")
    kubectl.apply(f"{json.dumps(_probe('web'))}\n---\n{json.dumps(SERVICE)}")
    kubectl("rollout", "status", "deployment/web", f"--timeout={READY_WAIT_S:.0f}s", timeout_s=READY_WAIT_S)
    return kubectl


def _fetched(address: str, url_path: str, **query: str) -> str:
    url = f"http://{address}{url_path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=RESPONSE_WAIT_S) as response:
        return str(response.read().decode())


def _pods(web: Kubectl) -> list[dict[str, Any]]:
    return list(web.get("pods", "--selector=app=web")["items"])


def test_a_deployment_rolls_out_and_its_pods_respond_to_the_host(web: Kubectl):
    """They respond at the address of the pod and of the Service, which balances requests."""
    names = {pod["metadata"]["name"]: f"{pod['status']['podIP']}:8000" for pod in _pods(web)}
    service = web.get("service", "web")["spec"]["clusterIP"]

    assert len(names) == 2
    assert {name: _fetched(address, "/hostname") for name, address in names.items()} == {
        name: name for name in names
    }
    wait_until(
        "both pods have responded", lambda: {_fetched(service, "/hostname") for _ in range(10)} == set(names)
    )


@pytest.mark.parametrize("name", ["web", "web.default.svc.cluster.local"])
def test_a_pod_finds_a_service_by_its_name(web: Kubectl, name: str):
    """Pods use the cluster's CoreDNS."""
    pod = _pods(web)[0]

    name_found = _fetched(f"{pod['status']['podIP']}:8000", "/fetch", url=f"http://{name}/hostname")

    assert name_found in {pod_of_service["metadata"]["name"] for pod_of_service in _pods(web)}


def test_a_changed_secret_reaches_its_volume_without_a_restart(web: Kubectl):
    """The rotation of passwords relies on it."""
    pod = _pods(web)[0]
    address = f"{pod['status']['podIP']}:8000"
    assert _fetched(address, "/file", path="/secret/password") == "first"

    second = base64.b64encode(b"second").decode()
    web("patch", "secret", "web", "--patch", json.dumps({"data": {"password": second}}))

    wait_until(
        "the volume has the new value",
        lambda: _fetched(address, "/file", path="/secret/password") == "second",
        timeout_s=90,
    )
    assert _pods(web)[0]["status"]["containerStatuses"][0]["restartCount"] == 0


def test_a_container_that_ends_is_restarted(web: Kubectl):
    """The kubelet restarts it in the same pod."""
    pod = _pods(web)[0]
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        _fetched(f"{pod['status']['podIP']}:8000", "/exit")

    def restarts() -> int:
        container = web.get("pod", pod["metadata"]["name"])["status"]["containerStatuses"][0]
        return int(container["restartCount"]) if container["ready"] else 0

    wait_until("the container is ready again", lambda: restarts() == 1, timeout_s=READY_WAIT_S)


def test_a_network_policy_admits_only_selected_pods(web: Kubectl):
    """This applies between pods. A pod that gets the selected label is allowed."""
    caller = _probe("caller")
    caller["spec"]["replicas"] = 1
    web("create", "secret", "generic", "caller", "--from-literal=password=any")
    web.apply(caller)
    web("rollout", "status", "deployment/caller", f"--timeout={READY_WAIT_S:.0f}s", timeout_s=READY_WAIT_S)
    pod = web.get("pods", "--selector=app=caller")["items"][0]

    def is_admitted() -> bool:
        try:
            return bool(_fetched(f"{pod['status']['podIP']}:8000", "/fetch", url="http://web/hostname"))
        except urllib.error.HTTPError as error:
            error.close()
            return False

    wait_until("all pods are admitted", is_admitted)
    web.apply(
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": "web"},
            "spec": {
                "podSelector": {"matchLabels": {"app": "web"}},
                "policyTypes": ["Ingress"],
                "ingress": [
                    {"from": [{"podSelector": {"matchLabels": {"may": "enter"}}}], "ports": [{"port": 8000}]}
                ],
            },
        }
    )
    wait_until("an unselected pod is refused", lambda: not is_admitted())
    web("label", "pod", pod["metadata"]["name"], "may=enter")
    wait_until("the selected pod is admitted", is_admitted)
    web("delete", "networkpolicy", "web")


def test_helm_installs_upgrades_rolls_back_and_removes(cluster: Cluster, tmp_path: Path):
    """A release has one Deployment, and each step waits for readiness."""
    chart = tmp_path / "probe"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("{apiVersion: v2, name: probe, version: 1.0.0}")
    (chart / "values.yaml").write_text("replicas: 1")
    (chart / "templates" / "probe.yaml").write_text(
        json.dumps(_probe("released")).replace('"replicas": 2', '"replicas": {{ .Values.replicas }}')
    )
    helm, wait = Helm(kubectl=cluster.kubectl), ("--wait", f"--timeout={READY_WAIT_S:.0f}s")

    def ready() -> int:
        return int(cluster.kubectl.get("deployment", "released")["status"]["readyReplicas"])

    cluster.kubectl("create", "secret", "generic", "released", "--from-literal=password=any")
    helm("install", "probe", str(chart), *wait)
    helm("upgrade", "probe", str(chart), "--set=replicas=2", *wait)
    upgraded = ready()
    helm("rollback", "probe", "1", *wait)
    history = json.loads(helm("history", "probe", "--output=json"))
    helm("uninstall", "probe", *wait)

    assert upgraded == 2
    assert [revision["status"] for revision in history] == ["superseded", "superseded", "deployed"]
    assert cluster.kubectl.get("deployments", "--selector=app=released")["items"] == []


def test_nothing_remains_of_a_cluster_whose_tests_were_killed(tmp_path_factory: pytest.TempPathFactory):
    """kill -9 of the test's process ends the node. `down` removes what the kernel keeps, and may run twice."""
    skip_without_node()
    name, folder = "mirrorflow-gone", tmp_path_factory.mktemp("gone")
    program = (
        "import pathlib, sys, tests.harness.kubernetes.cluster as harness\n"
        "with harness.Cluster(folder=pathlib.Path(sys.argv[1]), name=sys.argv[2], network=242) as cluster:\n"
        "    print(cluster.kubectl.get('node', sys.argv[2])['metadata']['name'], flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(folder), name],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as tests:
        assert tests.stdout is not None
        assert tests.stdout.readline() == f"{name}\n"
        tests.kill()

    wait_until("every process of the node has ended", lambda: not _processes_of(folder))
    cluster = Cluster(folder=folder, name=name, network=242)
    cluster.down()
    cluster.down()

    links = subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout
    spaces = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    assert name not in links + spaces
    assert [] == [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/{name}")]
    assert str(folder) not in Path("/proc/mounts").read_text()
    assert not folder.exists()


def _processes_of(folder: Path) -> list[str]:
    """Returns commands that contain *folder*, such as containerd, its shims, the kubelet and etcd."""
    commands = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = file.read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in command:
            commands.append(command)
    return commands
