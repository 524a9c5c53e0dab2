"""Builds the files of a Spark job: the source's properties, job.properties and the executor template. Pure.

The properties are copied when the job is planned, so driver and executors of one run read the same values
throughout, even if the spec changes meanwhile. Secrets in them are references, as in the connector's files.
mirrorflow_seed defines the keys of job.properties; `spark.*` keys are Spark's and override what the job sets.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from mirrorflow_core.java.properties import format_properties
from mirrorflow_operator.api.connectors import Template
from mirrorflow_operator.api.quantity import amount, whole
from mirrorflow_operator.api.runs import ForeignRecordPolicy, Seed, SparkJob, Verify
from mirrorflow_operator.api.spec import MirrorFlow, State
from mirrorflow_operator.plan import names
from mirrorflow_operator.plan.layout import SecretLayout
from mirrorflow_operator.plan.plan import ConnectorKind, ConnectorPlan, plan_of_all
from mirrorflow_operator.plan.pod import (
    CONFIG_FOLDER,
    CONTAINER_SECURITY,
    WORKER_FILE,
    Mounts,
    mounts,
    pod_security,
    scheduling,
    variables,
    volume_mounts,
    volumes,
)
from mirrorflow_operator.plan.runs import RunKind

SOURCE_FILE: Final = "source.properties"
JOB_FILE: Final = "job.properties"
EXECUTOR_FILE: Final = "executor.yaml"
EXECUTOR: Final = "executor"
# Reaches the API server from any pod of any cluster.
MASTER: Final = "k8s://https://kubernetes.default.svc:443"
DRIVER_PORT: Final = 7078
BLOCK_PORT: Final = 7079
SCHEDULED: Final = "scheduled"  # in place of a runId
# Results of verifications, with a folder for each flow.
OUTPUT_FOLDER: Final = "/mnt/mirrorflow/output"
SCRATCH_SIZE: Final = "2Gi"  # Spark's temporary files; nothing is shuffled or cached
MEBIBYTE: Final = 1_024 * 1_024
# Spark refuses a heap below 450 MiB; copied records are in Python's memory, outside the heap.
HEAP_MIB: Final = 512


def run_plan(flow: MirrorFlow, layout: SecretLayout, *, flow_id: str = "") -> ConnectorPlan:
    """Returns the source connector's plan for a job, always Running: a pause suspends the Job instead."""
    running = flow.model_copy(update={"spec": flow.spec.model_copy(update={"state": State.RUNNING})})
    planned = plan_of_all(running, layout, flow_id=flow_id)
    return next(one for one in planned.connectors if one.kind is ConnectorKind.SOURCE)


def run_mounts(plan: ConnectorPlan, layout: SecretLayout) -> Mounts:
    """Returns the Secrets and ConfigMaps that the source connector's pod mounts, too."""
    return mounts((plan.worker_properties, plan.connector_properties), layout)


def files(
    flow: MirrorFlow,
    kind: RunKind,
    plan: ConnectorPlan,
    *,
    run_id: str,
    name: str,
    image: str,
    layout: SecretLayout,
) -> dict[str, str]:
    """Returns the data of ConfigMap *name*. Raises KeyError where the flow has no such job."""
    job = spark_job(flow, kind)
    return {
        WORKER_FILE: format_properties(plan.worker_properties),
        SOURCE_FILE: format_properties(plan.connector_properties),
        JOB_FILE: format_properties(_job_properties(flow, job, run_id=run_id, image=image)),
        EXECUTOR_FILE: json.dumps(
            _executor(flow, job, kind, name=name, mounts=run_mounts(plan, layout), layout=layout), indent=1
        ),
    }


def spark_job(flow: MirrorFlow, kind: RunKind) -> SparkJob:
    """Returns the spec of the job. Raises KeyError where the flow has none."""
    job: SparkJob | None = flow.spec.seed if kind is RunKind.SEED else flow.spec.verify
    if job is None:
        raise KeyError(kind)
    return job


def _job_properties(flow: MirrorFlow, job: SparkJob, *, run_id: str, image: str) -> dict[str, str]:
    found = {"run.id": run_id, "master": MASTER, "executors.max": str(job.executors.max)}
    limit = flow.spec.limits.bytes_per_second if job.bytes_per_second is None else job.bytes_per_second
    if limit is not None:
        found["bytes.per.second"] = str(whole(limit))
    if isinstance(job, Seed):
        found["foreign.records"] = "accept" if job.foreign_records is ForeignRecordPolicy.ACCEPT else "refuse"
    if isinstance(job, Verify):
        found["sample"] = job.sample
        if job.output is not None:
            found["output"] = f"{OUTPUT_FOLDER}/{flow.metadata.name}"
    return found | _spark_properties(job, image)


def _spark_properties(job: SparkJob, image: str) -> dict[str, str]:
    """Returns the Spark settings that only the plan has: image, pod template and, if given, pod sizes."""
    requests, limits = job.executors.resources.requests, job.executors.resources.limits
    found = {
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.executor.podTemplateFile": f"{CONFIG_FOLDER}/{EXECUTOR_FILE}",
        "spark.executor.cores": str(job.executors.cores),
    }
    # Spark sets a pod's memory request and limit to the same value.
    memory, cpu = _first(limits.memory, requests.memory), _first(requests.cpu, limits.cpu)
    if memory is not None:
        overhead_mib = int(amount(memory) / MEBIBYTE) - HEAP_MIB
        found["spark.executor.memory"] = f"{HEAP_MIB}m"
        found["spark.executor.memoryOverhead"] = f"{overhead_mib}m"
    if cpu is not None:
        found["spark.kubernetes.executor.request.cores"] = str(cpu)
    if limits.cpu is not None:
        found["spark.kubernetes.executor.limit.cores"] = str(limits.cpu)
    return found


def _first(*given: int | str | None) -> int | str | None:
    return next((one for one in given if one is not None), None)


def _executor(
    flow: MirrorFlow, job: SparkJob, kind: RunKind, *, name: str, mounts: Mounts, layout: SecretLayout
) -> Mapping[str, Any]:
    """Returns the pod template of executors, to which Spark adds image, sizes and arguments.

    The pods run under the flow's ServiceAccount, without a token.
    """
    flow_name, template = flow.metadata.name, job.template
    selector = names.run_selector(flow_name, kind.value)
    labels = {
        **template.labels,
        "app.kubernetes.io/name": "mirrorflow-executor",
        "app.kubernetes.io/instance": flow_name,
        "app.kubernetes.io/component": f"{kind.value}-executor",
        **selector,
    }
    container = {
        "name": EXECUTOR,
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": volume_mounts(mounts, layout, template),
        "env": environment(template),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": labels, "annotations": dict(template.annotations)},
        "spec": {
            "serviceAccountName": flow_name,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": pod_security(template),
            "containers": [container],
            "volumes": volumes(name, mounts, template, tmp_size=SCRATCH_SIZE),
            **scheduling(template, selector),
        },
    }


def environment(template: Template) -> list[dict[str, Any]]:
    """Returns the variables of a job's container: a writable HOME, and those of the user."""
    return [{"name": "HOME", "value": "/tmp"}, *variables(template)]  # noqa: S108
