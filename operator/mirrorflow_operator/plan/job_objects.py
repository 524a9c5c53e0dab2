"""Builds the objects of a flow's Spark jobs: a Job for each run, a CronJob for each schedule. Pure and total.

A Job's name has a hash of its runId and everything its pods get, without its suspension: another runId or
spec is another Job, because Kubernetes does not allow changes to a Job's pod template. The driver runs in
client mode in the Job's only pod and starts executors itself, with the chart's ServiceAccount.

The ConfigMap of a job has the source's properties, job.properties and the executor template. The properties
are copied when the job is planned, so driver and executors of one run read the same values throughout, even
if the spec changes meanwhile. Secrets in them are references, as in the connector's files. mirrorflow_seed
defines the keys of job.properties; `spark.*` keys are Spark's and override what the job sets.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from mirrorflow_core.java.properties import format_properties
from mirrorflow_operator.api.model import amount, rounded_up
from mirrorflow_operator.api.spec import MirrorFlow, State
from mirrorflow_operator.api.workloads import (
    Archive,
    ConnectorKind,
    ForeignRecordPolicy,
    Resources,
    Restore,
    Seed,
    SparkJob,
    SparkSettings,
    Template,
    Verify,
)
from mirrorflow_operator.plan import names
from mirrorflow_operator.plan.drift import content_hash
from mirrorflow_operator.plan.pod_template import (
    CONFIG_FOLDER,
    CONTAINER_SECURITY,
    WORKER_FILE,
    Mounts,
    environment_variables,
    init_containers,
    mounts,
    pod_field_variable,
    pod_security,
    resources_of,
    scheduling,
    volume_mounts,
    volumes,
)
from mirrorflow_operator.plan.properties import POD_LAYOUT, ConnectorPlan, plan_all
from mirrorflow_operator.settings import SEED_ACCOUNT

SOURCE_FILE: Final = "source.properties"
JOB_FILE: Final = "job.properties"
EXECUTOR_FILE: Final = "executor.yaml"
EXECUTOR: Final = "executor"
# Reaches the API server from any pod of any cluster.
MASTER: Final = "k8s://https://kubernetes.default.svc:443"
DRIVER_PORT: Final = 7078
BLOCK_PORT: Final = 7079
SCHEDULED: Final = "scheduled"  # in place of a runId
FOLLOWING: Final = "following"  # in place of a runId: the export of spec.archive.follow, which has no end
# Results of verifications, with a folder for each flow.
OUTPUT_FOLDER: Final = "/mnt/mirrorflow/output"
SCRATCH_SIZE: Final = "2Gi"  # Spark's temporary files; nothing is shuffled or cached
MEBIBYTE: Final = 1_024 * 1_024
# Spark refuses a heap below 450 MiB; copied records are in Python's memory, outside the heap.
HEAP_MIB: Final = 512
DRIVER: Final = "driver"
PROGRESS_PORT: Final = 8083
TERMINATION_FILE: Final = "/dev/termination-log"
RUN_ID_ANNOTATION: Final = "mirrorflow.io/run-id"
# Holds the name of the Job that a CronJob created for one scheduled time.
JOB_NAME_FIELD: Final = "metadata.labels['batch.kubernetes.io/job-name']"
OUTPUT: Final = "output"
EVENT_LOG: Final = "event-log"
EVENT_LOG_FOLDER: Final = "/mnt/mirrorflow/event-log"
# In this time a driver stops its tasks, waits for their in-flight requests and ends its executors.
GRACE_S: Final = 60
# Retries after a driver failed; disruptions do not count. The backoff is 10 s, 20 s ... 5 min (Kubernetes).
SEED_RETRIES: Final = 6
VERIFY_RETRIES: Final = 2
ARCHIVE_RETRIES: Final = 2  # the next export continues in any case
# Seconds after which a failed export that follows the source starts again. The log of its driver can be read meanwhile, and
# a job that fails at once costs some CPU seconds every ten minutes.
ARCHIVE_AGAIN_S: Final = 600.0
# Exit statuses of a driver (`mirrorflow_seed.errors`). A failed verification has another status than a difference.
EXIT_DIFFERENT, EXIT_USAGE, EXIT_STOPPED, EXIT_FAILED, EXIT_NOTHING_SELECTED = 1, 2, 3, 4, 5
ENDED_KEPT: Final = 3  # ended Jobs of each kind kept for their logs
# A scheduled job that could not start on time may still start within this many seconds.
STARTING_DEADLINE_S: Final = 3_600
_HASH_LENGTH: Final = 8
_DRIVER_RESOURCES: Final = {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
Object = dict[str, Any]


class RunKind(Enum):
    """The purpose of a Spark job, by its name in the resource and in labels; `COMMANDS` has that of the command."""

    SEED = "seed"
    VERIFY = "verify"
    ARCHIVE = "archive"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The Spark jobs that should exist now. With none set, ended Jobs are kept and running ones deleted."""

    # The runs of spec.seed.runId and spec.restore.runId; no scheduled verification begins meanwhile.
    seed: bool = False
    restore: bool = False
    verify: bool = False  # the run of spec.verify.runId
    archive: bool = False  # the export of spec.archive.follow
    # The source connector has no pods, because a seed or a restore does its work.
    replaces_source: bool = False
    # Names of ended Jobs that are kept for their logs and until the status reports them.
    kept: frozenset[str] = frozenset()


