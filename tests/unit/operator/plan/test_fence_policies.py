"""The NetworkPolicies of a fence; `MIRRORFLOW_REWRITE_GOLDENS=1` rewrites the golden file."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_core.switchover.fence_policies import FENCED, NOT_FENCED_LABEL
from mirrorflow_operator.plan.fence_policies import (
    FENCE_POLICIES_FILE,
    fence_policies,
    is_in_force,
    open_ports,
)
from mirrorflow_operator.plan.prepared_objects import digests_in, text_digest
from mirrorflow_replicator.switchover.job_settings import load_switchover_job
from mirrorflow_replicator.switchover.network_policy_fence import FencePolicy, NetworkFenceSettings
from mirrorflow_replicator.switchover.pair_settings import FenceKind
from tests.harness.goldens import check_golden, yaml_text
from tests.harness.kubernetes.policy import ClusterState
from tests.unit.operator.pairs import NAMESPACE, mirror_pair
from tests.unit.operator.plan.test_switchover_objects import objects, pod, request

GOLDEN = Path(__file__).parent / "golden" / "fences.objects.yaml"
FENCE: dict[str, Any] = {
    "brokers": {"east": {"strimzi.io/cluster": "east"}, "west": {"strimzi.io/cluster": "west"}},
    "ports": [9092, 9094],
    "allowed": [
        {"podLabels": {"app": "backup"}},
        {"namespaceLabels": {"team": "ops"}},
        {"podLabels": {"app": "audit"}, "namespaceLabels": {"team": "ops"}},
        {"cidr": "10.9.0.0/16"},
    ],
}
BROKER, OTHER_BROKER, MIRROR, MOVER, BACKUP, PRODUCER = (f"10.0.0.{number}" for number in range(1, 7))


def pair(**fence: Any) -> Any:
    return mirror_pair(fence={"method": "NetworkPolicy", "networkPolicy": {**FENCE, **fence}})


def in_force(policy: dict[str, Any]) -> dict[str, Any]:
    """Returns *policy* after the patch of a Switchover."""
    changed = copy.deepcopy(policy)
    changed["spec"]["podSelector"]["matchExpressions"] = [{"key": NOT_FENCED_LABEL, "operator": FENCED}]
    return changed


def ruleset(*policies: dict[str, Any]) -> list[str]:
    """Returns the rules of a network plugin for two brokers of east, pods of the mirror, and applications."""
    labels = {
        BROKER: {"strimzi.io/cluster": "east"},
        OTHER_BROKER: {"strimzi.io/cluster": "east"},
        MIRROR: {"mirrorflow.io/flow": "west-to-east"},
        MOVER: {"mirrorflow.io/pair": "east-west"},
        BACKUP: {"app": "backup"},
        PRODUCER: {"app": "shop"},
    }
    pods = [
        {
            "metadata": {"namespace": NAMESPACE, "labels": of_pod},
            "spec": {"containers": []},
            "status": {"podIP": address, "phase": "Running"},
        }
        for address, of_pod in labels.items()
    ]
    namespaces = [{"metadata": {"name": NAMESPACE}}]
    return ClusterState.of(pods, namespaces, policies).ruleset().splitlines()


def test_the_policies_of_a_fence_are_those_of_the_golden_file():
    check_golden(GOLDEN, yaml_text(list(fence_policies(pair()).values())))


def test_a_prepared_policy_selects_no_pod():
    assert [] == [line for line in ruleset(*fence_policies(pair()).values()) if "chain Ingress" in line]


def test_a_policy_in_force_closes_the_ports_of_applications_to_all_but_the_allowed():
    """Each broker of that member has the same rules; those of the other member have none."""
    rules = ruleset(in_force(fence_policies(pair(allowed=[{"podLabels": {"app": "backup"}}]))["east"]))

    chain = rules[rules.index("chain Ingress-10-0-0-1 {") : rules.index("chain Ingress-10-0-0-2 {")]
    (peers,) = [line for line in chain if "saddr" in line]
    assert ["tcp dport 1-9091 return", "tcp dport 9093 return", "tcp dport 9095-65535 return"] == [
        line for line in chain if "dport" in line
    ]
    assert "counter drop" in chain
    # Addresses side by side are one network: the brokers, the mirror and the Switchover, and the backup; not the producer.
    assert "ip saddr { 10.0.0.1/32, 10.0.0.2/31, 10.0.0.4/31 }  return" == peers.strip()


@pytest.mark.parametrize(
    ("closed", "expected"),
    [
        ([9092], [(1, 9091), (9093, 65_535)]),
        ([9093, 9092], [(1, 9091), (9094, 65_535)]),
        ([1, 65_535], [(2, 65_534)]),
    ],
)
def test_all_ports_but_the_closed_ones_stay_open(closed: list[int], expected: list[tuple[int, int]]):
    assert expected == list(open_ports(closed))


def test_a_policy_is_in_force_unless_it_is_as_prepared():
    """A policy that someone has changed is not taken for one that may be replaced."""
    prepared = fence_policies(pair())["east"]
    edited = copy.deepcopy(prepared)
    edited["spec"]["podSelector"] = {}

    assert [False, True, True] == [is_in_force(policy) for policy in (prepared, in_force(prepared), edited)]


def test_the_digest_is_of_what_a_policy_does():
    def digests(**fence: Any) -> list[str]:
        policies = fence_policies(pair(**fence)).values()
        return [policy["metadata"]["annotations"]["mirrorflow.io/fence-digest"] for policy in policies]

    assert digests() == digests(settleSeconds=8)
    assert not set(digests()) & set(digests(ports=[9092]))
    assert not set(digests()) & set(digests(allowed=[]))


def test_the_job_of_a_switchover_knows_the_policies_and_has_a_token():
    planned = objects(pair(settleSeconds=3))
    text = planned[0]["data"][FENCE_POLICIES_FILE]

    fence = request(planned)["networkFence"]
    assert {FENCE_POLICIES_FILE: text_digest(text)} == digests_in(planned[-1]["metadata"]["annotations"])
    assert pod(planned)["automountServiceAccountToken"]
    assert (NAMESPACE, 3) == (fence["namespace"], fence["settleSeconds"])
    assert (
        [policy["metadata"]["name"] for policy in json.loads(text)]
        == [
            "east-west-fence-east-to-west",
            "east-west-fence-west-to-east",
        ]
        == [policy["name"] for policy in fence["policies"].values()]
    )


def test_the_process_reads_the_policies_that_the_operator_has_planned(tmp_path: Path):
    planned = objects(pair(settleSeconds=3))
    for name, text in planned[0]["data"].items():
        (tmp_path / name).write_text(text)

    settings = load_switchover_job(tmp_path).settings

    policies = {
        alias: FencePolicy(
            name=policy["metadata"]["name"],
            digest=policy["metadata"]["annotations"]["mirrorflow.io/fence-digest"],
        )
        for alias, policy in fence_policies(pair()).items()
    }
    assert FenceKind.NETWORK_POLICY is settings.fence
    assert settings.fence_hook == NetworkFenceSettings(
        namespace=NAMESPACE, source="east", policies=policies, settle_s=3.0
    )


def test_other_fences_have_no_policies():
    assert {} == fence_policies(mirror_pair())
    assert "networkFence" not in request(objects())
