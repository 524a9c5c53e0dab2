"""Builds job.properties, the settings of a Spark job. Pure.

mirrorflow_seed defines its keys; `spark.*` keys are Spark's and override what the job sets.
"""

from typing import Any, Final

from mirrorflow_operator.api.model import amount, rounded_up
from mirrorflow_operator.api.spark_workloads import (
    Archive,
    ForeignRecordPolicy,
    Restore,
    Seed,
    SparkJob,
    SparkSettings,
    Verify,
)
from mirrorflow_operator.plan.pod_template import CONFIG_FOLDER
from mirrorflow_operator.plan.spark_pods import EVENT_LOG_FOLDER, EXECUTOR_FILE, OUTPUT_FOLDER
from mirrorflow_operator.plan.spark_run import RunKind, SparkRun

# Reaches the API server from any pod of any cluster.
MASTER: Final = "k8s://https://kubernetes.default.svc:443"
MEBIBYTE: Final = 1_024 * 1_024
# Spark refuses a heap below 450 MiB; copied records are in Python's memory, outside the heap.
HEAP_MIB: Final = 512
Object = dict[str, Any]


def job_properties(run: SparkRun, run_id: str) -> dict[str, str]:
    flow, job = run.flow, run.job
    properties = {"run.id": run_id, "master": MASTER, "executors.max": str(job.executors.max)}
    limit = flow.spec.limits.bytes_per_second if job.bytes_per_second is None else job.bytes_per_second
    if limit is not None:
        properties["bytes.per.second"] = str(rounded_up(limit))
    if isinstance(job, Seed):
        properties["foreign.records"] = _foreign_records(job.foreign_records)
    if isinstance(job, Verify):
        properties["sample"] = job.sample
        if job.output is not None:
            properties["output"] = f"{OUTPUT_FOLDER}/{flow.metadata.name}"
            if job.output.keys:
                properties["output.keys"] = "true"
    if run.kind is RunKind.ARCHIVE and flow.spec.archive is not None:
        properties |= run.groups | _export_properties(flow.spec.archive)
    if run.kind is RunKind.RESTORE and flow.spec.restore is not None:
        properties |= run.groups | _restore_properties(flow.spec.restore, flow.spec.archive)
    # What users set first: the settings of pods and the folder of the event log have fields of their own.
    return properties | _shared_properties(flow.spec.spark) | _spark_properties(job, run.image)


def _shared_properties(spark: SparkSettings | None) -> dict[str, str]:
    if spark is None:
        return {}
    properties = dict(spark.conf)
    if spark.event_log is not None:
        properties["spark.eventLog.enabled"] = "true"
        properties["spark.eventLog.dir"] = spark.event_log.url or f"file://{EVENT_LOG_FOLDER}"
    return properties


def _foreign_records(policy: ForeignRecordPolicy) -> str:
    return "accept" if policy is ForeignRecordPolicy.ACCEPT else "refuse"


def _export_properties(archive: Archive) -> dict[str, str]:
    properties = {"archive": archive.url}
    if archive.follow:
        properties["archive.follow"] = "true"
        properties["archive.interval.ms"] = str(archive.interval_seconds * 1_000)
    if archive.file_bytes is not None:
        properties["archive.file.bytes"] = str(rounded_up(archive.file_bytes))
    return properties


def _restore_properties(restore: Restore, archive: Archive | None) -> dict[str, str]:
    url = restore.url or ("" if archive is None else archive.url)
    properties = {"archive": url, "foreign.records": _foreign_records(restore.foreign_records)}
    if restore.until is not None:
        properties["archive.until"] = restore.until
    if not restore.compare:
        properties["archive.compare"] = "false"
    return properties


def _spark_properties(job: SparkJob, image: str) -> dict[str, str]:
    """Returns the Spark settings that only the plan has: image, pod template and, if given, pod sizes."""
    requests, limits = job.executors.resources.requests, job.executors.resources.limits
    properties = {
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.executor.podTemplateFile": f"{CONFIG_FOLDER}/{EXECUTOR_FILE}",
        "spark.executor.cores": str(job.executors.cores),
    }
    # Spark sets a pod's memory request and limit to the same value.
    memory, cpu = _first(limits.memory, requests.memory), _first(requests.cpu, limits.cpu)
    if memory is not None:
        overhead_mib = int(amount(memory) / MEBIBYTE) - HEAP_MIB
        properties["spark.executor.memory"] = f"{HEAP_MIB}m"
        properties["spark.executor.memoryOverhead"] = f"{overhead_mib}m"
    if cpu is not None:
        properties["spark.kubernetes.executor.request.cores"] = str(cpu)
    if limits.cpu is not None:
        properties["spark.kubernetes.executor.limit.cores"] = str(limits.cpu)
    return properties


def _first(*given: int | str | None) -> int | str | None:
    return next((value for value in given if value is not None), None)
