"""Metrics of Connect: each query of Strimzi's MM2 dashboard finds series with the labels that it uses."""

import re

import promql_parser
import pytest

from mirrorflow_core.reports import CheckpointLatency, ConnectorReport, GroupsReport, SchemasReport
from mirrorflow_core.settings import MetricNames, MetricsLevel
from mirrorflow_replicator.http import metrics
from mirrorflow_replicator.http.partition_rates import Window
from mirrorflow_replicator.process import ResourceUsage
from tests.contract.expressions import selections
from tests.unit.http.reports import NOW_S, connector, partition, samples_of_progress, task, view
from tests.unit.http.test_metrics import exposition, parse, value

# The labels that Strimzi's PodMonitor adds to each series (docs/metrics.md has a PodMonitor for MirrorFlow's pods).
POD_LABELS = {
    "strimzi_io_kind": "KafkaMirrorMaker2",
    "strimzi_io_cluster": "east-to-west",
    "kubernetes_pod_name": "p",
    "namespace": "n",
}
MM2 = "kafka_connect_mirror_mirrorsourceconnector_"
SELECTED = 'strimzi_io_kind=~"KafkaMirrorMaker2",strimzi_io_cluster="$strimzi_mirror_maker_cluster_name"'
COMMITS = 'kafka_connect_connector_task_offset_commit_avg_time_ms{connector=~"\\".*SourceConnector\\"", task=~"[0-9]+"}'
BY_PARTITION = [
    f"{family}{suffix}"
    for family in ("record_age_ms", "replication_latency_ms")
    for suffix in ("", "_avg", "_min", "_max")
]
# The expressions of examples/metrics/grafana-dashboards/strimzi-kafka-mirror-maker-2.json of Strimzi 0.47 and later;
# the last two are of earlier versions. container_cpu_usage_seconds_total is left out, because the kubelet exports it.
QUERIES = [
    f"sum(kafka_connect_worker_connector_count{{{SELECTED}}})",
    f"sum(kafka_connect_worker_task_count{{{SELECTED}}})",
    f"sum({MM2}record_rate{{{SELECTED}}})",
    f"sum({MM2}byte_rate{{{SELECTED}}})",
    *(f"sum({MM2}{name}{{{SELECTED}}}) by (partition, topic)" for name in BY_PARTITION),
    f'sum(kafka_consumer_fetch_manager_records_lag{{{SELECTED},clientid=~".*replication-consumer\\""}}) by (topic, partition)',
    f'topk(20, sum(kafka_consumer_fetch_manager_records_lag{{{SELECTED},clientid=~".*replication-consumer\\""}}) by (partition, topic))',
    f"sum(rate(kafka_consumer_incoming_byte_total{{{SELECTED}}}[5m])) by (kubernetes_pod_name)",
    f"sum(rate(kafka_producer_outgoing_byte_total{{{SELECTED}}}[5m])) by (kubernetes_pod_name)",
    f"sum by (source, target, topic, partition, group) (kafka_connect_mirror_mirrorcheckpointconnector_checkpoint_latency_ms{{{SELECTED}}})",
    'sum(kafka_producer_buffer_available_bytes{clientid=~"\\".*SourceConnector-[0-9]+\\""})',
    f"sum({COMMITS})/count({COMMITS})",
    'sum(kafka_connect_source_task_source_record_active_count{connector=~"\\".*SourceConnector\\""})',
    f"sum(kafka_connect_coordinator_assigned_connectors{{{SELECTED}}}) by (kubernetes_pod_name)",
    f"sum(kafka_connect_worker_rebalance_rebalancing{{{SELECTED}}})",
    f"sum(kafka_connect_coordinator_assigned_tasks{{{SELECTED}}}) by (kubernetes_pod_name)",
    f"sum(jvm_memory_used_bytes{{{SELECTED}}}) by (kubernetes_pod_name)",
    f"sum(rate(jvm_gc_collection_seconds_sum{{{SELECTED}}}[5m])) by (kubernetes_pod_name)",
    f"sum(jvm_threads_current{{{SELECTED}}}) by (kubernetes_pod_name)",
    'kafka_connect_worker_connector_count{namespace="$kubernetes_namespace", strimzi_io_kind="KafkaMirrorMaker2"}',
    f"sum(kafka_connect_incoming_byte_total{{{SELECTED}}})",
    f"sum(kafka_connect_outgoing_byte_total{{{SELECTED}}})",
]

SOURCE = connector(
    task(
        partition(0, latency_ms=5, record_age_ms=3),
        partition(1),
        partition(0, "other"),
        active_records=7,
        buffer_free_bytes=1 << 20,
        commit_ms=12.5,
    ),
    task(partition(2), number=1, active_records=0, buffer_free_bytes=2 << 20, commit_ms=None),
    name="A->B.MirrorSourceConnector",
    properties={"name": "MirrorSourceConnector"},
)
CHECKPOINTS = connector(
    task(),
    name="A->B.MirrorCheckpointConnector",
    connector_class="MirrorCheckpointConnector",
    groups=GroupsReport(
        latencies=(CheckpointLatency(group="g", topic="A.orders", partition=0, latency_ms=4),)
    ),
)


