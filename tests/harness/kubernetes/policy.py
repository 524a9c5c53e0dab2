"""Enforces NetworkPolicies on the node with nftables, as a small replacement of a network plugin.

`python -m tests.harness.kubernetes.policy KUBECONFIG` polls pods, namespaces and policies. After a change, it replaces
one table in one transaction. It implements networking.k8s.io/v1 in both directions, with pod and namespace selectors,
ipBlock with except, and numbers, names and ranges of ports, for IPv4 on one node. A passing test shows what a policy
means, not how a plugin behaves.
"""

import ipaddress
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.kubernetes.requests import Requests

POLL_S = 0.5
PATHS = ("/api/v1/pods", "/api/v1/namespaces", "/apis/networking.k8s.io/v1/networkpolicies")
TABLE = "mirrorflow-policies"
Object = dict[str, Any]


def main(kubeconfig: Path) -> None:
    """Polls until killed. While the API server does not respond, the last rules stay."""
    requests = Requests(kubeconfig)
    applied = ""
    while True:
        try:
            lists = [requests("GET", f"{path}?resourceVersion=0").body["items"] for path in PATHS]
            ruleset = ClusterState.of(*lists).ruleset()
            if ruleset != applied:
                subprocess.run(["nft", "-f", "-"], input=ruleset.encode(), check=True)
                applied = ruleset
        except (OSError, KeyError, subprocess.CalledProcessError) as error:
            print(f"Policies are unchanged: {error}", flush=True)
        time.sleep(POLL_S)


