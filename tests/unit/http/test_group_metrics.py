"""Metrics of checkpoint connectors, through the same strict parser as all others."""

import pytest

from mirrorflow_core.reports import CheckpointLatency, GroupsReport
from mirrorflow_core.settings import MetricsLevel
from mirrorflow_replicator.http.windows import Window
from tests.unit.http.reports import connector, task
from tests.unit.http.test_metrics import exposition, value

LATENCY = "kafka_connect_mirror_mirrorcheckpointconnector_checkpoint_latency_ms"
GROUPS = GroupsReport(
    selected=5,
    failing=1,
    unlike=2,
    active=1,
    checkpoints=40,
    moved=30,
    translations={"exact": 7, "bound": 2},
    latencies=(
        CheckpointLatency(group='a "b"', topic="A.foo", partition=0, latency_ms=3.0),
        CheckpointLatency(
            group='a "b"', topic="A.foo", partition=1, latency_ms=4.0, spread_ms=(2.0, 8.0, 4.5)
        ),
    ),
)
REPORT = connector(task(), name="MirrorCheckpointConnector", groups=GROUPS)


def test_latency_has_mm2s_name_and_labels():
    """MirrorCheckpointMetrics: source, target, group, topic, partition."""
    found = exposition(REPORT)
    assert 4.0 == value(found, LATENCY, source="A", target="B", group='a "b"', topic="A.foo", partition="1")


def test_window_has_mm2s_names_and_is_shown_once_it_has_a_sample():
    """checkpoint-latency-ms-min, -max, -avg."""
    found = exposition(REPORT)
    told = {
        suffix: [number for (name, _), number in found.items() if name == f"{LATENCY}_{suffix}"]
        for suffix in ("min", "max", "avg")
    }
    assert {"min": [2.0], "max": [8.0], "avg": [4.5]} == told


def test_a_window_forgets():
    window = Window(100.0)
    assert window.spread(100.0) is None
    window.take(101.0, 4.0)
    window.take(116.0, 2.0)
    assert window.spread(120.0) == (2.0, 4.0, 3.0)
    assert window.spread(131.0) == (2.0, 2.0, 2.0)
    assert window.spread(150.0) is None


@pytest.mark.parametrize("level", [MetricsLevel.TOPIC, MetricsLevel.FLOW])
def test_coarser_levels_have_no_single_groups(level: MetricsLevel):
    """Thousands of groups would otherwise be told at every scrape."""
    found = exposition(REPORT, metrics_level=level)
    assert not [name for name, _ in found if name == LATENCY]
    assert 40 == value(found, "mirrorflow_checkpoints_total")


def test_groups_are_told_by_what_becomes_of_them():
    """And how much was written."""
    found = exposition(REPORT)
    states = {
        dict(labels)["state"]: number
        for (name, labels), number in found.items()
        if name == "mirrorflow_groups"
    }
    assert {"translated": 3, "active-on-target": 1, "failing": 1, "not-synchronised": 2} == states
    assert 7 == value(found, "mirrorflow_group_partitions", translation="exact")
    assert 2 == value(found, "mirrorflow_group_partitions", translation="bound")
    assert 30 == value(found, "mirrorflow_group_offsets_total", connector="MirrorCheckpointConnector")


def test_other_connectors_have_none_of_it():
    """No family without a sample."""
    names = {name for name, _ in exposition(connector(task()))}
    assert not {LATENCY, "mirrorflow_groups", "mirrorflow_checkpoints_total"} & names
