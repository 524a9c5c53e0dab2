"""What is known of the cluster: facts of flows, their objects and their pods, as lists and watches have told last.

Older news than what is known are passed over, whoever brings them: a list, a watch, or the answer to an own write. What the
operator has written it knows at once, so it never writes a thing twice because a watch is late.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mirrorflow_operator.assess.admission import Key
from mirrorflow_operator.assess.observation import DeploymentSeen, JobSeen, PodSeen, ScheduleSeen
from mirrorflow_operator.assess.together import Together
from mirrorflow_operator.cluster.kinds import CRON_JOB, DEPLOYMENT, JOB, MIRROR_FLOW, POD, Kind
from mirrorflow_operator.cluster.observed import (
    Child,
    FlowSeen,
    child_seen,
    connector_word_of,
    deployment_seen,
    flow_seen,
    job_of,
    job_seen,
    owner_key,
    pod_seen,
    run_kind_of,
    schedule_seen,
)

Id = tuple[str, str, str]  # kind, namespace, name
NOTHING: frozenset[Key] = frozenset()


@dataclass(slots=True)
class _OfFlow:
    """What bears a flow's label."""

    children: dict[Id, Child] = field(default_factory=dict)
    deployments: dict[str, DeploymentSeen] = field(default_factory=dict)  # by connector's word
    pods: dict[str, tuple[str, PodSeen]] = field(default_factory=dict)  # by name; with the connector's word
    jobs: dict[str, JobSeen] = field(default_factory=dict)  # by name
    schedules: dict[str, ScheduleSeen] = field(default_factory=dict)  # by name
    drivers: dict[str, tuple[str, PodSeen]] = field(default_factory=dict)  # by name; with their Job's


