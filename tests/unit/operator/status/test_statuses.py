"""Typical situations of a flow, and the recorded status of each.

The golden files are tests/examples/statuses/<situation>.yaml: one complete status, and the difference from it for each
other situation (`tests.harness.goldens`). The tests of Argo CD's health check read them too.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import yaml

from mirrorflow_core.errors import UnreachableError
from mirrorflow_operator.admission.admit import admit
from mirrorflow_operator.admission.due_jobs import due_jobs
from mirrorflow_operator.api.status import (
    ClusterIds,
    SeedStatus,
    Status,
    parse_status,
)
from mirrorflow_operator.api.timestamps import timestamp
from mirrorflow_operator.errors import FieldError
from mirrorflow_operator.plan.rollouts import DeploymentCondition
from mirrorflow_operator.plan.spark_run import RunKind
from mirrorflow_operator.reconcile.status_writer import status_document
from mirrorflow_operator.status.assess import assess
from mirrorflow_operator.status.conditions import Problem, Reason
from mirrorflow_operator.status.observation import Admission, Observation, ObservedJob, PodEvent
from mirrorflow_operator.status.pod_reports import (
    Checkpoints,
    MissingReference,
    PollFailure,
    Reading,
    ReasonCount,
    Replicating,
    SideReachability,
    SideSummary,
    report_from_json,
)
from tests.harness.goldens import (
    FULL_STATUS,
    STATUS_NAMES,
    STATUSES,
    check_golden,
    difference,
    recorded_status,
)
from tests.unit.operator.observations import (
    CHECKPOINT,
    HEARTBEAT,
    NOW_S,
    VERSIONS,
    connector,
    deployment,
    document,
    driver,
    job,
    mirror_flow,
    observed,
    pod,
    reading,
    resource,
    seed_reading,
    settled,
)

LATE = DeploymentCondition(type="Progressing", status="False", reason="ProgressDeadlineExceeded")
UNREACHABLE = SideSummary(
    reach=SideReachability.UNREACHABLE,
    reason="Unreachable",
    message=str(
        UnreachableError(cluster="east", addresses="kafka-east:9092", problem="Name or service not known")
    ),
    since_s=300.0,
)
SCRAM: dict[str, Any] = {
    "source": {
        "alias": "east",
        "bootstrapServers": ["kafka-east:9093"],
        "authentication": {
            "type": "ScramSha512",
            "username": {"value": "mirror"},
            "password": {"secretName": "east-mirror", "key": "password"},
        },
    }
}
PENDING = {"phase": "Pending", "ready": False, "started_s": None, "reading": None, "ip": ""}


def _starting(**changes: Any) -> Observation:
    """Returns a flow that was just applied. The controller has not observed its Deployments yet."""
    new = deployment(observed_generation=0, replicas=0, updated=0, ready=0, conditions=())
    connectors = tuple(
        connector(kind, deployment=replace(new, name=deployment(kind).name), pods=())
        for kind in (connector().kind, CHECKPOINT, HEARTBEAT)
    )
    return observed(connectors=connectors, **changes)


def _not_started(flow: dict[str, Any], **changes: Any) -> Observation:
    """Returns a flow whose only pod of the source connector does not start."""
    first = connector(deployment=deployment(ready=0, conditions=()), pods=(pod(**PENDING | changes),))
    return observed(flow=mirror_flow(**flow), connectors=(first, connector(CHECKPOINT), connector(HEARTBEAT)))


def _invalid() -> Observation:
    error = FieldError(
        path="spec.topics.include[0]", message="(orders is no regular expression", action="close it"
    )
    invalid = replace(resource(), flow=None, errors=(error,))
    return observed(resource=invalid, admission=admit(invalid, versions=VERSIONS), connectors=())


def _refused(reason: Reason, message: str) -> Observation:
    flow_resource = resource()
    admission = admit(flow_resource, versions=VERSIONS, conflict=Problem(reason, message))
    return replace(_stopped(), resource=flow_resource, admission=admission)


def _stopped() -> Observation:
    flow = mirror_flow(state="Stopped")
    none = {"wanted": 0, "replicas": 0, "updated": 0, "ready": 0}
    connectors = tuple(
        connector(kind, deployment=deployment(kind, **none), pods=())
        for kind in (connector().kind, CHECKPOINT, HEARTBEAT)
    )
    return observed(flow=flow, connectors=connectors)


def _paused() -> Observation:
    paused_pod = pod(
        reading=reading(state="PAUSED", replicating=Replicating.PAUSED, lag_records=900, lag_s=75.0)
    )
    connectors = (
        connector(pods=(paused_pod,)),
        *(
            connector(kind, pods=(pod(reading=reading(state="PAUSED", replicating=Replicating.PAUSED)),))
            for kind in (CHECKPOINT, HEARTBEAT)
        ),
    )
    return observed(flow=mirror_flow(state="Paused"), connectors=connectors)


def _pause_requested(**changes: Any) -> Observation:
    """The pods stay. The source connector's pod has not yet read its changed file."""
    first, *others = _paused().connectors
    return replace(_paused(), connectors=(replace(first, pods=(pod(**changes),)), *others))


