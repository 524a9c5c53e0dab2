"""Drift detection ignores what the API server adds and rewrites, and finds what a user changed."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_operator.plan.drift import matches

PLANNED: dict[str, Any] = {
    "spec": {
        "replicas": 1,
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "replicator",
                        "image": "one:1",
                        "args": ["a", "b"],
                        "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}},
                        "ports": [{"name": "http", "containerPort": 8080}],
                        "env": [],
                    }
                ],
                "volumes": [
                    {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
                    {"name": "empty", "emptyDir": {}},
                ],
            }
        },
    }
}


def _live() -> dict[str, Any]:
    """The planned object as the API server returns it."""
    live = copy.deepcopy(PLANNED)
    pod = live["spec"]["template"]["spec"]
    container = pod["containers"][0]
    container["resources"] = {"limits": {"cpu": "1", "memory": "1Gi"}}
    container["imagePullPolicy"] = "IfNotPresent"
    container["ports"][0]["protocol"] = "TCP"
    del container["env"]
    pod["containers"].insert(0, {"name": "sidecar"})
    pod["dnsPolicy"] = "ClusterFirst"
    live["spec"]["progressDeadlineSeconds"] = 600
    return live


def test_defaults_and_values_rewritten_by_the_api_server_are_ignored():
    assert matches(_live(), PLANNED)


@pytest.mark.parametrize(
    "change",
    [
        lambda live: live["spec"].update(replicas=2),
        lambda live: live["spec"]["template"]["spec"]["containers"].pop(1),
        lambda live: live["spec"]["template"]["spec"]["containers"][1].update(image="two:2"),
        lambda live: live["spec"]["template"]["spec"]["containers"][1].update(args=["b", "a"]),
        lambda live: live["spec"]["template"]["spec"]["containers"][1].update(args=["a", "b", "c"]),
        lambda live: live["spec"]["template"]["spec"]["containers"][1]["resources"]["limits"].update(cpu="2"),
        lambda live: live["spec"]["template"]["spec"]["volumes"].pop(0),
        lambda live: live["spec"].pop("replicas"),
        lambda live: live.pop("spec"),
    ],
)
def test_a_changed_field_is_a_difference(change: Any):
    live = _live()
    change(live)

    assert not matches(live, PLANNED)


@pytest.mark.parametrize(
    ("live", "planned", "same"),
    [
        ("1", "1000m", True),
        ("1Gi", "1024Mi", True),
        ("1G", "1Gi", False),
        ("0.5", "500m", True),
        ("x", "x", True),
    ],
)
def test_quantities_are_compared_as_amounts(live: str, planned: str, *, same: bool):
    assert matches({"limits": {"memory": live}}, {"limits": {"memory": planned}}) is same


def test_texts_that_are_not_quantities_are_not_compared_as_amounts():
    assert not matches({"name": "1"}, {"name": "1000m"})


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("abc", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(("name", "x", "y")), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(_VALUES)
def test_an_object_matches_itself(value: Any):
    assert matches(value, value)


@given(st.dictionaries(st.sampled_from("abcd"), _VALUES), st.dictionaries(st.sampled_from("wxyz"), _VALUES))
def test_additional_fields_are_ignored(planned: dict[str, Any], more: dict[str, Any]):
    assert matches({**planned, **more}, planned)
