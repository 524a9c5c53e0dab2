"""Spark jobs in a queue of Kueue, on a real API server: the test writes what Kueue writes to a Job.

Kueue suspends a new Job of its queues by a webhook, and resumes it when it is admitted, with the node selector of its
flavor. If it needs the room for another one, it suspends the Job again.
"""

import json
from typing import Any

from mirrorflow_operator.plan.names import QUEUE_LABEL
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.kubectl import Kubectl
from tests.integration.kubernetes.controlled import manifest
from tests.integration.kubernetes.spark_jobs import (
    driver,
    drivers,
    is_observed,
    jobs,
    one_job,
    wait_for_condition,
)

SPOT = {"pool": "spot"}


def test_kueue_alone_suspends_and_resumes_a_job_in_its_queue(flows: Kubectl):
    document = manifest(seed={"runId": "1"}, spark={"queue": "batch"})
    flows.apply(document)
    job = one_job(flows)
    assert jobs(flows)[0]["metadata"]["labels"][QUEUE_LABEL] == "batch"
    uid = jobs(flows)[0]["metadata"]["uid"]

    _patch(flows, job, {"suspend": True})
    wait_for_condition(flows, "Seeded", "False", "Queued")
    _reconcile(flows, document, millicores=12)
    assert jobs(flows)[0]["spec"]["suspend"] is True
    wait_until("the suspended Job has no driver", lambda: drivers(flows, job) == [])

    wait_until("the Job is suspended", lambda: _is_suspended(jobs(flows)[0]))
    _patch(flows, job, {"startTime": None}, part="status")
    _patch(flows, job, {"suspend": False, "template": {"spec": {"nodeSelector": SPOT}}})
    pod = driver(flows, job)
    wait_for_condition(flows, "Seeded", "Unknown", "Starting")
    _reconcile(flows, document, millicores=13)
    admitted = jobs(flows)[0]
    assert admitted["spec"]["suspend"] is False
    assert admitted["spec"]["template"]["spec"]["nodeSelector"] == SPOT
    assert [item["metadata"]["name"] for item in drivers(flows, job)] == [pod]

    _patch(flows, job, {"suspend": True})
    wait_for_condition(flows, "Seeded", "False", "Queued")
    _reconcile(flows, document, millicores=14)
    assert [(item["metadata"]["uid"], item["spec"]["suspend"]) for item in jobs(flows)] == [(uid, True)]


def test_a_stopped_flow_has_no_job_in_a_queue(flows: Kubectl):
    """A suspended Job would be resumed by Kueue, so there is none, and a new one continues."""
    document = manifest(seed={"runId": "1"}, spark={"queue": "batch"})
    flows.apply(document)
    one_job(flows)

    flows.apply({**document, "spec": {**document["spec"], "state": "Stopped"}})
    wait_until("no Job exists", lambda: jobs(flows) == [])
    flows.apply(document)

    one_job(flows)


def _patch(flows: Kubectl, job: str, fields: dict[str, Any], *, part: str = "spec") -> None:
    """Patches the spec or the status as Kueue does, which also resets the start time before it changes the pod template."""
    subresource = ["--subresource=status"] if part == "status" else []
    body = json.dumps({part: fields})
    flows("patch", "job", job, *subresource, "--field-manager=kueue", "--type=merge", f"--patch={body}")


def _is_suspended(job: dict[str, Any]) -> bool:
    conditions = job.get("status", {}).get("conditions") or ()
    return any((item["type"], item["status"]) == ("Suspended", "True") for item in conditions)


def _reconcile(flows: Kubectl, document: dict[str, Any], *, millicores: int) -> None:
    """Lets the operator reconcile a change of the flow that the Job does not have."""
    connectors = {"heartbeat": {"resources": {"requests": {"cpu": f"{millicores}m"}}}}
    flows.apply({**document, "spec": {**document["spec"], "connectors": connectors}})
    wait_until("the change is observed", lambda: is_observed(flows))
