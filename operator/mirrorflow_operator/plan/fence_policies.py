"""Builds the NetworkPolicies that fence the brokers of a pair, one for each member. Pure.

They are created before a fence is set, and select no pod until then: their selector requires a label that no pod has. The process of a
Switchover turns that requirement round (replicator, switchover/network_policy_fence.py), and an admission policy of the chart lets it
change nothing else. So which pods are fenced, and who may still reach them, is the operator's content.

As the other objects of a Switchover, they have no owner: a fence stays when the pair is deleted.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from mirrorflow_core.switchover.fence_policies import NOT_FENCED, NOT_FENCED_LABEL, policy_name
from mirrorflow_operator.api.mirror_pair import FencePeer, MirrorPair, NetworkFence
from mirrorflow_operator.plan import names

FENCE_POLICIES_FILE: Final = "fence-policies.json"  # in the ConfigMap of a Switchover
DIGEST_ANNOTATION: Final = "mirrorflow.io/fence-digest"  # of what a policy does when it is in force
PORT_MAX: Final = 65_535
Object = dict[str, Any]


def fence_policies(pair: MirrorPair) -> dict[str, Object]:
    """Returns the NetworkPolicy of each member by its alias, not in force; none for other methods."""
    fence = pair.spec.fence.network_policy
    if fence is None:
        return {}
    return {alias: _policy(pair, fence, alias) for alias in pair.spec.members}


def is_in_force(policy: Object) -> bool:
    """Whether a NetworkPolicy of a fence, as the API server has it, selects pods."""
    expressions = ((policy.get("spec") or {}).get("podSelector") or {}).get("matchExpressions") or ()
    return list(expressions) != [{"key": NOT_FENCED_LABEL, "operator": NOT_FENCED}]


def fence_selector(pair: str) -> str:
    """Returns the label selector of the NetworkPolicies of the fence of a pair."""
    return f"{names.PAIR_LABEL}={pair},{names.FENCE_LABEL}"


def open_ports(closed: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields the ranges of ports, first and last, that *closed* leaves."""
    first = 1
    for port in sorted(set(closed)):
        if port > first:
            yield first, port - 1
        first = port + 1
    if first <= PORT_MAX:
        yield first, PORT_MAX


def _policy(pair: MirrorPair, fence: NetworkFence, alias: str) -> Object:
    name = pair.metadata.name
    brokers = dict(fence.brokers[alias])
    ingress = [
        # All ports but those of applications: brokers among each other, metrics.
        {"ports": [_ports(first, last) for first, last in open_ports(fence.ports)]},
        {"from": [*_own_peers(pair, brokers), *(_peer(peer) for peer in fence.allowed)]},
    ]
    digest = hashlib.sha256(json.dumps([brokers, ingress], sort_keys=True).encode()).hexdigest()
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": policy_name(name, pair.spec.members[alias].flow),
            "namespace": pair.metadata.namespace,
            "labels": {
                "app.kubernetes.io/name": "mirrorflow-fence",
                "app.kubernetes.io/instance": name,
                names.MANAGED_BY: names.MANAGER,
                "app.kubernetes.io/component": "switchover-fence",
                names.PAIR_LABEL: name,
                names.FENCE_LABEL: pair.spec.members[alias].flow,
            },
            "annotations": {DIGEST_ANNOTATION: digest},
        },
        "spec": {
            "podSelector": {
                "matchLabels": brokers,
                "matchExpressions": [{"key": NOT_FENCED_LABEL, "operator": NOT_FENCED}],
            },
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    }


def _own_peers(pair: MirrorPair, brokers: Object) -> Iterator[Object]:
    """Yields who reaches fenced brokers without being allowed by the user: brokers, the flows, their Spark jobs, and Switchovers."""
    yield {"podSelector": {"matchLabels": brokers}}
    flows = sorted(member.flow for member in pair.spec.members.values())
    for label in (names.FLOW_LABEL, names.RUN_OF_LABEL):
        yield {"podSelector": {"matchExpressions": [{"key": label, "operator": "In", "values": flows}]}}
    yield {"podSelector": {"matchLabels": {names.PAIR_LABEL: pair.metadata.name}}}


def _peer(peer: FencePeer) -> Object:
    if peer.cidr is not None:
        return {"ipBlock": {"cidr": peer.cidr}}
    selectors = {"podSelector": peer.pod_labels, "namespaceSelector": peer.namespace_labels}
    return {name: {"matchLabels": dict(labels)} for name, labels in selectors.items() if labels is not None}


def _ports(first: int, last: int) -> Object:
    end = {"endPort": last} if last > first else {}
    return {"port": first, **end, "protocol": "TCP"}