def scrape(**changes):
    usage = ResourceUsage(resident_bytes=5, threads=3, cpu_s=1.5)
    state = {"samples": samples_of_progress(SOURCE), "process": lambda: usage} | changes
    return exposition(SOURCE, CHECKPOINTS, **state)


def matchers(expression):
    """Returns the metric and the matchers of each selector in *expression*."""
    selectors = []

    def visit(node):
        if isinstance(node, promql_parser.VectorSelector):
            selectors.append((node.name, node.matchers.matchers))
        for name in ("lhs", "rhs", "expr", "vector_selector"):
            if getattr(node, name, None) is not None:
                visit(getattr(node, name))
        for argument in getattr(node, "args", ()):
            visit(argument)

    visit(promql_parser.parse(expression))
    return selectors


def is_matched(matcher, labels):
    pattern = matcher.value.replace("$strimzi_mirror_maker_cluster_name", "east-to-west")
    pattern = pattern.replace("$kubernetes_namespace", "n")
    if matcher.op == promql_parser.MatchOp.Re:
        return re.fullmatch(pattern, labels.get(matcher.name, "")) is not None
    return labels.get(matcher.name, "") == pattern


@pytest.mark.parametrize("query", QUERIES)
def test_each_query_of_strimzis_dashboard_finds_series(query):
    """The series have the metric's name, match each matcher, and have each label of `by`."""
    series = [(name, {**POD_LABELS, **dict(labels)}) for name, labels in scrape()]
    needed = {selector.metric: selector.labels for selector in selections(query)}

    for metric, conditions in matchers(query):
        selected = [
            labels
            for name, labels in series
            if name == metric and all(is_matched(matcher, labels) for matcher in conditions)
        ]
        assert selected, f"No series of {metric} matches {query}."
        assert all(needed[metric] <= labels.keys() for labels in selected)


def test_client_ids_are_those_of_java():
    """The ids include the quotation marks that JMX adds."""
    samples = scrape()

    assert 1800 + 900 == value(
        samples,
        "kafka_consumer_incoming_byte_total",
        clientid='"A->B|MirrorSourceConnector-0|replication-consumer"',
    )
    assert 2 << 20 == value(
        samples,
        "kafka_producer_buffer_available_bytes",
        clientid='"connector-producer-MirrorSourceConnector-1"',
    )
    assert 3600 == value(samples, "kafka_connect_incoming_byte_total")
    assert 7 == value(samples, "kafka_connect_source_task_source_record_active_count", task="0")


def test_metrics_without_a_measurement_are_left_out():
    """The second task has not committed offsets yet. Without /proc the memory is unknown."""
    samples = scrape(process=lambda: None)

    assert 12.5 == value(samples, "kafka_connect_connector_task_offset_commit_avg_time_ms")
    assert not [name for name, _ in samples if name.startswith("jvm_")]


@pytest.mark.parametrize(
    ("level", "lags"),
    [
        (MetricsLevel.PARTITION, {("orders", "0"), ("orders", "1"), ("orders", "2"), ("other", "0")}),
        (MetricsLevel.TOPIC, {("orders", None), ("other", None)}),
        (MetricsLevel.FLOW, set()),
    ],
)
def test_consumer_lag_has_the_detail_of_metrics_level(level, lags):
    """Coarser levels do not export one series per partition."""
    series = [
        dict(labels)
        for name, labels in scrape(metrics_level=level)
        if name == "kafka_consumer_fetch_manager_records_lag"
    ]

    assert lags == {(labels["topic"], labels.get("partition")) for labels in series}


def test_a_rebalance_of_the_group_is_exported():
    scrapes = [scrape(is_rebalancing=is_rebalancing) for is_rebalancing in (False, True)]

    assert [0, 1] == [value(samples, "kafka_connect_worker_rebalance_rebalancing") for samples in scrapes]


def test_a_worker_without_connectors_exports_metrics():
    """A distributed worker starts without connectors."""
    assert 0 == value(exposition(now_s=view().now_s), "kafka_connect_coordinator_assigned_tasks")


def test_connectors_with_the_same_name_share_one_series():
    """Java's names do not contain the flow, and Prometheus refuses duplicate series."""
    other = connector(
        task(partition(0), active_records=2, buffer_free_bytes=5, commit_ms=20.0),
        name="B->A.MirrorSourceConnector",
        properties={"name": "MirrorSourceConnector"},
        source_alias="B",
        target_alias="A",
    )
    text = "".join(metrics.render(view(SOURCE, other)))
    samples = parse(text)

    series = [line.rpartition(" ")[0] for line in text.splitlines() if line and line[0] != "#"]
    assert len(series) == len(set(series))
    assert value(samples, "kafka_connect_source_task_source_record_active_count", task="0") == 9
    assert value(samples, COMMITS.partition("{")[0], task="0") == 20.0


