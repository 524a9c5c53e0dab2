"""The fault proxy parses requests to RBAC verbs and resources, and applies faults to matching requests."""

import pytest

from tests.harness.kubernetes.faults import ALWAYS, ApiRequest, Match, Refuse, Rule

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
def test_a_request_is_parsed_to_rbac_verb_and_resource(method: str, target: str, expected: tuple[str, ...]):
    request = ApiRequest.of(method, target)

    assert expected == (request.verb, request.resource, request.group, request.namespace, request.name)


def test_a_renewed_lease_is_not_counted_as_a_write():
    """Leases are renewed periodically, so the number of writes would never settle."""
    path = "/apis/coordination.k8s.io/v1/namespaces/here/leases/operator"

    assert not ApiRequest.of("PATCH", path).is_write
    assert ApiRequest.of("PATCH", f"{DEPLOYMENTS}/one").is_write
    assert not ApiRequest.of("GET", DEPLOYMENTS).is_write


def test_a_rule_applies_after_skip_to_the_next_matching_requests():
    """Only matching requests are counted, including the skipped ones. The fault applies `times` times."""
    rule = Rule(match=Match(verb="patch"), fault=Refuse(500), skip=1, times=2)
    patch, other = ApiRequest(verb="patch", resource="pods"), ApiRequest(verb="list", resource="pods")

    assert [False, False, True, True, False] == [
        rule.applies_to(request) for request in (other, patch, patch, patch, patch)
    ]
    assert rule.hits == 2


def test_a_rule_with_always_applies_to_all_matching_requests():
    """ALWAYS simulates an outage."""
    rule = Rule(match=Match(), fault=Refuse(503), times=ALWAYS)

    assert all(rule.applies_to(ApiRequest(verb="list")) for _ in range(100))
