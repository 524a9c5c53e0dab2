"""The definition of MirrorFlows on a real API server: rules about changes, defaults, columns, subresources, joint lists."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from mirrorflow_operator.api.spec import Spec
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.kubectl import Kubectl, KubectlError

NAME = "east-to-west"
SMALLEST: dict[str, Any] = {
    "apiVersion": "mirrorflow.io/v1alpha1",
    "kind": "MirrorFlow",
    "metadata": {"name": NAME},
    "spec": {
        "source": {"alias": "east", "bootstrapServers": ["kafka-east:9092"]},
        "target": {"alias": "west", "bootstrapServers": ["kafka-west:9092"]},
    },
}


def _flow(**spec: Any) -> dict[str, Any]:
    flow = copy.deepcopy(SMALLEST)
    flow["spec"] |= spec
    return flow


@pytest.fixture
def cluster(mirrorflows: ApiServer, namespace: Kubectl) -> Kubectl:
    """kubectl in the test's own namespace of a server that knows MirrorFlows."""
    return mirrorflows.kubectl.within(namespace.namespace)


def test_the_definition_is_accepted_without_reserve(mirrorflows: ApiServer):
    """Established, all names its own, and no word on a schema that is not structural."""
    found = mirrorflows.kubectl.get("crd", "mirrorflows.mirrorflow.io")["status"]["conditions"]

    assert {"Established": "True", "NamesAccepted": "True"} == {one["type"]: one["status"] for one in found}


@pytest.mark.parametrize(
    ("first", "then", "field"),
    [
        ({}, {"source": {"alias": "north", "bootstrapServers": ["kafka-east:9092"]}}, "spec.source.alias"),
        ({}, {"target": {"alias": "north", "bootstrapServers": ["kafka-west:9092"]}}, "spec.target.alias"),
        ({}, {"topics": {"naming": {"policy": "Identity"}}}, "spec.topics.naming"),
        ({}, {"topics": {"naming": {"separator": "-"}}}, "spec.topics.naming"),
        ({"topics": {"naming": {"policy": "Identity"}}}, {}, "spec.topics.naming"),
        ({}, {"offsetSyncs": {"location": "Source"}}, "spec.offsetSyncs.location"),
        ({"offsetSyncs": {"location": "Source"}}, {}, "spec.offsetSyncs.location"),
    ],
    ids=["source", "target", "policy", "separator", "policy-left-out", "syncs", "syncs-left-out"],
)
def test_what_names_topics_never_changes(
    cluster: Kubectl, first: dict[str, Any], then: dict[str, Any], field: str
):
    """A flow that writes elsewhere under its old positions would leave a hole; leaving a word out changes it, too."""
    cluster.apply(_flow(**first))

    with pytest.raises(KubectlError, match=rf"{field}: .*it is immutable"):
        cluster.apply(_flow(**then))


def test_anything_else_may_change(cluster: Kubectl):
    """Addresses move, topics are added, a flow is paused."""
    cluster.apply(_flow())
    cluster.apply(
        _flow(
            state="Paused",
            source={"alias": "east", "bootstrapServers": ["kafka-new:9092"]},
            topics={"include": ["orders"], "onSourceLoss": "Alert"},
        )
    )

    assert cluster.get("mirrorflow", NAME)["metadata"]["generation"] == 2


def test_defaults_arrive(cluster: Kubectl):
    """What is stored shows each default that is one, and our types read it as they read what the user wrote."""
    cluster.apply(SMALLEST)

    stored = cluster.get("mirrorflow", NAME)["spec"]

    assert stored["state"] == "Running"
    assert stored["topics"] == {
        "naming": {"policy": "Prefix", "separator": "."},
        "startFrom": {"position": "Earliest"},
        "onSourceLoss": "Fail",
        "replicationFactor": -1,
        "configs": {"sync": "Apply"},
        "acls": {"sync": "Off"},
    }
    assert [stored["connectors"][name]["replicas"] for name in ("source", "checkpoint", "heartbeat")] == [
        1,
        1,
        1,
    ]
    assert "seed" not in stored
    assert "verify" not in stored
    assert Spec.model_validate(stored) == Spec.model_validate(SMALLEST["spec"])


def test_every_field_is_explained(mirrorflows: ApiServer):
    """`kubectl explain` has a sentence for each; it reads what the server publishes."""

    def schema() -> dict[str, Any]:
        kubectl = mirrorflows.kubectl
        published = kubectl.read("/openapi/v3/apis/mirrorflow.io/v1alpha1")["components"]["schemas"]
        return dict(published.get("io.mirrorflow.v1alpha1.MirrorFlow", {}))

    found = wait_until("the server publishes the schema", schema)
    silent = [path for path, node in _fields(found) if not node.get("description")]

    assert [] == silent
    assert "Names or regexes" in mirrorflows.kubectl("explain", "mirrorflow.spec.topics.include")


