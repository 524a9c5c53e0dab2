"""Reconciles one MirrorFlow resource in one pass: observe, plan, apply what differs, write the status.

Level-triggered: a pass needs no memory of earlier ones, so any pass can be the first, and the next one
completes an interrupted pass. If nothing changed, a pass plans nothing and writes nothing. An error of one
flow is reported in its status and does not affect other flows.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.api.status import Status
from mirrorflow_operator.assess.admission import Admission, Key, Resource, admit
from mirrorflow_operator.assess.assess import Assessment, assess
from mirrorflow_operator.assess.colocation_migration import deployment_of, is_moving, left_alone
from mirrorflow_operator.assess.due_jobs import DueJobs, Holding, decide, has_no_driver
from mirrorflow_operator.assess.observation import (
    FRESH_S,
    AssessmentMemory,
    ConnectorSeen,
    JobSeen,
    Observation,
    PodSeen,
)
from mirrorflow_operator.assess.rollout_steps import shapes
from mirrorflow_operator.assess.status_document import held_s, status_document
from mirrorflow_operator.assess.troubles import new_troubles
from mirrorflow_operator.cluster.apply import WRITES, WRITES_ABOUT, Applier
from mirrorflow_operator.cluster.client import Client
from mirrorflow_operator.cluster.event_messages import id_of, news_of, removal_of
from mirrorflow_operator.cluster.events import Events
from mirrorflow_operator.cluster.inputs_digest import InputsDigest
from mirrorflow_operator.cluster.kinds import DEPLOYMENT, JOB, MIRROR_FLOW
from mirrorflow_operator.cluster.observed import ChildSeen
from mirrorflow_operator.cluster.pod_events import AGAIN_S, PodEvents, may_hang
from mirrorflow_operator.cluster.view import Id, View
from mirrorflow_operator.errors import (
    BrokenError,
    ForbiddenError,
    NotOursError,
    OperatorError,
    RejectedError,
)
from mirrorflow_operator.metrics import Metrics
from mirrorflow_operator.plan import names
from mirrorflow_operator.plan.colocation import Pods, hosts, pod_kind, pods
from mirrorflow_operator.plan.jobs import held_back, in_turn, job_objects
from mirrorflow_operator.plan.kept_pods import with_kept_pods
from mirrorflow_operator.plan.layout import POD_LAYOUT
from mirrorflow_operator.plan.objects import Object, objects
from mirrorflow_operator.plan.plan import ConnectorKind, plan
from mirrorflow_operator.plan.replica_sharing import Shape
from mirrorflow_operator.plan.runs import Runs, SparkDefaults
from mirrorflow_operator.polling.authorities import Authorities
from mirrorflow_operator.polling.poller import Poller
from mirrorflow_operator.polling.scrape_targets import name_in, places
from mirrorflow_operator.settings import Settings

_LOG = logging.getLogger(__name__)
FRESH_POLLS: Final = 3  # a reading counts as current for this many poll intervals
# Errors that the user can fix: their message goes into the status. All others are transient.
_TELLING: Final = (NotOursError, ForbiddenError, RejectedError, BrokenError)


@dataclass(slots=True)
class _Remembered:
    """What the reconciler caches of one flow between two passes; losing it at any time is safe."""

    uid: str
    memory: AssessmentMemory = field(default_factory=AssessmentMemory)
    converged: InputsDigest | None = None  # the inputs of the last pass after which nothing was left to write
    # The generation that was planned, and the names of the plan's connectors.
    wanted: tuple[int, Mapping[ConnectorKind, str]] | None = None
    written_at: float | None = None
    written: Status | None = None  # the status that was sent
    answered: Status | None = None  # the same status as the API server stored it
    is_held: bool = False  # a newer status is held back because it is not worth a write yet
    holding: Holding | None = None


@dataclass(slots=True, kw_only=True)
class Reconciler:
    """Runs the passes of all flows.

    Each pass registers the flow's pods with `poller` and reads their latest progress from it.
    """

    settings: Settings
    client: Client
    view: View
    applier: Applier
    events: Events
    pod_events: PodEvents
    metrics: Metrics
    poller: Poller
    authorities: Authorities | None = None  # trusted CAs for polling connectors over TLS
    unreadable: dict[str, str] = field(default_factory=dict)  # namespaces that cannot be read, and why
    wall_clock: Callable[[], float] = time.time
    _remembered: dict[Key, _Remembered] = field(default_factory=dict)

    @property
    def held(self) -> int:
        """Number of flows whose newest status is held back for some seconds."""
        return sum(remembered.is_held for remembered in self._remembered.values())

    async def reconcile(self, key: Key) -> float | None:
        """Runs one pass over the flow *key*.

        Returns the seconds until the next pass if no event comes earlier; None: only an event triggers it.
        Raises OperatorError where a request failed; an error of `_TELLING` is written to the status first.
        """
        seen = self.view.flows.get(key)
        if seen is None or seen.deleting:
            # Kubernetes' garbage collector deletes the owned objects; nothing in Kafka is touched.
            self._remembered.pop(key, None)
            self.poller.remove(key)
            return None
        resource = seen.resource
        remembered = self._remembered.get(key)
        if remembered is None or remembered.uid != resource.uid:
            remembered = self._remembered[key] = _Remembered(uid=resource.uid)
        conflict = self.view.together.refusal(key)
        admission = admit(resource, versions=self.settings.replicator_versions, conflict=conflict)
        found = places(
            key,
            self.view.pods(key),
            self.view.drivers(key),
            wanted=self._wanted(resource, admission),
            authorities=self.authorities,
        )
        self.poller.put(key, found)
        failure: OperatorError | None = None
        _, decision = await self._decide(resource, admission, remembered)
        remembered.holding = decision.holding
        try:
            await self._converge(resource, admission, decision.runs, remembered)
        except _TELLING as error:
            failure = error
        assessment = await self._assess(resource, admission, remembered, failure)
        remembered.memory = assessment.memory
        told_s = await self._tell(resource, assessment, remembered)
        remembered.is_held = told_s is not None
        if failure is not None:
            raise failure
        # Events of a pod that hangs are not watched, so the operator polls for them.
        hangs = any(may_hang(pod) for _, pod in (*self.view.pods(key), *self.view.drivers(key)))
        hangs_s = AGAIN_S if hangs or any(map(has_no_driver, self.view.jobs(key))) else None
        waits = (assessment.again_after_s, decision.again_after_s, told_s, hangs_s)
        return min((one for one in waits if one is not None), default=None)

    async def _decide(
        self, resource: Resource, admission: Admission, remembered: _Remembered
    ) -> tuple[tuple[JobSeen, ...], DueJobs]:
        """Returns the flow's existing Spark jobs and the jobs it should have."""
        now_s = self.wall_clock()
        jobs = await self._jobs(resource, now_s)
        return jobs, decide(admission.flow, resource.status, jobs, remembered.holding, now_s)

    async def _converge(
        self, resource: Resource, admission: Admission, runs: Runs, remembered: _Remembered
    ) -> None:
        key = resource.key
        problem = self.unreadable.get(resource.namespace)
        if problem is not None:
            raise ForbiddenError(f"namespace {resource.namespace}", problem)
        if admission.flow is None:
            return
        children = self.view.children(key)
        if admission.has_conflict and not any(child.kind is DEPLOYMENT for child in children.values()):
            return  # the flow was never admitted, so it has no pods to stop
        shaped = shapes(admission.flow, self.view.deployments(key))
        homes = self._pods(resource, admission, runs)
        left = left_alone(admission.flow, homes, self.view.deployments(key))
        way = (*shaped.items(), left)
        looked_at = self._looked_at(resource, admission, runs, way)
        if looked_at == remembered.converged:
            return
        running = {child.name: child.content() for child in children.values() if child.kind is DEPLOYMENT}
        planned = self._planned(admission.flow, admission.version, runs, shaped, running)
        waiting = {names.object_name(resource.name, kind) for kind in left}
        changing = [one for one in planned if one["metadata"]["name"] not in waiting]
        there, alive = (job.name for job in self.view.jobs(key)), self.view.drivers_alive(key)
        made = await self._apply(resource, in_turn(changing, there=frozenset(there), alive=alive), children)
        await self._prune(resource, {*map(id_of, planned)}, waiting, runs, homes)
        gone_by, now = looked_at.with_written(made), self._looked_at(resource, admission, runs, way)
        # A change made during the pass has queued another pass, which must compare everything again.
        remembered.converged = now if now == gone_by else None

    def _planned(
        self,
        flow: MirrorFlow,
        version: str,
        runs: Runs,
        shaped: Mapping[ConnectorKind, Shape],
        running: Mapping[str, Object],
    ) -> list[Object]:
        """Returns every object the flow should have. *running*: existing Deployments' content, by name."""
        planned_with = partial(
            objects,
            flow,
            plan(flow, POD_LAYOUT),
            image=f"{self.settings.replicator_image}:{version}",
            layout=POD_LAYOUT,
            shapes=shaped,
            verifies=self.authorities is not None,
            source_waits=runs.holds_connector,
        )
        found = with_kept_pods(planned_with(), planned_with(has_defaults=False), running)
        if runs.holds_connector:
            found = held_back(found, flow)
        defaults = SparkDefaults(
            image=f"{self.settings.seed_image}:{version}", account=self.settings.seed_account
        )
        return [*found, *job_objects(flow, runs, defaults=defaults, layout=POD_LAYOUT)]

    async def _apply(
        self, resource: Resource, planned: list[Object], children: Mapping[Id, ChildSeen]
    ) -> list[ChildSeen]:
        """Writes the objects that differ; returns those written, as the API server returned them."""
        # A copy from before the first write: events compare a Deployment's old properties, and those are in
        # the ConfigMap that this loop replaces.
        before = dict(children)
        made, new = [], []
        for one in planned:
            found = children.get(id_of(one))
            written = await self.applier.apply(resource, one, found)
            if written is None:
                continue
            made.append(written)
            if one["kind"] == DEPLOYMENT.name and found is None:
                new.append(written.name)
            news = news_of(one, found, planned, before)
            if news is not None:
                await self.events.say(resource, *news)
        if new:
            await self.events.say(resource, "Created", f"Deployments {', '.join(new)}.")
        return made

    async def _prune(
        self, resource: Resource, wanted: set[Id], waiting: set[str], runs: Runs, homes: Pods
    ) -> None:
        """Deletes managed objects that are not in the plan. *waiting*: names of objects to keep for now."""
        words = {
            names.connector_word(kind): names.connector_word(host) for kind, host in hosts(homes).items()
        }
        for child in list(self.view.children(resource.key).values()):
            if child.id in wanted or child.deleting or child.owner_uid != resource.uid:
                continue
            if child.name in waiting:
                continue
            if not child.is_managed():
                continue  # the admission policy would refuse the delete and fail the whole pass
            if child.kind is JOB and child.name in runs.kept:
                continue
            await self.applier.prune(child)
            await self.events.say(resource, *removal_of(child, words))

    async def _assess(
        self,
        resource: Resource,
        admission: Admission,
        remembered: _Remembered,
        failure: OperatorError | None,
    ) -> Assessment:
        # Read again, because this pass may just have written objects.
        jobs, decision = await self._decide(resource, admission, remembered)
        now_s = self.wall_clock()
        observation = Observation(
            resource=resource,
            admission=admission,
            now_s=now_s,
            connectors=await self._connectors(resource, admission, decision.runs, now_s),
            jobs=jobs,
            schedule=self.view.schedule(resource.key),
            runs=decision.runs,
            memory=remembered.memory,
            refusal="" if failure is None else str(failure),
            settle_s=self.settings.settle_s,
            fresh_s=max(FRESH_S, FRESH_POLLS * self.settings.poll_s),
        )
        return assess(observation)

    async def _connectors(
        self, resource: Resource, admission: Admission, runs: Runs, now_s: float
    ) -> tuple[ConnectorSeen, ...]:
        wanted, flow = self._wanted(resource, admission), admission.flow
        homes, deployments = self._pods(resource, admission, runs), self.view.deployments(resource.key)
        running: dict[str, list[PodSeen]] = {}
        for _, pod in self.view.pods(resource.key):
            for word in pod.connectors:
                name = name_in(pod, word, wanted)
                running.setdefault(word, []).append(await self._whole(resource.namespace, pod, now_s, name))
        found = []
        for kind in ConnectorKind:
            word, home = names.connector_word(kind), deployment_of(kind, homes, deployments)
            if home is None and kind not in wanted and word not in running:
                continue
            seen = ConnectorSeen(
                kind=kind,
                deployment=home,
                pods=tuple(running.get(word, ())),
                said_in=None if flow is None else pod_kind(flow.spec.connectors, kind),
                is_moving=is_moving(kind, home, deployments),
            )
            found.append(seen)
        return tuple(found)

    async def _whole(self, namespace: str, pod: PodSeen, now_s: float, connector: str = "") -> PodSeen:
        """Returns *pod* with its Kubernetes events and its last reading.

        *connector* names the connector to read where the pod runs several.
        """
        events = await self.pod_events.of(namespace, pod, now_s)
        return replace(pod, events=events, reading=self.poller.reading(pod.uid, connector))

    async def _jobs(self, resource: Resource, now_s: float) -> tuple[JobSeen, ...]:
        found = []
        for job in self.view.jobs(resource.key):
            pods = [await self._whole(resource.namespace, pod, now_s) for pod in job.pods]
            events = await self.pod_events.of_job(resource.namespace, job, now_s)
            found.append(replace(job, pods=tuple(pods), events=events))
        return tuple(found)

    def _wanted(self, resource: Resource, admission: Admission) -> Mapping[ConnectorKind, str]:
        """Returns the names of the planned connectors, by kind; planned once for each generation."""
        if admission.flow is None:
            return {}
        remembered = self._remembered[resource.key]
        if remembered.wanted is None or remembered.wanted[0] != resource.generation:
            planned = plan(admission.flow, POD_LAYOUT).connectors
            named = {one.kind: one.connector_properties["name"] for one in planned}
            remembered.wanted = (resource.generation, named)
        return remembered.wanted[1]

    def _pods(self, resource: Resource, admission: Admission, runs: Runs) -> Pods:
        """Returns which connectors share a pod; empty where the spec cannot be read."""
        if admission.flow is None:
            return {}
        wanted = self._wanted(resource, admission)
        return pods(admission.flow.spec.connectors, wanted, source_waits=runs.holds_connector)

    async def _tell(
        self, resource: Resource, assessment: Assessment, remembered: _Remembered
    ) -> float | None:
        """Writes the status if it differs.

        Returns the seconds for which it is held back, None if it is not.
        """
        seen = self.view.flows.get(resource.key)
        if seen is None or seen.resource != resource:
            return None  # the resource has changed since; the change has already queued the next pass
        now_s = self.wall_clock()
        old, status = resource.status, assessment.status
        if status == remembered.written and old == remembered.answered:
            return None  # a CRD older than this operator drops unknown fields from every write
        wait_s = held_s(old, status, last_write_s=remembered.written_at, now_s=now_s)
        if wait_s != 0:
            return wait_s
        body = {
            "apiVersion": MIRROR_FLOW.api_version,
            "kind": MIRROR_FLOW.name,
            "metadata": {
                "name": resource.name,
                "namespace": resource.namespace,
                "uid": resource.uid,
                "resourceVersion": seen.resource_version,
            },
            "status": status_document(status),
        }
        answer = await self.client.apply(MIRROR_FLOW, body, subresource="status")
        self.metrics.count(WRITES, WRITES_ABOUT, verb="apply", kind="mirrorflows/status")
        self.view.put(MIRROR_FLOW, answer)
        remembered.written_at, remembered.written = now_s, status
        now_there = self.view.flows.get(resource.key)
        remembered.answered = None if now_there is None else now_there.resource.status
        for reason, message in new_troubles(old.conditions, status.conditions, assessment.causes):
            await self.events.say(resource, reason, message, warning=True)
        return None

    def _looked_at(
        self,
        resource: Resource,
        admission: Admission,
        runs: Runs,
        way: tuple[object, ...],
    ) -> InputsDigest:
        """Returns the digest of this pass's inputs. *way*: the rollout steps the connectors' pods are at."""
        flow = (resource.uid, resource.generation, admission.version, admission.refusal)
        facts = (flow, way, runs, self.view.drivers_alive(resource.key))
        return InputsDigest.of(facts, self.view.children(resource.key).values())
