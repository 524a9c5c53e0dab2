"""Decides which Deployments stay unchanged while a connector moves from one pod to another. Pure.

A pod keeps a connector until another pod runs it and is ready. So changing `colocate`, in either direction,
costs no more than a rolling update, and a new pod that never starts removes nothing. Meanwhile two pods run
the same connector, as in every rolling update.
"""

from collections.abc import Mapping

from mirrorflow_operator.api.spec import MirrorFlow, State
from mirrorflow_operator.assess.observation import DeploymentSeen
from mirrorflow_operator.plan.colocation import Pods, hosts
from mirrorflow_operator.plan.names import connector_word
from mirrorflow_operator.plan.plan import ConnectorKind


def left_alone(
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
