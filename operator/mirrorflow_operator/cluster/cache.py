"""Caches the observed state of flows, their objects and their pods, from lists, watches and own writes.

An update with an older resourceVersion than the cached one is ignored, whether it comes from a list, a watch
or the response to a write. The result of an own write is cached at once, so a late watch never causes a
second write. Full lists, at the start and later, correct what a watch has missed.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mirrorflow_operator.admission.cross_flow_checks import CrossFlowChecks
from mirrorflow_operator.cluster.client import (
    CRON_JOB,
    DEPLOYMENT,
    JOB,
    MIRROR_FLOW,
    MIRROR_PAIR,
    PAIR_KINDS,
    POD,
    SCHEDULED_SPARK_APPLICATION,
    SPARK_APPLICATION,
    SPARK_KINDS,
    SWITCHOVER,
    WATCHED,
    Client,
    ObjectKind,
)
from mirrorflow_operator.cluster.observed_objects import (
    CachedChild,
    CachedFlow,
    cached_child,
    cached_flow,
    connector_of,
    created_s,
    job_of,
    observed_attempt,
    observed_deployment,
    observed_job,
    observed_pod,
    owner_key,
    run_kind_of,
)
from mirrorflow_operator.cluster.pair_cache import PairCache
from mirrorflow_operator.plan.names import FLOW_LABEL, RUN_OF_LABEL
from mirrorflow_operator.plan.rollouts import ObservedDeployment
from mirrorflow_operator.plan.spark_applications import attempt_number, run_name_of
from mirrorflow_operator.plan.spark_run import RunKind
from mirrorflow_operator.status.observation import Key, ObservedAttempt, ObservedJob, ObservedPod
from mirrorflow_operator.status.pair_observation import PairKey
from mirrorflow_operator.status.spark_attempts import job_of_attempts

ObjectId = tuple[str, str, str]  # kind, namespace, name
QueueKey = Key | PairKey  # of a flow, or of a pair with its switchovers
NO_FLOWS: frozenset[QueueKey] = frozenset()
# The response to an own write arrives within seconds of the watch event that reports the deletion. This many
# deletions lie between them only where a cluster deletes all objects of a thousand flows at once.
DELETED_MAX = 10_000
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _FlowObjects:
    """Cached objects labelled with one flow."""

    children: dict[ObjectId, CachedChild] = field(default_factory=dict)
    deployments: dict[str, ObservedDeployment] = field(default_factory=dict)  # by connector name
    # By pod name, with the connector name.
    pods: dict[str, tuple[str, ObservedPod]] = field(default_factory=dict)
    jobs: dict[str, ObservedJob] = field(default_factory=dict)  # by name
    attempts: dict[str, ObservedAttempt] = field(default_factory=dict)  # SparkApplications by name
    # Of CronJobs and ScheduledSparkApplications by name: the kind of their runs and the creation time.
    schedules: dict[str, tuple[RunKind | None, float]] = field(default_factory=dict)
    # By pod name, with the name of their Job or SparkApplication.
    drivers: dict[str, tuple[str, ObservedPod]] = field(default_factory=dict)


@dataclass(slots=True)
class ClusterCache:
    """The operator's observed state of the cluster; each change returns the keys of what is to be reconciled."""

    flows: dict[Key, CachedFlow] = field(default_factory=dict)
    cross_flow_checks: CrossFlowChecks = field(default_factory=CrossFlowChecks)
    pairs: PairCache = field(default_factory=PairCache)
    kubernetes_id: str | None = (
        None  # the uid of kube-system, which identifies the cluster; None where unknown
    )
    unreadable: dict[str, str] = field(default_factory=dict)  # namespaces that may not be read, and why
    # Why the kinds of the Spark operator cannot be used; None while that is unknown, "" where they can.
    spark_operator_problem: str | None = None
    # Monotonic time of the last watch event of each kind.
    watched_at: dict[str, float] = field(default_factory=dict)
    _by_flow: dict[Key, _FlowObjects] = field(default_factory=lambda: defaultdict(_FlowObjects))
    # resourceVersion, uid and flow or pair of every cached object.
    _cached: dict[ObjectId, tuple[int, str, QueueKey]] = field(default_factory=dict)
    # Uids of deleted objects with the resourceVersion of their deletion, the latest last. A MirrorFlow that stops
    # matching the operator's label selector is reported as deleted, and may match again later.
    _deleted_uids: dict[str, int] = field(default_factory=dict)

    def identify(self, kubernetes_id: str) -> None:
        self.kubernetes_id = kubernetes_id

    def set_spark_operator_problem(self, problem: str | None) -> None:
        self.spark_operator_problem = problem

    def children(self, key: Key) -> Mapping[ObjectId, CachedChild]:
        """Returns the objects with the flow's label, without pods."""
        return self._by_flow[key].children if key in self._by_flow else {}

    def deployments(self, key: Key) -> Mapping[str, ObservedDeployment]:
        """Returns the flow's Deployments by connector name."""
        return self._by_flow[key].deployments if key in self._by_flow else {}

    def pods(self, key: Key) -> Iterator[tuple[str, ObservedPod]]:
        """Returns the flow's connector pods with their connector names, sorted by pod name."""
        return iter(
            [pod for _, pod in sorted(self._by_flow[key].pods.items())] if key in self._by_flow else []
        )

    def jobs(self, key: Key) -> tuple[ObservedJob, ...]:
        """Returns the flow's Spark jobs with their drivers, sorted by name; the SparkApplications of one run as one job."""
        if key not in self._by_flow:
            return ()
        objects = self._by_flow[key]
        drivers: dict[str, list[ObservedPod]] = {}
        for job, pod in objects.drivers.values():
            drivers.setdefault(job, []).append(pod)
        jobs = [replace(job, pods=tuple(drivers.get(name, ()))) for name, job in objects.jobs.items()]
        runs: dict[str, list[ObservedAttempt]] = {}
        for name, attempt in objects.attempts.items():
            with_pods = replace(attempt, pods=tuple(drivers.get(name, ())))
            runs.setdefault(run_name_of(name), []).append(with_pods)
        jobs += [job_of_attempts(attempts) for attempts in runs.values()]
        return tuple(sorted(jobs, key=lambda job: job.name))

    def drivers(self, key: Key) -> Iterator[tuple[str, ObservedPod]]:
        """Returns the flow's driver pods with the name of their Job or SparkApplication, which may be deleted."""
        return iter(list(self._by_flow[key].drivers.values()) if key in self._by_flow else [])

    def drivers_alive(self, key: Key) -> frozenset[str]:
        """Returns the names of the Jobs and SparkApplications, possibly deleted, whose drivers have not ended."""
        return frozenset(job for job, pod in self.drivers(key) if pod.is_alive)

    def has_spark_applications(self) -> bool:
        """Whether a driver of a SparkApplication is known; this shows one also before such objects are read."""
        owners = (owner for objects in self._by_flow.values() for owner, _ in objects.drivers.values())
        return any(attempt_number(owner) is not None for owner in owners)

    def schedules_created_s(self, key: Key) -> Mapping[RunKind, float]:
        """Returns when the flow's schedules were created, by the kind of their runs."""
        schedules = self._by_flow[key].schedules.values() if key in self._by_flow else ()
        return {kind: created for kind, created in schedules if kind is not None}

    def handle_event(
        self, kind: ObjectKind, event: str | None, body: Mapping[str, Any]
    ) -> frozenset[QueueKey]:
        """Stores a watch event; *event* is DELETED, or anything else for an object that exists."""
        self.watched_at[kind.name] = time.monotonic()
        if event == "DELETED":
            return self.remove(kind, body)
        return self.put(kind, body)

    def put(self, kind: ObjectKind, body: Mapping[str, Any]) -> frozenset[QueueKey]:
        """Stores *body*, unless that version or a newer one is cached or was deleted."""
        metadata = body["metadata"]
        version = _version(metadata)
        if self._deleted_uids.get(metadata["uid"], -1) >= version:
            return NO_FLOWS
        object_id = (kind.name, metadata["namespace"], metadata["name"])
        cached = self._cached.get(object_id)
        if cached is not None and cached[0] >= version:
            return NO_FLOWS
        affected = NO_FLOWS
        if cached is not None and cached[1] != metadata["uid"]:
            affected = self._drop(object_id)
        key = _key_of(kind, body)
        if cached is not None and cached[2] != key:
            affected |= self._drop(object_id)
        if isinstance(key, PairKey):
            stored = self.pairs.put_pair if kind is MIRROR_PAIR else self.pairs.put_switchover
            affected |= stored(body)
        else:
            affected |= self._store(kind, object_id, key, body)
        self._cached[object_id] = (
            version,
            metadata["uid"],
            key,
        )  # only now, so that one that cannot be read is read again
        return affected

    def remove(self, kind: ObjectKind, body: Mapping[str, Any]) -> frozenset[QueueKey]:
        """Removes the object with the uid of *body*; another object of its name may exist.

        The garbage collector can be faster than the response to the write that created the object. The uid is
        remembered, so that such a late response is ignored.
        """
        metadata = body["metadata"]
        namespace, name, uid = metadata["namespace"], metadata["name"], metadata["uid"]
        self._deleted_uids.pop(uid, None)
        self._deleted_uids[uid] = _version(metadata)
        if len(self._deleted_uids) > DELETED_MAX:
            del self._deleted_uids[next(iter(self._deleted_uids))]
        object_id = (kind.name, namespace, name)
        if object_id not in self._cached or self._cached[object_id][1] != uid:
            return NO_FLOWS
        return self._drop(object_id)

    def remove_absent(
        self, kind: ObjectKind, namespace: str | None, uids: set[str], versions_until: int
    ) -> frozenset[QueueKey]:
        """Removes the objects that a full list did not contain.

        *uids* are the uids in the list; objects newer than *versions_until*, the list's version, stay.
        """
        missing = [
            entry
            for entry, (version, uid, _) in self._cached.items()
            if entry[0] == kind.name
            and namespace in {None, entry[1]}
            and uid not in uids
            and version <= versions_until
        ]
        return frozenset(key for entry in missing for key in self._drop(entry))

    def _store(
        self, kind: ObjectKind, object_id: ObjectId, key: Key, body: Mapping[str, Any]
    ) -> frozenset[QueueKey]:
        if kind is MIRROR_FLOW:
            seen = cached_flow(body)
            before = self.flows.get(key)
            self.flows[key] = seen
            affected = self.cross_flow_checks.put(seen.resource)
            same = before is not None and (
                before.resource == seen.resource and before.deleting == seen.deleting
            )
            return affected | (NO_FLOWS if same else frozenset((key, *self.pairs.pairs_of(key))))
        objects = self._by_flow[key]
        if kind is POD:
            pods, owner = objects.pods, connector_of(body)
            if run_kind_of(body) is not None:
                pods, owner = objects.drivers, job_of(body)
            pod = (owner, observed_pod(body))
            same = pods.get(object_id[2]) == pod
            pods[object_id[2]] = pod
            return NO_FLOWS if same else frozenset((key,))
        child = cached_child(kind, body)
        before_child = objects.children.get(object_id)
        same = before_child is not None and (before_child.digest, before_child.deleting) == (
            child.digest,
            child.deleting,
        )
        objects.children[object_id] = child
        if kind is DEPLOYMENT:
            connector, deployment = connector_of(body), observed_deployment(body)
            same = same and objects.deployments.get(connector) == deployment
            objects.deployments[connector] = deployment
        run = run_kind_of(body)
        if kind is JOB and run is not None:
            job = observed_job(body, run)
            same = same and objects.jobs.get(object_id[2]) == job
            objects.jobs[object_id[2]] = job
        if kind is SPARK_APPLICATION and run is not None:
            attempt = observed_attempt(body, run)
            same = same and objects.attempts.get(object_id[2]) == attempt
            objects.attempts[object_id[2]] = attempt
        if kind in {CRON_JOB, SCHEDULED_SPARK_APPLICATION}:
            objects.schedules[object_id[2]] = (run, created_s(body))
        return NO_FLOWS if same else frozenset((key,))

    def _drop(self, object_id: ObjectId) -> frozenset[QueueKey]:
        _, _, key = self._cached.pop(object_id)
        kind, namespace, name = object_id
        if isinstance(key, PairKey):
            is_pair = kind == MIRROR_PAIR.name
            return (self.pairs.remove_pair if is_pair else self.pairs.remove_switchover)(namespace, name)
        if kind == MIRROR_FLOW.name:
            self.flows.pop(key, None)
            return self.cross_flow_checks.remove(key) | {key, *self.pairs.pairs_of(key)}
        objects = self._by_flow[key]
        if kind == POD.name:
            objects.pods.pop(name, None)
            objects.drivers.pop(name, None)
        else:
            objects.children.pop(object_id, None)
            if kind == DEPLOYMENT.name:
                objects.deployments = {
                    connector: deployment
                    for connector, deployment in objects.deployments.items()
                    if deployment.name != name
                }
            if kind == JOB.name:
                objects.jobs.pop(name, None)
            if kind == SPARK_APPLICATION.name:
                objects.attempts.pop(name, None)
            if kind in {CRON_JOB.name, SCHEDULED_SPARK_APPLICATION.name}:
                objects.schedules.pop(name, None)
        if not (objects.pods or objects.children or objects.drivers):
            del self._by_flow[key]
        return frozenset((key,))


