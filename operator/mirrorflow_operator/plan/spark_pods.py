"""Builds the pods of a Spark job: the driver's, and the template of executors. Pure."""

from collections.abc import Sequence
from typing import Any, Final

from mirrorflow_operator.api.spark_workloads import Verify
from mirrorflow_operator.api.workloads import Resources, Template
from mirrorflow_operator.plan.pod_template import (
    CONFIG_FOLDER,
    CONTAINER_SECURITY,
    WORKER_FILE,
    environment_variables,
    init_containers,
    pod_field_variable,
    pod_security,
    resources_of,
    scheduling,
    volume_mounts,
    volumes,
)
from mirrorflow_operator.plan.spark_run import COMMANDS, RunKind, SparkRun

SOURCE_FILE: Final = "source.properties"
JOB_FILE: Final = "job.properties"
EXECUTOR_FILE: Final = "executor.yaml"
EXECUTOR: Final = "executor"
# Results of verifications, with a folder for each flow.
OUTPUT_FOLDER: Final = "/mnt/mirrorflow/output"
SCRATCH_SIZE: Final = "2Gi"  # Spark's temporary files; nothing is shuffled or cached
DRIVER: Final = "driver"
SPARK_DRIVER: Final = "spark-kubernetes-driver"  # in place of DRIVER where spark-submit creates the pod
PROGRESS_PORT: Final = 8083
TERMINATION_FILE: Final = "/dev/termination-log"
OUTPUT: Final = "output"
EVENT_LOG: Final = "event-log"
EVENT_LOG_FOLDER: Final = "/mnt/mirrorflow/event-log"
# In this time a driver stops its tasks, waits for their in-flight requests and ends its executors.
GRACE_S: Final = 60
DEFAULT_DRIVER_RESOURCES: Final = {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
Object = dict[str, Any]


def executor_pod(run: SparkRun, config_map: str) -> Object:
    """Returns the pod template of executors, to which Spark adds image, sizes and arguments.

    The pods run under the flow's ServiceAccount, without a token.
    """
    flow_name, template = run.flow.metadata.name, run.job.template
    labels = {
        **template.labels,
        "app.kubernetes.io/name": "mirrorflow-executor",
        "app.kubernetes.io/instance": flow_name,
        "app.kubernetes.io/component": f"{run.kind.value}-executor",
        **run.selector,
    }
    container = {
        "name": EXECUTOR,
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": volume_mounts(run.mounts, template),
        "env": _variables(template),
        **local_storage(run.job.executors.resources),
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
            **init_containers(template),
            "containers": [container],
            "volumes": volumes(config_map, run.mounts, template, tmp_size=SCRATCH_SIZE),
            **scheduling(template, run.selector),
        },
    }


def local_storage(resources: Resources) -> Object:
    """Returns the part of the resources that Spark does not set itself; empty where it is not given."""
    name = "ephemeral-storage"
    given = {part: amounts[name] for part, amounts in resources_of(resources).items() if name in amounts}
    return {"resources": {part: {name: amount} for part, amount in given.items()}} if given else {}


def _variables(template: Template) -> list[Object]:
    """Returns the environment variables of a job's container: a writable HOME, and those of the user."""
    return [{"name": "HOME", "value": "/tmp"}, *environment_variables(template)]  # noqa: S108


def driver_pod(run: SparkRun, config_map: str, extra_variables: Sequence[Object]) -> Object:
    template = run.job.template
    output = run.job.output if isinstance(run.job, Verify) else None
    event_log = None if run.flow.spec.spark is None else run.flow.spec.spark.event_log
    written: list[Object] = []
    claims: list[Object] = []
    security = pod_security(template)
    if output is not None:
        written.append({"name": OUTPUT, "mountPath": OUTPUT_FOLDER})
        claims.append(_claim(OUTPUT, output.claim_name))
    if event_log is not None and event_log.claim_name is not None:
        written.append({"name": EVENT_LOG, "mountPath": EVENT_LOG_FOLDER})
        claims.append(_claim(EVENT_LOG, event_log.claim_name))
    groups = [volume.fs_group for volume in (output, event_log) if volume is not None and volume.fs_group]
    if groups:
        # Kubernetes gives a new volume, which root owns, to this group.
        security["fsGroup"] = groups[0]
    container = {
        "name": DRIVER,
        "image": run.image,
        "args": driver_arguments(run.kind),
        "env": [*_environment(), *extra_variables, *_variables(template)],
        "terminationMessagePath": TERMINATION_FILE,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "ports": [{"name": "progress", "containerPort": PROGRESS_PORT, "protocol": "TCP"}],
        "resources": resources_of(run.job.driver.resources) or DEFAULT_DRIVER_RESOURCES,
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [*volume_mounts(run.mounts, template), *written],
    }
    return {
        "metadata": {"labels": {**template.labels, **run.labels}, "annotations": dict(template.annotations)},
        "spec": {
            "restartPolicy": "Never",
            "serviceAccountName": run.defaults.account,
            # The only pod of a flow with a token: the driver creates and deletes executor pods.
            "automountServiceAccountToken": True,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": max(GRACE_S, template.termination_grace_period_seconds),
            "securityContext": security,
            **init_containers(template),
            "containers": [container],
            "volumes": [*volumes(config_map, run.mounts, template, tmp_size=SCRATCH_SIZE), *claims],
            **scheduling(template, run.selector),
        },
    }


def _claim(volume: str, name: str) -> Object:
    return {"name": volume, "persistentVolumeClaim": {"claimName": name}}


def driver_arguments(kind: RunKind) -> list[str]:
    """Returns the arguments of mirrorflow-seed in the driver's pod."""
    return [
        COMMANDS[kind],
        *("--worker", f"{CONFIG_FOLDER}/{WORKER_FILE}"),
        *("--source", f"{CONFIG_FOLDER}/{SOURCE_FILE}"),
        *("--job", f"{CONFIG_FOLDER}/{JOB_FILE}"),
    ]


def _environment() -> list[Object]:
    fields = {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace", "POD_IP": "status.podIP"}
    return [
        *(pod_field_variable(name, field) for name, field in fields.items()),
        {"name": "HTTP_PORT", "value": str(PROGRESS_PORT)},
        {"name": "TERMINATION_MESSAGE", "value": TERMINATION_FILE},
    ]