@dataclass(slots=True)
class View:
    """One per operator; every change returns the keys of flows to look at again."""

    flows: dict[Key, FlowSeen] = field(default_factory=dict)
    together: Together = field(default_factory=Together)
    # When a watch last brought something of a kind, by the monotonic clock.
    watched_at: dict[str, float] = field(default_factory=dict)
    _of: dict[Key, _OfFlow] = field(default_factory=lambda: defaultdict(_OfFlow))
    # Version, uid and flow of everything that is known.
    _known: dict[Id, tuple[int, str, Key]] = field(default_factory=dict)

    def children(self, key: Key) -> Mapping[Id, Child]:
        """The objects that bear the flow's label."""
        return self._of[key].children if key in self._of else {}

    def deployments(self, key: Key) -> Mapping[str, DeploymentSeen]:
        """By connector's word."""
        return self._of[key].deployments if key in self._of else {}

    def pods(self, key: Key) -> Iterator[tuple[str, PodSeen]]:
        """With the connector's word, by name."""
        return iter([pod for _, pod in sorted(self._of[key].pods.items())] if key in self._of else [])

    def jobs(self, key: Key) -> tuple[JobSeen, ...]:
        """The flow's Spark jobs with their drivers, by name."""
        if key not in self._of:
            return ()
        of = self._of[key]
        drivers: dict[str, list[PodSeen]] = {}
        for job, pod in of.drivers.values():
            drivers.setdefault(job, []).append(pod)
        return tuple(replace(job, pods=tuple(drivers.get(name, ()))) for name, job in sorted(of.jobs.items()))

    def drivers(self, key: Key) -> Iterator[tuple[str, PodSeen]]:
        """With the name of their Job, which may be gone."""
        return iter(list(self._of[key].drivers.values()) if key in self._of else [])

    def drivers_alive(self, key: Key) -> frozenset[str]:
        """The names of Jobs, which may be gone, whose drivers have not ended."""
        return frozenset(job for job, pod in self.drivers(key) if pod.is_alive)

    def schedule(self, key: Key) -> ScheduleSeen | None:
        """That of the flow's verification."""
        return next(iter(self._of[key].schedules.values()), None) if key in self._of else None

    def all_pods(self) -> Iterator[tuple[Key, PodSeen]]:
        """Every pod of every flow that exists."""
        return (
            (key, pod) for key, of in self._of.items() if key in self.flows for _, pod in of.pods.values()
        )

    def news(self, kind: Kind, event: str | None, body: Mapping[str, Any]) -> frozenset[Key]:
        """A watch says so; *event* is DELETED, or anything else for what is there."""
        self.watched_at[kind.name] = time.monotonic()
        if event == "DELETED":
            return self.drop(
                kind, body["metadata"]["namespace"], body["metadata"]["name"], body["metadata"]["uid"]
            )
        return self.put(kind, body)

    def put(self, kind: Kind, body: Mapping[str, Any]) -> frozenset[Key]:
        """*body* is there."""
        metadata = body["metadata"]
        found = (kind.name, metadata["namespace"], metadata["name"])
        version = _number(metadata["resourceVersion"])
        known = self._known.get(found)
        if known is not None and known[0] >= version:
            return NOTHING
        gone = NOTHING
        if known is not None and known[1] != metadata["uid"]:
            gone = self._forget(found)
        key = (metadata["namespace"], metadata["name"]) if kind is MIRROR_FLOW else owner_key(body)
        if known is not None and known[2] != key:
            gone |= self._forget(found)
        self._known[found] = (version, metadata["uid"], key)
        return gone | self._remember(kind, found, key, body)

    def drop(self, kind: Kind, namespace: str, name: str, uid: str) -> frozenset[Key]:
        """That very object is gone; another of its name may be there."""
        found = (kind.name, namespace, name)
        if found not in self._known or self._known[found][1] != uid:
            return NOTHING
        return self._forget(found)

    def absent(
        self, kind: Kind, namespace: str | None, seen: set[str], versions_until: int
    ) -> frozenset[Key]:
        """A whole list had the uids *seen*: what it did not have is gone, unless it is newer than the list."""
        gone = [
            found
            for found, (version, uid, _) in self._known.items()
            if found[0] == kind.name
            and namespace in {None, found[1]}
            and uid not in seen
            and version <= versions_until
        ]
        return frozenset(key for found in gone for key in self._forget(found))

    def _remember(self, kind: Kind, found: Id, key: Key, body: Mapping[str, Any]) -> frozenset[Key]:
        if kind is MIRROR_FLOW:
            seen = flow_seen(body)
            before = self.flows.get(key)
            self.flows[key] = seen
            affected = self.together.put(seen.resource)
            same = before is not None and (
                before.resource == seen.resource and before.deleting == seen.deleting
            )
            return affected | (NOTHING if same else frozenset((key,)))
        of = self._of[key]
        if kind is POD:
            pods, word = of.pods, connector_word_of(body)
            if run_kind_of(body) is not None:
                pods, word = of.drivers, job_of(body)
            pod = (word, pod_seen(body))
            same = pods.get(found[2]) == pod
            pods[found[2]] = pod
            return NOTHING if same else frozenset((key,))
        child = child_seen(kind, body)
        before_child = of.children.get(found)
        same = before_child is not None and (before_child.digest, before_child.deleting) == (
            child.digest,
            child.deleting,
        )
        of.children[found] = child
        if kind is DEPLOYMENT:
            word, deployment = connector_word_of(body), deployment_seen(body)
            same = same and of.deployments.get(word) == deployment
            of.deployments[word] = deployment
        run = run_kind_of(body)
        if kind is JOB and run is not None:
            job = job_seen(body, run)
            same = same and of.jobs.get(found[2]) == job
            of.jobs[found[2]] = job
        if kind is CRON_JOB:
            of.schedules[found[2]] = schedule_seen(body)
        return NOTHING if same else frozenset((key,))

    def _forget(self, found: Id) -> frozenset[Key]:
        _, _, key = self._known.pop(found)
        kind, _, name = found
        if kind == MIRROR_FLOW.name:
            self.flows.pop(key, None)
            return self.together.remove(key) | {key}
        of = self._of[key]
        if kind == POD.name:
            of.pods.pop(name, None)
            of.drivers.pop(name, None)
        else:
            of.children.pop(found, None)
            if kind == DEPLOYMENT.name:
                of.deployments = {word: one for word, one in of.deployments.items() if one.name != name}
            if kind == JOB.name:
                of.jobs.pop(name, None)
            if kind == CRON_JOB.name:
                of.schedules.pop(name, None)
        if not (of.pods or of.children or of.drivers):
            del self._of[key]
        return frozenset((key,))


def _number(version: str) -> int:
    """Versions are numbers that grow (Kubernetes promises it since 1.35, and etcd always has)."""
    return int(version) if version.isdigit() else 0
