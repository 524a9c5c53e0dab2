"""The endpoint object of a pair, switched on a real API server by a ServiceAccount whose Role is limited to it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_core.switchover.record import SwitchoverLimits
from mirrorflow_replicator.config.worker_properties import load_standalone
from mirrorflow_replicator.switchover.api_server_access import ApiServerAccess, pod_access
from mirrorflow_replicator.switchover.endpoint import endpoint_problem, lead_clients
from mirrorflow_replicator.switchover.errors import EndpointFailedError
from mirrorflow_replicator.switchover.pair_settings import EndpointObject, FenceKind, SwitchoverSettings
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.kubectl import Kubectl
from tests.integration.kubernetes.account_access import account_access

NAMES = {"east": "kafka.east.example.com", "west": "kafka.west.example.com"}
SERVERS = {"east": "kafka-east:9092", "west": "kafka-west:9092"}
PROPERTIES = """
name=a
connector.class=MirrorSourceConnector
source.cluster.alias=east
target.cluster.alias=west
source.cluster.bootstrap.servers=east:9092
target.cluster.bootstrap.servers=west:9092
topics=orders
"""
WORKER = "bootstrap.servers=west:9092\n"
ACCOUNT = "east-to-west"


@pytest.fixture
def access(namespace: Kubectl, tmp_path: Path) -> ApiServerAccess:
    """The access of a pod of the flow, whose Role is that of the chart: one Service and one ConfigMap."""
    rules = [
        {"apiGroups": [""], "resources": [plural], "resourceNames": ["kafka"], "verbs": ["get", "patch"]}
        for plural in ("services", "configmaps")
    ]
    namespace.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": "endpoint"},
            "rules": rules,
        }
    )
    namespace("create", "serviceaccount", ACCOUNT)
    namespace(
        "create",
        "rolebinding",
        "endpoint",
        "--role=endpoint",
        f"--serviceaccount={namespace.namespace}:{ACCOUNT}",
    )
    return account_access(namespace, ACCOUNT, tmp_path)


def settings(namespace: Kubectl, kind: str = "Service", name: str = "kafka") -> SwitchoverSettings:
    source = load_standalone(WORKER, [PROPERTIES]).connectors[0].source
    assert source is not None
    is_service = kind == "Service"
    return SwitchoverSettings(
        pair="east-west",
        forward=source,
        forward_groups=None,
        back=source,
        fence=FenceKind.NONE,
        limits=SwitchoverLimits(),
        endpoint_object=EndpointObject(
            kind=kind,
            namespace=str(namespace.namespace),
            name=name,
            key="" if is_service else "bootstrap.servers",
            values=NAMES if is_service else SERVERS,
        ),
    )


def service(**spec: Any) -> dict[str, Any]:
    given = {"type": "ExternalName", "externalName": NAMES["east"], **spec}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "kafka"}, "spec": given}


def config_map(name: str = "kafka") -> dict[str, Any]:
    data = {"bootstrap.servers": SERVERS["east"], "other": "kept"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def test_a_service_is_switched_after_its_check_and_may_be_switched_again(
    namespace: Kubectl, access: ApiServerAccess
):
    """The check changes nothing. A process that replaces a killed one switches the Service again."""
    namespace.apply(service())
    wanted = settings(namespace)
    wait_until("the Role is known", lambda: not asyncio.run(endpoint_problem(wanted, access)))
    before = namespace.get("service", "kafka")["spec"]["externalName"]

    for _ in range(2):
        asyncio.run(lead_clients(wanted, access))

    assert (NAMES["east"], NAMES["west"]) == (
        before,
        namespace.get("service", "kafka")["spec"]["externalName"],
    )


def test_only_the_named_key_of_a_config_map_is_switched(namespace: Kubectl, access: ApiServerAccess):
    namespace.apply(config_map())
    wanted = settings(namespace, "ConfigMap")
    wait_until("the Role is known", lambda: not asyncio.run(endpoint_problem(wanted, access)))

    asyncio.run(lead_clients(wanted, access))

    assert {"bootstrap.servers": SERVERS["west"], "other": "kept"} == namespace.get("configmap", "kafka")[
        "data"
    ]


def test_problems_of_an_endpoint_are_found_before_it_is_switched(namespace: Kubectl, access: ApiServerAccess):
    """The endpoint is a Service with pods, a missing object, or one that the Role does not name."""
    missing = settings(namespace)
    wait_until(
        "the Role is known",
        lambda: "create it, or correct its name" in asyncio.run(endpoint_problem(missing, access)),
    )
    ports = [{"port": 9092}]
    namespace.apply({**service(), "spec": {"selector": {"app": "kafka"}, "ports": ports}})
    selecting = asyncio.run(endpoint_problem(settings(namespace), access))
    namespace.apply(config_map("foreign"))
    foreign = asyncio.run(endpoint_problem(settings(namespace, "ConfigMap", "foreign"), access))

    assert "its type is ClusterIP; name a Service of type ExternalName" in selecting
    assert "HTTP status 403" in foreign
    assert "allow the ServiceAccounts of both flows to get and patch it" in foreign
    assert SERVERS["east"] == namespace.get("configmap", "foreign")["data"]["bootstrap.servers"]


def test_an_unreachable_api_server_is_a_retriable_error(namespace: Kubectl, access: ApiServerAccess):
    away = ApiServerAccess(host="127.77.0.9", port=1, credentials=access.credentials)

    with pytest.raises(
        EndpointFailedError, match=f"Service {namespace.namespace}/kafka cannot be switched.*tried again"
    ):
        asyncio.run(lead_clients(settings(namespace), away))


def test_a_process_outside_of_kubernetes_has_no_access(namespace: Kubectl):
    assert pod_access({}) is None
    assert pod_access({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}) is not None
    assert "this process does not run in Kubernetes" in asyncio.run(endpoint_problem(settings(namespace)))