NO_RUNS: Final = Runs()


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkDefaults:
    """The operator's settings for Spark jobs; `image` includes the tag."""

    image: str
    account: str = SEED_ACCOUNT
    operator_namespace: str = ""  # that of `names.progress_readers`


# The commands of mirrorflow-seed, which also name the job in its reports.
COMMANDS: Final = {
    RunKind.SEED: "seed",
    RunKind.VERIFY: "verify",
    RunKind.ARCHIVE: "export",
    RunKind.RESTORE: "restore",
}
_RETRIES: Final = {
    RunKind.SEED: SEED_RETRIES,
    RunKind.VERIFY: VERIFY_RETRIES,
    RunKind.ARCHIVE: ARCHIVE_RETRIES,
    RunKind.RESTORE: SEED_RETRIES,
}
# What a retry would only repeat. EXIT_FAILED is retried: a cluster or a folder may be usable again.
FINAL_EXITS: Final = {
    RunKind.SEED: (EXIT_USAGE, EXIT_NOTHING_SELECTED),
    RunKind.VERIFY: (EXIT_DIFFERENT, EXIT_USAGE, EXIT_NOTHING_SELECTED),
    RunKind.ARCHIVE: (EXIT_DIFFERENT, EXIT_USAGE, EXIT_NOTHING_SELECTED),
    RunKind.RESTORE: (EXIT_DIFFERENT, EXIT_USAGE, EXIT_NOTHING_SELECTED),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One kind of job of one flow, with the inputs of its objects."""

    flow: MirrorFlow
    kind: RunKind
    job: SparkJob
    plan: ConnectorPlan
    defaults: SparkDefaults
    groups: dict[str, str]  # the groups whose offsets are archived and restored, as properties of the job

    @property
    def mounts(self) -> Mounts:
        """The Secrets and ConfigMaps that the source connector's pod mounts, too."""
        return mounts((self.plan.worker_properties, self.plan.connector_properties))

    @property
    def image(self) -> str:
        return self.job.image or self.defaults.image

    @property
    def labels(self) -> dict[str, str]:
        return names.run_labels(self.flow.metadata.name, self.kind.value)

    @property
    def queue_labels(self) -> dict[str, str]:
        """The label by which Kueue takes a Job into its queue; empty without a queue."""
        spark = self.flow.spec.spark
        return {} if spark is None or spark.queue is None else {names.QUEUE_LABEL: spark.queue}

    @property
    def selector(self) -> dict[str, str]:
        return names.run_selector(self.flow.metadata.name, self.kind.value)

    def metadata(self, name: str, **more: Any) -> Object:
        return {"name": name, "namespace": self.flow.metadata.namespace, "labels": self.labels, **more}


def job_objects(flow: MirrorFlow, runs: Runs, *, defaults: SparkDefaults, flow_id: str = "") -> list[Object]:
    """Returns every object of the flow's Spark jobs, in the order in which they are needed.

    *flow_id* is that of `plan`.
    """
    documents: list[Object] = []
    spec = flow.spec
    # Jobs read as the running source connector does: a pause suspends the Job instead. They wait for no schemas, so they need no
    # Secrets of registries.
    running = flow.model_copy(
        update={"spec": spec.model_copy(update={"state": State.RUNNING, "schemas": None})}
    )

    def run_of(kind: RunKind, job: SparkJob) -> _Run:
        planned = plan_all(running, POD_LAYOUT, flow_id=flow_id).connectors
        plan = next(connector for connector in planned if connector.kind is ConnectorKind.SOURCE)
        return _Run(flow=flow, kind=kind, job=job, plan=plan, defaults=defaults, groups=_groups(planned))

    if spec.seed is not None and spec.seed.run_id and runs.seed:
        run = run_of(RunKind.SEED, spec.seed)
        documents.append(_network_policy(run))
        documents.extend(_run_objects(run, spec.seed.run_id, suspend=spec.state is not State.RUNNING))
    if spec.verify is not None and (runs.verify or spec.verify.schedule):
        run = run_of(RunKind.VERIFY, spec.verify)
        # A verification only reads, and is useful on a paused flow: only Stopped means no pods.
        is_halted = spec.state is State.STOPPED
        documents.append(_network_policy(run))
        if runs.verify and spec.verify.run_id:
            documents.extend(_run_objects(run, spec.verify.run_id, suspend=is_halted))
        if spec.verify.schedule:
            # Never two at once: a run by runId has priority, and the schedule may start up to an hour late. A target that is
            # being filled differs.
            is_delayed = runs.seed or runs.restore or runs.verify
            documents.extend(_schedule_objects(run, spec.verify, suspend=is_halted or is_delayed))
    if spec.archive is not None and (spec.archive.follow or spec.archive.schedule):
        # An export only reads the source, so it runs beside a seed and on a paused flow.
        run, is_halted = run_of(RunKind.ARCHIVE, spec.archive), spec.state is State.STOPPED
        documents.append(_network_policy(run))
        if runs.archive and spec.archive.follow:
            documents.extend(_run_objects(run, FOLLOWING, suspend=is_halted))
        if spec.archive.schedule:
            documents.extend(_schedule_objects(run, spec.archive, suspend=is_halted))
    if spec.restore is not None and spec.restore.run_id and runs.restore:
        # A restore to a point in time is useful on a paused flow, whose connector does not copy the rest.
        run = run_of(RunKind.RESTORE, spec.archive or SparkJob())
        documents.append(_network_policy(run))
        documents.extend(_run_objects(run, spec.restore.run_id, suspend=spec.state is State.STOPPED))
    return documents


def _groups(planned: Iterable[ConnectorPlan]) -> dict[str, str]:
    """Returns the groups whose offsets the flow translates, as properties of a job; none without a checkpoint connector."""
    for connector in planned:
        properties = connector.connector_properties
        if connector.kind is ConnectorKind.CHECKPOINT and properties.get("enabled", "true").lower() == "true":
            return {
                "archive.groups": properties["groups"],
                "archive.groups.exclude": properties["groups.exclude"],
            }
    return {"archive.groups": ""}


def _run_objects(run: _Run, run_id: str, *, suspend: bool) -> Iterator[Object]:
    """Yields the ConfigMap and the Job of run *run_id*.

    Kueue suspends and resumes the Jobs in its queues, so there is no Job while one of them should be suspended.
    """
    queue = run.queue_labels
    if queue and suspend:
        return
    # The name is a hash of the content, and the content includes the name: so the hash uses an empty name.
    content = {"run": run_id, "files": _config_map(run, "", run_id)["data"], "spec": _job(run, "")}
    content |= {"queue": queue} if queue else {}
    name = f"{run.flow.metadata.name}-{run.kind.value}-{content_hash(content)[:_HASH_LENGTH]}"
    yield _config_map(run, name, run_id)
    yield {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            **run.metadata(name, annotations={RUN_ID_ANNOTATION: run_id}),
            "labels": run.labels | queue,
        },
        "spec": {**_job(run, name), **({} if queue else {"suspend": suspend})},
    }