LATENCY = "kafka_connect_mirror_mirrorcheckpointconnector_checkpoint_latency_ms"
GROUPS = GroupsReport(
    selected=5,
    failing=1,
    unlike=2,
    active=1,
    checkpoints=40,
    moved=30,
    followed_by="polls",
    followed_s=NOW_S - 2,
    translations={"exact": 7, "bound": 2},
    latencies=(
        CheckpointLatency(group='a "b"', topic="A.foo", partition=0, latency_ms=3.0),
        CheckpointLatency(
            group='a "b"', topic="A.foo", partition=1, latency_ms=4.0, spread_ms=(2.0, 8.0, 4.5)
        ),
    ),
)
REPORT = connector(task(), name="MirrorCheckpointConnector", groups=GROUPS)


def test_checkpoint_latency_has_the_name_and_labels_of_mm2():
    """The name and the labels are those of MM2's MirrorCheckpointMetrics."""
    samples = exposition(REPORT)
    assert 4.0 == value(samples, LATENCY, source="A", target="B", group='a "b"', topic="A.foo", partition="1")


def test_checkpoint_latency_has_the_name_and_labels_of_kip_1280():
    """The labels are those of a plugin. They begin with the connector and its only task."""
    samples = exposition(REPORT, metric_names=frozenset({MetricNames.NEW}))
    where = {"connector": REPORT.name, "task": "0", "source": "A", "group": 'a "b"', "partition": "1"}

    assert 4.0 == value(samples, "kafka_connect_mirror_plugins_checkpoint_latency_ms", **where)
    assert not [name for name, _ in samples if name.startswith(LATENCY)]


def test_minimum_maximum_and_average_latency_are_exported_with_a_sample():
    """The metrics are checkpoint-latency-ms-min, -max and -avg of MM2."""
    samples = exposition(REPORT)
    latencies = {
        suffix: [number for (name, _), number in samples.items() if name == f"{LATENCY}_{suffix}"]
        for suffix in ("min", "max", "avg")
    }
    assert {"min": [2.0], "max": [8.0], "avg": [4.5]} == latencies


def test_a_window_drops_old_samples():
    window = Window(100.0)
    assert window.spread(100.0) is None
    window.take(101.0, 4.0)
    window.take(116.0, 2.0)
    assert window.spread(120.0) == (2.0, 4.0, 3.0)
    assert window.spread(131.0) == (2.0, 2.0, 2.0)
    assert window.spread(150.0) is None


@pytest.mark.parametrize("level", [MetricsLevel.TOPIC, MetricsLevel.FLOW])
def test_coarser_levels_have_no_series_per_group(level: MetricsLevel):
    """Otherwise each scrape could contain thousands of groups."""
    samples = exposition(REPORT, metrics_level=level)
    assert not [name for name, _ in samples if name == LATENCY]
    assert 40 == value(samples, "mirrorflow_checkpoints_total")


def test_groups_are_counted_by_state_and_translation():
    samples = exposition(REPORT)
    states = {
        dict(labels)["state"]: number
        for (name, labels), number in samples.items()
        if name == "mirrorflow_groups"
    }
    assert {"translated": 3, "active-on-target": 1, "failing": 1, "not-synchronised": 2} == states
    assert 7 == value(samples, "mirrorflow_group_partitions", translation="exact")
    assert 2 == value(samples, "mirrorflow_group_partitions", translation="bound")
    assert 30 == value(samples, "mirrorflow_group_offsets_total", connector="MirrorCheckpointConnector")
    assert 2 == value(samples, "mirrorflow_groups_followed_age_seconds", followed_by="polls")


def test_other_connectors_have_no_metrics_of_groups():
    names = {name for name, _ in exposition(connector(task()))}
    assert not {LATENCY, "mirrorflow_groups", "mirrorflow_checkpoints_total"} & names


def schemas_connector(passed_s: float | None) -> ConnectorReport:
    schemas = SchemasReport(subjects=3, versions=7, missing=2, conflicts=1, registered=6, passed_s=passed_s)
    return connector(task(), name="MirrorSchemaConnector", schemas=schemas)


def test_schemas_are_counted_with_the_time_since_the_last_sync():
    samples = exposition(schemas_connector(NOW_S - 12))
    assert 3 == value(samples, "mirrorflow_schema_subjects", connector="MirrorSchemaConnector")
    assert 5 == value(samples, "mirrorflow_schema_versions", state="present")
    assert 2 == value(samples, "mirrorflow_schema_versions", state="missing")
    assert 1 == value(samples, "mirrorflow_schema_conflicts")
    assert 6 == value(samples, "mirrorflow_schema_registered_total")
    assert 12 == value(samples, "mirrorflow_schema_sync_age_seconds")


def test_schemas_that_were_never_compared_have_no_age():
    names = {name for name, _ in exposition(schemas_connector(None))}
    assert "mirrorflow_schema_subjects" in names
    assert "mirrorflow_schema_sync_age_seconds" not in names


def test_other_connectors_have_no_metrics_of_schemas():
    assert not [name for name, _ in exposition(REPORT) if name.startswith("mirrorflow_schema_")]
