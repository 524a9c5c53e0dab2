"""Connectors on their way from one pod into another: which Deployments are left as they are until it is done. Pure.

A pod that has a connector to lose keeps it until another one runs it, ready. So `colocate` costs no more than a roll, whichever
way it is changed, and a new pod that never starts takes nothing away. Two that run one connector meanwhile are what every roll has.
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
    """By connector's word the *deployments* that there are, of which those are left alone that run what nobody else runs yet."""
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
            if homes.get(word, own) != own  # nobody waits for one that has no work any more
        )
    )


def deployment_of(
    kind: ConnectorKind, wanted: Pods, deployments: Mapping[str, DeploymentSeen]
) -> DeploymentSeen | None:
    """The one that runs *kind*, or is to; one that it is about to leave only where there is no other."""
    word = connector_word(kind)
    home = deployments.get(connector_word(hosts(wanted).get(kind, kind)))
    if home is not None:
        return home
    return next((one for one in deployments.values() if word in one.connectors), None)


def is_moving(
    kind: ConnectorKind, home: DeploymentSeen | None, deployments: Mapping[str, DeploymentSeen]
) -> bool:
    """Whether another Deployment than *home* runs *kind*, or *home* does not yet."""
    word = connector_word(kind)
    running = [one for one in deployments.values() if word in one.connectors]
    return bool(running) and running != [home]


def _has(home: DeploymentSeen | None, word: str) -> bool:
    """Whether pods of *home* run the connector, all of them by the newest template; one that is to have no pods is not waited for."""
    if home is None or word not in home.connectors or home.observed_generation < home.generation:
        return False
    return home.wanted == 0 or (home.updated == home.replicas and home.ready >= home.wanted)
