"""Host aliases and ids of the pod template: in every pod of a flow, within the restricted Pod Security Standard."""

import json
from typing import Any

import pytest

from mirrorflow_operator.api.load import parse_flow
from mirrorflow_operator.errors import InvalidSpecError
from mirrorflow_operator.plan.connector_objects import objects
from mirrorflow_operator.plan.drift import Object
from mirrorflow_operator.plan.job_objects import EXECUTOR_FILE, Runs, SparkDefaults, job_objects
from mirrorflow_operator.plan.pod_template import CONTAINER_SECURITY
from mirrorflow_operator.plan.properties import POD_LAYOUT, plan
from mirrorflow_operator.plan.rollouts import reasons_to_roll
from tests.unit.operator.observations import document, mirror_flow

ALIASES = [{"ip": "10.0.0.7", "hostnames": ["broker-0.internal", "broker-1.internal"]}]
IDS = {"runAsUser": 10_001, "runAsGroup": 10_002, "fsGroup": 10_003, "supplementalGroups": [10_004]}
TEMPLATE: dict[str, Any] = {"hostAliases": ALIASES, "securityContext": IDS}


def deployment(template: dict[str, Any]) -> Object:
    flow = mirror_flow(connectors={"source": {"template": template}})
    found = objects(flow, plan(flow, POD_LAYOUT), image="replicator:1")
    return next(one for one in found if one["kind"] == "Deployment")


def test_a_connectors_pod_has_host_aliases_and_ids() -> None:
    pod = deployment(TEMPLATE)["spec"]["template"]["spec"]

    assert pod["hostAliases"] == ALIASES
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
        **IDS,
    }


def test_driver_and_executors_have_host_aliases_and_ids() -> None:
    """All pods of a job read the same brokers."""
    flow = mirror_flow(seed={"runId": "1", "template": TEMPLATE})
    found = job_objects(flow, Runs(seed=True), defaults=SparkDefaults(image="seed:1"))
    driver = next(one for one in found if one["kind"] == "Job")["spec"]["template"]["spec"]
    files = next(one for one in found if one["kind"] == "ConfigMap")["data"]
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
    """The pods of a connector, of a driver and of executors."""
    flow = mirror_flow(seed={"runId": "1", "template": template})
    found = job_objects(flow, Runs(seed=True), defaults=SparkDefaults(image="seed:1"))
    driver = next(one for one in found if one["kind"] == "Job")["spec"]["template"]["spec"]
    files = next(one for one in found if one["kind"] == "ConfigMap")["data"]
    return [
        deployment(template)["spec"]["template"]["spec"],
        driver,
        json.loads(files[EXECUTOR_FILE])["spec"],
    ]


def test_every_pod_has_the_volumes_read_only() -> None:
    for pod in pods_of_all_kinds(VOLUMES):
        volumes = {one["name"]: one for one in pod["volumes"]}
        mounts = {one["name"]: one for one in pod["containers"][0]["volumeMounts"]}

        csi = {**VOLUMES["volumes"][0]["csi"], "readOnly": True}
        assert volumes["vault"] == {"name": "vault", "csi": csi}
        assert volumes["more"] == {"name": "more", "secret": {"secretName": "b", "defaultMode": 0o440}}
        assert volumes["authorities"] == VOLUMES["volumes"][2]
        assert [mounts[one["name"]] for one in VOLUMES["volumeMounts"]] == [
            {**one, "readOnly": True} for one in VOLUMES["volumeMounts"]
        ]


def test_every_pod_has_references_in_its_environment() -> None:
    """As they are written: no Secret is read by the operator."""
    for pod in pods_of_all_kinds(REFERENCES):
        found = {one["name"]: one for one in pod["containers"][0]["env"]}

        assert [found[one["name"]] for one in REFERENCES["env"]] == REFERENCES["env"]
        assert found["MIRRORFLOW_LOG_LEVEL"]["value"] == "DEBUG"
        assert found["MIRRORFLOW_LOG_FORMAT"]["value"] == "json"


