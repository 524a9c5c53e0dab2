"""A rollout changes the mode of a connector while it has one pod, and finally reaches any spec."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_operator.plan.rollouts import ObservedShape, Shape, next_shape, next_shapes
from tests.unit.operator.observations import SOURCE, deployment, mirror_flow

# In standalone mode there is at most one pod.
_shapes = st.one_of(
    st.builds(Shape, is_shared=st.just(True), replicas=st.integers(0, 5)),
    st.builds(Shape, is_shared=st.just(False), replicas=st.integers(0, 1)),
)
STEPS_MAX = 4  # scale to one pod, change the mode, scale up, and a pass without a change


@given(_shapes, _shapes)
def test_the_spec_is_reached_and_the_mode_changes_with_one_pod(begin: Shape, wanted: Shape):
    """The template and the number of pods never change together.

    Otherwise a Deployment would add pods with the old template.
    """
    current = begin
    for _ in range(STEPS_MAX):
        for is_rolling in (True, False):
            following = next_shape(wanted, ObservedShape(shape=current, is_rolling=is_rolling))
            if following.is_shared != current.is_shared and wanted.replicas:
                assert max(following.replicas, current.replicas) <= 1
        current = following
    assert current == wanted


def test_a_new_connector_starts_in_its_final_mode():
    wanted = Shape(is_shared=True, replicas=3)

    assert next_shape(wanted, None) == wanted


def test_a_second_pod_is_added_after_the_first_has_the_new_mode():
    flow = mirror_flow(connectors={"source": {"replicas": 2}})
    standalone = deployment(mode="standalone")
    rolling = deployment(mode="distributed", generation=2, observed_generation=2, replicas=2)
    rolled = deployment(mode="distributed", generation=2, observed_generation=2)

    steps = [next_shapes(flow, {"source": live})[SOURCE] for live in (standalone, rolling, rolled)]

    assert [(step.is_shared, step.replicas) for step in steps] == [(True, 1), (True, 1), (True, 2)]


def test_the_last_pod_changes_its_mode_after_the_others_have_ended():
    fields: dict[str, Any] = {"mode": "distributed", "generation": 2}
    three = deployment(**fields, observed_generation=2, wanted=3, replicas=3, updated=3, ready=3)
    terminating = deployment(**fields, observed_generation=1, replicas=3, updated=3, ready=3)
    single = deployment(**fields, observed_generation=2)

    steps = [next_shapes(mirror_flow(), {"source": live})[SOURCE] for live in (three, terminating, single)]

    assert [(step.is_shared, step.replicas) for step in steps] == [(True, 1), (True, 1), (False, 1)]
