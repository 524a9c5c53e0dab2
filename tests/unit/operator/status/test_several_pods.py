"""The status of a connector with several pods is the worst of the pods with work; standby pods are ignored."""

from dataclasses import replace
from typing import Any

import pytest

from mirrorflow_operator.api.status import ConditionStatus, Lag, Phase, Status
from mirrorflow_operator.status.assess import assess
from mirrorflow_operator.status.observation import Observation, ObservedPod
from mirrorflow_operator.status.pod_failures import needed_keys
from mirrorflow_operator.status.pod_reports import Checkpoints, PollFailure, Reading, Replicating
from tests.unit.operator.observations import (
    CHECKPOINT,
    HEARTBEAT,
    NOW_S,
    connector,
    deployment,
    mirror_flow,
    observed,
    pod,
    reading,
    resource,
    settled,
)

STANDBY: dict[str, Any] = {"state": "UNASSIGNED", "replicating": Replicating.WAITING, "partitions": 0}
ADVANCING: dict[str, Any] = {"replicating": Replicating.ADVANCING, "records_per_s": 9.0}


_PAUSED = observed(flow=mirror_flow(state="Paused")).admission


def _pods(*readings: Reading) -> tuple[ObservedPod, ...]:
    return tuple(
        pod(name=f"pod-{index}", uid=str(index), reading=polled) for index, polled in enumerate(readings)
    )


def _source(*readings: Reading, ready: int | None = None) -> Observation:
    count = len(readings)
    workload = deployment(
        wanted=count, replicas=count, updated=count, ready=count if ready is None else ready
    )
    first = connector(deployment=workload, pods=_pods(*readings))
    return replace(observed(), connectors=(first, connector(CHECKPOINT), connector(HEARTBEAT)))


def _condition(status: Status, kind: str) -> tuple[ConditionStatus, str, str]:
    condition = next(condition for condition in status.conditions if condition.type == kind)
    return condition.status, condition.reason, condition.message


def test_a_pod_without_work_does_not_affect_the_status():
    status = settled(_source(reading(**STANDBY), reading(**ADVANCING, lag_records=9, lag_s=3.0)))

    assert _condition(status, "Replicating")[:2] == (ConditionStatus.TRUE, "Advancing")
    assert _condition(status, "Ready")[0] is ConditionStatus.TRUE
    assert status.lag is Lag.UNDER_TEN_SECONDS


PAUSED: dict[str, Any] = {"state": "PAUSED", "replicating": Replicating.PAUSED}


@pytest.mark.parametrize(
    ("readings", "reason"),
    [
        ((PAUSED, PAUSED), "Paused"),
        ((PAUSED, STANDBY), "Paused"),
        ((PAUSED, {}), "Pausing"),
        # A different pod has paused the connector, and the task of this pod has not ended.
        ((PAUSED, PAUSED | {"tasks_running": 1}), "Pausing"),
    ],
)
def test_a_connector_is_paused_when_all_its_pods_are(
    readings: tuple[dict[str, Any], ...], reason: str
) -> None:
    observation = _source(*(reading(**fields) for fields in readings))
    status = settled(
        replace(observation, resource=observed(flow=mirror_flow(state="Paused")).resource, admission=_PAUSED)
    )

    assert _condition(status, "Replicating")[:2] == (ConditionStatus.FALSE, reason)
    assert status.connectors is not None
    assert status.connectors.source is not None
    assert status.connectors.source.phase is Phase(reason.replace("Pausing", "Running"))


def test_a_paused_pod_that_cannot_be_polled_stays_paused() -> None:
    """It was paused under this spec. Under a changed spec, its state is unknown."""
    paused = _source(reading(**PAUSED))
    flow = mirror_flow(state="Paused")
    paused = replace(paused, resource=resource(flow), admission=_PAUSED)
    silent = replace(
        paused, connectors=_source(Reading(read_at_s=NOW_S, failure=PollFailure.UNREACHABLE)).connectors
    )
    paused_status = settled(paused)

    same = settled(replace(silent, resource=resource(flow, status=paused_status)))
    other = settled(replace(silent, resource=resource(flow, status=paused_status, generation=2)))
    assert ["Paused", "Pausing"] == [_condition(status, "Replicating")[1] for status in (same, other)]


def test_the_lag_is_that_of_the_pod_with_the_largest_lag():
    status = settled(
        _source(
            reading(**ADVANCING, lag_records=900, lag_s=0.5), reading(**ADVANCING, lag_records=2, lag_s=500.0)
        )
    )

    assert status.lag is Lag.UNDER_TEN_MINUTES


def test_a_stuck_pod_is_reported_with_the_number_of_pods():
    status = settled(
        _source(
            reading(**ADVANCING),
            reading(replicating=Replicating.STUCK, lag_records=9, lag_s=90.0),
            reading(**STANDBY),
        )
    )

    value, reason, message = _condition(status, "Replicating")
    assert (value, reason) == (ConditionStatus.FALSE, "Stuck")
    assert "1 of 3 pods" in message


def test_an_unreachable_pod_does_not_hide_the_others():
    silent = Reading(read_at_s=NOW_S, failure=PollFailure.UNREACHABLE)

    status = settled(_source(silent, reading(**ADVANCING)))

    assert _condition(status, "Replicating")[0] is ConditionStatus.TRUE


def test_a_connector_with_one_ready_pod_of_three_is_running():
    status = settled(_source(reading(**ADVANCING), reading(**STANDBY), reading(**STANDBY), ready=1))

    assert status.connectors is not None
    source = status.connectors.source
    assert source is not None
    assert (source.phase, source.ready_replicas, source.replicas) == (Phase.RUNNING, 1, 3)


def _checkpoints(*readings: Reading) -> Observation:
    second = connector(CHECKPOINT, pods=_pods(*readings))
    return replace(observed(), connectors=(connector(), second, connector(HEARTBEAT)))


def test_checkpoint_freshness_is_that_of_the_pod_that_translates_groups():
    done = Checkpoints(groups=3, age_s=20.0, interval_s=60.0)

    status = settled(_checkpoints(reading(**STANDBY, uptime_s=9e5), reading(uptime_s=40.0, checkpoints=done)))

    assert _condition(status, "CheckpointsFresh")[:2] == (ConditionStatus.TRUE, "Fresh")


def test_the_secret_of_a_certificate_needs_three_keys():
    flow = mirror_flow(internalRest={"tls": {"secretName": "pods"}})

    assert needed_keys(flow, "pods", is_secret=True) == ("ca.crt", "tls.crt", "tls.key")
    assert needed_keys(flow, "pods", is_secret=False) == ()


def test_checkpoints_are_not_stale_without_a_pod_that_translates_groups():
    both = _checkpoints(reading(**STANDBY, uptime_s=9e5), reading(**STANDBY, uptime_s=9e5))

    value, reason, _ = _condition(assess(both).status, "CheckpointsFresh")

    assert (value, reason) == (ConditionStatus.UNKNOWN, "Starting")


@pytest.mark.parametrize(
    ("changes", "lag"),
    [
        ({"lag_records": 0}, Lag.NONE),
        ({"lag_records": 0, "lags_unknown": 1}, None),
        ({"lag_records": 5, "lag_s": 3.0, "lags_unknown": 1}, Lag.UNDER_TEN_SECONDS),
    ],
)
def test_an_unknown_lag_is_not_zero(changes: dict[str, Any], lag: Lag | None):
    assert settled(_source(reading(**ADVANCING, **changes))).lag == lag
