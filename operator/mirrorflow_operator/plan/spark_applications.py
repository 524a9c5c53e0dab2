"""Builds a SparkApplication of Kubeflow's Spark operator for a run, and a ScheduledSparkApplication for a schedule. Pure.

The Spark operator submits the driver in cluster mode, in a pod from our template. The driver has the same files, variables and
arguments as the pod of a Job, and starts executors by itself (`mirrorflow-seed driver`). What the object has of executors is what
the driver requests, for queues and quotas.

The Spark operator never restarts an application: it would also repeat what a retry cannot fix, and delete the pod with the
reason. Each attempt is an application of its own, `<name of the run>-r<number>`, and is created by our operator.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from mirrorflow_operator.api.model import amount
from mirrorflow_operator.api.spark_workloads import Archive, Verify
from mirrorflow_operator.plan import names
from mirrorflow_operator.plan.job_properties import HEAP_MIB, MEBIBYTE
from mirrorflow_operator.plan.pod_template import pod_field_variable
from mirrorflow_operator.plan.spark_pods import (
    DEFAULT_DRIVER_RESOURCES,
    SPARK_DRIVER,
    driver_arguments,
    driver_pod,
    executor_pod,
    local_storage,
)
from mirrorflow_operator.plan.spark_run import ENDED_KEPT, RUN_ID_ANNOTATION, Attempt, SparkRun

API_VERSION: Final = "sparkoperator.k8s.io/v1beta2"
APPLICATION: Final = "SparkApplication"
SCHEDULED_APPLICATION: Final = "ScheduledSparkApplication"
# The image's Spark; the Spark operator compares it with the versions from which features exist.
SPARK_VERSION: Final = "4.3.0"
# spark-submit takes a program for Python by its suffix.
MAIN_FILE: Final = "local:///opt/mirrorflow/seed.py"
APPLICATION_NAME_LABEL: Final = "sparkoperator.k8s.io/app-name"  # on pods: the name of their SparkApplication
FAILURES_ANNOTATION: Final = "mirrorflow.io/failures"  # of the attempts before this one that count
APPLICATION_NAME_FIELD: Final = f"metadata.labels['{APPLICATION_NAME_LABEL}']"
# An executor without resources in the spec has these beside its heap, as mirrorflow_seed sets them.
JVM_MIB: Final = 256
TASK_MIB: Final = 256
_ATTEMPT: Final = re.compile(r"^(?P<run>.+-[0-9a-f]{8})-r(?P<number>[1-9][0-9]*)$")
Object = dict[str, Any]


def attempt_name(run_name: str, number: int) -> str:
    """Returns the name of the SparkApplication of an attempt."""
    return f"{run_name}-r{number}"


def run_name_of(application: str) -> str:
    """Returns the name of the run of a SparkApplication; its own name where a schedule created it."""
    match = _ATTEMPT.match(application)
    return match["run"] if match else application


def attempt_number(application: str) -> int | None:
    """Returns the number of the attempt; None where a schedule created the SparkApplication."""
    match = _ATTEMPT.match(application)
    return int(match["number"]) if match else None


def spark_application(
    run: SparkRun, run_name: str, attempt: Attempt, run_id: str, *, suspend: bool
) -> Object:
    """Returns the SparkApplication of one attempt. Kueue alone suspends and resumes those of its queues."""
    queue = run.queue_labels
    annotations = {RUN_ID_ANNOTATION: run_id, FAILURES_ANNOTATION: str(attempt.failures)}
    return {
        "apiVersion": API_VERSION,
        "kind": APPLICATION,
        "metadata": {
            **run.metadata(attempt_name(run_name, attempt.number), annotations=annotations),
            "labels": _labels(run) | queue,
        },
        "spec": {**application_spec(run, run_name), **({} if queue else {"suspend": suspend})},
    }


def scheduled_spark_application(run: SparkRun, name: str, job: Verify | Archive, *, suspend: bool) -> Object:
    """Returns the ScheduledSparkApplication of a schedule, which runs one application at a time and deletes old ended ones."""
    variables = [pod_field_variable("RUN_ID", APPLICATION_NAME_FIELD)]
    return {
        "apiVersion": API_VERSION,
        "kind": SCHEDULED_APPLICATION,
        # The Spark operator copies these labels to each application.
        "metadata": {**run.metadata(name), "labels": _labels(run) | run.queue_labels},
        "spec": {
            "schedule": job.schedule,
            "timeZone": job.time_zone,
            "concurrencyPolicy": "Forbid",
            "successfulRunHistoryLimit": ENDED_KEPT,
            "failedRunHistoryLimit": ENDED_KEPT,
            "suspend": suspend,
            "template": application_spec(run, name, variables),
        },
    }


def _labels(run: SparkRun) -> dict[str, str]:
    """Returns the labels of an application, without the flow's label: Spark copies them to executors, which do not have it."""
    return {name: value for name, value in run.labels.items() if name != names.FLOW_LABEL}


