"""Step 3 of a pass: plans the desired state of one flow, once and frozen. Pure.

It has every object that should exist, the Spark jobs among them, and the form and number of pods for the next
step of a rollout. If nothing has changed since a pass that left nothing to write, no object is planned.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.assess.admission import Admission
from mirrorflow_operator.assess.colocation_migration import left_alone
from mirrorflow_operator.assess.due_jobs import DueJobs, Holding, decide
from mirrorflow_operator.assess.rollout_steps import shapes
from mirrorflow_operator.cluster.inputs_digest import InputsDigest
from mirrorflow_operator.cluster.kinds import DEPLOYMENT
from mirrorflow_operator.plan import names
from mirrorflow_operator.plan.colocation import Pods, pods
from mirrorflow_operator.plan.jobs import held_back, in_turn, job_objects
from mirrorflow_operator.plan.kept_pods import with_kept_pods
from mirrorflow_operator.plan.layout import POD_LAYOUT
from mirrorflow_operator.plan.objects import Object, objects
from mirrorflow_operator.plan.plan import ConnectorKind, active_kinds, plan
from mirrorflow_operator.plan.replica_sharing import Shape
from mirrorflow_operator.plan.runs import SparkDefaults
from mirrorflow_operator.reconcile.observe import ObservedFlow
from mirrorflow_operator.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredState:
    """What the pass makes of a flow."""

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
    holding: Holding | None,
    converged: InputsDigest | None,
) -> DesiredState:
    """Returns the desired state; *holding* and *converged* are those of the flow's last pass."""
    resource, flow = observed.resource, admission.flow
    due = decide(flow, resource.status, observed.jobs, holding, observed.now_s)
    if flow is None:
        return DesiredState(due_jobs=due)
    connectors = active_kinds(flow)
    sharing = pods(flow.spec.connectors, connectors, source_waits=due.runs.holds_connector)
    unchanged = DesiredState(due_jobs=due, connectors=connectors, pods=sharing)
    deployments = [child for child in observed.children.values() if child.kind is DEPLOYMENT]
    if admission.has_conflict and not deployments:
        return unchanged  # the flow was never admitted, so it has no pods to stop
    steps = shapes(flow, observed.deployments)
    left = left_alone(flow, sharing, observed.deployments)
    facts = (
        (resource.uid, resource.generation, admission.version, admission.refusal),
        (*steps.items(), left),
        due.runs,
        observed.drivers_alive,
    )
    inputs = InputsDigest.of(facts, observed.children.values())
    if inputs == converged:
        return unchanged
    running = {child.name: child.content() for child in deployments}
    planned = _objects(flow, admission.version, due, settings, steps, running)
    postponed = frozenset(names.object_name(resource.name, kind) for kind in left)
    in_time = in_turn(
        [one for one in planned if one["metadata"]["name"] not in postponed],
        there=frozenset(job.name for job in observed.jobs),
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
    version: str,
    due: DueJobs,
    settings: Settings,
    steps: Mapping[ConnectorKind, Shape],
    running: Mapping[str, Object],
) -> list[Object]:
    """Returns every object the flow should have. *running*: existing Deployments' content, by name."""
    planned_with = partial(
        objects,
        flow,
        plan(flow, POD_LAYOUT),
        image=f"{settings.replicator_image}:{version}",
        layout=POD_LAYOUT,
        shapes=steps,
        verifies=bool(settings.progress_ca),
        source_waits=due.runs.holds_connector,
    )
    found = with_kept_pods(planned_with(), planned_with(has_defaults=False), running)
    if due.runs.holds_connector:
        found = held_back(found, flow)
    defaults = SparkDefaults(image=f"{settings.seed_image}:{version}", account=settings.seed_account)
    return [*found, *job_objects(flow, due.runs, defaults=defaults, layout=POD_LAYOUT)]
