"""Metrics have the Prometheus text format, checked by a strict parser. MM2's metrics have MM2's names and labels."""

import re
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.reports import HeartbeatReport, PartitionPhase, SideReport
from mirrorflow_core.settings import MetricNames, MetricsLevel
from mirrorflow_replicator.http import metrics
from tests.unit.http.reports import NOW_S, connector, partition, samples_of_progress, task, view

SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (-?[0-9.e+-]+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"(?:,|$)')
UNESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
MM2 = "kafka_connect_mirror_mirrorsourceconnector_"
PLUGINS = "kafka_connect_mirror_plugins_"


def parse(text):
    """Maps name and labels to the value of each sample; fails on violations of the format."""
    assert text.endswith("\n")
    samples, typed, family = {}, {}, ""
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            family = line.split(" ")[2]
            assert family not in typed, f"{family} is a duplicate"
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == family
            assert kind in {"gauge", "counter"}
            # MM2's counts are gauges in the rules of the exporter. The sum over the JVM's collections is a counter.
            assert (kind == "counter") == name.endswith(("_total", "_seconds_sum"))
            typed[name] = kind
        else:
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            assert match[1] == family, f"{line} is outside its family"
            labels = match[2] or ""
            pairs = LABEL.findall(labels)
            assert labels == ",".join(f'{name}="{value}"' for name, value in pairs)
            key = (
                match[1],
                frozenset((name, re.sub(r"\\.", lambda m: UNESCAPED[m[0]], value)) for name, value in pairs),
            )
            assert key not in samples, f"{line} is a duplicate"
            samples[key] = float(match[3])
    return samples


def exposition(*connectors, **changes):
    return parse("".join(metrics.render(view(*connectors, **changes))))


def value(samples, name, **labels):
    [only] = [
        number
        for (sample_name, pairs), number in samples.items()
        if sample_name == name and labels.items() <= dict(pairs).items()
    ]
    return only


REPORT = connector(
    task(
        partition(0, latency_ms=5, record_age_ms=3, batches_raw=7, refused_writes=1),
        partition(1, lost_records=4, source_offset=100),
        partition(0, "other", phase=PartitionPhase.STOPPED, reason="RecordTooLarge"),
        errors={"RecordTooLarge": 2},
        throttle_ms=11,
    )
)


def test_metrics_of_partitions_have_the_names_and_labels_of_mm2():
    """Their only labels are source, target, topic (on the target) and partition."""
    samples = exposition(REPORT, samples=samples_of_progress(REPORT))
    labels = {"source": "A", "target": "B", "topic": "A.orders", "partition": "0"}

    expected = {
        "record_count": 90,
        "record_rate": 9,
        "byte_count": 800,
        "byte_rate": 80,
        **{"record_age_ms" + end: 3 for end in ("", "_min", "_max", "_avg")},
        **{"replication_latency_ms" + end: 5 for end in ("", "_min", "_max", "_avg")},
    }
    assert expected == {name: samples[MM2 + name, frozenset(labels.items())] for name in expected}


def test_both_forms_of_mm2s_metrics_have_equal_values():
    """The form of KIP-1280 contains the connector and the task. Kafka 5.0 will have only this form."""
    both = exposition(REPORT, samples=samples_of_progress(REPORT), metric_names=frozenset(MetricNames))
    new = exposition(REPORT, samples=samples_of_progress(REPORT), metric_names=frozenset({MetricNames.NEW}))

    of_legacy = {
        (name.removeprefix(MM2), pairs): number
        for (name, pairs), number in both.items()
        if name.startswith(MM2)
    }
    labels = {("connector", REPORT.name), ("task", "0")}
    of_new = {
        (name.removeprefix(PLUGINS), pairs - labels): number
        for (name, pairs), number in both.items()
        if name.startswith(PLUGINS) and labels <= pairs
    }
    assert of_legacy == of_new
    # Three partitions have counts and rates. One of them also has an age and a latency.
    assert len(of_new) == 3 * 4 + 2 * 4
    assert not [name for name, _ in new if name.startswith(MM2)]
    assert {key: number for key, number in both.items() if not key[0].startswith(MM2)} == new


def test_an_aggregate_of_the_new_form_has_no_task():
    """It covers the partitions of several tasks."""
    level = MetricsLevel.FLOW
    samples = exposition(REPORT, metrics_level=level, metric_names=frozenset({MetricNames.NEW}))

    assert samples[
        PLUGINS + "record_count", frozenset({("connector", REPORT.name), ("source", "A"), ("target", "B")})
    ]


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_lag_of_zero_is_not_shown_while_a_cluster_is_away(side: str):
    """What has arrived on the source since then is not known. A lag that is known has not become less."""
    away: Any = SideReport(reason="Unreachable", since_s=NOW_S - 60)
    report = replace(connector(task(partition(0), partition(1, source_offset=100))), **{side: away})
    samples = exposition(report)

    for name in ("mirrorflow_record_lag", "kafka_consumer_fetch_manager_records_lag"):
        assert value(samples, name, partition="0") == 10
        assert not [pairs for key, pairs in samples if key == name and ("partition", "1") in pairs]
    assert not [
        pairs for key, pairs in samples if key == "mirrorflow_lag_seconds" and ("partition", "1") in pairs
    ]


def test_mirrorflows_own_metrics_have_the_values_of_the_report():
    samples = exposition(REPORT, samples=samples_of_progress(REPORT))

    assert value(samples, "mirrorflow_record_lag", topic="A.orders", partition="0") == 10
    assert value(samples, "mirrorflow_lag_seconds", topic="A.orders", partition="1") == 0
    assert value(samples, "mirrorflow_batches_total", path="raw") == 7
    assert value(samples, "mirrorflow_lost_records_total") == 4
    assert value(samples, "mirrorflow_refused_writes_total") == 1
    assert value(samples, "mirrorflow_errors_total", reason="RecordTooLarge") == 2
    assert value(samples, "mirrorflow_throttle_ms_total") == 11
    assert value(samples, "mirrorflow_partitions", phase="stopped") == 1
    assert value(samples, "mirrorflow_guarantee", guarantee="exactly-once") == 3
    assert value(samples, "mirrorflow_partition_phase", phase="stopped", topic="A.other") == 1
    assert value(samples, "kafka_connect_connector_status", status="running", task="0") == 1


def test_stalled_partitions_are_counted_by_reason():
    """A reason without a partition is exported as 0, so that an alert for it ends."""
    stalled = [
        partition(number, reason=reason, stalled_since_ms=1)
        for number, reason in enumerate(["WritesRefused", "WritesRefused", "Unreachable"])
    ]
    report = connector(
        task(*stalled, partition(3), partition(4, phase=PartitionPhase.STOPPED, reason="TopicGone"))
    )

    samples = exposition(report, metrics_level=MetricsLevel.FLOW)

    assert value(samples, "mirrorflow_partitions_stalled", reason="WritesRefused") == 2
    assert value(samples, "mirrorflow_partitions_stalled", reason="Unreachable") == 1
    assert value(samples, "mirrorflow_partitions_stalled", reason="NoDecision") == 0


def test_the_longest_stall_of_each_reason_has_its_age():
    """An alert for a reason waits until the reason has lasted too long."""
    stalled = [
        partition(number, reason="OpenTransaction", stalled_since_ms=round(1000 * (NOW_S - age_s)))
        for number, age_s in enumerate([40.0, 901.5])
    ]

    samples = exposition(connector(task(*stalled, partition(3))), metrics_level=MetricsLevel.FLOW)

    assert value(samples, "mirrorflow_stalled_seconds", reason="OpenTransaction") == 901.5
    assert value(samples, "mirrorflow_stalled_seconds", reason="WritesRefused") == 0


@pytest.mark.parametrize(
    ("level", "rows"), [(MetricsLevel.FLOW, 1), (MetricsLevel.TOPIC, 2), (MetricsLevel.PARTITION, 3)]
)
def test_each_level_has_the_same_total(level, rows):
    """Ages are maxima instead of sums."""
    samples = exposition(REPORT, samples=samples_of_progress(REPORT), metrics_level=level)
    counts = [number for (name, _), number in samples.items() if name == MM2 + "record_count"]
    ages = [number for (name, _), number in samples.items() if name == MM2 + "record_age_ms_max"]

    assert (rows, 270.0, [3.0]) == (len(counts), sum(counts), ages)


def test_a_worker_without_tasks_exports_metrics():
    """The worker has no connector, or a connector without a task."""
    assert value(exposition(), "kafka_connect_worker_task_count") == 0
    assert value(exposition(connector()), "mirrorflow_partitions", phase="copying") == 0


@given(st.text(st.characters(codec="utf-8")))
def test_label_values_are_unchanged_by_a_round_trip(text):
    key = ("n", frozenset({("a", text), ("b", "1")}))

    assert {key: 1.0} == parse("# HELP n x\n# TYPE n gauge\nn" + metrics.labels({"a": text, "b": 1}) + " 1\n")


def test_the_metrics_of_many_partitions_are_rendered_in_bounded_chunks():
    """Rendering 5,000 partitions takes no noticeable part of a scrape."""
    report = connector(task(*(partition(n, latency_ms=5, record_age_ms=3) for n in range(5000))))
    state = view(report, samples=samples_of_progress(report))
    begin = time.process_time()
    chunks = list(metrics.render(state))
    duration_s = time.process_time() - begin

    assert max(len(chunk) for chunk in chunks) < 500_000
    assert duration_s < 1.0  # ten times the duration on a quiet machine: this detects only quadratic time


def test_the_age_of_a_heartbeat_counts_from_its_timestamp():
    """It is exported at each level. Without a heartbeat there is no series."""
    heartbeat = HeartbeatReport(cluster="B", topic="A.heartbeats", timestamp_ms=int(NOW_S * 1000) - 2_500)
    levels = [
        exposition(connector(task(), heartbeats=(heartbeat,)), metrics_level=level) for level in MetricsLevel
    ]
    name = "mirrorflow_heartbeat_age_seconds"

    for samples in levels:
        assert 2.5 == value(
            samples, name, cluster="B", topic="A.heartbeats", source="A", target="B", flow="f"
        )
    assert [] == [key for key in exposition(connector(task())) if key[0] == name]
