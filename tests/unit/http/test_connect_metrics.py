"""Strimzi's dashboard of MM2 is answered: each of its queries finds series here, and sums them by labels that they have."""

import re

import promql_parser
import pytest

from mirrorflow_core.reports import CheckpointLatency, GroupsReport
from mirrorflow_core.settings import MetricsLevel
from mirrorflow_replicator.http import metrics
from mirrorflow_replicator.http.partition_rates import Window
from mirrorflow_replicator.process import ResourceUsage
from tests.contract.expressions import asked_for
from tests.unit.http.reports import connector, moved, partition, task, view
from tests.unit.http.test_metrics import exposition, parse, value

# What Strimzi's PodMonitor puts on every series (docs/metrics.md has one for our pods).
OF_STRIMZI = {
    "strimzi_io_kind": "KafkaMirrorMaker2",
    "strimzi_io_cluster": "east-to-west",
    "kubernetes_pod_name": "p",
    "namespace": "n",
}
MM2 = "kafka_connect_mirror_mirrorsourceconnector_"
CHOSEN = 'strimzi_io_kind=~"KafkaMirrorMaker2",strimzi_io_cluster="$strimzi_mirror_maker_cluster_name"'
COMMITS = 'kafka_connect_connector_task_offset_commit_avg_time_ms{connector=~"\\".*SourceConnector\\"", task=~"[0-9]+"}'
BY_PARTITION = [
    f"{family}{suffix}"
    for family in ("record_age_ms", "replication_latency_ms")
    for suffix in ("", "_avg", "_min", "_max")
]
# The expressions of examples/metrics/grafana-dashboards/strimzi-kafka-mirror-maker-2.json of Strimzi 0.47 and later, and two of
# earlier ones (the last two). One is not ours to answer: container_cpu_usage_seconds_total is the kubelet's.
QUERIES = [
    f"sum(kafka_connect_worker_connector_count{{{CHOSEN}}})",
    f"sum(kafka_connect_worker_task_count{{{CHOSEN}}})",
    f"sum({MM2}record_rate{{{CHOSEN}}})",
    f"sum({MM2}byte_rate{{{CHOSEN}}})",
    *(f"sum({MM2}{name}{{{CHOSEN}}}) by (partition, topic)" for name in BY_PARTITION),
    f'sum(kafka_consumer_fetch_manager_records_lag{{{CHOSEN},clientid=~".*replication-consumer\\""}}) by (topic, partition)',
    f'topk(20, sum(kafka_consumer_fetch_manager_records_lag{{{CHOSEN},clientid=~".*replication-consumer\\""}}) by (partition, topic))',
    f"sum(rate(kafka_consumer_incoming_byte_total{{{CHOSEN}}}[5m])) by (kubernetes_pod_name)",
    f"sum(rate(kafka_producer_outgoing_byte_total{{{CHOSEN}}}[5m])) by (kubernetes_pod_name)",
    f"sum by (source, target, topic, partition, group) (kafka_connect_mirror_mirrorcheckpointconnector_checkpoint_latency_ms{{{CHOSEN}}})",
    'sum(kafka_producer_buffer_available_bytes{clientid=~"\\".*SourceConnector-[0-9]+\\""})',
    f"sum({COMMITS})/count({COMMITS})",
    'sum(kafka_connect_source_task_source_record_active_count{connector=~"\\".*SourceConnector\\""})',
    f"sum(kafka_connect_coordinator_assigned_connectors{{{CHOSEN}}}) by (kubernetes_pod_name)",
    f"sum(kafka_connect_worker_rebalance_rebalancing{{{CHOSEN}}})",
    f"sum(kafka_connect_coordinator_assigned_tasks{{{CHOSEN}}}) by (kubernetes_pod_name)",
    f"sum(jvm_memory_used_bytes{{{CHOSEN}}}) by (kubernetes_pod_name)",
    f"sum(rate(jvm_gc_collection_seconds_sum{{{CHOSEN}}}[5m])) by (kubernetes_pod_name)",
    f"sum(jvm_threads_current{{{CHOSEN}}}) by (kubernetes_pod_name)",
    'kafka_connect_worker_connector_count{namespace="$kubernetes_namespace", strimzi_io_kind="KafkaMirrorMaker2"}',
    f"sum(kafka_connect_incoming_byte_total{{{CHOSEN}}})",
    f"sum(kafka_connect_outgoing_byte_total{{{CHOSEN}}})",
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
    task(partition(2), number=1, active_records=0, buffer_free_bytes=2 << 20, commit_ms=-1),
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


def scraped(**changes):
    use = ResourceUsage(resident_bytes=5, threads=3, cpu_s=1.5)
    state = {"samples": moved(SOURCE), "process": lambda: use} | changes
    return exposition(SOURCE, CHECKPOINTS, **state)


def matchers(expression):
    """The matchers of each selector of *expression*, by metric."""
    found = []

    def visit(node):
        if isinstance(node, promql_parser.VectorSelector):
            found.append((node.name, node.matchers.matchers))
        for name in ("lhs", "rhs", "expr", "vector_selector"):
            if getattr(node, name, None) is not None:
                visit(getattr(node, name))
        for argument in getattr(node, "args", ()):
            visit(argument)

    visit(promql_parser.parse(expression))
    return found


def answers(matcher, labels):
    wanted = matcher.value.replace("$strimzi_mirror_maker_cluster_name", "east-to-west")
    wanted = wanted.replace("$kubernetes_namespace", "n")
    if matcher.op == promql_parser.MatchOp.Re:
        return re.fullmatch(wanted, labels.get(matcher.name, "")) is not None
    return labels.get(matcher.name, "") == wanted


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_of_strimzis_dashboard_finds_series(query):
    """By name, by every matcher, and with every label that it sums by."""
    found = [(name, {**OF_STRIMZI, **dict(labels)}) for name, labels in scraped()]
    needed = {one.metric: one.labels for one in asked_for(query)}

    for metric, conditions in matchers(query):
        chosen = [
            labels
            for name, labels in found
            if name == metric and all(answers(one, labels) for one in conditions)
        ]
        assert chosen, f"nothing answers {metric} of {query}"
        assert all(needed[metric] <= labels.keys() for labels in chosen)


def test_clients_have_their_names_in_java():
    """With the quotation marks that JMX puts around them."""
    found = scraped()

    assert 1800 + 900 == value(
        found,
        "kafka_consumer_incoming_byte_total",
        clientid='"A->B|MirrorSourceConnector-0|replication-consumer"',
    )
    assert 2 << 20 == value(
        found,
        "kafka_producer_buffer_available_bytes",
        clientid='"connector-producer-MirrorSourceConnector-1"',
    )
    assert 3600 == value(found, "kafka_connect_incoming_byte_total")
    assert 7 == value(found, "kafka_connect_source_task_source_record_active_count", task="0")


def test_what_was_never_measured_has_no_line():
    """The second task has not written positions yet, and no /proc is no memory."""
    found = scraped(process=lambda: None)

    assert 12.5 == value(found, "kafka_connect_connector_task_offset_commit_avg_time_ms")
    assert not [name for name, _ in found if name.startswith("jvm_")]


@pytest.mark.parametrize(
    ("level", "lags"),
    [
        (MetricsLevel.PARTITION, {("orders", "0"), ("orders", "1"), ("orders", "2"), ("other", "0")}),
        (MetricsLevel.TOPIC, {("orders", None), ("other", None)}),
        (MetricsLevel.FLOW, set()),
    ],
)
def test_lag_of_consumers_is_as_fine_as_metrics_level(level, lags):
    """Thousands of partitions are not shown to who asked for sums."""
    found = [
        dict(labels)
        for name, labels in scraped(metrics_level=level)
        if name == "kafka_consumer_fetch_manager_records_lag"
    ]

    assert lags == {(labels["topic"], labels.get("partition")) for labels in found}


def test_a_meeting_of_the_group_is_shown():
    """As a rebalance of Connect."""
    found = [scraped(is_rebalancing=one) for one in (False, True)]

    assert [0, 1] == [value(one, "kafka_connect_worker_rebalance_rebalancing") for one in found]


def test_view_without_connectors_is_rendered():
    """A distributed worker begins without any."""
    assert 0 == value(exposition(now_s=view().now_s), "kafka_connect_coordinator_assigned_tasks")


def test_flows_of_one_process_share_the_series_of_connectors_with_the_same_name():
    """Java's names do not contain the flow, and Prometheus refuses a scrape with the same series twice."""
    other = connector(
        task(partition(0), active_records=2, buffer_free_bytes=5, commit_ms=20.0),
        name="B->A.MirrorSourceConnector",
        properties={"name": "MirrorSourceConnector"},
        source_alias="B",
        target_alias="A",
    )
    text = "".join(metrics.render(view(SOURCE, other)))
    found = parse(text)

    series = [line.rpartition(" ")[0] for line in text.splitlines() if line and line[0] != "#"]
    assert len(series) == len(set(series))
    assert value(found, "kafka_connect_source_task_source_record_active_count", task="0") == 9
    assert value(found, COMMITS.partition("{")[0], task="0") == 20.0


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