def _resuming() -> Observation:
    return replace(observed(), connectors=_paused().connectors)


def _with_terminating_pod(observation: Observation, **changes: Any) -> Observation:
    """Adds an earlier pod of the source connector that has not ended yet and still copies."""
    advancing = reading(replicating=Replicating.ADVANCING, records_per_s=10.0)
    old = pod(name="east-to-west-source-7d9f-old", deleting=True, reading=advancing)
    first, *others = observation.connectors
    changed = replace(first, pods=(*first.pods, old), **changes)
    return replace(observation, connectors=(changed, *others))


def _replaced_target() -> Observation:
    """The target has the cluster id `west-id`, but had a different id when the spec was applied."""
    status = Status(observed_generation=1, cluster_ids=ClusterIds(source="east-id", target="the-one-before"))
    return observed(resource=resource(status=status))


def _checkpoints(**changes: Any) -> Observation:
    checkpoint_pod = pod(reading=reading(**changes))
    return observed(
        connectors=(connector(), connector(CHECKPOINT, pods=(checkpoint_pod,)), connector(HEARTBEAT))
    )


def _mounting(*, secret: str) -> dict[str, Any]:
    message = f'MountVolume.SetUp failed for volume "secret-0" : secret "{secret}" not found'
    event = PodEvent(reason="FailedMount", message=message, last_seen_s=NOW_S - 10)
    return {"waiting_reason": "ContainerCreating", "events": (event,)}


def _rolling(**changes: Any) -> Observation:
    """The old pod copies, and the new pod does not start."""
    new = pod(**PENDING | {"name": "east-to-west-source-66b4-new", "created_s": NOW_S - 60} | changes)
    rolling = connector(
        deployment=deployment(generation=2, observed_generation=2, replicas=2, updated=1),
        pods=(pod(reading=reading(replicating=Replicating.ADVANCING, records_per_s=10.0)), new),
    )
    return observed(connectors=(rolling, connector(CHECKPOINT), connector(HEARTBEAT)))


SEED: dict[str, Any] = {"seed": {"runId": "1", "executors": {"max": 4}}}
NIGHTLY: dict[str, Any] = {"verify": {"schedule": "0 3 * * *"}}
FIGURES: dict[str, Any] = {
    "partitions": {"total": 16, "done": 3, "lost": 0},
    "records": 1_250_000,
    "bytes": 1_280_000_000,
    "remainingRecords": 5_400_000,
    "recordsPerSecond": 45_000.0,
    "bytesPerSecond": 46_000_000.0,
    "estimatedSeconds": 120,
    "guarantee": "exactly-once",
    "cost": {"executorSeconds": 111.0, "bytesRead": 1_280_000_000, "bytesWritten": 1_280_000_000},
}
DONE = {"partitions": {"total": 16, "done": 16, "lost": 0}, "records": 6_650_000, "remainingRecords": 0}
REFUSED_BY_KUBERNETES = PodEvent(
    reason="FailedCreate",
    message='Error creating: pods "east-to-west-seed-1a2b3c4d-" is forbidden: error looking up service account'
    ' mirrors/mirrorflow-seed: serviceaccount "mirrorflow-seed" not found',
    last_seen_s=NOW_S - 10,
)


