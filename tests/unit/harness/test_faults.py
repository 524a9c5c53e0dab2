"""The fault proxy names requests as RBAC does, and applies faults to the matching ones."""

import pytest

from tests.harness.kubernetes.faults import ALWAYS, Ask, Match, Refuse, Rule

DEPLOYMENTS = "/apis/apps/v1/namespaces/here/deployments"


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("GET", "/api/v1/pods?labelSelector=a", ("list", "pods", "", "", "")),
        ("GET", "/api/v1/namespaces/here/pods?watch=true", ("watch", "pods", "", "here", "")),
        ("GET", "/api/v1/namespaces/here", ("get", "namespaces", "", "", "here")),
        ("PUT", "/api/v1/namespaces/here/status", ("update", "namespaces/status", "", "", "here")),
        ("PATCH", f"{DEPLOYMENTS}/one?force=true", ("patch", "deployments", "apps", "here", "one")),
        ("PATCH", f"{DEPLOYMENTS}/one/status", ("patch", "deployments/status", "apps", "here", "one")),
        ("DELETE", f"{DEPLOYMENTS}/one", ("delete", "deployments", "apps", "here", "one")),
        ("DELETE", DEPLOYMENTS, ("deletecollection", "deployments", "apps", "here", "")),
        ("POST", DEPLOYMENTS, ("create", "deployments", "apps", "here", "")),
        ("GET", "/version", ("get", "", "", "", "")),
    ],
)
def test_requests_have_the_names_of_rbac(method: str, target: str, expected: tuple[str, ...]):
    """Verb, resource with its subresource, group, namespace, name."""
    ask = Ask.of(method, target)

    assert expected == (ask.verb, ask.resource, ask.group, ask.namespace, ask.name)


def test_a_lease_is_no_write():
    """Who holds one writes for ever: a count of writes would never end."""
    path = "/apis/coordination.k8s.io/v1/namespaces/here/leases/operator"

    assert not Ask.of("PATCH", path).is_write
    assert Ask.of("PATCH", f"{DEPLOYMENTS}/one").is_write
    assert not Ask.of("GET", DEPLOYMENTS).is_write


def test_a_rule_strikes_the_nth_request_that_matches():
    """Skipped requests count, requests that do not match do not, and the fault applies `times` times."""
    rule = Rule(match=Match(verb="patch"), fault=Refuse(500), skip=1, times=2)
    patch, other = Ask(verb="patch", resource="pods"), Ask(verb="list", resource="pods")

    assert [False, False, True, True, False] == [
        rule.strikes(one) for one in (other, patch, patch, patch, patch)
    ]
    assert rule.struck == 2


def test_a_rule_may_strike_for_ever():
    """ALWAYS is for outages."""
    rule = Rule(match=Match(), fault=Refuse(503), times=ALWAYS)

    assert all(rule.strikes(Ask(verb="list")) for _ in range(100))
