"""Each pod of a flow has the host aliases, user ids, volumes and containers of the pod template."""

import json
from typing import Any

import pytest

from mirrorflow_operator.api.load import parse_flow
from mirrorflow_operator.errors import InvalidSpecError
from mirrorflow_operator.plan.connector_objects import objects
from mirrorflow_operator.plan.drift import Object
from mirrorflow_operator.plan.job_objects import job_objects
from mirrorflow_operator.plan.pod_template import CONTAINER_SECURITY
from mirrorflow_operator.plan.properties import plan
from mirrorflow_operator.plan.rollouts import reasons_to_roll
from mirrorflow_operator.plan.secret_layout import POD_LAYOUT
from mirrorflow_operator.plan.spark_pods import EXECUTOR_FILE
from mirrorflow_operator.plan.spark_run import Runs, SparkDefaults
from tests.unit.operator.observations import document, mirror_flow

ALIASES = [{"ip": "10.0.0.7", "hostnames": ["broker-0.internal", "broker-1.internal"]}]
IDS = {"runAsUser": 10_001, "runAsGroup": 10_002, "fsGroup": 10_003, "supplementalGroups": [10_004]}
TEMPLATE: dict[str, Any] = {"hostAliases": ALIASES, "securityContext": IDS}


def deployment(template: dict[str, Any]) -> Object:
    flow = mirror_flow(connectors={"source": {"template": template}})
    planned = objects(flow, plan(flow, POD_LAYOUT), image="replicator:1")
    return next(item for item in planned if item["kind"] == "Deployment")


def test_a_connectors_pod_has_host_aliases_and_ids() -> None:
    pod = deployment(TEMPLATE)["spec"]["template"]["spec"]

    assert pod["hostAliases"] == ALIASES
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
        **IDS,
    }


def test_driver_and_executors_have_host_aliases_and_ids() -> None:
    """All pods of a job connect to the same brokers."""
    flow = mirror_flow(seed={"runId": "1", "template": TEMPLATE})
    planned = job_objects(flow, Runs(seed=True), defaults=SparkDefaults(image="seed:1"))
    driver = next(item for item in planned if item["kind"] == "Job")["spec"]["template"]["spec"]
    files = next(item for item in planned if item["kind"] == "ConfigMap")["data"]
    executor = json.loads(files[EXECUTOR_FILE])["spec"]

    for pod in (driver, executor):
        assert (pod["hostAliases"], pod["securityContext"]["runAsUser"]) == (ALIASES, 10_001)


VOLUMES: dict[str, Any] = {
    "volumes": [
        {
            "name": "vault",
            "csi": {"driver": "secrets-store.csi.k8s.io", "volumeAttributes": {"secretProviderClass": "a"}},
        },
        {"name": "more", "secret": {"secretName": "b"}},
        {"name": "authorities", "configMap": {"name": "c"}},
    ],
    "volumeMounts": [
        {"name": name, "mountPath": f"/mnt/{name}"} for name in ("vault", "more", "authorities")
    ],
}
REFERENCES: dict[str, Any] = {
    "env": [
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}},
        {"name": "REGION", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "PLAIN", "value": "x"},
    ],
    "logging": {"level": "Debug", "format": "Json"},
}
CONTAINERS: dict[str, Any] = {
    "volumes": [
        {"name": "files", "emptyDir": {"sizeLimit": "16Mi"}},
        {"name": "more", "secret": {"secretName": "b"}},
    ],
    "volumeMounts": [{"name": "files", "mountPath": "/mnt/files"}],
    "initContainers": [
        {
            "name": "fetch",
            "image": "tools:1",
            "args": ["fetch"],
            "env": REFERENCES["env"],
            "volumeMounts": [{"name": "files", "mountPath": "/out"}, {"name": "more", "mountPath": "/in"}],
        },
        {
            "name": "renew",
            "image": "tools:1",
            "restartPolicy": "Always",
            "resources": {"limits": {"memory": "32Mi"}},
        },
    ],
}
DNS: dict[str, Any] = {
    "nameservers": ["10.0.0.53"],
    "searches": ["kafka.example"],
    "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}],
}


def pods_of_all_kinds(template: dict[str, Any]) -> list[Any]:
    """Returns the pod specs of a connector, a driver and an executor."""
    flow = mirror_flow(seed={"runId": "1", "template": template})
    planned = job_objects(flow, Runs(seed=True), defaults=SparkDefaults(image="seed:1"))
    driver = next(item for item in planned if item["kind"] == "Job")["spec"]["template"]["spec"]
    files = next(item for item in planned if item["kind"] == "ConfigMap")["data"]
    return [
        deployment(template)["spec"]["template"]["spec"],
        driver,
        json.loads(files[EXECUTOR_FILE])["spec"],
    ]


def test_each_pod_mounts_the_volumes_read_only() -> None:
    for pod in pods_of_all_kinds(VOLUMES):
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {mount["name"]: mount for mount in pod["containers"][0]["volumeMounts"]}

        csi = {**VOLUMES["volumes"][0]["csi"], "readOnly": True}
        assert volumes["vault"] == {"name": "vault", "csi": csi}
        assert volumes["more"] == {"name": "more", "secret": {"secretName": "b", "defaultMode": 0o440}}
        assert volumes["authorities"] == VOLUMES["volumes"][2]
        assert [mounts[mount["name"]] for mount in VOLUMES["volumeMounts"]] == [
            {**mount, "readOnly": True} for mount in VOLUMES["volumeMounts"]
        ]