def _seed(seed_job: ObservedJob | None, *, held: bool = True, **spec: Any) -> Observation:
    """Returns a flow with a requested seed. Its source connector has no pods while the seed replaces it."""
    flow_resource = resource(mirror_flow(**{**SEED, **spec}))
    existing = () if seed_job is None else (seed_job,)
    runs = due_jobs(flow_resource.flow, flow_resource.status, existing, None, NOW_S).runs
    runs = replace(runs, replaces_source=runs.replaces_source and held)
    first = connector()
    if runs.replaces_source:
        none = deployment(wanted=0, replicas=0, updated=0, ready=0)
        first = connector(deployment=none, pods=())
    return observed(
        resource=flow_resource,
        connectors=(first, connector(CHECKPOINT), connector(HEARTBEAT)),
        jobs=existing,
        runs=runs,
    )


def _seed_ended(outcome: str, **changes: Any) -> Observation:
    report = {"version": 1, "job": "seed", **FIGURES, **DONE, **changes.pop("report", {})}
    ended = driver(
        phase="Succeeded" if outcome == "Complete" else "Failed",
        ready=False,
        started_s=None,
        exit_code=0 if outcome == "Complete" else 1,
        terminated_message=json.dumps(report),
    )
    return _seed(job(outcome=outcome, ended_s=NOW_S - 30, pods=(ended,), **changes))


def _seeded_despite_failures() -> Observation:
    """The first Job was deleted.

    In the next Job, one driver was killed, and two tasks of the other driver were killed.
    """
    message = "2 tasks were cut off; others went on in their place."
    seeded = _seed_ended("Complete", report={"message": message})
    killed = driver(name="killed", phase="Failed", ready=False, created_s=NOW_S - 910, exit_code=137)
    terminating = driver(name="of-the-one-before", created_s=NOW_S - 2_000, deleting=True)
    (ended,) = seeded.jobs
    deleted = SeedStatus(run_id="1", phase="Running", start_time=timestamp(NOW_S - 2_000))
    flow_resource = replace(seeded.resource, status=Status(seed=deleted))
    return replace(
        seeded, resource=flow_resource, jobs=(replace(ended, pods=(terminating, killed, *ended.pods)),)
    )


def _no_longer_offered(observation: Observation) -> Admission:
    return admit(replace(observation.resource, status=Status(version="0.9.0")), versions=VERSIONS)


def _verified(
    windows: dict[str, int],
    *,
    outcome: str = "Complete",
    exit_code: int = 0,
    reason: str = "PodFailurePolicy",
    spec: dict[str, Any] | None = None,
    **report: Any,
) -> Observation:
    driver_report = {
        "version": 1,
        "job": "verify",
        "phase": "Succeeded",
        "windows": {"total": 400, **windows},
        "sourceRecords": 6_650_000,
        "targetRecords": 6_650_000,
        "cost": {"executorSeconds": 60.0, "bytesRead": 13_000_000_000},
        **report,
    }
    message = json.dumps(driver_report)
    ended = driver(
        phase="Failed", ready=False, started_s=None, exit_code=exit_code, terminated_message=message
    )
    verification = job(
        name="east-to-west-verify-29393940",
        kind=RunKind.VERIFY,
        run_id="",
        outcome=outcome,
        reason=reason if outcome == "Failed" else None,
        ended_s=NOW_S - 30,
        pods=(ended,),
    )
    return observed(
        flow=mirror_flow(**(spec or NIGHTLY)),
        jobs=(verification,),
        schedules_created_s={RunKind.VERIFY: NOW_S - 9e5},
    )


ARCHIVED: dict[str, Any] = {"archive": {"url": "s3://backups/orders", "schedule": "0 3 * * *"}}
FOLLOWED: dict[str, Any] = {"archive": {"url": "s3://backups/orders", "follow": True}}
RESTORED: dict[str, Any] = {"restore": {"runId": "1", "url": "s3://backups/orders"}}


