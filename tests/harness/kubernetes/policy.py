"""NetworkPolicies on the node, by nftables: a small stand-in for what a cluster's network plugin enforces.

`python -m tests.harness.kubernetes.policy KUBECONFIG` polls pods, namespaces and policies, and lays down one table in one
transaction whenever they have changed. It knows networking.k8s.io/v1 in both directions: pod and namespace selectors,
ipBlock with except, numbers, names and ranges of ports; IPv4, one node. A test that passes shows what a policy means, not
how a given plugin behaves.
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
Thing = dict[str, Any]


def main(kubeconfig: Path) -> None:
    """Polls for ever; while the API server is away, what was laid down last holds."""
    requests = Requests(kubeconfig)
    laid = ""
    while True:
        try:
            lists = [requests("GET", f"{path}?resourceVersion=0").body["items"] for path in PATHS]
            wanted = Picture.of(*lists).ruleset()
            if wanted != laid:
                subprocess.run(["nft", "-f", "-"], input=wanted.encode(), check=True)
                laid = wanted
        except (OSError, KeyError, subprocess.CalledProcessError) as error:
            print(f"Policies stay as they are: {error}", flush=True)
        time.sleep(POLL_S)


def selects(selector: Thing, labels: Mapping[str, str]) -> bool:
    """Whether a LabelSelector, which the API server has validated, matches."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    return all(_holds(one, labels) for one in selector.get("matchExpressions", ()))


def _holds(expression: Thing, labels: Mapping[str, str]) -> bool:
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


def _labels(thing: Thing) -> Mapping[str, str]:
    return dict(thing["metadata"].get("labels", {}))


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """What was seen at once: pods that have an address of their own, labels of namespaces, policies."""

    pods: Sequence[Thing]
    namespaces: Mapping[str, Mapping[str, str]]
    policies: Sequence[Thing]

    @classmethod
    def of(cls, pods: Sequence[Thing], namespaces: Sequence[Thing], policies: Sequence[Thing]) -> "Picture":
        """From the API server's lists."""
        addressed = [
            one
            for one in pods
            if one["status"].get("podIP")
            and not one["spec"].get("hostNetwork")
            and one["status"]["phase"] not in {"Succeeded", "Failed"}
        ]
        named = {one["metadata"]["name"]: _labels(one) for one in namespaces}
        return cls(pods=addressed, namespaces=named, policies=policies)

    def ruleset(self) -> str:
        """For `nft -f`. Only what is forwarded is judged: the node itself, so the kubelet's probes, always gets through."""
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

    def _policies_of(self, pod: Thing, direction: str) -> list[Thing]:
        return [
            one
            for one in self.policies
            if one["metadata"]["namespace"] == pod["metadata"]["namespace"]
            and direction in one["spec"]["policyTypes"]
            and selects(one["spec"].get("podSelector", {}), _labels(pod))
        ]

    def _rules(self, policy: Thing, pod: Thing, direction: str) -> Iterator[str]:
        """What the policy lets through to or from *pod*."""
        home, ingress = policy["metadata"]["namespace"], direction == "Ingress"
        for rule in policy["spec"].get(direction.lower()) or ():
            peers = rule.get("from" if ingress else "to") or ()
            ports = rule.get("ports") or ()
            if ingress or not any(isinstance(one.get("port"), str) for one in ports):
                networks = self._networks(peers, home)
                if networks is not None and not networks:
                    continue
                far = f"ip {'saddr' if ingress else 'daddr'} "
                where = "" if networks is None else f"{far}{{ {', '.join(networks)} }} "
                yield from (f"{where}{match} return" for match in _port_matches(ports, pod))
                continue
            # A named port is the receiver's: each one's own number.
            for receiver in self._members(peers or ({"namespaceSelector": {}},), home):
                where = f"ip daddr {receiver['status']['podIP']} "
                yield from (f"{where}{match} return" for match in _port_matches(ports, receiver))

    def _members(self, peers: Sequence[Thing], home: str) -> Iterator[Thing]:
        """Pods that any of *peers* means in a policy of the namespace *home*."""
        for pod in self.pods:
            namespace = pod["metadata"]["namespace"]
            for peer in peers:
                if "ipBlock" in peer:
                    continue
                known = self.namespaces.get(namespace, {})
                inside = (
                    selects(peer["namespaceSelector"], known)
                    if "namespaceSelector" in peer
                    else namespace == home
                )
                if inside and selects(peer.get("podSelector", {}), _labels(pod)):
                    yield pod
                    break

    def _networks(self, peers: Sequence[Thing], home: str) -> list[str] | None:
        """Addresses of *peers*; None means any."""
        if not peers:
            return None
        found = {ipaddress.IPv4Network(pod["status"]["podIP"]) for pod in self._members(peers, home)}
        for peer in peers:
            if "ipBlock" in peer:
                found.update(_block(peer["ipBlock"]))
        return [str(one) for one in ipaddress.collapse_addresses(found)]


def _block(block: Thing) -> list[ipaddress.IPv4Network]:
    parts = [ipaddress.IPv4Network(block["cidr"], strict=False)]
    for text in block.get("except", ()):
        hole = ipaddress.IPv4Network(text, strict=False)
        parts = [
            rest
            for part in parts
            for rest in (part.address_exclude(hole) if hole.subnet_of(part) else (part,))
        ]
    return parts


def _port_matches(ports: Sequence[Thing], receiver: Thing) -> list[str]:
    """nft's words for *ports*; names are those of *receiver*'s containers."""
    if not ports:
        return [""]
    found = []
    for one in ports:
        protocol, number = one.get("protocol", "TCP").lower(), one.get("port")
        if isinstance(number, str):
            known = (port for part in receiver["spec"]["containers"] for port in part.get("ports", ()))
            number = next((port["containerPort"] for port in known if port.get("name") == number), None)
            if number is None:
                continue
        if number is None:
            found.append(f"meta l4proto {protocol}")
        else:
            end = f"-{one['endPort']}" if "endPort" in one else ""
            found.append(f"{protocol} dport {number}{end}")
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
