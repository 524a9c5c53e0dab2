"""Builds the objects of a flow's Spark jobs: a Job for each run, a CronJob for each schedule. Pure and total.

With the launcher SparkApplication, `spark_applications` builds what takes the place of both.

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
from typing import Any, Final

from mirrorflow_core.java.properties import format_properties
from mirrorflow_operator.api.spark_workloads import Archive, SparkJob, Verify
from mirrorflow_operator.api.spec import MirrorFlow, State
from mirrorflow_operator.api.workloads import ConnectorKind
from mirrorflow_operator.plan import names
from mirrorflow_operator.plan.drift import content_hash
from mirrorflow_operator.plan.job_properties import job_properties
from mirrorflow_operator.plan.pod_template import WORKER_FILE, pod_field_variable
from mirrorflow_operator.plan.properties import ConnectorPlan, plan_all
from mirrorflow_operator.plan.secret_layout import POD_LAYOUT
from mirrorflow_operator.plan.spark_applications import (
    APPLICATION,
    SCHEDULED_APPLICATION,
    application_spec,
    scheduled_spark_application,
    spark_application,
)
from mirrorflow_operator.plan.spark_pods import (
    DRIVER,
    EXECUTOR_FILE,
    JOB_FILE,
    PROGRESS_PORT,
    SOURCE_FILE,
    driver_pod,
    executor_pod,
)
from mirrorflow_operator.plan.spark_run import (
    ENDED_KEPT,
    EXIT_STOPPED,
    FINAL_EXITS,
    FOLLOWING,
    RETRIES,
    RUN_ID_ANNOTATION,
    SCHEDULED,
    Attempt,
    RunKind,
    Runs,
    SparkDefaults,
    SparkRun,
)

DRIVER_PORT: Final = 7078
BLOCK_PORT: Final = 7079
# Holds the name of the Job that a CronJob created for one scheduled time.
JOB_NAME_FIELD: Final = "metadata.labels['batch.kubernetes.io/job-name']"
# A scheduled job that could not start on time may still start within this many seconds.
STARTING_DEADLINE_S: Final = 3_600
_HASH_LENGTH: Final = 8
# The kinds of objects that start drivers.
_LAUNCHING: Final = frozenset({"Job", "CronJob", APPLICATION, SCHEDULED_APPLICATION})
Object = dict[str, Any]


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

    def run_of(kind: RunKind, job: SparkJob) -> SparkRun:
        planned = plan_all(running, POD_LAYOUT, flow_id=flow_id).connectors
        plan = next(connector for connector in planned if connector.kind is ConnectorKind.SOURCE)
        return SparkRun(flow=flow, kind=kind, job=job, plan=plan, defaults=defaults, groups=_groups(planned))

    if spec.seed is not None and spec.seed.run_id and runs.seed:
        run = run_of(RunKind.SEED, spec.seed)
        documents.append(_network_policy(run))
        documents.extend(_run_objects(run, spec.seed.run_id, runs, suspend=spec.state is not State.RUNNING))
    if spec.verify is not None and (runs.verify or spec.verify.schedule):
        run = run_of(RunKind.VERIFY, spec.verify)
        # A verification only reads, and is useful on a paused flow: only Stopped means no pods.
        is_halted = spec.state is State.STOPPED
        documents.append(_network_policy(run))
        if runs.verify and spec.verify.run_id:
            documents.extend(_run_objects(run, spec.verify.run_id, runs, suspend=is_halted))
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
            documents.extend(_run_objects(run, FOLLOWING, runs, suspend=is_halted))
        if spec.archive.schedule:
            documents.extend(_schedule_objects(run, spec.archive, suspend=is_halted))
    if spec.restore is not None and spec.restore.run_id and runs.restore:
        # A restore to a point in time is useful on a paused flow, whose connector does not copy the rest.
        run = run_of(RunKind.RESTORE, spec.archive or SparkJob())
        documents.append(_network_policy(run))
        documents.extend(_run_objects(run, spec.restore.run_id, runs, suspend=spec.state is State.STOPPED))
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


def _run_objects(run: SparkRun, run_id: str, runs: Runs, *, suspend: bool) -> Iterator[Object]:
    """Yields the ConfigMap and the Job of run *run_id*, or the SparkApplication of its present attempt.

    Kueue suspends and resumes the Jobs in its queues, so there is no Job while one of them should be suspended.
    """
    queue = run.queue_labels
    if queue and suspend:
        return
    # The name is a hash of the content, and the content includes the name: so the hash uses an empty name.
    spec = application_spec(run, "") if run.is_application else _job(run, "")
    content = {"run": run_id, "files": _config_map(run, "", run_id)["data"], "spec": spec}
    content |= {"queue": queue} if queue else {}
    name = f"{run.flow.metadata.name}-{run.kind.value}-{content_hash(content)[:_HASH_LENGTH]}"
    yield _config_map(run, name, run_id)
    if run.is_application:
        yield spark_application(run, name, runs.attempts.get(name, Attempt()), run_id, suspend=suspend)
        return
    yield {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            **run.metadata(name, annotations={RUN_ID_ANNOTATION: run_id}),
            "labels": run.labels | queue,
        },
        "spec": {**_job(run, name), **({} if queue else {"suspend": suspend})},
    }


def _schedule_objects(run: SparkRun, job: Verify | Archive, *, suspend: bool) -> Iterator[Object]:
    """Yields the ConfigMap and the CronJob, or the ScheduledSparkApplication.

    Kubernetes runs one Job at a time and deletes old ended ones, as the Spark operator does with its applications.
    """
    name = f"{run.flow.metadata.name}-{run.kind.value}"
    yield _config_map(run, name, SCHEDULED)
    if run.is_application:
        yield scheduled_spark_application(run, name, job, suspend=suspend)
        return
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


def _config_map(run: SparkRun, name: str, run_id: str) -> Object:
    data = {
        WORKER_FILE: format_properties(run.plan.worker_properties),
        SOURCE_FILE: format_properties(run.plan.connector_properties),
        JOB_FILE: format_properties(job_properties(run, run_id)),
        EXECUTOR_FILE: json.dumps(executor_pod(run, name), indent=1),
    }
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": run.metadata(name), "data": data}


def _job(run: SparkRun, config_map: str, environment: Sequence[Object] = ()) -> Object:
    """Returns the spec of a Job with one driver at a time; a retry starts after the last driver ended."""
    return {
        "completions": 1,
        "parallelism": 1,
        "backoffLimit": RETRIES[run.kind],
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                _exit_rule("FailJob", list(FINAL_EXITS[run.kind])),
                # The driver was stopped by a node drain or a pause, which does not count as a failure.
                _exit_rule("Ignore", [EXIT_STOPPED]),
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]
        },
        "template": driver_pod(run, config_map, environment),
    }


def _exit_rule(action: str, statuses: list[int]) -> Object:
    return {"action": action, "onExitCodes": {"containerName": DRIVER, "operator": "In", "values": statuses}}


def _network_policy(run: SparkRun) -> Object:
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

    *existing* are the names of existing Jobs and SparkApplications, *alive* of those with a live driver. The target would refuse one of
    two seeds or restores, two verifications would load both clusters twice, and the target differs while it is
    filled. Of two exports the second to commit would fail.
    """
    return [
        planned_object
        for planned_object in planned
        if planned_object["kind"] not in _LAUNCHING
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
    if planned["kind"] in {"CronJob", SCHEDULED_APPLICATION}:
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
