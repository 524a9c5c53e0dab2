"""What the tests of the running operator share: small flows, what should be there for them, and what is."""

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
from mirrorflow_operator.plan.job_objects import Runs, SparkDefaults, job_objects, without_source_pods
from mirrorflow_operator.plan.properties import POD_LAYOUT, plan
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import Written
from tests.harness.kubernetes.kubectl import Kubectl

IMAGE = "mirrorflow/replicator:0.1.0"
SEED_IMAGE = "mirrorflow/seed:0.1.0"
EVERY_RUN = Runs(seed=True, verify=True)
KINDS = "serviceaccounts,networkpolicies,configmaps,services,poddisruptionbudgets,deployments,jobs,cronjobs"
OURS = "--selector=mirrorflow.io/flow"
_ports = itertools.count(1024)


def manifest(name: str = "east-to-west", **spec: Any) -> dict[str, Any]:
    """A small flow; no two of them share a cluster."""
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
    """What should be there for *document*; *flow_id* is that of `plan`."""
    flow = parse_flow({**document, "metadata": {**document["metadata"], "namespace": namespace}})
    runs = due_jobs(flow, Status(), (), None, 0.0).runs
    return everything(flow, runs, image=IMAGE, seed_image=SEED_IMAGE, flow_id=flow_id)


def flow_id_of(namespace: Kubectl, document: dict[str, Any]) -> str:
    """The id of *document*'s flow in its status, as `planned` takes it."""
    return str(namespace.get("mirrorflow", document["metadata"]["name"])["status"]["flowId"])


def everything(
    flow: MirrorFlow,
    runs: Runs = EVERY_RUN,
    *,
    image: str,
    seed_image: str = "mirrorflow/seed:1",
    flow_id: str = "",
) -> list[Object]:
    """The objects of connectors and Spark jobs; without a word about these, as if all that are asked for should be there."""
    waits = runs.replaces_source
    planned = plan(flow, POD_LAYOUT, flow_id=flow_id)
    namespace = flow.metadata.namespace  # the operator runs in it, too
    found = objects(flow, planned, image=image, seed_replaces_source=waits, operator_namespace=namespace)
    if runs.replaces_source:
        found = without_source_pods(found, flow)
    defaults = SparkDefaults(image=seed_image, operator_namespace=namespace)
    return [*found, *job_objects(flow, runs, defaults=defaults, flow_id=flow_id)]


def there(namespace: Kubectl) -> dict[str, dict[str, Any]]:
    """The objects that bear a flow's label, by kind and name."""
    found = namespace.get(KINDS, OURS)["items"]
    return {f"{one['kind']} {one['metadata']['name']}": one for one in found}


def names(found: list[Object]) -> set[str]:
    return {f"{one['kind']} {one['metadata']['name']}" for one in found}


def unchanging(look: Callable[[], list[Written]]) -> list[Written]:
    """What *look* gives for a whole second: the controllers go on making pods for a moment."""
    seen: list[list[Written]] = [[]]
    since = [time.monotonic()]

    def still() -> bool:
        now = look()
        if now != seen[0]:
            seen[0], since[0] = now, time.monotonic()
        return time.monotonic() - since[0] > 1.0

    wait_until("nothing is written for a second", still)
    return seen[0]


def events(namespace: Kubectl, reason: str) -> list[str]:
    return [one["message"] for one in namespace.get("events", f"--field-selector=reason={reason}")["items"]]