def test_every_pod_has_the_init_containers_and_sidecars() -> None:
    """Within the restricted standard; they write an emptyDir, which the pod's own container reads."""
    for pod in pods_of_all_kinds(CONTAINERS):
        fetch, renew = pod["initContainers"]
        mounts = {one["name"]: one for one in pod["containers"][0]["volumeMounts"]}

        assert fetch["securityContext"] == renew["securityContext"] == CONTAINER_SECURITY
        assert (fetch["args"], fetch["env"], "restartPolicy" in fetch) == (
            ["fetch"],
            REFERENCES["env"],
            False,
        )
        assert [one.get("readOnly", False) for one in fetch["volumeMounts"]] == [False, True]
        assert mounts["files"]["readOnly"]
        assert (renew["restartPolicy"], renew["resources"]) == ("Always", {"limits": {"memory": "32Mi"}})
        assert {"name": "files", "emptyDir": {"sizeLimit": "16Mi"}} in pod["volumes"]


def test_every_pod_has_the_dns_settings() -> None:
    assert all(pod["dnsConfig"] == DNS for pod in pods_of_all_kinds({"dnsConfig": DNS}))


def test_every_pod_has_limits_on_local_storage() -> None:
    resources = {"requests": {"ephemeral-storage": "64Mi"}, "limits": {"ephemeral-storage": "256Mi"}}
    flow = mirror_flow(
        connectors={"source": {"resources": resources}},
        seed={"runId": "1", "driver": {"resources": resources}, "executors": {"resources": resources}},
    )
    connector = objects(flow, plan(flow, POD_LAYOUT), image="replicator:1", has_defaults=False)
    jobs = job_objects(flow, Runs(seed=True), defaults=SparkDefaults(image="seed:1"))
    pods = [
        next(one for one in connector if one["kind"] == "Deployment")["spec"]["template"]["spec"],
        next(one for one in jobs if one["kind"] == "Job")["spec"]["template"]["spec"],
        json.loads(next(one for one in jobs if one["kind"] == "ConfigMap")["data"][EXECUTOR_FILE])["spec"],
    ]

    assert [pod["containers"][0]["resources"] for pod in pods] == [resources] * 3


@pytest.mark.parametrize(
    ("template", "word"),
    [
        ({"dnsConfig": DNS}, "DNS settings"),
        ({"initContainers": CONTAINERS["initContainers"][1:]}, "init containers"),
        (VOLUMES, "volumes"),
        ({**VOLUMES, "volumeMounts": []}, "volumes"),
        ({"env": REFERENCES["env"]}, "env"),
        ({"logging": {"level": "Debug"}}, "env"),
    ],
)
def test_a_change_of_volumes_or_variables_replaces_pods(template: dict[str, Any], word: str) -> None:
    old, new = deployment({}), deployment(template)

    assert reasons_to_roll(old, new, {}, {}) == (word,)
    assert reasons_to_roll(new, new, {}, {}) == ()


def test_a_template_without_them_adds_nothing() -> None:
    """Another template would replace pods when the operator is upgraded."""
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
def test_ids_that_a_restricted_namespace_refuses_are_refused(template: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidSpecError) as found:
        parse_flow(document(connectors={"source": {"template": template}}))

    assert [one.path for one in found.value.errors] == [f"spec.connectors.source.template.{path}"]


@pytest.mark.parametrize(
    ("part", "word"), [("hostAliases", "host aliases"), ("securityContext", "security context")]
)
def test_a_change_of_them_replaces_pods(part: str, word: str) -> None:
    old, new = deployment({}), deployment({part: TEMPLATE[part]})

    assert reasons_to_roll(old, new, {}, {}) == (word,)


@pytest.mark.parametrize("part", ["hostAliases", "securityContext", "volumes", "env", "logging"])
def test_connectors_of_a_shared_pod_use_the_hosts_template(part: str) -> None:
    template = {part: (TEMPLATE | VOLUMES | REFERENCES)[part]}
    connectors = {"colocate": ["source", "checkpoint"], "checkpoint": {"template": template}}

    with pytest.raises(InvalidSpecError, match="runs the connector in the pod of source"):
        parse_flow(document(connectors=connectors))
