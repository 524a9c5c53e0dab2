"""The MirrorFlow CRD on a real API server: rules about changes, defaults, columns, subresources and merged lists."""

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
    """kubectl in the test's namespace on a server with the MirrorFlow CRD."""
    return mirrorflows.kubectl.within(namespace.namespace)


def test_the_crd_is_established_and_structural(mirrorflows: ApiServer):
    """The CRD is established, its names are accepted, and no condition reports a non-structural schema."""
    conditions = mirrorflows.kubectl.get("crd", "mirrorflows.mirrorflow.io")["status"]["conditions"]

    assert {"Established": "True", "NamesAccepted": "True"} == {
        condition["type"]: condition["status"] for condition in conditions
    }


@pytest.mark.parametrize(
    ("first", "second", "field"),
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
def test_fields_that_name_topics_are_immutable(
    cluster: Kubectl, first: dict[str, Any], second: dict[str, Any], field: str
):
    """Different copies with the old positions would have a gap. Removing such a field changes it as well."""
    cluster.apply(_flow(**first))

    with pytest.raises(KubectlError, match=rf"{field}: .*it is immutable"):
        cluster.apply(_flow(**second))


def test_mutable_fields_may_change(cluster: Kubectl):
    """Addresses change, topics are added, and a flow is paused."""
    cluster.apply(_flow())
    cluster.apply(
        _flow(
            state="Paused",
            source={"alias": "east", "bootstrapServers": ["kafka-new:9092"]},
            topics={"include": ["orders"], "onSourceLoss": "Alert"},
        )
    )

    assert cluster.get("mirrorflow", NAME)["metadata"]["generation"] == 2


def test_defaults_are_stored_and_read_like_the_users_spec(cluster: Kubectl):
    """The stored flow has each default, and MirrorFlow's types parse it like the user's file."""
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


def test_every_field_has_a_description(mirrorflows: ApiServer):
    """`kubectl explain` reads it from the published schema."""

    def schema() -> dict[str, Any]:
        kubectl = mirrorflows.kubectl
        published = kubectl.read("/openapi/v3/apis/mirrorflow.io/v1alpha1")["components"]["schemas"]
        return dict(published.get("io.mirrorflow.v1alpha1.MirrorFlow", {}))

    published_schema = wait_until("the server publishes the schema", schema)
    undescribed = [path for path, node in _fields(published_schema) if not node.get("description")]

    assert [] == undescribed
    assert "Names or regexes" in mirrorflows.kubectl("explain", "mirrorflow.spec.topics.include")


def _fields(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, child in node.get("properties", {}).items():
        if path or name in {"spec", "status"}:
            yield f"{path}.{name}", child
            yield from _fields(child, f"{path}.{name}")
    if "items" in node:
        yield from _fields(node["items"], f"{path}[]")


def test_kubectl_get_shows_the_reason_of_each_flow(cluster: Kubectl):
    """The columns are Ready and its reason, and the message with -o wide. The short name works."""
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


def test_spec_and_status_are_written_separately(cluster: Kubectl):
    """The operator's writes do not change the spec or its generation. A user's writes do not change the status."""
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


def test_kubectl_scale_changes_the_source_connector(cluster: Kubectl):
    """An autoscaler reads the number of pods and their selector."""
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


def test_lists_of_two_field_managers_are_merged(cluster: Kubectl):
    """Sets are merged by member, and environment variables by name. Each manager removes only its own entries."""
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
    remaining = cluster.get("mirrorflow", NAME)["spec"]

    assert set(both["topics"]["include"]) == {"orders", "payments"}
    assert {variable["name"] for variable in both["connectors"]["source"]["template"]["env"]} == {
        "MINE",
        "THEIRS",
    }
    assert remaining["topics"]["include"] == ["payments"]
    assert [variable["name"] for variable in remaining["connectors"]["source"]["template"]["env"]] == [
        "THEIRS"
    ]


def test_two_field_managers_of_one_field_get_a_conflict(cluster: Kubectl):
    """Neither manager overwrites the other without an error."""
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
def test_a_users_list_has_no_default_members(cluster: Kubectl, field: tuple[str, str], written: list[str]):
    """Default members would have no owner and would stay. A flow of one topic would then copy all topics."""
    section, name = field
    cluster.apply(SMALLEST)
    cluster.apply(_flow(**{section: {name: written}}))
    named = cluster.get("mirrorflow", NAME)["spec"][section]
    cluster.apply(SMALLEST)
    removed = cluster.get("mirrorflow", NAME)["spec"][section]

    assert named[name] == written
    assert name not in removed


def _write_status(cluster: Kubectl, status: dict[str, Any], spec: dict[str, Any] | None = None) -> None:
    flow = {key: SMALLEST[key] for key in ("apiVersion", "kind", "metadata")}
    cluster.apply(
        flow | {"status": status} | ({"spec": spec} if spec else {}),
        "--subresource=status",
        "--field-manager=operator",
    )
