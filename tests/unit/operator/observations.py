"""Builds the observations that tests assess.

The default is a healthy flow, which each test changes.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from mirrorflow_operator.admission.admit import admit
from mirrorflow_operator.admission.due_jobs import due_jobs
from mirrorflow_operator.api.load import parse_flow
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.api.status import Status
from mirrorflow_operator.api.workloads import ConnectorKind
from mirrorflow_operator.plan.rollouts import DeploymentCondition, ObservedDeployment
from mirrorflow_operator.plan.spark_run import RunKind
from mirrorflow_operator.status.assess import assess
from mirrorflow_operator.status.observation import (
    Admission,
    Observation,
    ObservedConnector,
    ObservedJob,
    ObservedPod,
    Resource,
)
from mirrorflow_operator.status.pod_reports import (
    Checkpoints,
    Reading,
    Replicating,
    SideReachability,
    SideSummary,
    Summary,
    report_from_json,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
NOW_S = 1_795_000_000.0
VERSIONS = ("1.1.0", "1.0.0")
SOURCE, CHECKPOINT, HEARTBEAT, SCHEMAS = ConnectorKind
REACHED = SideSummary(reach=SideReachability.REACHABLE, cluster_id="east-id")
ROLLED_OUT = DeploymentCondition(type="Progressing", status="True", reason="NewReplicaSetAvailable")


@cache
def _smallest() -> dict[str, Any]:
    smallest: dict[str, Any] = yaml.safe_load((EXAMPLES / "valid" / "smallest.yaml").read_text())
    smallest["metadata"]["namespace"] = "mirrors"
    return smallest


def document(**spec: Any) -> dict[str, Any]:
    """Returns the smallest flow with the additional fields *spec*."""
    changed = deepcopy(_smallest())
    changed["spec"] |= spec
    return changed


@cache
def _smallest_flow() -> MirrorFlow:
    return parse_flow(_smallest())


def mirror_flow(**spec: Any) -> MirrorFlow:
    return parse_flow(document(**spec)) if spec else _smallest_flow()


def resource(flow: MirrorFlow | None = None, *, status: Status | None = None, **changes: Any) -> Resource:
    flow = flow or mirror_flow()
    return replace(
        Resource(
            namespace="mirrors",
            name=flow.metadata.name,
            uid="8a7a0f6c-0000-4000-8000-000000000001",
            generation=1,
            created_s=NOW_S - 3600,
            flow=flow,
            status=status or Status(),
        ),
        **changes,
    )


def summary(**changes: Any) -> Summary:
    return replace(
        Summary(
            state="RUNNING",
            uptime_s=900.0,
            partitions=12,
            replicating=Replicating.IDLE,
            lag_s=0.0,
            source=REACHED,
            target=replace(REACHED, cluster_id="west-id"),
        ),
        **changes,
    )


def reading(now_s: float = NOW_S, **changes: Any) -> Reading:
    return Reading(read_at_s=now_s - 5, summary=summary(**changes))


def pod(**changes: Any) -> ObservedPod:
    return replace(
        ObservedPod(
            name="east-to-west-source-7d9f-x2k4q",
            phase="Running",
            ready=True,
            ip="10.1.2.3",
            created_s=NOW_S - 910,
            started_s=NOW_S - 900,
            image="mirrorflow/replicator:1.1.0",
            reading=reading(),
        ),
        **changes,
    )


def deployment(kind: ConnectorKind = SOURCE, **changes: Any) -> ObservedDeployment:
    name = kind.value
    return replace(
        ObservedDeployment(
            name=f"east-to-west-{name}",
            generation=1,
            observed_generation=1,
            replicas=1,
            updated=1,
            ready=1,
            conditions=(ROLLED_OUT,),
            image="mirrorflow/replicator:1.1.0",
            selector=f"mirrorflow.io/connector={name},mirrorflow.io/flow=east-to-west",
        ),
        **changes,
    )


def connector(kind: ConnectorKind = SOURCE, **changes: Any) -> ObservedConnector:
    connector_pod = pod()
    if kind is CHECKPOINT:
        checkpoints = Checkpoints(groups=3, age_s=20.0, interval_s=60.0)
        connector_pod = pod(reading=reading(checkpoints=checkpoints))
    return replace(
        ObservedConnector(kind=kind, deployment=deployment(kind), pods=(connector_pod,)), **changes
    )


def seed_reading(now_s: float = NOW_S, **figures: Any) -> Reading:
    """Returns a reading of the driver of a seed."""
    fields = {"records": 0, "remainingRecords": 0} | figures
    report = report_from_json({"version": 1, "job": "seed", "runId": "1", "phase": "Running", **fields})
    return Reading(read_at_s=now_s - 5, report=report)


def driver(**changes: Any) -> ObservedPod:
    """Returns the running driver of a seed."""
    return pod(
        **{
            "name": "east-to-west-seed-1a2b3c4d-x2k4q",
            "uid": "8a7a0f6c-0000-4000-8000-000000000003",
            "image": "mirrorflow/seed:1.1.0",
            "reading": None,
        }
        | changes
    )


def job(**changes: Any) -> ObservedJob:
    """Returns the seed of run 1 with a running driver. A `reading` in *changes* is the driver's."""
    pods = (driver(**{name: changes.pop(name) for name in ("reading",) if name in changes}),)
    return replace(
        ObservedJob(
            name="east-to-west-seed-1a2b3c4d",
            kind=RunKind.SEED,
            uid="8a7a0f6c-0000-4000-8000-000000000002",
            run_id="1",
            created_s=NOW_S - 920,
            started_s=NOW_S - 920,
            pods=pods,
        ),
        **changes,
    )


