"""Reconciles one MirrorFlow in one pass: observe, admit, plan, apply, prune, assess, write the status.

Level-triggered: a pass needs no memory of earlier ones, so any pass can be the first, and the next one
completes an interrupted pass. If nothing changed, a pass plans nothing and writes nothing. An error of one
flow is reported in its status and does not affect other flows.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from mirrorflow_operator.admission.admit import admit
from mirrorflow_operator.admission.due_jobs import SeedStall
from mirrorflow_operator.api.workloads import ConnectorKind
from mirrorflow_operator.plan.rollouts import deployment_of, is_moving
from mirrorflow_operator.reconcile.desired_state import DesiredState, InputsDigest, plan_flow
from mirrorflow_operator.reconcile.object_writer import REFUSED_AGAIN_S, ObjectWriter
from mirrorflow_operator.reconcile.observe import ObservedFlow, Observer
from mirrorflow_operator.reconcile.status_writer import FlowStatusWriter, StatusMemory
from mirrorflow_operator.settings import Settings
from mirrorflow_operator.status.assess import assess
from mirrorflow_operator.status.observation import (
    FRESH_S,
    Admission,
    AssessmentMemory,
    Key,
    Observation,
    ObservedConnector,
)
from mirrorflow_operator.status.pins import pins_of

FRESH_POLLS: Final = 3  # a reading counts as current for this many poll intervals


@dataclass(slots=True)
class _FlowMemory:
    """What the reconciler caches of one flow between two passes; losing it at any time is safe."""

    uid: str
    assessment: AssessmentMemory = field(default_factory=AssessmentMemory)
    seed_stall: SeedStall | None = None
    converged: InputsDigest | None = None  # the inputs of the last pass after which nothing was left to write
    status: StatusMemory = field(default_factory=StatusMemory)


@dataclass(slots=True, kw_only=True)
class Reconciler:
    """Runs the passes of all flows."""

    settings: Settings
    observer: Observer
    objects: ObjectWriter
    statuses: FlowStatusWriter
    _memories: dict[Key, _FlowMemory] = field(default_factory=dict)

    @property
    def held(self) -> int:
        """Number of flows whose newest status is held back for some seconds."""
        return sum(memory.status.held_s is not None for memory in self._memories.values())

    async def reconcile(self, key: Key) -> float | None:
        """Runs one pass over the flow *key*.

        Returns the seconds until the next pass if no event comes earlier; None: only an event triggers it.
        Raises OperatorError where a request failed; an error that the user can fix is in the status by then.
        """
        observed = await self.observer.observe(key)
        if observed is None:
            # Kubernetes' garbage collector deletes the owned objects; nothing in Kafka is touched.
            self._memories.pop(key, None)
            return None
        stored = observed.resource
        observed = observed.with_pins().with_pair()
        memory = self._memory(key, stored.uid)
        admission = admit(
            observed.resource,
            versions=self.settings.replicator_versions,
            kubernetes_id=observed.kubernetes_id,
            conflict=observed.conflict,
        )
        desired = plan_flow(
            observed, admission, self.settings, seed_stall=memory.seed_stall, converged=memory.converged
        )
        memory.seed_stall = desired.due_jobs.seed_stall
        applied = await self.objects.apply(desired, observed)
        if admission.flow is not None and not (stored.is_reconciliation_paused or stored.held_by):
            await self.objects.pin(pins_of(admission, observed.resource.status), observed)
        pruned = await self.objects.prune(desired, observed, applied)
        failure = pruned.failure
        if not pruned.refused and desired.inputs is not None:
            memory.converged = desired.inputs.with_written(applied.children)
        observed = observed.with_writes(applied.bodies, pruned.children)
        observation = Observation(
            resource=observed.resource,
            admission=admission,
            now_s=observed.now_s,
            connectors=tuple(_connectors(observed, admission, desired)),
            jobs=observed.jobs,
            schedules_created_s=observed.schedules_created_s,
            runs=desired.due_jobs.runs,
            memory=memory.assessment,
            refused=pruned.refused,
            settle_s=self.settings.settle_s,
            fresh_s=max(FRESH_S, FRESH_POLLS * self.settings.poll_s),
        )
        assessment = assess(observation)
        memory.assessment = assessment.memory
        memory.status = await self.statuses.write(stored, assessment, memory.status)
        if failure is not None:
            raise failure
        waits = (
            REFUSED_AGAIN_S if pruned.refused else None,
            assessment.again_after_s,
            desired.due_jobs.again_after_s,
            memory.status.held_s,
            observed.events_reread_after_s,
        )
        return min((wait for wait in waits if wait is not None), default=None)

    def _memory(self, key: Key, uid: str) -> _FlowMemory:
        memory = self._memories.get(key)
        if memory is None or memory.uid != uid:
            memory = self._memories[key] = _FlowMemory(uid=uid)
        return memory


def _connectors(
    observed: ObservedFlow, admission: Admission, desired: DesiredState
) -> Iterator[ObservedConnector]:
    """Yields the connectors that are planned or still exist."""
    flow, deployments = admission.flow, observed.deployments
    for kind in ConnectorKind:
        connector, deployment = kind.value, deployment_of(kind, desired.pods, deployments)
        if deployment is None and kind not in desired.connectors and connector not in observed.pods:
            continue
        yield ObservedConnector(
            kind=kind,
            deployment=deployment,
            pods=observed.pods.get(connector, ()),
            host=None if flow is None else flow.spec.connectors.host(kind),
            is_moving=is_moving(kind, deployment, deployments),
        )