def _archived(
    *, outcome: str = "Complete", exit_code: int = 0, ended_s: float = NOW_S - 30, **report: Any
) -> Observation:
    """The last scheduled export has ended."""
    message = json.dumps(
        {
            "version": 1,
            "job": "export",
            "phase": "Succeeded",
            "commit": 12,
            "archivedRecords": 6_650_000,
            "archivedTime": timestamp(ended_s),
            "message": "9000 records of 3 topics are archived (commit 12).",
            **report,
        }
    )
    ended = driver(
        phase="Failed", ready=False, started_s=None, exit_code=exit_code, terminated_message=message
    )
    export = job(
        name="east-to-west-archive-29393940",
        kind=RunKind.ARCHIVE,
        run_id="",
        outcome=outcome,
        reason="PodFailurePolicy" if outcome == "Failed" else None,
        ended_s=ended_s,
        pods=(ended,),
    )
    return observed(
        flow=mirror_flow(**ARCHIVED), jobs=(export,), schedules_created_s={RunKind.ARCHIVE: NOW_S - 9e5}
    )


def _following(**report: Any) -> Observation:
    """The driver adds one increment after the other."""
    shown = report_from_json({"version": 1, "job": "export", "phase": "Running", **report})
    export = job(
        name="east-to-west-archive-5e6f7a8b",
        kind=RunKind.ARCHIVE,
        run_id="following",
        created_s=NOW_S - 9e4,
        reading=Reading(read_at_s=NOW_S - 5, report=shown),
    )
    return observed(flow=mirror_flow(**FOLLOWED), jobs=(export,))


def _queued() -> Observation:
    """Kueue has suspended the first Job until its queue has room."""
    export = job(
        name="east-to-west-archive-5e6f7a8b", kind=RunKind.ARCHIVE, run_id="following", suspended=True,
        queue="batch", started_s=None, pods=(),
    )  # fmt: skip
    return observed(flow=mirror_flow(**FOLLOWED), jobs=(export,))


def _restore(outcome: str | None = None, exit_code: int | None = None, **report: Any) -> Observation:
    figures = {
        "version": 1,
        "job": "restore",
        "partitions": {"total": 16, "done": 3},
        "records": 9_000,
        **report,
    }
    pod = driver(
        phase="Failed" if outcome else "Running",
        ready=False,
        exit_code=exit_code,
        terminated_message=json.dumps(figures) if outcome else None,
        reading=Reading(read_at_s=NOW_S - 5, report=report_from_json(figures)),
    )
    restore = job(
        name="east-to-west-restore-5e6f7a8b",
        kind=RunKind.RESTORE,
        outcome=outcome,
        reason="PodFailurePolicy" if outcome == "Failed" else None,
        ended_s=NOW_S - 30 if outcome else None,
        pods=(pod,),
    )
    flow = mirror_flow(**RESTORED)
    runs = due_jobs(flow, Status(), (restore,), None, NOW_S).runs
    first = connector()
    if runs.replaces_source:
        first = connector(deployment=deployment(wanted=0, replicas=0, updated=0, ready=0), pods=())
    return observed(
        flow=flow, connectors=(first, connector(CHECKPOINT), connector(HEARTBEAT)), jobs=(restore,), runs=runs
    )


def _overdue() -> Observation:
    """The last verification ended three days ago, and the CronJob has started none since then."""
    before = _verified({"equal": 400})
    old = replace(before.jobs[0], ended_s=NOW_S - 3 * 86_400)
    return replace(before, jobs=(old,))


def _verification_requested() -> Observation:
    report = report_from_json({"version": 1, "job": "verify", "windows": {"total": 400, "equal": 120}})
    verification = job(
        name="east-to-west-verify-5e6f7a8b",
        kind=RunKind.VERIFY,
        run_id="1",
        reading=Reading(read_at_s=NOW_S - 5, report=report),
    )
    return observed(flow=mirror_flow(verify={"runId": "1"}), jobs=(verification,))