def _fields(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, one in node.get("properties", {}).items():
        if path or name in {"spec", "status"}:
            yield f"{path}.{name}", one
            yield from _fields(one, f"{path}.{name}")
    if "items" in node:
        yield from _fields(node["items"], f"{path}[]")


def test_a_list_of_flows_says_what_is_wrong(cluster: Kubectl):
    """Ready and its reason at a glance, the sentence with -o wide; the short name serves."""
    cluster.apply(SMALLEST)
    condition = {
        "type": "Ready",
        "status": "False",
        "reason": "Stuck",
        "message": "No record in 5 min.",
        "lastTransitionTime": "2026-01-31T00:00:00Z",
    }
    _write_status(cluster, {"conditions": [condition], "lag": "<1m"})

    short, wide = cluster("get", "mf").splitlines(), cluster("get", "mf", "--output=wide").splitlines()

    assert short[0].split() == ["NAME", "SOURCE", "TARGET", "STATE", "READY", "REASON", "LAG", "AGE"]
    assert short[1].split()[:7] == [NAME, "east", "west", "Running", "False", "Stuck", "<1m"]
    assert wide[0].split()[-2:] == ["VERSION", "MESSAGE"]
    assert "No record in 5 min." in wide[1]
    assert NAME in cluster("get", "mirrorflow")


def test_status_is_written_apart(cluster: Kubectl):
    """The operator's writes leave the spec and its generation alone, a user's leave the status alone."""
    cluster.apply(SMALLEST)
    _write_status(cluster, {"observedGeneration": 1, "lag": "0"}, spec={"state": "Stopped"})
    after_status = cluster.get("mirrorflow", NAME)

    cluster(
        "patch",
        "mirrorflow",
        NAME,
        "--type=merge",
        '--patch={"spec":{"state":"Paused"},"status":{"lag":"more"}}',
    )
    after_spec = cluster.get("mirrorflow", NAME)

    assert (after_status["spec"]["state"], after_status["metadata"]["generation"]) == ("Running", 1)
    assert (after_spec["status"]["lag"], after_spec["metadata"]["generation"]) == ("0", 2)


def test_kubectl_scale_reaches_the_source_connector(cluster: Kubectl):
    """And an autoscaler reads how many pods there are, and which."""
    cluster.apply(SMALLEST)
    _write_status(cluster, {"connectors": {"source": {"replicas": 1, "selector": "mirrorflow.io/flow=a"}}})

    cluster("scale", f"mirrorflow/{NAME}", "--replicas=3")
    path = f"/apis/mirrorflow.io/v1alpha1/namespaces/{cluster.namespace}/mirrorflows/{NAME}/scale"
    scale = cluster.read(path)

    assert cluster.get("mirrorflow", NAME)["spec"]["connectors"]["source"]["replicas"] == 3
    assert (scale["spec"], scale["status"]) == (
        {"replicas": 3},
        {"replicas": 1, "selector": "mirrorflow.io/flow=a"},
    )


def test_two_managers_join_what_can_be_joined(cluster: Kubectl):
    """A set by its members, a map of variables by their names; each takes back its own alone."""
    mine = _flow(
        topics={"include": ["orders"]},
        connectors={"source": {"template": {"env": [{"name": "MINE", "value": "1"}]}}},
    )
    theirs = {key: mine[key] for key in ("apiVersion", "kind", "metadata")} | {
        "spec": {
            "topics": {"include": ["payments"]},
            "connectors": {"source": {"template": {"env": [{"name": "THEIRS", "value": "2"}]}}},
        }
    }
    cluster.apply(mine, "--field-manager=mine")
    cluster.apply(theirs, "--field-manager=theirs")
    both = cluster.get("mirrorflow", NAME)["spec"]
    cluster.apply(_flow(), "--field-manager=mine")
    rest = cluster.get("mirrorflow", NAME)["spec"]

    assert set(both["topics"]["include"]) == {"orders", "payments"}
    assert {one["name"] for one in both["connectors"]["source"]["template"]["env"]} == {"MINE", "THEIRS"}
    assert rest["topics"]["include"] == ["payments"]
    assert [one["name"] for one in rest["connectors"]["source"]["template"]["env"]] == ["THEIRS"]


def test_two_managers_of_one_word_are_told(cluster: Kubectl):
    """Neither overwrites the other in silence."""
    cluster.apply(_flow(state="Running"), "--field-manager=mine")

    with pytest.raises(KubectlError, match=r'conflict with "mine": \.spec\.state'):
        cluster.apply(_flow(state="Paused"), "--field-manager=theirs")


@pytest.mark.parametrize(
    ("field", "written"),
    [
        (("topics", "include"), ["orders"]),
        (("groups", "include"), ["billing"]),
        (("heartbeats", "emitTo"), ["Target"]),
    ],
    ids=["topics", "groups", "heartbeats"],
)
def test_the_first_list_of_ones_own_is_the_whole_list(
    cluster: Kubectl, field: tuple[str, str], written: list[str]
):
    """List members from a default would have no owner and stay: a flow of one topic would copy all."""
    part, name = field
    cluster.apply(SMALLEST)
    cluster.apply(_flow(**{part: {name: written}}))
    named = cluster.get("mirrorflow", NAME)["spec"][part]
    cluster.apply(SMALLEST)
    left_out = cluster.get("mirrorflow", NAME)["spec"][part]

    assert named[name] == written
    assert name not in left_out


def _write_status(cluster: Kubectl, status: dict[str, Any], spec: dict[str, Any] | None = None) -> None:
    flow = {key: SMALLEST[key] for key in ("apiVersion", "kind", "metadata")}
    cluster.apply(
        flow | {"status": status} | ({"spec": spec} if spec else {}),
        "--subresource=status",
        "--field-manager=operator",
    )
