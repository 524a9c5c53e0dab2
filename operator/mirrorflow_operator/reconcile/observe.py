"""Step 1 of a pass: observes one flow, its objects and its pods at one moment."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mirrorflow_operator.api.spec import State
from mirrorflow_operator.cluster.cache import ClusterCache, ObjectId
from mirrorflow_operator.cluster.client import CONFIG_MAP, DEPLOYMENT, JOB, SERVICE_ACCOUNT, SPARK_APPLICATION
from mirrorflow_operator.cluster.observed_objects import (
    CachedChild,
    connector_of,
    observed_attempt,
    observed_deployment,
    observed_job,
    run_kind_of,
)
from mirrorflow_operator.cluster.pod_events import REREAD_S, PodEventReader, may_be_stuck
from mirrorflow_operator.cluster.poll_targets import poll_targets, polled_name
from mirrorflow_operator.cluster.progress_client import CaBundle
from mirrorflow_operator.cluster.progress_poller import Poller
from mirrorflow_operator.plan.properties import connector_names
from mirrorflow_operator.plan.rollouts import ObservedDeployment
from mirrorflow_operator.plan.spark_applications import run_name_of
from mirrorflow_operator.plan.spark_run import RunKind
from mirrorflow_operator.status.conditions import Problem
from mirrorflow_operator.status.observation import Key, ObservedAttempt, ObservedJob, ObservedPod, Resource
from mirrorflow_operator.status.pins import with_pins
from mirrorflow_operator.status.spark_attempts import job_of_attempts
from mirrorflow_operator.status.spark_jobs import has_no_driver


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedFlow:
    """One flow as the cluster has it at `now_s`."""

    resource: Resource
    now_s: float
    conflict: Problem | None  # with another flow
    kubernetes_id: str | None  # the id of the Kubernetes cluster; None where unknown
    unreadable: str  # why the flow's namespace cannot be read; "" if it can
    children: Mapping[ObjectId, CachedChild]
    deployments: Mapping[str, ObservedDeployment]  # by connector name
    jobs: tuple[ObservedJob, ...]  # with their drivers
    drivers_alive: frozenset[
        str
    ]  # Jobs and SparkApplications, possibly deleted, whose drivers have not ended
    schedules_created_s: Mapping[RunKind, float]  # of the schedules, by the kind of their runs
    has_stuck_pods: bool
    spark_operator_problem: str | None = None  # as in `ClusterCache`
    is_started: bool = False  # by a switchover of its pair
    stopped_by: str | None = None  # the pair of which a switchover has ended it; None if none has
    # By connector name, with Events and that connector's reading.
    pods: Mapping[str, tuple[ObservedPod, ...]] = field(default_factory=dict)

    def with_pins(self) -> "ObservedFlow":
        """Returns a copy whose status has what `status.pins` keeps outside of it."""
        key, name = self.resource.namespace, self.resource.name
        account = self._own(SERVICE_ACCOUNT.name, key, name)
        files = {} if self.resource.status.flow_id else self._own(CONFIG_MAP.name, key, f"{name}-source")
        annotations = account.get("metadata", {}).get("annotations", {})
        return replace(self, resource=with_pins(self.resource, annotations, files.get("data") or {}))

    def with_pair(self) -> "ObservedFlow":
        """Returns a copy with the state that a switchover of its pair has given the flow, in place of that of its spec.

        So no spec has to change during a switchover, and a revert of one changes nothing.
        """
        flow = self.resource.flow
        if flow is None:
            return self
        state = flow.spec.state
        if self.is_started and state is State.STOPPED:
            state = State.RUNNING
        elif self.stopped_by is not None:
            state = State.STOPPED
        spec = flow.spec.model_copy(update={"state": state})
        resource = replace(
            self.resource, flow=flow.model_copy(update={"spec": spec}), stopped_by=self.stopped_by
        )
        return self if state is flow.spec.state else replace(self, resource=resource)

    def _own(self, kind: str, namespace: str, name: str) -> Mapping[str, Any]:
        """Returns the content of that object, an empty one where the flow does not own it."""
        child = self.children.get((kind, namespace, name))
        return child.content() if child is not None and child.owner_uid == self.resource.uid else {}

    @property
    def events_reread_after_s(self) -> float | None:
        """Seconds until Events are read again; None if no pod is stuck. Events are not watched."""
        return REREAD_S if self.has_stuck_pods or any(map(has_no_driver, self.jobs)) else None

    def with_writes(
        self, bodies: Iterable[Mapping[str, Any]], deleted: Iterable[CachedChild]
    ) -> "ObservedFlow":
        """Returns a copy with this pass's writes: *bodies* as the API server returned them, and deletions."""
        deployments, jobs = dict(self.deployments), {job.name: job for job in self.jobs}
        for body in bodies:
            run = run_kind_of(body)
            if body["kind"] == DEPLOYMENT.name:
                deployments[connector_of(body)] = observed_deployment(body)
            elif body["kind"] == JOB.name and run is not None:
                job = observed_job(body, run)
                known = jobs.get(job.name, job)
                jobs[job.name] = replace(job, pods=known.pods, events=known.events)
            elif body["kind"] == SPARK_APPLICATION.name and run is not None:
                _put_attempt(jobs, observed_attempt(body, run))
        gone = {(child.kind, child.name) for child in deleted}
        return replace(
            self,
            deployments={
                connector: live
                for connector, live in deployments.items()
                if (DEPLOYMENT, live.name) not in gone
            },
            jobs=tuple(
                job
                for name, job in sorted(jobs.items())
                if not {(JOB, name), (SPARK_APPLICATION, name)} & gone
            ),
        )


