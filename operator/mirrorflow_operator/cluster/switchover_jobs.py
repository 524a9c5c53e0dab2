"""Reads the Jobs of a pair's Switchovers, their pods, and what these report.

They are read by requests, not by a watch: a switchover is rare and short, and is followed once a second. Only Jobs that have not
been deleted are read, also those of Switchovers that have been.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mirrorflow_operator.cluster.client import JOB, POD, Client
from mirrorflow_operator.cluster.observed_objects import created_s, observed_pod
from mirrorflow_operator.cluster.progress_client import PATH, PollTarget, get_or_none, session
from mirrorflow_operator.plan.names import PAIR_LABEL, SWITCHOVER_LABEL
from mirrorflow_operator.plan.prepared_objects import digests_in
from mirrorflow_operator.plan.spark_pods import PROGRESS_PORT
from mirrorflow_operator.plan.switchover_objects import (
    REQUEST_ANNOTATION,
    SWITCHOVER_CONTAINER,
    object_name_of,
)
from mirrorflow_operator.status.pair_observation import ObservedSwitchoverJob, PairKey
from mirrorflow_operator.status.pod_failures import pod_problems
from mirrorflow_operator.status.switchover_reports import (
    REPORT_MAX_BYTES,
    SwitchoverReport,
    parse_switchover_report,
)

_JOB_NAME: Final = "batch.kubernetes.io/job-name"
Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchoverJobReader:
    """Reads what the API server and the pods know of the Jobs."""

    client: Client
    wall_clock: Callable[[], float] = time.time

    async def jobs_of(self, key: PairKey) -> dict[str, ObservedSwitchoverJob]:
        """Returns the Jobs of a pair by the name of their Switchover. Raises ApiServerError."""
        selector = f"{PAIR_LABEL}={key.name},{SWITCHOVER_LABEL}"
        jobs = [
            body
            async for _, bodies in self.client.chunks(JOB, key.namespace, labels=selector)
            for body in bodies
            if "deletionTimestamp" not in body["metadata"] and _is_planned(body)
        ]
        if not jobs:
            return {}
        pods = [
            body
            async for _, bodies in self.client.chunks(POD, key.namespace, labels=selector)
            for body in bodies
        ]
        observed = await asyncio.gather(*(self._observed(job, _pods_of(job, pods)) for job in jobs))
        return {job.switchover: job for job in observed}

    async def _observed(self, job: Body, pods: Sequence[Body]) -> ObservedSwitchoverJob:
        """*pods*: those of *job*, newest first."""
        report = await self._report(pods)
        problem = None
        if report is None and pods:
            problems = pod_problems(
                observed_pod(pods[0]), "switchover", "connectors.source", None, self.wall_clock()
            )
            problem = next((failure.message for failure in problems), None)
        conditions = (job.get("status") or {}).get("conditions") or ()
        annotations = job["metadata"].get("annotations") or {}
        return ObservedSwitchoverJob(
            name=job["metadata"]["name"],
            uid=job["metadata"]["uid"],
            switchover=job["metadata"]["labels"][SWITCHOVER_LABEL],
            request=annotations.get(REQUEST_ANNOTATION),
            prepared=digests_in(annotations),
            is_complete=any(
                condition.get("type") in {"Complete", "Failed"} and condition.get("status") == "True"
                for condition in conditions
            ),
            report=report,
            problem=problem,
        )

    async def _report(self, pods: Sequence[Body]) -> SwitchoverReport | None:
        """Returns the newest report: of a process that runs, or the last one of a process that has ended."""
        for pod in pods:
            status = pod.get("status") or {}
            ended = _termination_message(status)
            if ended is not None and (report := parse_switchover_report(ended)) is not None:
                return report
            if status.get("podIP") and status.get("phase") == "Running":
                report = await request_switchover_report(status["podIP"])
                if report is not None:
                    return report
        return None


async def request_switchover_report(host: str, port: int = PROGRESS_PORT) -> SwitchoverReport | None:
    """Requests the report of a pod; None where it does not answer with one."""
    target = PollTarget(uid=host, host=host, port=port)
    async with session() as client:
        body = await get_or_none(client, target, PATH, {}, max_bytes=REPORT_MAX_BYTES)
    return None if body is None else parse_switchover_report(body)


def _is_planned(job: Body) -> bool:
    """Whether the operator has created *job*, and not a user as a copy of it, whose labels are the same."""
    metadata = job["metadata"]
    return bool(metadata["name"] == object_name_of(metadata["labels"][SWITCHOVER_LABEL]))


def _pods_of(job: Body, pods: Sequence[Body]) -> list[Body]:
    own = [
        pod
        for pod in pods
        if (pod["metadata"].get("labels") or {}).get(_JOB_NAME) == job["metadata"]["name"]
        and any(
            owner.get("uid") == job["metadata"]["uid"]
            for owner in pod["metadata"].get("ownerReferences") or ()
        )
    ]
    return sorted(own, key=lambda pod: -created_s(pod))


def _termination_message(status: Body) -> str | None:
    """Returns the message of a process that has ended for good: one that is started again reports by itself."""
    for container in status.get("containerStatuses") or ():
        terminated = (container.get("state") or {}).get("terminated")
        if container.get("name") == SWITCHOVER_CONTAINER and terminated:
            return str(terminated.get("message", ""))
    return None