def observed(
    source: Mapping[str, Any] | None = None,
    *,
    flow: MirrorFlow | None = None,
    admission: Admission | None = None,
    **changes: Any,
) -> Observation:
    """Returns a healthy flow that has nothing to copy. *source* changes the pod of its source connector."""
    flow_resource = changes.pop("resource", None) or resource(flow)
    source_connector = connector(pods=(pod(**source),)) if source is not None else connector()
    return replace(
        Observation(
            resource=flow_resource,
            admission=admission or admit(flow_resource, versions=VERSIONS),
            now_s=NOW_S,
            connectors=(source_connector, connector(CHECKPOINT), connector(HEARTBEAT)),
        ),
        **changes,
    )


def advanced(
    observation: Observation, before: Observation, status: Status, memory: Any, *, after_s: float
) -> Observation:
    """Returns *observation* as made *after_s* after *before*, whose assessment returned *status* and *memory*.

    Readings have the same age as in *observation*.
    """
    now_s = before.now_s + after_s
    moved = tuple(
        replace(
            observed_connector,
            pods=tuple(
                _later(observed_pod, now_s - observation.now_s) for observed_pod in observed_connector.pods
            ),
        )
        for observed_connector in observation.connectors
    )
    jobs = tuple(
        replace(
            observed_job,
            pods=tuple(_later(observed_pod, now_s - observation.now_s) for observed_pod in observed_job.pods),
        )
        for observed_job in observation.jobs
    )
    return replace(
        observation,
        resource=replace(observation.resource, status=status),
        memory=memory,
        now_s=now_s,
        connectors=moved,
        jobs=jobs,
        runs=replace(
            due_jobs(observation.admission.flow, status, jobs, None, now_s).runs,
            replaces_source=observation.runs.replaces_source,
        ),
    )


def _later(observed_pod: ObservedPod, by_s: float) -> ObservedPod:
    events = tuple(replace(event, last_seen_s=event.last_seen_s + by_s) for event in observed_pod.events)
    read = observed_pod.reading
    return replace(
        observed_pod,
        events=events,
        reading=None if read is None else replace(read, read_at_s=read.read_at_s + by_s),
    )


def settled(observation: Observation, *, steps: int = 8, every_s: float = 30.0) -> Status:
    """Returns the status after *observation* was assessed for several minutes."""
    assessment, current = assess(observation), observation
    for _ in range(steps):
        following = advanced(observation, current, assessment.status, assessment.memory, after_s=every_s)
        assessment, current = assess(following), following
    return assessment.status