WARNED = (
    "ACLs of 3 topics cannot be copied: Alter on the target cluster is not granted.",
    "Settings of orders.eu are not copied: AlterConfigs is not granted.",
)
STUCK: dict[str, Any] = {
    "replicating": Replicating.STUCK,
    "lag_records": 4000,
    "lag_s": 700.0,
}
PULL = {
    "waiting_reason": "ImagePullBackOff",
    "waiting_message": 'Back-off pulling image "mirrorflow/replicator:1.1.0"',
    "image": "mirrorflow/replicator:1.1.0",
}
QUOTA = DeploymentCondition(
    type="ReplicaFailure",
    status="True",
    reason="FailedCreate",
    message='pods "east-to-west-source-7d9f-" is forbidden: exceeded quota: pods, requested: pods=1, used: pods=9, limited: pods=9',
)
# Maps a situation to its observation, and to status and reason of Ready after several minutes.
SITUATIONS: dict[str, tuple[Callable[[], Observation], str, str]] = {
    "archived": (_archived, "True", "Replicating"),
    "archive-incomplete": (
        lambda: _archived(
            outcome="Failed",
            exit_code=1,
            phase="Failed",
            archivedTime="",
            message="9000 records of 3 topics are archived (commit 12). Not archived: orders was created again.",
        ),
        "True",
        "Replicating",
    ),
    "archive-overdue": (lambda: _archived(ended_s=NOW_S - 3 * 86_400), "True", "Replicating"),
    "archived-continuously": (
        lambda: _following(commit=40, archivedRecords=7, archivedTime=timestamp(NOW_S - 20)),
        "True",
        "Replicating",
    ),
    "archive-source-unreachable": (
        lambda: _following(
            commit=40,
            archivedRecords=7,
            archivedTime=timestamp(NOW_S - 9_000),
            message="kafka-east:9092: connection refused.",
        ),
        "True",
        "Replicating",
    ),
    "archive-queued": (_queued, "True", "Replicating"),
    "restoring": (_restore, "False", "Restoring"),
    "restored": (
        lambda: _restore(
            "Complete", 0, partitions={"total": 16, "done": 16}, message="16 files are restored."
        ),
        "True",
        "Replicating",
    ),
    "restore-failed": (
        lambda: _restore("Failed", 1, message="3 of 16 files differ."),
        "True",
        "Replicating",
    ),
    "starting": (_starting, "Unknown", "Starting"),
    "idle": (observed, "True", "Replicating"),
    "advancing": (
        lambda: observed(
            {
                "reading": reading(
                    replicating=Replicating.ADVANCING, records_per_s=9.0, lag_records=5, lag_s=0.4
                )
            }
        ),
        "True",
        "Replicating",
    ),
    "throttled": (
        lambda: observed(
            {
                "reading": reading(
                    replicating=Replicating.THROTTLED, records_per_s=9.0, lag_records=5, lag_s=80.0
                )
            }
        ),
        "True",
        "Replicating",
    ),
    "rolling-out": (_rolling, "True", "Replicating"),
    "reconciliation-paused": (
        lambda: observed(resource=resource(is_reconciliation_paused=True)),
        "True",
        "Replicating",
    ),
    "paused": (_paused, "False", "Paused"),
    "pausing": (lambda: _with_terminating_pod(_paused()), "False", "Pausing"),
    "pausing-in-place": (
        lambda: _pause_requested(reading=reading(replicating=Replicating.ADVANCING, tasks_running=1)),
        "False",
        "Pausing",
    ),
    "pausing-not-reported": (lambda: _pause_requested(reading=None), "False", "Pausing"),
    "resuming": (_resuming, "Unknown", "Waiting"),
    "stopped": (_stopped, "False", "Stopped"),
    "stopping": (lambda: _with_terminating_pod(_stopped()), "False", "Stopping"),
    "invalid-spec": (_invalid, "False", "InvalidSpec"),
    "unknown-version": (
        lambda: observed(flow=mirror_flow(version="7.0.0"), connectors=()),
        "False",
        "UnknownVersion",
    ),
    "version-no-longer-offered": (
        lambda: observed(resource=resource(status=Status(version="0.9.0"))),
        "True",
        "Replicating",
    ),
    "version-no-longer-offered-paused": (
        lambda: replace(_paused(), admission=_no_longer_offered(_paused())),
        "False",
        "Paused",
    ),
    "loop-found": (
        lambda: _refused(Reason.LOOP_FOUND, "Flows east-to-west and west-to-east make a loop: ..."),
        "False",
        "LoopFound",
    ),
    "topic-collision": (
        lambda: replace(
            _refused(Reason.TOPIC_COLLISION, "Flows a and b both write to topic orders of cluster hub: ..."),
            connectors=tuple(
                connector(kind, deployment=None, pods=())
                for kind in (connector().kind, CHECKPOINT, HEARTBEAT)
            ),
        ),
        "False",
        "TopicCollision",
    ),
    "flow-exists": (
        lambda: observed({"reading": reading(state="FAILED", reasons=(ReasonCount("FlowExists", 1),))}),
        "False",
        "FlowExists",
    ),
    "cluster-changed": (
        lambda: observed({"reading": reading(state="FAILED", reasons=(ReasonCount("ClusterChanged", 1),))}),
        "False",
        "ClusterChanged",
    ),
    "cluster-replaced": (_replaced_target, "False", "ClusterChanged"),
    "secret-missing": (
        lambda: _not_started(SCRAM, **_mounting(secret="east-mirror")),
        "False",
        "SecretMissing",
    ),
    "secret-key-missing": (
        lambda: observed(
            {
                "ready": False,
                "reading": reading(
                    state="UNASSIGNED",
                    replicating=Replicating.STUCK,
                    reasons=(ReasonCount("SecretMissing", 1),),
                    missing=MissingReference(name="east-mirror", key="password"),
                ),
            },
            flow=mirror_flow(**SCRAM),
        ),
        "False",
        "SecretMissing",
    ),
    "source-unreachable": (
        lambda: observed(
            {
                "reading": reading(
                    **STUCK | {"source": UNREACHABLE, "reasons": (ReasonCount("Unreachable", 12),)}
                )
            }
        ),
        "False",
        "SourceUnreachable",
    ),
    "target-refuses-credentials": (
        lambda: observed(
            {
                "reading": reading(
                    **STUCK,
                    target=replace(
                        UNREACHABLE,
                        reason="AuthenticationFailed",
                        message="Cluster west at kafka-west:9092: SCRAM-SHA-512 authentication failed: invalid credentials; "
                        "check the credentials and certificates.",
                    ),
                    reasons=(ReasonCount("AuthenticationFailed", 12),),
                )
            }
        ),
        "False",
        "TargetUnreachable",
    ),
    "stuck": (lambda: observed({"reading": reading(**STUCK)}), "False", "Stuck"),
    "warnings": (
        lambda: observed({"reading": reading(warnings=5, first_warnings=WARNED)}),
        "True",
        "Replicating",
    ),
    "nothing-matches": (
        lambda: observed({"reading": reading(partitions=1, reasons=(ReasonCount("NothingMatches", 1),))}),
        "False",
        "NothingMatches",
    ),
    "partitions-stopped": (
        lambda: observed(
            {
                "reading": reading(
                    replicating=Replicating.ADVANCING,
                    records_per_s=5.0,
                    lag_records=7,
                    lag_s=3000.0,
                    partitions_stopped=1,
                    reasons=(ReasonCount("RecordTooLarge", 1),),
                )
            }
        ),
        "False",
        "PartitionsStopped",
    ),
    "partitions-stalled": (
        lambda: observed(
            {
                "reading": reading(
                    replicating=Replicating.ADVANCING,
                    records_per_s=5.0,
                    lag_records=7,
                    lag_s=3000.0,
                    partitions_stalled=1,
                    reasons=(
                        ReasonCount("WritesRefused", 2, "orders-3: NOT_ENOUGH_REPLICAS, 1 of 2 in sync."),
                    ),
                )
            }
        ),
        "False",
        "PartitionsStalled",
    ),
    "a-task-does-not-start": (
        lambda: observed(
            {
                "reading": reading(
                    replicating=Replicating.WAITING,
                    lag_records=7,
                    lag_s=3000.0,
                    partitions_stalled=4,
                    reasons=(ReasonCount("StartPending", 4),),
                )
            }
        ),
        "False",
        "PartitionsStalled",
    ),
    "source-data-lost": (
        lambda: observed(
            {
                "reading": reading(
                    replicating=Replicating.SOURCE_DATA_LOST,
                    partitions_stopped=2,
                    lag_records=7,
                    lag_s=20.0,
                    reasons=(ReasonCount("SourceDataLost", 2),),
                )
            }
        ),
        "False",
        "SourceDataLost",
    ),
    "topics-not-copied": (
        lambda: observed(
            {
                "reading": reading(
                    replicating=Replicating.STUCK,
                    reasons=(ReasonCount("TopicNotCopied", 3),),
                )
            }
        ),
        "False",
        "TopicsNotCopied",
    ),
    "waiting-for-another-copier": (
        lambda: observed({"reading": reading(replicating=Replicating.WAITING, lag_records=5, lag_s=9.0)}),
        "Unknown",
        "Waiting",
    ),
    "pods-unreachable": (
        lambda: observed(
            {"reading": Reading(read_at_s=NOW_S, failure=PollFailure.UNREACHABLE, problem="timed out")}
        ),
        "Unknown",
        "ProgressUnknown",
    ),
    "image-not-pulled": (lambda: _not_started({}, **PULL), "False", "ImageNotPulled"),
    "not-scheduled": (
        lambda: _not_started({}, unscheduled_message="0/3 nodes are available: 3 Insufficient memory."),
        "False",
        "NotScheduled",
    ),
    "quota-exceeded": (
        lambda: observed(
            connectors=(
                connector(
                    deployment=deployment(replicas=0, updated=0, ready=0, conditions=(QUOTA,)), pods=()
                ),
                connector(CHECKPOINT),
                connector(HEARTBEAT),
            )
        ),
        "False",
        "PodsRefused",
    ),
    "out-of-memory": (
        lambda: _not_started(
            {},
            started_s=None,
            waiting_reason="CrashLoopBackOff",
            restarts=4,
            exit_code=137,
            terminated_reason="OOMKilled",
        ),
        "False",
        "OutOfMemory",
    ),
    "settings-refused": (
        lambda: _not_started(
            {},
            waiting_reason="CrashLoopBackOff",
            restarts=2,
            exit_code=2,
            terminated_reason="Error",
            terminated_message="2026-11-22 INFO starting\ntransforms is refused: it needs a Java class.\n",
        ),
        "False",
        "SettingsRefused",
    ),
    "roll-out-failed": (
        lambda: replace(
            _rolling(**PULL),
            connectors=(
                replace(
                    _rolling(**PULL).connectors[0],
                    deployment=deployment(
                        generation=2, observed_generation=2, replicas=2, conditions=(LATE,)
                    ),
                ),
                *_rolling().connectors[1:],
            ),
        ),
        "True",
        "Replicating",
    ),
    "checkpoints-stale": (
        lambda: _checkpoints(
            state="FAILED",
            checkpoints=Checkpoints(groups=3, age_s=900.0, interval_s=60.0),
            reasons=(ReasonCount("NotAuthorized", 1),),
        ),
        "False",
        "CheckpointsStale",
    ),
    "seed-starting": (lambda: _seed(job(pods=())), "False", "Seeding"),
    "seeding": (lambda: _seed(job(reading=seed_reading(**FIGURES))), "False", "Seeding"),
    "seed-makes-no-step": (
        lambda: _seed(
            job(reading=seed_reading(**FIGURES, message="2 tasks are held up: Unreachable")), held=False
        ),
        "True",
        "Replicating",
    ),
    "seed-paused": (
        lambda: replace(_seed(job(suspended=True, pods=()), state="Paused"), connectors=_paused().connectors),
        "False",
        "Paused",
    ),
    "seed-refused": (
        lambda: _seed(job(pods=(), events=(REFUSED_BY_KUBERNETES,))),
        "False",
        "Seeding",
    ),
    "seeded": (lambda: _seed_ended("Complete"), "True", "Replicating"),
    "seeded-with-a-gap": (
        lambda: _seed_ended(
            "Complete", report={"partitions": {"total": 16, "done": 16, "lost": 2}, "gapRecords": 4_000}
        ),
        "True",
        "Replicating",
    ),
    "seeded-in-spite-of-failures": (_seeded_despite_failures, "True", "Replicating"),
    "seed-failed": (
        lambda: _seed_ended(
            "Failed",
            reason="BackoffLimitExceeded",
            report={"message": "Some target topics hold records that this flow has not written."},
        ),
        "True",
        "Replicating",
    ),
    "verifying": (_verification_requested, "True", "Replicating"),
    "verified": (lambda: _verified({"equal": 400}), "True", "Replicating"),
    "verified-in-part": (
        lambda: _verified({"equal": 390, "undecided": 10}, outcome="Failed"),
        "True",
        "Replicating",
    ),
    "differences-found": (
        lambda: _verified({"equal": 397, "different": 2, "reordered": 1}, outcome="Failed", differences=17),
        "True",
        "Replicating",
    ),
    "verification-failed": (
        lambda: _verified(
            {"total": 0},
            outcome="Failed",
            exit_code=4,
            reason="BackoffLimitExceeded",
            phase="Failed",
            message="Cluster west cannot be used.",
        ),
        "True",
        "Replicating",
    ),
    "verification-overdue": (_overdue, "True", "Replicating"),
    "groups-failing": (
        lambda: _checkpoints(checkpoints=Checkpoints(groups=3, failing=1, age_s=9.0, interval_s=60.0)),
        "True",
        "Replicating",
    ),
}