def selects(selector: Object, labels: Mapping[str, str]) -> bool:
    """Returns whether a LabelSelector, which the API server has validated, matches."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    return all(_holds(expression, labels) for expression in selector.get("matchExpressions", ()))


def _holds(expression: Object, labels: Mapping[str, str]) -> bool:
    key = expression["key"]
    match expression["operator"]:
        case "In":
            return labels.get(key) in expression["values"]
        case "NotIn":
            return labels.get(key) not in expression["values"]
        case "Exists":
            return key in labels
        case _:
            return key not in labels


def _labels(thing: Object) -> Mapping[str, str]:
    return dict(thing["metadata"].get("labels", {}))


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterState:
    """The pods with their own address, the labels of namespaces, and the policies at one time."""

    pods: Sequence[Object]
    namespaces: Mapping[str, Mapping[str, str]]
    policies: Sequence[Object]

    @classmethod
    def of(
        cls, pods: Sequence[Object], namespaces: Sequence[Object], policies: Sequence[Object]
    ) -> "ClusterState":
        """Creates the state from the API server's lists."""
        pods_with_address = [
            pod
            for pod in pods
            if pod["status"].get("podIP")
            and not pod["spec"].get("hostNetwork")
            and pod["status"]["phase"] not in {"Succeeded", "Failed"}
        ]
        labels_by_namespace = {namespace["metadata"]["name"]: _labels(namespace) for namespace in namespaces}
        return cls(pods=pods_with_address, namespaces=labels_by_namespace, policies=policies)

    def ruleset(self) -> str:
        """Returns the rules for `nft -f`.

        They apply only to forwarded traffic, so that the kubelet's probes always pass.
        """
        chains: list[str] = []
        jumps: list[str] = []
        for direction, own in (("Ingress", "daddr"), ("Egress", "saddr")):
            for pod in self.pods:
                policies = self._policies_of(pod, direction)
                if policies:
                    address = pod["status"]["podIP"]
                    chain = f"{direction}-{address.replace('.', '-')}"
                    rules = [rule for policy in policies for rule in self._rules(policy, pod, direction)]
                    chains += [f"chain {chain} {{", *rules, "counter drop", "}"]
                    jumps.append(f"ip {own} {address} jump {chain}")
        forward = "type filter hook forward priority filter - 1; policy accept;"
        return "\n".join(
            (
                f"table inet {TABLE}",
                f"delete table inet {TABLE}",
                f"table inet {TABLE} {{",
                *chains,
                "chain forward {",
                forward,
                "ct state established,related accept",
                *jumps,
                "}",
                "}",
                "",
            )
        )

    def _policies_of(self, pod: Object, direction: str) -> list[Object]:
        return [
            policy
            for policy in self.policies
            if policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
            and direction in policy["spec"]["policyTypes"]
            and selects(policy["spec"].get("podSelector", {}), _labels(pod))
        ]

    def _rules(self, policy: Object, pod: Object, direction: str) -> Iterator[str]:
        """Yields the rules for what the policy allows to or from *pod*."""
        home, ingress = policy["metadata"]["namespace"], direction == "Ingress"
        for rule in policy["spec"].get(direction.lower()) or ():
            peers = rule.get("from" if ingress else "to") or ()
            ports = rule.get("ports") or ()
            if ingress or not any(isinstance(port.get("port"), str) for port in ports):
                networks = self._networks(peers, home)
                if networks is not None and not networks:
                    continue
                match_peer = f"ip {'saddr' if ingress else 'daddr'} "
                match_networks = "" if networks is None else f"{match_peer}{{ {', '.join(networks)} }} "
                yield from (f"{match_networks}{match} return" for match in _port_matches(ports, pod))
                continue
            # The receiving pod defines the number of a named port, which may differ from pod to pod.
            for receiver in self._members(peers or ({"namespaceSelector": {}},), home):
                match_networks = f"ip daddr {receiver['status']['podIP']} "
                yield from (f"{match_networks}{match} return" for match in _port_matches(ports, receiver))

    def _members(self, peers: Sequence[Object], home: str) -> Iterator[Object]:
        """Yields the pods that match any of *peers* in a policy of the namespace *home*."""
        for pod in self.pods:
            namespace = pod["metadata"]["namespace"]
            for peer in peers:
                if "ipBlock" in peer:
                    continue
                labels = self.namespaces.get(namespace, {})
                in_namespace = (
                    selects(peer["namespaceSelector"], labels)
                    if "namespaceSelector" in peer
                    else namespace == home
                )
                if in_namespace and selects(peer.get("podSelector", {}), _labels(pod)):
                    yield pod
                    break

    def _networks(self, peers: Sequence[Object], home: str) -> list[str] | None:
        """Returns the addresses of *peers*. None means any address."""
        if not peers:
            return None
        networks = {ipaddress.IPv4Network(pod["status"]["podIP"]) for pod in self._members(peers, home)}
        for peer in peers:
            if "ipBlock" in peer:
                networks.update(_networks_of_block(peer["ipBlock"]))
        return [str(network) for network in ipaddress.collapse_addresses(networks)]


def _networks_of_block(block: Object) -> list[ipaddress.IPv4Network]:
    parts = [ipaddress.IPv4Network(block["cidr"], strict=False)]
    for text in block.get("except", ()):
        exception = ipaddress.IPv4Network(text, strict=False)
        parts = [
            rest
            for part in parts
            for rest in (part.address_exclude(exception) if exception.subnet_of(part) else (part,))
        ]
    return parts


def _port_matches(ports: Sequence[Object], receiver: Object) -> list[str]:
    """Returns nftables expressions for *ports*. The name of a port is resolved in the containers of *receiver*."""
    if not ports:
        return [""]
    matches = []
    for port in ports:
        protocol, number = port.get("protocol", "TCP").lower(), port.get("port")
        if isinstance(number, str):
            container_ports = (
                container_port
                for container in receiver["spec"]["containers"]
                for container_port in container.get("ports", ())
            )
            number = next(
                (
                    container_port["containerPort"]
                    for container_port in container_ports
                    if container_port.get("name") == number
                ),
                None,
            )
            if number is None:
                continue
        if number is None:
            matches.append(f"meta l4proto {protocol}")
        else:
            end = f"-{port['endPort']}" if "endPort" in port else ""
            matches.append(f"{protocol} dport {number}{end}")
    return matches


if __name__ == "__main__":
    main(Path(sys.argv[1]))
