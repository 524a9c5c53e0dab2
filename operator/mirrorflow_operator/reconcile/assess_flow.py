"""Step 6 of a pass: assesses what was observed, including the pass's own writes."""

from collections.abc import Iterator
from typing import Final

from mirrorflow_operator.errors import OperatorError
from mirrorflow_operator.plan import names
from mirrorflow_operator.plan.colocation import pod_kind
from mirrorflow_operator.plan.plan import ConnectorKind
from mirrorflow_operator.reconcile.desired_state import DesiredState
from mirrorflow_operator.reconcile.observe import ObservedFlow
from mirrorflow_operator.settings import Settings
from mirrorflow_operator.status.admission import Admission
from mirrorflow_operator.status.assess import Assessment, assess
from mirrorflow_operator.status.observation import FRESH_S, AssessmentMemory, ConnectorSeen, Observation
from mirrorflow_operator.status.rollout_steps import deployment_of, is_moving

FRESH_POLLS: Final = 3  # a reading counts as current for this many poll intervals


def assess_flow(
    observed: ObservedFlow,
    admission: Admission,
    desired: DesiredState,
    settings: Settings,
    memory: AssessmentMemory,
    failure: OperatorError | None,
) -> Assessment:
    """Returns the status that follows from this pass; *failure*: why a write of it failed."""
    observation = Observation(
        resource=observed.resource,
        admission=admission,
        now_s=observed.now_s,
        connectors=tuple(_connectors(observed, admission, desired)),
        jobs=observed.jobs,
        schedule=observed.schedule,
        runs=desired.due_jobs.runs,
        memory=memory,
        refusal="" if failure is None else str(failure),
        settle_s=settings.settle_s,
        fresh_s=max(FRESH_S, FRESH_POLLS * settings.poll_s),
    )
    return assess(observation)


def _connectors(
    observed: ObservedFlow, admission: Admission, desired: DesiredState
) -> Iterator[ConnectorSeen]:
    """Yields the connectors that are planned or still exist."""
    flow, deployments = admission.flow, observed.deployments
    for kind in ConnectorKind:
        word, home = names.connector_word(kind), deployment_of(kind, desired.pods, deployments)
        if home is None and kind not in desired.connectors and word not in observed.pods:
            continue
        yield ConnectorSeen(
            kind=kind,
            deployment=home,
            pods=observed.pods.get(word, ()),
            said_in=None if flow is None else pod_kind(flow.spec.connectors, kind),
            is_moving=is_moving(kind, home, deployments),
        )