def _schedule_objects(run: _Run, job: Verify | Archive, *, suspend: bool) -> Iterator[Object]:
    """Yields the ConfigMap and the CronJob; Kubernetes runs one Job at a time and deletes old ended ones."""
    name = f"{run.flow.metadata.name}-{run.kind.value}"
    yield _config_map(run, name, SCHEDULED)
    yield {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": run.metadata(name),
        "spec": {
            "schedule": job.schedule,
            "timeZone": job.time_zone,
            "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": STARTING_DEADLINE_S,
            "successfulJobsHistoryLimit": ENDED_KEPT,
            "failedJobsHistoryLimit": ENDED_KEPT,
            "suspend": suspend,
            "jobTemplate": {
                "metadata": {"labels": run.labels | run.queue_labels},
                # Each scheduled time is a separate run, with its own sample and results folder.
                "spec": _job(run, name, environment=[pod_field_variable("RUN_ID", JOB_NAME_FIELD)]),
            },
        },
    }


def _config_map(run: _Run, name: str, run_id: str) -> Object:
    data = {
        WORKER_FILE: format_properties(run.plan.worker_properties),
        SOURCE_FILE: format_properties(run.plan.connector_properties),
        JOB_FILE: format_properties(_job_properties(run, run_id)),
        EXECUTOR_FILE: json.dumps(_executor(run, name), indent=1),
    }
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": run.metadata(name), "data": data}


def _job_properties(run: _Run, run_id: str) -> dict[str, str]:
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


def _executor(run: _Run, config_map: str) -> Object:
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
        **_local_storage(run.job.executors.resources),
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


def _local_storage(resources: Resources) -> Object:
    """Returns the part of the resources that Spark does not set itself; empty where it is not given."""
    name = "ephemeral-storage"
    given = {part: amounts[name] for part, amounts in resources_of(resources).items() if name in amounts}
    return {"resources": {part: {name: amount} for part, amount in given.items()}} if given else {}


