"""Step 3 of a pass: plans the desired state of one flow, once and frozen. Pure.

It has every object that should exist, the Spark jobs among them, and the mode and number of pods for the next
step of a rollout. If nothing has changed since a pass that left nothing to write, no object is planned:
InputsDigest compares the inputs of two passes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from mirrorflow_operator.admission.due_jobs import DueJobs, SeedStall, due_jobs
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.api.workloads import ConnectorKind
from mirrorflow_operator.cluster.cache import ObjectId
from mirrorflow_operator.cluster.client import DEPLOYMENT
from mirrorflow_operator.cluster.observed_objects import CachedChild
from mirrorflow_operator.plan import names
from mirrorflow_operator.plan.connector_objects import objects
from mirrorflow_operator.plan.drift import Object
from mirrorflow_operator.plan.job_objects import job_objects, without_blocked_jobs, without_source_pods
from mirrorflow_operator.plan.pod_sharing import Pods, connectors_by_pod
from mirrorflow_operator.plan.properties import active_kinds, plan
from mirrorflow_operator.plan.rollouts import (
    Shape,
    has_pod_defaults,
    next_shapes,
    postponed_connectors,
    with_kept_pods,
)
from mirrorflow_operator.plan.secret_layout import POD_LAYOUT
from mirrorflow_operator.plan.spark_run import SparkDefaults
from mirrorflow_operator.reconcile.observe import ObservedFlow
from mirrorflow_operator.settings import Settings
from mirrorflow_operator.status.observation import Admission


@dataclass(frozen=True, slots=True, kw_only=True)
class InputsDigest:
    """The inputs of one pass: *facts* of the flow, its jobs and pods; a digest of each labelled object."""

    facts: tuple[object, ...]
    children: dict[ObjectId, tuple[object, ...]]

    @classmethod
    def of(cls, facts: tuple[object, ...], children: Iterable[CachedChild]) -> "InputsDigest":
        return cls(facts=facts, children={child.id: _child_digest(child) for child in children})

    def with_written(self, written: Iterable[CachedChild]) -> "InputsDigest":
        """Returns a copy updated with the results of the pass's own writes."""
        return replace(self, children=self.children | {child.id: _child_digest(child) for child in written})


def _child_digest(child: CachedChild) -> tuple[object, ...]:
    return child.digest, child.owner_uid, child.deleting


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredState:
    """The desired state of one flow: the Spark jobs, connectors and objects that should exist."""

    due_jobs: DueJobs
    connectors: tuple[ConnectorKind, ...] = ()  # those that have work
    pods: Pods = field(default_factory=dict)  # which connectors share a pod
    # The inputs of `objects`; None: the cluster stays as it is, because there is nothing to write or the flow
    # is not admitted.
    inputs: InputsDigest | None = None
    objects: tuple[Object, ...] = ()  # every object that should exist
    postponed: frozenset[str] = frozenset()  # names of objects that a later pass changes or deletes
    to_apply: tuple[Object, ...] = ()  # those of `objects` that are written now if they differ


def plan_flow(
    observed: ObservedFlow,
    admission: Admission,
    settings: Settings,
    *,
    seed_stall: SeedStall | None,
    converged: InputsDigest | None,
) -> DesiredState:
    """Returns the desired state; *seed_stall* and *converged* are those of the flow's last pass."""
    resource, flow = observed.resource, admission.flow
    due = due_jobs(flow, resource.status, observed.jobs, seed_stall, observed.now_s)
    if flow is None:
        return DesiredState(due_jobs=due)
    connectors = active_kinds(flow)
    sharing = connectors_by_pod(
        flow.spec.connectors, connectors, seed_replaces_source=due.runs.replaces_source
    )
    unchanged = DesiredState(due_jobs=due, connectors=connectors, pods=sharing)
    # A flow that is being deleted stays as it is until Kubernetes deletes its objects.
    if resource.is_reconciliation_paused or resource.held_by:
        return unchanged
    deployments = [child for child in observed.children.values() if child.kind is DEPLOYMENT]
    if admission.has_conflict and not deployments:
        return unchanged  # the flow was never admitted, so it has no pods to stop
    steps = next_shapes(flow, observed.deployments)
    postponed_kinds = postponed_connectors(flow, sharing, observed.deployments)
    facts = (
        (resource.uid, resource.generation, admission.version, admission.flow_id, admission.refusal),
        (*steps.items(), postponed_kinds),
        due.runs,
        observed.drivers_alive,
        observed.spark_operator_problem,
    )
    inputs = InputsDigest.of(facts, observed.children.values())
    if inputs == converged:
        return unchanged
    running = {child.name: child.content() for child in deployments}
    planned = _objects(flow, admission, due, settings, steps, running)
    postponed = frozenset(names.object_name(resource.name, kind) for kind in postponed_kinds)
    in_time = without_blocked_jobs(
        [planned_object for planned_object in planned if planned_object["metadata"]["name"] not in postponed],
        existing=frozenset(name for job in observed.jobs for name in job.object_names),
        alive=observed.drivers_alive,
    )
    return DesiredState(
        due_jobs=due,
        connectors=connectors,
        pods=sharing,
        inputs=inputs,
        objects=tuple(planned),
        postponed=postponed,
        to_apply=tuple(in_time),
    )


def _objects(
    flow: MirrorFlow,
    admission: Admission,
    due: DueJobs,
    settings: Settings,
    steps: Mapping[ConnectorKind, Shape],
    running: Mapping[str, Object],
) -> list[Object]:
    """Returns every object the flow should have. *running*: existing Deployments' content, by name."""
    version, flow_id = admission.version, admission.flow_id
    planned_with = partial(
        objects,
        flow,
        plan(flow, POD_LAYOUT, flow_id=flow_id),
        image=f"{settings.replicator_image}:{version}",
        shapes=steps,
        verifies=settings.progress_ca is not None,
        seed_replaces_source=due.runs.replaces_source,
        operator_namespace=settings.pod_namespace,
    )
    planned = planned_with()
    if not all(map(has_pod_defaults, running.values())):
        planned = with_kept_pods(planned, planned_with(has_defaults=False), running)
    if due.runs.replaces_source:
        planned = without_source_pods(planned, flow)
    defaults = SparkDefaults(
        image=f"{settings.seed_image}:{version}",
        account=settings.seed_account,
        operator_namespace=settings.pod_namespace,
    )
    jobs = job_objects(flow, due.runs, defaults=defaults, flow_id=flow_id)
    return [*planned, *jobs]
