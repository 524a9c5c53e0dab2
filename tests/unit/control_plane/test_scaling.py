"""A connector that scales by its lag: up within minutes, down within more, and never to and fro."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_operator.api.connectors import Autoscale
from mirrorflow_operator.assess.assess import Assessment, assess
from mirrorflow_operator.assess.observation import AssessmentMemory, Observation
from mirrorflow_operator.assess.progress import Replicating
from mirrorflow_operator.assess.scaling import (
    LOOK_S,
    LOW_PART,
    PATIENCE_MAX,
    SETTLE_S,
    UP_AFTER_S,
    Load,
    Scaling,
    decide,
    replicas_of,
)
from mirrorflow_operator.plan.plan import ConnectorKind
from mirrorflow_operator.settings import CALM_S
from tests.unit.control_plane.observations import (
    advanced,
    connector,
    deployment,
    mirror_flow,
    observed,
    pod,
    reading,
)

MOST = 6
SCALE = Autoscale(min_replicas=1, max_replicas=MOST, lag_seconds_max=60)
DAY_S = 86_400.0


class _Life:
    """A connector that is looked at again and again, and each change of its number."""

    def __init__(self, replicas: int = 1, *, tempo: float = 1.0) -> None:
        self.tempo = tempo
        self.now_s = 1_000_000.0
        self.scaling = Scaling(replicas=replicas)
        self.changes: list[tuple[float, int]] = []

    def look(self, lag_s: float | None, *, after_s: float = LOOK_S, is_whole: bool = True) -> int:
        self.now_s += after_s * self.tempo
        before = self.scaling.replicas
        load = Load(lag_s=lag_s, is_whole=is_whole)
        self.scaling = decide(self.scaling, load, SCALE, most=MOST, now_s=self.now_s, tempo=self.tempo)
        step = self.scaling.replicas - before
        if step:
            self.changes.append((self.now_s, step))
        return self.scaling.replicas

    def look_for(self, seconds: float, lag_s: float | None) -> int:
        for _ in range(int(seconds / LOOK_S)):
            self.look(lag_s)
        return self.scaling.replicas


_lags = st.one_of(st.none(), st.floats(0, 1e6), st.sampled_from([0.0, 14.9, 15.0, 60.0, 61.0, 1e9]))
_looks = st.lists(
    st.tuples(_lags, st.sampled_from([1.0, 29.0, 31.0, 400.0, 3_000.0, -600.0]), st.booleans()), max_size=200
)


@given(_looks, st.integers(1, MOST))
def test_it_never_flaps_and_stays_within_its_bounds(
    looks: list[tuple[float | None, float, bool]], replicas: int
) -> None:
    """Whatever the lag does: a step up follows another change after two minutes at the soonest, a step down after ten."""
    life = _Life(replicas)
    for lag_s, after_s, is_whole in looks:
        assert 1 <= life.look(lag_s, after_s=after_s, is_whole=is_whole) <= MOST
    # A clock that goes back is no time that has passed.
    if all(after_s > 0 for _, after_s, _ in looks):
        for (before_s, _), (at_s, step) in zip(life.changes, life.changes[1:], strict=False):
            assert at_s - before_s >= (SETTLE_S if step > 0 else CALM_S)
    assert all(step > 0 or step == -1 for _, step in life.changes)


@given(_looks, st.integers(1, MOST), st.sampled_from([1 / 64, 1 / 2, 4.0]))
def test_another_tempo_decides_the_same_sooner_or_later(
    looks: list[tuple[float | None, float, bool]], replicas: int, tempo: float
) -> None:
    """Powers of two, in which clocks are exact: what is shown with seconds holds for minutes."""
    usual, other = _Life(replicas), _Life(replicas, tempo=tempo)
    for lag_s, after_s, is_whole in looks:
        # How soon a lag is made good is a matter of its own seconds.
        told_s = 1e9 if lag_s is not None and lag_s > SCALE.lag_seconds_max else lag_s
        numbers = {one.look(told_s, after_s=after_s, is_whole=is_whole) for one in (usual, other)}
        assert len(numbers) == 1


@given(st.integers(2, MOST), st.integers(0, 30))
def test_a_load_that_needs_every_pod_is_tried_with_fewer_ever_more_seldom(needed: int, phase: int) -> None:
    """The worst that can be: small lag with enough pods, and a growing one with one pod less. A day of it."""
    life = _Life(needed)
    lag_s = float(phase)
    while life.now_s < 1_000_000.0 + DAY_S:
        lag_s = lag_s + LOOK_S if life.scaling.replicas < needed else 0.0
        life.look(lag_s)
    downs = sum(step < 0 for _, step in life.changes)
    doublings = 4  # 10, 20, 40, 80 minutes, then two hours
    assert downs <= doublings + DAY_S / (CALM_S * PATIENCE_MAX)
    assert life.scaling.replicas <= MOST


@given(st.floats(60 * LOW_PART, 60), st.integers(1, MOST))
def test_what_lies_between_changes_nothing(lag_s: float, replicas: int) -> None:
    life = _Life(replicas)
    assert life.look_for(DAY_S / 10, lag_s) == replicas
    assert not life.changes


def test_a_lag_that_grows_has_pods_added_until_there_are_no_more_to_add() -> None:
    life, lag_s = _Life(), 61.0
    while life.now_s < 1_000_000.0 + 1_800:
        lag_s += LOOK_S
        life.look(lag_s)

    assert [step for _, step in life.changes] == [1, 1, 1, 2]
    assert life.changes[0][0] - 1_000_000.0 <= UP_AFTER_S + 2 * LOOK_S


def test_a_lag_that_is_being_made_good_adds_nobody() -> None:
    life = _Life(2)
    for lag_s in range(400, 60, -20):
        life.look(float(lag_s))

    assert not life.changes


def test_a_short_burst_adds_nobody() -> None:
    life = _Life()
    for lag_s in (0.0, 500.0, 0.0, 500.0, 0.0) * 20:
        life.look(lag_s)

    assert not life.changes


def test_what_is_not_known_and_pods_that_start_are_waited_for() -> None:
    life = _Life()
    for _ in range(100):
        life.look(500.0, is_whole=False)
        life.look(None)

    assert not life.changes


def test_without_lag_they_go_one_by_one() -> None:
    life = _Life(4)
    life.look_for(4 * (CALM_S + LOOK_S) + 2 * LOOK_S, 0.0)

    assert [step for _, step in life.changes] == [-1, -1, -1]


def _observed(lag_told_s: float, replicas: int, *, limit: str | None = None, **changes: Any) -> Observation:
    source = {"replicas": 1, "tasks": 8, "autoscale": {"maxReplicas": 4, "lagSecondsMax": 60}}
    lag: dict[str, Any] = {
        "lag_records": 9,
        "lag_s": lag_told_s,
        "replicating": Replicating.ADVANCING,
    } | changes
    workload = deployment(wanted=replicas, replicas=replicas, updated=replicas, ready=replicas)
    seen = connector(deployment=workload, pods=(pod(reading=reading(**lag)),))
    limits = {} if limit is None else {"bytesPerSecond": limit}
    found = observed(flow=mirror_flow(connectors={"source": source}, limits=limits))
    return replace(found, connectors=(seen, *found.connectors[1:]))


def _after(observation: Observation, seconds: int) -> Assessment:
    assessment, current = assess(observation), observation
    for _ in range(seconds // 30):
        following = advanced(observation, current, assessment.status, assessment.memory, after_s=30.0)
        assessment, current = assess(following), following
    return assessment


def _wanted(assessment: Assessment) -> int | None:
    assert assessment.status.connectors is not None
    assert assessment.status.connectors.source is not None
    return assessment.status.connectors.source.wanted_replicas


def test_the_decision_stands_in_the_status_and_another_operator_goes_on_from_it() -> None:
    """Who has lost his memory keeps the number; the spec is not touched."""
    observation = _observed(500.0, 1)
    assessment = _after(observation, 120)
    assert _wanted(assessment) == 2

    forgetful = replace(
        observation,
        resource=replace(observation.resource, status=assessment.status),
        memory=AssessmentMemory(),
    )
    assert _wanted(assess(forgetful)) == 2
    flow = observation.resource.flow
    assert flow is not None
    assert replicas_of(flow, None, assessment.status) == {ConnectorKind.SOURCE: 2}


@pytest.mark.parametrize(
    "changes",
    [
        {"replicating": Replicating.THROTTLED},
        {"replicating": Replicating.STUCK},
        {"lag_s": None},
    ],
)
def test_what_more_pods_would_not_lessen_adds_none(changes: dict[str, Any]) -> None:
    assert _wanted(_after(_observed(500.0, 1, **changes), 600)) == 1


@pytest.mark.parametrize(("bytes_per_s", "wanted"), [(9e6, 1), (5e6, 4)])
def test_a_flow_that_copies_as_much_as_it_may_gets_no_more_pods(bytes_per_s: float, wanted: int) -> None:
    observation = _observed(500.0, 1, limit="10M", bytes_per_s=bytes_per_s)
    assert _wanted(_after(observation, 3_600)) == wanted


def test_a_new_number_is_applied_at_once_and_the_lag_is_looked_at_again_and_again() -> None:
    """Nothing else would wake the operator: a lag that stays what it is, is no news."""
    assessment = _after(_observed(0.0, 1), 60)

    assert assessment.again_after_s is not None
    assert assessment.again_after_s <= LOOK_S