def test_each_pod_has_the_environment_variables_with_references() -> None:
    """The references are unchanged, because the operator reads no Secret."""
    for pod in pods_of_all_kinds(REFERENCES):
        variables = {variable["name"]: variable for variable in pod["containers"][0]["env"]}

        assert [variables[variable["name"]] for variable in REFERENCES["env"]] == REFERENCES["env"]
        assert variables["MIRRORFLOW_LOG_LEVEL"]["value"] == "DEBUG"
        assert variables["MIRRORFLOW_LOG_FORMAT"]["value"] == "json"


def test_each_pod_has_the_init_containers_and_sidecars() -> None:
    """They meet the restricted Pod Security Standard. They write to an emptyDir that the main container reads."""
    for pod in pods_of_all_kinds(CONTAINERS):
        fetch, renew = pod["initContainers"]
        mounts = {mount["name"]: mount for mount in pod["containers"][0]["volumeMounts"]}

        assert fetch["securityContext"] == renew["securityContext"] == CONTAINER_SECURITY
        assert (fetch["args"], fetch["env"], "restartPolicy" in fetch) == (
            ["fetch"],
            REFERENCES["env"],
            False,
        )
        assert [mount.get("readOnly", False) for mount in fetch["volumeMounts"]] == [False, True]
        assert mounts["files"]["readOnly"]
        assert (renew["restartPolicy"], renew["resources"]) == ("Always", {"limits": {"memory": "32Mi"}})
        assert {"name": "files", "emptyDir": {"sizeLimit": "16Mi"}} in pod["volumes"]


def test_each_pod_has_the_dns_settings() -> None:
    assert all(pod["dnsConfig"] == DNS for pod in pods_of_all_kinds({"dnsConfig": DNS}))


def test_each_pod_has_limits_on_ephemeral_storage() -> None:
    resources = {"requests": {"ephemeral-storage": "64Mi"}, "limits": {"ephemeral-storage": "256Mi"}}
    flow = mirror_flow(
        connectors={"source": {"resources": resources}},
        seed={"runId": "1", "driver": {"resources": resources}, "executors": {"resources": resources}},
    )
    connector = objects(flow, plan(flow, POD_LAYOUT), image="replicator:1", has_defaults=False)
    jobs = job_objects(flow, Runs(seed=True), defaults=SparkDefaults(image="seed:1"))
    pods = [
        next(item for item in connector if item["kind"] == "Deployment")["spec"]["template"]["spec"],
        next(item for item in jobs if item["kind"] == "Job")["spec"]["template"]["spec"],
        json.loads(next(item for item in jobs if item["kind"] == "ConfigMap")["data"][EXECUTOR_FILE])["spec"],
    ]

    assert [pod["containers"][0]["resources"] for pod in pods] == [resources] * 3


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ({"dnsConfig": DNS}, "DNS settings"),
        ({"initContainers": CONTAINERS["initContainers"][1:]}, "init containers"),
        (VOLUMES, "volumes"),
        ({**VOLUMES, "volumeMounts": []}, "volumes"),
        ({"env": REFERENCES["env"]}, "env"),
        ({"logging": {"level": "Debug"}}, "env"),
    ],
)
def test_a_change_of_volumes_or_variables_replaces_pods(template: dict[str, Any], reason: str) -> None:
    old, new = deployment({}), deployment(template)

    assert reasons_to_roll(old, new, {}, {}) == (reason,)
    assert reasons_to_roll(new, new, {}, {}) == ()


def test_an_empty_template_adds_nothing_to_a_pod() -> None:
    """A different pod template would replace pods when the operator is upgraded."""
    pod = deployment({})["spec"]["template"]["spec"]

    assert "hostAliases" not in pod
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ({"securityContext": {"runAsUser": 0}}, "securityContext.runAsUser"),
        ({"securityContext": {"fsGroup": 0}}, "securityContext.fsGroup"),
        ({"securityContext": {"supplementalGroups": [0]}}, "securityContext.supplementalGroups[0]"),
        ({"securityContext": {"runAsNonRoot": False}}, "securityContext.runAsNonRoot"),
        ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, "securityContext.seccompProfile"),
        ({"securityContext": {"sysctls": []}}, "securityContext.sysctls"),
        ({"hostAliases": [{"ip": "broker", "hostnames": ["a"]}]}, "hostAliases[0].ip"),
        ({"hostAliases": [{"ip": "10.0.0.7", "hostnames": []}]}, "hostAliases[0].hostnames"),
        ({"hostAliases": [{"ip": "10.0.0.7", "hostnames": ["A_b"]}]}, "hostAliases[0].hostnames[0]"),
    ],
)
def test_values_that_a_restricted_namespace_would_refuse_are_refused(
    template: dict[str, Any], path: str
) -> None:
    with pytest.raises(InvalidSpecError) as raised:
        parse_flow(document(connectors={"source": {"template": template}}))

    assert [error.path for error in raised.value.errors] == [f"spec.connectors.source.template.{path}"]


@pytest.mark.parametrize(
    ("part", "reason"), [("hostAliases", "host aliases"), ("securityContext", "security context")]
)
def test_a_change_of_host_aliases_or_ids_replaces_pods(part: str, reason: str) -> None:
    old, new = deployment({}), deployment({part: TEMPLATE[part]})

    assert reasons_to_roll(old, new, {}, {}) == (reason,)


@pytest.mark.parametrize("part", ["hostAliases", "securityContext", "volumes", "env", "logging"])
def test_a_connector_in_a_shared_pod_may_not_have_its_own_template(part: str) -> None:
    template = {part: (TEMPLATE | VOLUMES | REFERENCES)[part]}
    connectors = {"colocate": ["source", "checkpoint"], "checkpoint": {"template": template}}

    with pytest.raises(InvalidSpecError, match="runs the connector in the pod of another"):
        parse_flow(document(connectors=connectors))