def _key_of(kind: ObjectKind, body: Mapping[str, Any]) -> QueueKey:
    """Returns the key of what is reconciled when *body* changes."""
    namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
    if kind is MIRROR_FLOW:
        return namespace, name
    if kind is MIRROR_PAIR:
        return PairKey(namespace, name)
    if kind is SWITCHOVER:
        return PairKey(namespace, str((body.get("spec") or {}).get("pair", "")))
    return owner_key(body)


def _version(metadata: Mapping[str, Any]) -> int:
    """Returns the resourceVersion, a number that grows: promised since Kubernetes 1.35, always so with etcd."""
    text = metadata.get("resourceVersion", "")
    return int(text) if text.isdigit() else 0


def selector_of(kind: ObjectKind, flows: str = "") -> str:
    """Returns the label selector for *kind*, so that the API server filters out objects of no flow.

    *flows* is the selector of MirrorFlows, pairs and switchovers; empty: all.
    """
    if kind in SPARK_KINDS:
        return RUN_OF_LABEL
    return flows if kind in {MIRROR_FLOW, *PAIR_KINDS} else FLOW_LABEL


async def list_all(
    client: Client,
    cache: ClusterCache,
    namespace: str | None,
    flows: str = "",
    *,
    kinds: Sequence[ObjectKind] = WATCHED,
) -> dict[str, frozenset[QueueKey]]:
    """Reads *kinds* in *namespace* (None: all namespaces) into *cache*; *flows* is that of `selector_of`.

    Returns the kinds of which an object has changed, with what is to be reconciled. Raises ApiServerError; what was
    read until then stays in the cache.
    """
    changed = {
        kind.name: await _list(client, cache, kind, namespace, selector_of(kind, flows)) for kind in kinds
    }
    return {kind: keys for kind, keys in changed.items() if keys}


async def _list(
    client: Client, cache: ClusterCache, kind: ObjectKind, namespace: str | None, selector: str
) -> frozenset[QueueKey]:
    seen: set[str] = set()
    changed: frozenset[QueueKey] = frozenset()
    until = 0
    async for version, bodies in client.chunks(kind, namespace, labels=selector):
        until = version
        for body in bodies:
            metadata = body["metadata"]
            seen.add(metadata["uid"])
            try:
                changed |= cache.put(kind, body)
            except Exception:
                # A bug that one object triggers must not end the reading of all others. But without a pair, a flow that a
                # switchover has ended would be started.
                if kind in PAIR_KINDS:
                    raise
                _LOG.exception(
                    "%s %s/%s cannot be read: bug in the operator",
                    kind.name,
                    metadata.get("namespace"),
                    metadata["name"],
                )
    return changed | cache.remove_absent(kind, namespace, seen, until)
