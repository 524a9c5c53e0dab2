"""Stands for Kubeflow's Spark operator on an API server: its CRDs, and what it writes to them.

The CRDs have the fields that MirrorFlow uses, with the types of Kubeflow's API `sparkoperator.k8s.io/v1beta2`; every other field is
unknown, so that strict validation refuses it. A pod template has all fields of a pod.
"""

import copy
import json
from typing import Any, Final

from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.kubectl import Kubectl

GROUP: Final = "sparkoperator.k8s.io"
DRIVER_CONTAINER: Final = "spark-kubernetes-driver"
Schema = dict[str, Any]
_TEXT: Final[Schema] = {"type": "string"}
_NUMBER: Final[Schema] = {"type": "integer", "format": "int32"}
_FLAG: Final[Schema] = {"type": "boolean"}
_TEXTS: Final[Schema] = {"type": "object", "additionalProperties": _TEXT}
_TIME: Final[Schema] = {"type": "string", "format": "date-time", "nullable": True}


def _object(required: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


def _choice(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


_POD: Final[dict[str, Schema]] = {
    "cores": _NUMBER,
    "coreRequest": _TEXT,
    "coreLimit": _TEXT,
    "memory": _TEXT,
    "memoryOverhead": _TEXT,
    "serviceAccount": _TEXT,
    "image": _TEXT,
    "labels": _TEXTS,
    "template": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
}
_APPLICATION: Final = _object(
    ("type", "sparkVersion", "mainApplicationFile", "driver", "executor"),
    type=_choice("Java", "Python", "Scala", "R"),
    pythonVersion=_choice("2", "3"),
    sparkVersion=_TEXT,
    mode=_choice("cluster", "client"),
    image=_TEXT,
    mainApplicationFile=_TEXT,
    arguments={"type": "array", "items": _TEXT},
    sparkConf=_TEXTS,
    suspend=_FLAG,
    restartPolicy=_object(type=_choice("Never", "Always", "OnFailure")),
    dynamicAllocation=_object(
        enabled=_FLAG, initialExecutors=_NUMBER, minExecutors=_NUMBER, maxExecutors=_NUMBER
    ),
    driver=_object(**_POD),
    executor=_object(**_POD, instances=_NUMBER),
)
_SCHEDULED: Final = _object(
    ("schedule", "template"),
    schedule=_TEXT,
    timeZone=_TEXT,
    suspend=_FLAG,
    concurrencyPolicy=_TEXT,
    successfulRunHistoryLimit=_NUMBER,
    failedRunHistoryLimit=_NUMBER,
    template=_APPLICATION,
)
_STATUS: Final = _object(
    ("driverInfo",),
    applicationState=_object(("state",), state=_TEXT, errorMessage=_TEXT),
    driverInfo=_object(podName=_TEXT),
    lastSubmissionAttemptTime=_TIME,
    terminationTime=_TIME,
)


def _definition(kind: str, spec: Schema, status: Schema) -> dict[str, Any]:
    plural = f"{kind.lower()}s"
    version = {
        "name": "v1beta2",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": _object(("spec",), spec=spec, status=status)},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{GROUP}",
            "annotations": {
                "api-approved.kubernetes.io": "https://github.com/kubeflow/spark-operator/pull/1298"
            },
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [version],
        },
    }


DEFINITIONS: Final = (
    _definition("SparkApplication", _APPLICATION, _STATUS),
    _definition("ScheduledSparkApplication", _SCHEDULED, _object(lastRunName=_TEXT)),
)


def install_definitions(server: ApiServer) -> None:
    """Creates the CRDs, and waits until their objects can be created."""
    for definition in DEFINITIONS:
        server.kubectl.apply(definition)

    def are_served() -> bool:
        resources = server.kubectl("api-resources", f"--api-group={GROUP}", "--no-headers")
        return len(resources.splitlines()) == len(DEFINITIONS)

    wait_until("SparkApplications are served", are_served)


def remove_definitions(server: ApiServer) -> None:
    """Deletes the CRDs and their objects."""
    names = [definition["metadata"]["name"] for definition in DEFINITIONS]
    server.kubectl("delete", "crd", *names)


def applications(team: Kubectl, run_kind: str = "seed") -> list[dict[str, Any]]:
    """Returns the SparkApplications of one kind of run, sorted by name."""
    items = team.get("sparkapplications", f"--selector=mirrorflow.io/run={run_kind}")["items"]
    return sorted(items, key=lambda item: str(item["metadata"]["name"]))


def submit(team: Kubectl, name: str) -> str:
    """Creates the driver's pod from the template of an application, as spark-submit does, and returns the pod's name."""
    application = team.get("sparkapplication", name)
    template = copy.deepcopy(application["spec"]["driver"]["template"])
    pod = f"{name}-driver"
    labels = {
        **application["metadata"]["labels"],
        **template["metadata"]["labels"],
        f"{GROUP}/app-name": name,
        "spark-role": "driver",
    }
    owner = {
        "apiVersion": application["apiVersion"],
        "kind": application["kind"],
        "name": name,
        "uid": application["metadata"]["uid"],
        "controller": True,
    }
    spec = template["spec"] | {
        "restartPolicy": "Never",
        "serviceAccountName": application["spec"]["driver"]["serviceAccount"],
    }
    (container,) = (item for item in spec["containers"] if item["name"] == DRIVER_CONTAINER)
    container["args"] = ["driver", *application["spec"]["arguments"]]
    metadata = {"name": pod, "labels": labels, "ownerReferences": [owner]}
    team.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    set_state(team, name, "SUBMITTED", lastSubmissionAttemptTime="2026-01-01T00:00:00Z")
    return pod


def set_state(team: Kubectl, name: str, state: str, error: str = "", **status: Any) -> None:
    """Writes the state of an application, as the Spark operator does."""
    application_state = {"state": state, **({"errorMessage": error} if error else {})}
    body = {
        "status": {
            "applicationState": application_state,
            "driverInfo": {"podName": f"{name}-driver"},
            **status,
        }
    }
    team(
        "patch",
        "sparkapplication",
        name,
        "--subresource=status",
        "--type=merge",
        f"--patch={json.dumps(body)}",
    )
