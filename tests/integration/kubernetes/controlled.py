"""Shared by the tests of the running operator.

It has small flows, their planned objects, and the objects that exist.
"""

import itertools
import time
from collections.abc import Callable
from typing import Any

from mirrorflow_operator.admission.due_jobs import due_jobs
from mirrorflow_operator.api.load import parse_flow
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.api.status import Status
from mirrorflow_operator.plan.connector_objects import objects
from mirrorflow_operator.plan.drift import Object
from mirrorflow_operator.plan.job_objects import job_objects, without_source_pods
from mirrorflow_operator.plan.properties import plan
from mirrorflow_operator.plan.secret_layout import POD_LAYOUT
from mirrorflow_operator.plan.spark_run import Runs, SparkDefaults
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import Written
from tests.harness.kubernetes.kubectl import Kubectl

IMAGE = "mirrorflow/replicator:0.1.0"
SEED_IMAGE = "mirrorflow/seed:0.1.0"
EVERY_RUN = Runs(seed=True, verify=True, archive=True, restore=True)
KINDS = "serviceaccounts,networkpolicies,configmaps,services,poddisruptionbudgets,deployments,jobs,cronjobs"
OF_FLOWS = "--selector=mirrorflow.io/flow"
_ports = itertools.count(1024)


def manifest(name: str = "east-to-west", **spec: Any) -> dict[str, Any]:
    """Returns a small flow. No two flows share a cluster."""
    port = next(_ports)
    return {
        "apiVersion": "mirrorflow.io/v1alpha1",
        "kind": "MirrorFlow",
        "metadata": {"name": name},
        "spec": {
            "source": {"alias": "east", "bootstrapServers": [f"east:{port}"]},
            "target": {"alias": "west", "bootstrapServers": [f"west:{port}"]},
            "topics": {"include": ["orders"]},
            **spec,
        },
    }


def planned(document: dict[str, Any], namespace: str, *, flow_id: str = "") -> list[Object]:
    """Returns the planned objects of *document*; *flow_id* is that of `plan`."""
    flow = parse_flow({**document, "metadata": {**document["metadata"], "namespace": namespace}})
    runs = due_jobs(flow, Status(), (), None, 0.0).runs
    return all_objects(flow, runs, image=IMAGE, seed_image=SEED_IMAGE, flow_id=flow_id)


def flow_id_of(namespace: Kubectl, document: dict[str, Any]) -> str:
    """Returns the id of *document*'s flow from its status, as `planned` takes it."""
    return str(namespace.get("mirrorflow", document["metadata"]["name"])["status"]["flowId"])


def all_objects(
    flow: MirrorFlow,
    runs: Runs = EVERY_RUN,
    *,
    image: str,
    seed_image: str = "mirrorflow/seed:1",
    flow_id: str = "",
) -> list[Object]:
    """Returns the objects of connectors and Spark jobs. By default, all configured jobs count as due."""
    planned = plan(flow, POD_LAYOUT, flow_id=flow_id)
    namespace = flow.metadata.namespace  # the operator also runs in this namespace
    of_connectors = objects(
        flow, planned, image=image, seed_replaces_source=runs.replaces_source, operator_namespace=namespace
    )
    if runs.replaces_source:
        of_connectors = without_source_pods(of_connectors, flow)
    defaults = SparkDefaults(image=seed_image, operator_namespace=namespace)
    return [*of_connectors, *job_objects(flow, runs, defaults=defaults, flow_id=flow_id)]


def existing_objects(namespace: Kubectl) -> dict[str, dict[str, Any]]:
    """Returns the objects with a flow's label, by kind and name."""
    existing = namespace.get(KINDS, OF_FLOWS)["items"]
    return {f"{item['kind']} {item['metadata']['name']}": item for item in existing}


def object_names(objects_to_name: list[Object]) -> set[str]:
    return {f"{item['kind']} {item['metadata']['name']}" for item in objects_to_name}


def wait_until_unchanged(read: Callable[[], list[Written]]) -> list[Written]:
    """Returns what *read* returns unchanged for a second, because controllers still create pods for a short time."""
    latest: list[list[Written]] = [[]]
    unchanged_since_s = [time.monotonic()]

    def is_unchanged() -> bool:
        current = read()
        if current != latest[0]:
            latest[0], unchanged_since_s[0] = current, time.monotonic()
        return time.monotonic() - unchanged_since_s[0] > 1.0

    wait_until("nothing is written for a second", is_unchanged)
    return latest[0]


def events(namespace: Kubectl, reason: str) -> list[str]:
    return [
        event["message"] for event in namespace.get("events", f"--field-selector=reason={reason}")["items"]
    ]
