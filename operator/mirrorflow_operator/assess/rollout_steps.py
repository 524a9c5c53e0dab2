"""Decides the next form and number of each connector's pods on the way to what the spec wants. Pure."""

from collections.abc import Mapping

from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.assess.observation import DeploymentSeen
from mirrorflow_operator.plan.colocation import connector_spec
from mirrorflow_operator.plan.names import connector_word
from mirrorflow_operator.plan.plan import ConnectorKind
from mirrorflow_operator.plan.pod import FORMS
from mirrorflow_operator.plan.replica_sharing import Live, Shape, next_shape, shape_of


def shapes(flow: MirrorFlow, deployments: Mapping[str, DeploymentSeen]) -> dict[ConnectorKind, Shape]:
    """Returns the shape each connector's pods have in the next step.

    *deployments*: the existing ones, by `connector_word`.
    """
    found = {}
    for kind in ConnectorKind:
        wanted = shape_of(flow, connector_spec(flow.spec.connectors, kind))
        found[kind] = next_shape(wanted, _live(deployments.get(connector_word(kind))))
    return found


def _live(seen: DeploymentSeen | None) -> Live | None:
    if seen is None:
        return None
    # Readiness is ignored: a rollout whose pods never become ready must be reversible.
    is_rolling = (
        seen.observed_generation < seen.generation
        or seen.updated < seen.wanted
        or seen.replicas > min(seen.updated, seen.wanted)
    )
    shape = Shape(is_shared=seen.form == FORMS[True], replicas=seen.wanted)
    return Live(shape=shape, is_rolling=is_rolling)
