"""A connector's pod has defaults. An upgrade of the operator does not replace pods to add them."""

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from mirrorflow_operator.api.load import load_flow
from mirrorflow_operator.plan.connector_objects import objects
from mirrorflow_operator.plan.drift import Object
from mirrorflow_operator.plan.properties import plan
from mirrorflow_operator.plan.rollouts import DEFAULTS_ANNOTATION, HASH_ANNOTATION, with_kept_pods
from mirrorflow_operator.plan.secret_layout import POD_LAYOUT
from tests.unit.operator.observations import EXAMPLES, mirror_flow

SAFE = "cluster-autoscaler.kubernetes.io/safe-to-evict"
NAME = "east-to-west-source"


def planned(*, image: str = "replicator:1", has_defaults: bool = True, **source: Any) -> list[Object]:
    flow = mirror_flow(connectors={"source": source})
    return objects(flow, plan(flow, POD_LAYOUT), image=image, has_defaults=has_defaults)


def deployment(planned_objects: list[Object]) -> Object:
    return next(
        item for item in planned_objects if (item["kind"], item["metadata"]["name"]) == ("Deployment", NAME)
    )


def template(**source: Any) -> Mapping[str, Any]:
    pod_template: Mapping[str, Any] = deployment(planned(**source))["spec"]["template"]
    return pod_template


def resources(**spec: Any) -> Any:
    return template(resources=spec)["spec"]["containers"][0]["resources"]


def test_a_pod_has_default_requests() -> None:
    """Under pressure, a node first evicts pods without requests."""
    assert resources() == {"requests": {"cpu": "100m", "memory": "96Mi"}}


def test_resources_in_the_spec_override_the_defaults() -> None:
    assert resources(requests={"cpu": "2"}) == {"requests": {"cpu": "2", "memory": "96Mi"}}


def test_a_limit_replaces_the_default_request() -> None:
    """Kubernetes refuses a request above its limit."""
    assert resources(limits={"memory": "64Mi"}) == {
        "requests": {"cpu": "100m"},
        "limits": {"memory": "64Mi"},
    }


def test_the_cluster_autoscaler_may_evict_a_pod_by_default() -> None:
    assert template()["metadata"]["annotations"][SAFE] == "true"
    overridden = template(template={"annotations": {SAFE: "false"}})
    assert overridden["metadata"]["annotations"][SAFE] == "false"


def test_pods_of_one_connector_are_spread_over_nodes() -> None:
    """The template does not contain the number of pods, so that scaling replaces no pod."""
    (spread,) = template(replicas=2)["spec"]["topologySpreadConstraints"]

    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == (
        "kubernetes.io/hostname",
        "ScheduleAnyway",
    )
    assert template(replicas=2)["spec"] == template(replicas=3)["spec"]
    assert "topologySpreadConstraints" not in template()["spec"]


def test_a_spread_in_the_spec_replaces_the_default() -> None:
    zones = {"topologySpread": [{"topologyKey": "topology.kubernetes.io/zone"}]}
    (spread,) = template(replicas=2, template=zones)["spec"]["topologySpreadConstraints"]

    assert spread["topologyKey"] == "topology.kubernetes.io/zone"


@pytest.mark.parametrize(
    ("kind", "written"), [("source", "4c3db4cfb4adddb7"), ("checkpoint", "63ac6bfd755c911a")]
)
def test_the_hash_of_properties_is_that_of_an_earlier_release(kind: str, written: str) -> None:
    """The hashes for this example were written by an earlier operator. Properties added since then replace no pod."""
    flow = load_flow((EXAMPLES / "valid" / "several-pods.yaml").read_text())
    planned_objects = objects(flow, plan(flow, POD_LAYOUT), image="replicator:1", has_defaults=False)
    name = f"{flow.metadata.name}-{kind}"
    pods = next(
        item for item in planned_objects if (item["kind"], item["metadata"]["name"]) == ("Deployment", name)
    )

    assert written == pods["spec"]["template"]["metadata"]["annotations"][HASH_ANNOTATION]


def applied(live: Object | None, **source: Any) -> Object:
    """Returns the Deployment of the source connector that is applied if *live* exists."""
    running = {} if live is None else {NAME: live}
    return deployment(with_kept_pods(planned(**source), planned(has_defaults=False, **source), running))


@pytest.mark.parametrize("source", [{}, {"replicas": 2}, {"resources": {"limits": {"memory": "1Gi"}}}])
def test_an_upgrade_replaces_no_pod(source: dict[str, Any]) -> None:
    """A Deployment of an earlier release without the defaults is planned without them."""
    earlier = deployment(planned(has_defaults=False, **source))

    assert applied(earlier, **source) == earlier


def test_scaling_adds_no_defaults_to_running_pods() -> None:
    earlier = deployment(planned(has_defaults=False, replicas=2))
    scaled = applied(earlier, replicas=3)

    assert scaled["spec"]["template"] == earlier["spec"]["template"]
    assert scaled["spec"]["replicas"] == 3


@pytest.mark.parametrize(
    "source", [{"image": "replicator:2"}, {"tasks": 2}, {"template": {"labels": {"team": "data"}}}]
)
def test_pods_replaced_for_a_different_reason_get_the_defaults(source: dict[str, Any]) -> None:
    earlier = deployment(planned(has_defaults=False))
    new = applied(earlier, **source)

    assert DEFAULTS_ANNOTATION in new["spec"]["template"]["metadata"]["annotations"]
    assert applied(new, **source) == new


def test_a_new_flow_has_the_defaults() -> None:
    assert applied(None) == deployment(planned())


def test_defaults_added_by_the_api_server_replace_no_pod() -> None:
    earlier = deployment(planned(has_defaults=False))
    live = copy.deepcopy(earlier)
    live["spec"]["template"]["spec"] |= {"dnsPolicy": "ClusterFirst", "restartPolicy": "Always"}
    live["spec"]["template"]["spec"]["containers"][0]["resources"] = {}

    assert applied(live) == earlier
