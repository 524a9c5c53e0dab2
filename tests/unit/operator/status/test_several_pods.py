"""The status of a connector with several pods: the worst of the pods with work, ignoring standby pods."""

from dataclasses import replace
from typing import Any

import pytest

from mirrorflow_operator.api.rules.table import ignored_fields
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

STANDS_BY: dict[str, Any] = {"state": "UNASSIGNED", "replicating": Replicating.WAITING, "partitions": 0}
ADVANCES: dict[str, Any] = {"replicating": Replicating.ADVANCING, "records_per_s": 9.0}


_PAUSED = observed(flow=mirror_flow(state="Paused")).admission


def _pods(*readings: Reading) -> tuple[ObservedPod, ...]:
    return tuple(pod(name=f"pod-{at}", uid=str(at), reading=one) for at, one in enumerate(readings))


def _source(*readings: Reading, ready: int | None = None) -> Observation:
    count = len(readings)
    workload = deployment(
        wanted=count, replicas=count, updated=count, ready=count if ready is None else ready
    )
    first = connector(deployment=workload, pods=_pods(*readings))
    return replace(observed(), connectors=(first, connector(CHECKPOINT), connector(HEARTBEAT)))


def _told(status: Status, kind: str) -> tuple[ConditionStatus, str, str]:
    found = next(one for one in status.conditions if one.type == kind)
    return found.status, found.reason, found.message


def test_a_pod_without_work_does_not_affect_the_status():
    status = settled(_source(reading(**STANDS_BY), reading(**ADVANCES, lag_records=9, lag_s=3.0)))

    assert _told(status, "Replicating")[:2] == (ConditionStatus.TRUE, "Advancing")
    assert _told(status, "Ready")[0] is ConditionStatus.TRUE
    assert status.lag is Lag.UNDER_TEN_SECONDS


PAUSED: dict[str, Any] = {"state": "PAUSED", "replicating": Replicating.PAUSED}


@pytest.mark.parametrize(
    ("readings", "reason"),
    [
        ((PAUSED, PAUSED), "Paused"),
        ((PAUSED, STANDS_BY), "Paused"),
        ((PAUSED, {}), "Pausing"),
        # The connector is paused by another pod's word, and this pod's task has not ended.
        ((PAUSED, PAUSED | {"tasks_running": 1}), "Pausing"),
    ],
)
def test_a_connector_is_paused_when_none_of_its_pods_copies(
    readings: tuple[dict[str, Any], ...], reason: str
) -> None:
    found = _source(*(reading(**one) for one in readings))
    status = settled(
        replace(found, resource=observed(flow=mirror_flow(state="Paused")).resource, admission=_PAUSED)
    )

    assert _told(status, "Replicating")[:2] == (ConditionStatus.FALSE, reason)
    assert status.connectors is not None
    assert status.connectors.source is not None
    assert status.connectors.source.phase is Phase(reason.replace("Pausing", "Running"))


def test_a_paused_pod_that_cannot_be_polled_stays_paused() -> None:
    """It was paused under this spec; under another one it is not known."""
    paused = _source(reading(**PAUSED))
    flow = mirror_flow(state="Paused")
    paused = replace(paused, resource=resource(flow), admission=_PAUSED)
    silent = replace(
        paused, connectors=_source(Reading(read_at_s=NOW_S, failure=PollFailure.UNREACHABLE)).connectors
    )
    told = settled(paused)

    same = settled(replace(silent, resource=resource(flow, status=told)))
    other = settled(replace(silent, resource=resource(flow, status=told, generation=2)))
    assert ["Paused", "Pausing"] == [_told(one, "Replicating")[1] for one in (same, other)]


def test_the_lag_is_that_of_the_pod_that_is_furthest_behind():
    status = settled(
        _source(
            reading(**ADVANCES, lag_records=900, lag_s=0.5), reading(**ADVANCES, lag_records=2, lag_s=500.0)
        )
    )

    assert status.lag is Lag.UNDER_TEN_MINUTES


def test_one_stuck_pod_is_reported_as_one_of_several():
    status = settled(
        _source(
            reading(**ADVANCES),
            reading(replicating=Replicating.STUCK, lag_records=9, lag_s=90.0),
            reading(**STANDS_BY),
        )
    )

    condition, reason, message = _told(status, "Replicating")
    assert (condition, reason) == (ConditionStatus.FALSE, "Stuck")
    assert "1 of 3 pods" in message


def test_an_unreachable_pod_does_not_hide_the_others():
    silent = Reading(read_at_s=NOW_S, failure=PollFailure.UNREACHABLE)

    status = settled(_source(silent, reading(**ADVANCES)))

    assert _told(status, "Replicating")[0] is ConditionStatus.TRUE


def test_pods_are_counted_and_one_is_enough_to_run():
    status = settled(_source(reading(**ADVANCES), reading(**STANDS_BY), reading(**STANDS_BY), ready=1))

    assert status.connectors is not None
    source = status.connectors.source
    assert source is not None
    assert (source.phase, source.ready_replicas, source.replicas) == (Phase.RUNNING, 1, 3)


def _checkpoints(*readings: Reading) -> Observation:
    second = connector(CHECKPOINT, pods=_pods(*readings))
    return replace(observed(), connectors=(connector(), second, connector(HEARTBEAT)))


def test_freshness_comes_from_the_pod_that_translates_groups():
    done = Checkpoints(groups=3, age_s=20.0, interval_s=60.0)

    status = settled(
        _checkpoints(reading(**STANDS_BY, uptime_s=9e5), reading(uptime_s=40.0, checkpoints=done))
    )

    assert _told(status, "CheckpointsFresh")[:2] == (ConditionStatus.TRUE, "Fresh")


def test_a_missing_certificate_is_named_with_its_keys():
    flow = mirror_flow(internalRest={"tls": {"secretName": "pods"}})

    assert needed_keys(flow, "pods", is_secret=True) == ("ca.crt", "tls.crt", "tls.key")
    assert needed_keys(flow, "pods", is_secret=False) == ()


def test_groups_without_a_translating_pod_are_not_stale():
    both = _checkpoints(reading(**STANDS_BY, uptime_s=9e5), reading(**STANDS_BY, uptime_s=9e5))

    found = next(one for one in assess(both).status.conditions if one.type == "CheckpointsFresh")

    assert (found.status, found.reason) == (ConditionStatus.UNKNOWN, "Starting")


@pytest.mark.parametrize(
    ("changes", "lag"),
    [
        ({"lag_records": 0}, Lag.NONE),
        ({"lag_records": 0, "lags_unknown": 1}, None),
        ({"lag_records": 5, "lag_s": 3.0, "lags_unknown": 1}, Lag.UNDER_TEN_SECONDS),
    ],
)
def test_an_unknown_lag_is_not_zero(changes: dict[str, Any], lag: Lag | None):
    assert settled(_source(reading(**ADVANCES, **changes))).lag == lag


def test_an_ignored_field_is_a_warning_before_any_connector_reports_one():
    """`kubectl describe` shows what `mirrorflow validate` prints."""
    flow = mirror_flow(connectors={"source": {"autoscale": {"maxReplicas": 4}, "replicas": 2}})
    found = replace(observed(flow=flow), connectors=())

    kind, reason, message = _told(assess(found).status, "Degraded")

    assert (kind, reason) == (ConditionStatus.TRUE, "Warnings")
    assert message.startswith("spec.connectors.source.autoscale: the operator ignores this field; the")
    assert [message] == [str(one) for one in ignored_fields(flow)]
