"""Decides each Deployment's next step towards the spec: form, number of pods, and moves between pods. Pure.

A pod keeps a connector until another pod runs it and is ready. So changing `colocate`, in either direction,
costs no more than a rolling update, and a new pod that never starts removes nothing. Meanwhile two pods run
the same connector, as in every rolling update.
"""

from collections.abc import Mapping

from mirrorflow_operator.api.spec import MirrorFlow, State
from mirrorflow_operator.plan.colocation import Pods, connector_spec, hosts
from mirrorflow_operator.plan.names import connector_word
from mirrorflow_operator.plan.plan import ConnectorKind
from mirrorflow_operator.plan.pod import FORMS
from mirrorflow_operator.plan.replica_sharing import Live, Shape, next_shape, shape_of
from mirrorflow_operator.status.observation import DeploymentSeen


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


def postponed_connectors(
    flow: MirrorFlow, wanted: Pods, deployments: Mapping[str, DeploymentSeen]
) -> frozenset[ConnectorKind]:
    """Returns the connectors whose old Deployment must stay until the new pod is ready.

    *deployments*: the existing ones, by `connector_word`.
    """
    if flow.spec.state is State.STOPPED:
        return frozenset()
    homes = {connector_word(kind): connector_word(host) for kind, host in hosts(wanted).items()}
    return frozenset(
        kind
        for kind in ConnectorKind
        if (live := deployments.get(own := connector_word(kind))) is not None
        and live.wanted
        and any(
            not _has(deployments.get(homes[word]), word)
            for word in live.connectors
            if homes.get(word, own) != own  # a connector that is no longer planned is not waited for
        )
    )


def deployment_of(
    kind: ConnectorKind, wanted: Pods, deployments: Mapping[str, DeploymentSeen]
) -> DeploymentSeen | None:
    """Returns the Deployment planned for *kind*; the one it leaves only if the planned one does not exist."""
    word = connector_word(kind)
    home = deployments.get(connector_word(hosts(wanted).get(kind, kind)))
    if home is not None:
        return home
    return next((one for one in deployments.values() if word in one.connectors), None)


def is_moving(
    kind: ConnectorKind, home: DeploymentSeen | None, deployments: Mapping[str, DeploymentSeen]
) -> bool:
    """Whether a Deployment other than *home* runs *kind*, which is then on its way."""
    word = connector_word(kind)
    running = [one for one in deployments.values() if word in one.connectors]
    return bool(running) and running != [home]


def _has(home: DeploymentSeen | None, word: str) -> bool:
    """Whether all pods of *home* run the connector from the newest template and are ready.

    Also True where *home* is planned to have no pods.
    """
    if home is None or word not in home.connectors or home.observed_generation < home.generation:
        return False
    return home.wanted == 0 or (home.updated == home.replicas and home.ready >= home.wanted)