def application_spec(run: SparkRun, config_map: str, environment: Sequence[Object] = ()) -> Object:
    """Returns the spec of an application whose pods mount *config_map*; *environment*: further variables of the driver."""
    executors = run.job.executors
    return {
        "type": "Python",
        "pythonVersion": "3",
        "sparkVersion": SPARK_VERSION,
        "mode": "cluster",
        "image": run.image,
        "mainApplicationFile": MAIN_FILE,
        "arguments": driver_arguments(run.kind),
        "restartPolicy": {"type": "Never"},
        "dynamicAllocation": {
            "enabled": True,
            "minExecutors": 0,
            "initialExecutors": executors.max,
            "maxExecutors": executors.max,
        },
        "driver": _driver(run, config_map, environment),
        "executor": _executor(run, config_map),
    }


def _driver(run: SparkRun, config_map: str, environment: Sequence[Object]) -> Object:
    """Returns the driver: its sizes, and the pod of a Job as a template without what Spark sets itself."""
    pod = driver_pod(run, config_map, environment)
    given = run.job.driver.resources
    (container,) = pod["spec"]["containers"]
    # Spark appends its arguments to those of the template, and its sizes replace the template's.
    container = {key: value for key, value in container.items() if key not in {"args", "resources"}}
    left_out = {"restartPolicy", "serviceAccountName", "containers"}
    template = {
        "metadata": pod["metadata"],
        "spec": {
            **{key: value for key, value in pod["spec"].items() if key not in left_out},
            "containers": [{**container, "name": SPARK_DRIVER, **local_storage(given)}],
        },
    }
    defaults = DEFAULT_DRIVER_RESOURCES["requests"]
    memory = _first(given.limits.memory, given.requests.memory, defaults["memory"])
    return {
        "serviceAccount": run.defaults.account,
        "coreRequest": str(_first(given.requests.cpu, given.limits.cpu, defaults["cpu"])),
        **({} if given.limits.cpu is None else {"coreLimit": str(given.limits.cpu)}),
        "memory": f"{HEAP_MIB}m",
        "memoryOverhead": f"{max(0, int(amount(memory) / MEBIBYTE) - HEAP_MIB)}m",
        "template": template,
    }


def _executor(run: SparkRun, config_map: str) -> Object:
    executors = run.job.executors
    requests, limits = executors.resources.requests, executors.resources.limits
    memory, cpu = limits.memory or requests.memory, _first(requests.cpu, limits.cpu, executors.cores)
    total_mib = HEAP_MIB + JVM_MIB + TASK_MIB * executors.cores
    if memory is not None:
        total_mib = int(amount(memory) / MEBIBYTE)
    pod = executor_pod(run, config_map)
    return {
        "instances": executors.max,
        "cores": executors.cores,
        "coreRequest": str(cpu),
        **({} if limits.cpu is None else {"coreLimit": str(limits.cpu)}),
        "memory": f"{HEAP_MIB}m",
        "memoryOverhead": f"{total_mib - HEAP_MIB}m",
        # They win over those of the application, which Spark copies.
        "labels": pod["metadata"]["labels"],
        "template": {"metadata": pod["metadata"], "spec": pod["spec"]},
    }


def _first(*given: int | str | None) -> int | str:
    return next(value for value in given if value is not None)