def _variables(template: Template) -> list[Object]:
    """Returns the environment variables of a job's container: a writable HOME, and those of the user."""
    return [{"name": "HOME", "value": "/tmp"}, *environment_variables(template)]  # noqa: S108


def _job(run: _Run, config_map: str, environment: Sequence[Object] = ()) -> Object:
    """Returns the spec of a Job with one driver at a time; a retry starts after the last driver ended."""
    return {
        "completions": 1,
        "parallelism": 1,
        "backoffLimit": _RETRIES[run.kind],
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                _exit_rule("FailJob", list(FINAL_EXITS[run.kind])),
                # The driver was stopped by a node drain or a pause, which does not count as a failure.
                _exit_rule("Ignore", [EXIT_STOPPED]),
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]
        },
        "template": _driver_pod(run, config_map, environment),
    }


def _exit_rule(action: str, statuses: list[int]) -> Object:
    return {"action": action, "onExitCodes": {"containerName": DRIVER, "operator": "In", "values": statuses}}


def _driver_pod(run: _Run, config_map: str, extra_variables: Sequence[Object]) -> Object:
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
        "args": _arguments(run.kind),
        "env": [*_environment(), *extra_variables, *_variables(template)],
        "terminationMessagePath": TERMINATION_FILE,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "ports": [{"name": "progress", "containerPort": PROGRESS_PORT, "protocol": "TCP"}],
        "resources": resources_of(run.job.driver.resources) or _DRIVER_RESOURCES,
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


def _arguments(kind: RunKind) -> list[str]:
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


def _network_policy(run: _Run) -> Object:
    """Returns the NetworkPolicy of a job's pods.

    Only these pods reach Spark's ports and the progress port, where tasks get their assignments from the driver.
    Progress readers reach the progress port, too.
    """
    selector = {"matchLabels": run.selector}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": run.metadata(f"{run.flow.metadata.name}-{run.kind.value}"),
        "spec": {
            "podSelector": selector,
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "from": [{"podSelector": selector}],
                    "ports": [
                        {"port": port, "protocol": "TCP"} for port in (DRIVER_PORT, BLOCK_PORT, PROGRESS_PORT)
                    ],
                },
                {
                    "from": names.progress_readers(run.defaults.operator_namespace),
                    "ports": [{"port": PROGRESS_PORT, "protocol": "TCP"}],
                },
            ],
        },
    }


def without_source_pods(planned: list[Object], flow: MirrorFlow) -> list[Object]:
    """Returns *planned* with 0 replicas for the source connector, which a seed or a restore replaces.

    Running both at once, each would block the other.
    """
    name = names.object_name(flow.metadata.name, ConnectorKind.SOURCE)
    return [
        {**planned_object, "spec": {**planned_object["spec"], "replicas": 0}}
        if planned_object["kind"] == "Deployment" and planned_object["metadata"]["name"] == name
        else planned_object
        for planned_object in planned
    ]


def without_blocked_jobs(
    planned: list[Object], *, existing: frozenset[str], alive: frozenset[str]
) -> list[Object]:
    """Returns *planned* without new Jobs and CronJobs that must not run beside a Job whose driver is still alive.

    *existing* are the names of existing Jobs, *alive* of Jobs with a live driver. The target would refuse one of
    two seeds or restores, two verifications would load both clusters twice, and the target differs while it is
    filled. Of two exports the second to commit would fail.
    """
    return [
        planned_object
        for planned_object in planned
        if planned_object["kind"] not in {"Job", "CronJob"}
        or planned_object["metadata"]["name"] in existing
        or not any(
            _excludes(other, planned_object, existing)
            for other in alive - {planned_object["metadata"]["name"]}
        )
    ]


def _excludes(alive: str, planned: Object, existing: frozenset[str]) -> bool:
    """Returns whether Job *alive* delays *planned*; a verification does not delay a seed, and an export nothing else."""
    labels = planned["metadata"]["labels"]
    flow, kind = labels[names.RUN_OF_LABEL], labels[names.RUN_LABEL]
    if planned["kind"] == "CronJob":
        # Only the driver of an export that has followed, and whose Job is deleted, is in its way.
        return (
            kind == RunKind.ARCHIVE.value and _is_of(alive, flow, RunKind.ARCHIVE) and alive not in existing
        )
    if kind == RunKind.ARCHIVE.value:
        return _is_of(alive, flow, RunKind.ARCHIVE)
    if kind == RunKind.VERIFY.value:
        return not _is_of(alive, flow, RunKind.ARCHIVE)
    return _is_of(alive, flow, RunKind.SEED) or _is_of(alive, flow, RunKind.RESTORE)


def _is_of(job: str, flow: str, kind: RunKind) -> bool:
    return job.startswith(f"{flow}-{kind.value}-")
