"""The files of a Spark job: the source connector's own properties, job.properties, and the template of executors' pods. Pure.

The properties are a copy of their own, made when the job is planned: driver and executors of one run read the same words
from its first to its last minute, whatever happens to the spec meanwhile. Secrets are references in them, as in the
connector's. Keys of job.properties are mirrorflow_seed's; `spark.*` are Spark's own, and override what the job sets.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from mirrorflow_operator.api.quantity import amount, whole
from mirrorflow_operator.api.runs import ForeignRecords, Seed, SparkJob, Verify
from mirrorflow_operator.api.spec import MirrorFlow, State
from mirrorflow_operator.api.template import Template
from mirrorflow_operator.plan import names
from mirrorflow_operator.plan.layout import SecretLayout
from mirrorflow_operator.plan.mounts import Mounts, mounts
from mirrorflow_operator.plan.plan import ConnectorKind, ConnectorPlan, plan_of_all
from mirrorflow_operator.plan.pod_parts import (
    CONFIG_FOLDER,
    CONTAINER_SECURITY,
    POD_SECURITY,
    WORKER_FILE,
    scheduling,
    variables,
    volume_mounts,
    volumes,
)
from mirrorflow_operator.plan.properties_text import format_properties
from mirrorflow_operator.plan.runs import RunKind

SOURCE_FILE: Final = "source.properties"
JOB_FILE: Final = "job.properties"
EXECUTOR_FILE: Final = "executor.yaml"
EXECUTOR: Final = "executor"
# From inside of any pod of any cluster.
MASTER: Final = "k8s://https://kubernetes.default.svc:443"
DRIVER_PORT: Final = 7078
BLOCK_PORT: Final = 7079
SCHEDULED: Final = "scheduled"  # in place of a runId
# Of what a verification leaves; a folder below it for each flow.
OUTPUT_FOLDER: Final = "/mnt/mirrorflow/output"
SCRATCH_SIZE: Final = "2Gi"  # what Spark writes while it works; nothing is shuffled or cached
MEBIBYTE: Final = 1_024 * 1_024
# Spark refuses a heap below 450 MiB; the bytes that are copied are Python's, beside it.
HEAP_MIB: Final = 512


def run_plan(flow: MirrorFlow, layout: SecretLayout) -> ConnectorPlan:
    """The source connector as a job reads it: what pauses a flow is the Job's to say, not its properties'."""
    running = flow.model_copy(update={"spec": flow.spec.model_copy(update={"state": State.RUNNING})})
    return next(one for one in plan_of_all(running, layout).connectors if one.kind is ConnectorKind.SOURCE)


def run_mounts(plan: ConnectorPlan, layout: SecretLayout) -> Mounts:
    """As the source connector's pod has them."""
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
    """The data of ConfigMap *name*. Raises KeyError where the flow has no such job."""
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
    """What the spec says of it. Raises KeyError where it says nothing."""
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
        found["foreign.records"] = "accept" if job.foreign_records is ForeignRecords.ACCEPT else "refuse"
    if isinstance(job, Verify):
        found["sample"] = job.sample
        if job.output is not None:
            found["output"] = f"{OUTPUT_FOLDER}/{flow.metadata.name}"
    return found | _spark_properties(job, image)


def _spark_properties(job: SparkJob, image: str) -> dict[str, str]:
    """What the plan knows and a job does not: the image, the template, and the size of its pods, where it is given."""
    requests, limits = job.executors.resources.requests, job.executors.resources.limits
    found = {
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.executor.podTemplateFile": f"{CONFIG_FOLDER}/{EXECUTOR_FILE}",
        "spark.executor.cores": str(job.executors.cores),
    }
    # Spark makes no difference between what a pod asks for and what it may use of memory.
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
    """Spark adds image, sizes, and what the executor is told; a user of the flow's name, without a token."""
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
        "volumeMounts": volume_mounts(mounts, layout),
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
            "securityContext": POD_SECURITY,
            "containers": [container],
            "volumes": volumes(name, mounts, tmp_size=SCRATCH_SIZE),
            **scheduling(template, selector),
        },
    }


def environment(template: Template) -> list[dict[str, Any]]:
    """A home that may be written, and the user's own."""
    return [{"name": "HOME", "value": "/tmp"}, *variables(template)]  # noqa: S108