def _put_attempt(jobs: dict[str, ObservedJob], written: ObservedAttempt) -> None:
    """Adds the attempt *written* to its run in *jobs*, or replaces it."""
    name = run_name_of(written.name)
    known = next((job for job in jobs.values() if job.attempts and job.run_name == name), None)
    if known is None:
        jobs[written.name] = job_of_attempts([written])
        return
    attempts = {attempt.name: attempt for attempt in known.attempts}
    pods = attempts[written.name].pods if written.name in attempts else ()
    attempts[written.name] = replace(written, pods=pods)
    del jobs[known.name]
    jobs[written.name] = replace(job_of_attempts(attempts.values()), pods=known.pods, events=known.events)


@dataclass(slots=True, kw_only=True)
class Observer:
    """Takes the observations.

    Registers the flow's pods with `poller` and reads their latest progress from it.
    """

    cache: ClusterCache
    poller: Poller
    pod_events: PodEventReader
    ca_bundle: CaBundle | None = None  # trusted CAs for polling connectors over TLS
    wall_clock: Callable[[], float] = time.time

    async def observe(self, key: Key) -> ObservedFlow | None:
        """Returns the flow *key* and everything of it; None where it is deleted, or about to be."""
        seen = self.cache.flows.get(key)
        if seen is None or (seen.deleting and not seen.resource.held_by):
            self.poller.remove(key)
            return None
        connectors = {} if seen.resource.flow is None else connector_names(seen.resource.flow)
        pods, drivers = list(self.cache.pods(key)), list(self.cache.drivers(key))
        self.poller.set_targets(
            key, poll_targets(key, pods, drivers, connector_names=connectors, ca_bundle=self.ca_bundle)
        )
        observed = ObservedFlow(
            resource=seen.resource,
            now_s=self.wall_clock(),
            conflict=self.cache.cross_flow_checks.refusal(key),
            kubernetes_id=self.cache.kubernetes_id,
            unreadable=self.cache.unreadable.get(key[0], ""),
            spark_operator_problem=self.cache.spark_operator_problem,
            children=dict(self.cache.children(key)),
            deployments=dict(self.cache.deployments(key)),
            jobs=self.cache.jobs(key),
            drivers_alive=self.cache.drivers_alive(key),
            is_started=self.cache.pairs.is_started(key),
            stopped_by=self.cache.pairs.stopping_pair(key),
            schedules_created_s=self.cache.schedules_created_s(key),
            has_stuck_pods=any(may_be_stuck(pod) for _, pod in (*pods, *drivers)),
        )
        # Reading Events takes requests; changes of the cache meanwhile are left to the next pass.
        running: dict[str, list[ObservedPod]] = {}
        for _, pod in pods:
            for connector in pod.connectors:
                name = polled_name(pod, connector, connectors)
                running.setdefault(connector, []).append(await self._pod(key[0], pod, observed.now_s, name))
        return replace(
            observed,
            pods={connector: tuple(seen_in) for connector, seen_in in running.items()},
            jobs=tuple([await self._job(key[0], job, observed.now_s) for job in observed.jobs]),
        )

    async def _pod(
        self, namespace: str, pod: ObservedPod, now_s: float, connector: str | None = None
    ) -> ObservedPod:
        """Returns *pod* with its Kubernetes Events and its last reading.

        *connector* names the connector to read where the pod runs several.
        """
        events = await self.pod_events.warnings_of_pod(namespace, pod, now_s)
        return replace(pod, events=events, reading=self.poller.reading(pod.uid, connector))

    async def _job(self, namespace: str, job: ObservedJob, now_s: float) -> ObservedJob:
        pods = [await self._pod(namespace, pod, now_s) for pod in job.pods]
        events = await self.pod_events.warnings_of_job(namespace, job, now_s)
        return replace(job, pods=tuple(pods), events=events)