def _document(observation: Observation, status: Status) -> dict[str, Any]:
    flow = observation.resource.flow
    whole = document()
    if flow is not None:
        whole["spec"] = flow.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    whole["metadata"] |= {"generation": observation.resource.generation}
    return {**whole, "status": status_document(status)}


@cache
def _status_of(situation: str) -> Status:
    """Returns the status after the situation has lasted several minutes."""
    return settled(SITUATIONS[situation][0]())


@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_status_of_a_situation_is_the_recorded_one(situation: str) -> None:
    make, status, reason = SITUATIONS[situation]
    observation = make()
    settled_status = _status_of(situation)
    ready = next(condition for condition in settled_status.conditions if condition.type == "Ready")
    whole = _document(observation, settled_status)
    if situation == FULL_STATUS:
        recorded = whole
    else:
        recorded = difference(_document(SITUATIONS[FULL_STATUS][0](), _status_of(FULL_STATUS)), whole)

    assert (status, reason) == (ready.status.value, ready.reason)
    check_golden(STATUSES / f"{situation}.yaml", yaml.safe_dump(recorded, sort_keys=False, width=200))
    assert recorded_status(situation) == whole


def test_each_recorded_status_belongs_to_a_situation() -> None:
    """A file without a situation would never be updated."""
    assert sorted(SITUATIONS) == STATUS_NAMES


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_status_is_unchanged_by_a_round_trip(situation: str) -> None:
    """Fields that a later release may have added are ignored."""
    status = _status_of(situation)
    written = status_document(status)
    later = {
        **written,
        "moods": 3,
        "conditions": [{**condition, "mood": 1} for condition in written["conditions"]],
    }

    assert status == parse_status(written) == parse_status(later)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_an_unchanged_situation_does_not_change_the_status(situation: str) -> None:
    observation = SITUATIONS[situation][0]()

    status = _status_of(situation)

    assert status == settled(observation, steps=40)
    assert (
        status == assess(replace(observation, resource=replace(observation.resource, status=status))).status
    )


@pytest.mark.parametrize("situation", SITUATIONS)
def test_reconciling_and_stalled_are_never_both_true(situation: str) -> None:
    """kstatus evaluates Reconciling first. A stalled flow would appear to be in progress."""
    statuses = {condition.type: condition.status.value for condition in _status_of(situation).conditions}

    assert {"Reconciling": "True", "Stalled": "True"}.items() != {
        kind: statuses[kind] for kind in ("Reconciling", "Stalled")
    }.items()
