"""Renders `/metrics`: Prometheus text 0.0.4.

MM2's metrics keep the names and labels of Strimzi's JMX exporter rules, including type gauge, so that dashboards for MM2 keep
working; so do those of Connect, its clients and its JVM that Strimzi's dashboard queries. Values are the nearest equivalents:
where Java has a consumer and a producer for each task, a task here has its own connections. The exporter keeps the quotation
marks that JMX puts around client ids and connectors, and the dashboard's expressions contain them. Metrics that MM2 lacks begin
with `mirrorflow_`. docs/metrics.md lists all.

`metrics.level` sets what values are aggregated over: a flow, a topic, or nothing. Counts and rates are added. For ages and
latencies the aggregate is the maximum (for `_min` metrics the minimum; averages are averaged over the partitions that moved).
Latencies of groups, which MM2 has by group and partition only, are omitted at any level but `partition`.

Families are rendered one at a time, so that the server can do other work in between.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mirrorflow_core.reports import (
    CheckpointLatency,
    ConnectorReport,
    GroupsReport,
    Guarantee,
    PartitionPhase,
    PartitionReport,
    TaskReport,
)
from mirrorflow_core.settings import MetricsLevel
from mirrorflow_core.stall_detection import StallReason
from mirrorflow_replicator.http.progress import partitions_of
from mirrorflow_replicator.http.samples import NO_RATE, Rate, Spread, lag_records
from mirrorflow_replicator.http.worker_view import Response, WorkerView
from mirrorflow_replicator.process import ResourceUsage

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MM2 = "kafka_connect_mirror_mirrorsourceconnector_"
SAMPLES_PER_PIECE = 2000  # about 250 kB of text, a few milliseconds
_TO_ESCAPE = re.compile(r'[\\"\n]')
_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n"}

Value = float | None
Sample = tuple[str, Value]  # labels with braces, value; None: unknown, omitted


def escape_label(text: str) -> str:
    """Escapes backslash, quote and line feed in a label value, as the text format requires."""
    if _TO_ESCAPE.search(text) is None:
        return text
    return _TO_ESCAPE.sub(lambda match: _ESCAPES[match.group()], text)


def labels(**values: str | int) -> str:
    """Returns `{name="value",...}`, escaped."""
    return "{" + ",".join(f'{name}="{escape_label(str(value))}"' for name, value in values.items()) + "}"


@dataclass(slots=True, kw_only=True)
class _Row:
    """One labelled aggregate: a partition, a topic or a flow."""

    mm2: str  # labels as in MM2
    own: str  # the same with connector and flow
    records: int = 0
    bytes: int = 0
    value_bytes: int = 0
    rate: Rate = NO_RATE
    age_ms: Value = None
    latency_ms: Value = None
    ages: Spread | None = None
    latencies: Spread | None = None
    spreads: int = 0  # how many averages are in `ages`
    latency_spreads: int = 0
    lag: int | None = None
    lag_s: Value = None


def answer(view: WorkerView) -> Response:
    """Answers `GET /metrics`."""
    return Response(
        content_type=CONTENT_TYPE, body=(piece.encode("utf-8", "replace") for piece in render(view))
    )


def render(view: WorkerView) -> Iterator[str]:
    """Yields the whole exposition in pieces, each of whole lines."""
    yield from _worker(view)
    rows: list[_Row] = []
    for report in view.connectors:
        rows += _rows(report, view)
        yield ""
    yield from _mm2(rows)
    yield from _own(rows)
    yield from _partitions(view)
    yield from _connectors(view)
    for family in (*group_families(view), *connect_families(view)):
        samples = ((labels(**own) if own else "", value) for own, value in family.samples)
        yield from _family(family.name, family.kind, family.about, samples)


def _family(name: str, kind: str, about: str, samples: Iterable[Sample]) -> Iterator[str]:
    """Yields HELP, TYPE and the samples; nothing if there is no sample."""
    lines = [f"{name}{label} {value!r}\n" for label, value in samples if value is not None]
    if not lines:
        return
    yield f"# HELP {name} {about}\n# TYPE {name} {kind}\n"
    for begin in range(0, len(lines), SAMPLES_PER_PIECE):
        yield "".join(lines[begin : begin + SAMPLES_PER_PIECE])


def _rows(report: ConnectorReport, view: WorkerView) -> list[_Row]:
    """Returns the aggregates of *report* at the level of *view*, in the order of the partitions."""
    ends = {"source": report.source_alias, "target": report.target_alias}
    own = {"connector": report.name, "flow": report.flow, **ends}
    # All labels except topic and partition are equal for thousands of rows: built once.
    mm2_head, own_head = labels(**ends)[:-1], labels(**own)[:-1]
    rows: dict[str, _Row] = {}
    level = view.metrics_level
    for part in partitions_of(report):
        tail = "}"
        if level is not MetricsLevel.FLOW:
            tail = f',topic="{escape_label(part.target_topic)}"' + "}"
        if level is MetricsLevel.PARTITION:
            tail = f'{tail[:-1]},partition="{part.partition}"' + "}"
        row = rows.get(tail)
        if row is None:
            row = rows[tail] = _Row(mm2=mm2_head + tail, own=own_head + tail)
        _add(row, report, part, view)
    return list(rows.values())


def _add(row: _Row, report: ConnectorReport, part: PartitionReport, view: WorkerView) -> None:
    samples, now_s = view.samples, view.now_s
    row.records += part.records
    row.bytes += part.bytes
    row.value_bytes += part.value_bytes
    rate = samples.rate(report.name, part.topic, part.partition, now_s)
    if rate is not NO_RATE:
        row.rate = rate if row.rate is NO_RATE else row.rate.plus(rate)
    ages, latencies = samples.spreads(report.name, part.topic, part.partition, now_s)
    row.ages, row.spreads = _join(row.ages, row.spreads, ages)
    row.latencies, row.latency_spreads = _join(row.latencies, row.latency_spreads, latencies)
    if part.record_age_ms >= 0:
        row.age_ms = max(row.age_ms or 0.0, part.record_age_ms)
    if part.latency_ms >= 0:
        row.latency_ms = max(row.latency_ms or 0.0, part.latency_ms)
    lag = lag_records(part)
    if lag >= 0:
        row.lag = (row.lag or 0) + lag
        lag_s = samples.lag_s(report.name, part, now_s, now_s) if lag else 0.0
        if lag_s >= 0:
            row.lag_s = max(row.lag_s or 0.0, lag_s)


def _join(one: Spread | None, count: int, other: Spread | None) -> tuple[Spread | None, int]:
    if other is None:
        return one, count
    if one is None:
        return other, 1
    average = (one.average * count + other.average) / (count + 1)
    return Spread(min(one.minimum, other.minimum), max(one.maximum, other.maximum), average), count + 1


def _mm2(rows: list[_Row]) -> Iterator[str]:
    """The metrics of MirrorSourceMetrics, by the names of the exporter's rules."""

    def family(name: str, about: str, value: Callable[[_Row], Value]) -> Iterator[str]:
        return _family(MM2 + name, "gauge", about, ((row.mm2, value(row)) for row in rows))

    yield from family("record_count", "Records delivered to the target.", lambda row: row.records)
    yield from family("record_rate", "Records delivered each second.", lambda row: round(row.rate.records, 3))
    yield from family(
        "byte_count", "Bytes of record values delivered to the target.", lambda row: row.value_bytes
    )
    yield from family(
        "byte_rate", "Value bytes delivered each second.", lambda row: round(row.rate.value_bytes, 3)
    )
    yield from family("record_age_ms", "Age of the last record when it was fetched.", lambda row: row.age_ms)
    yield from family(
        "replication_latency_ms", "Age of the last record when acknowledged.", lambda row: row.latency_ms
    )
    aged = [row for row in rows if row.ages is not None]
    late = [row for row in rows if row.latencies is not None]
    for at, word in enumerate(("min", "max", "avg")):
        about = f"Age of records when they were fetched, {word} of the window."
        ages = ((row.mm2, round(row.ages[at], 3)) for row in aged if row.ages)
        yield from _family(f"{MM2}record_age_ms_{word}", "gauge", about, ages)
    for at, word in enumerate(("min", "max", "avg")):
        about = f"Age of records when they were acknowledged, {word} of the window."
        latencies = ((row.mm2, round(row.latencies[at], 3)) for row in late if row.latencies)
        yield from _family(f"{MM2}replication_latency_ms_{word}", "gauge", about, latencies)


def _own(rows: list[_Row]) -> Iterator[str]:
    """The metrics that MM2 lacks, at the same level."""

    def family(name: str, kind: str, about: str, value: Callable[[_Row], Value]) -> Iterator[str]:
        return _family("mirrorflow_" + name, kind, about, ((row.own, value(row)) for row in rows))

    yield from family("record_lag", "gauge", "Offsets not yet copied.", lambda row: row.lag)
    about = "Age of the oldest record not yet copied, at most; 0 without lag."
    yield from family(
        "lag_seconds", "gauge", about, lambda row: None if row.lag_s is None else round(row.lag_s, 3)
    )
    yield from family(
        "records_total", "counter", "Records delivered since the task began.", lambda row: row.records
    )
    yield from family(
        "bytes_total", "counter", "Batch bytes delivered since the task began.", lambda row: row.bytes
    )


def _partitions(view: WorkerView) -> Iterator[str]:
    """Counts that are rare or have kinds: by connector; by partition only where it is not just copying."""
    batches: list[Sample] = []
    rare: dict[str, list[Sample]] = {
        "refused_writes": [], "skipped_records": [], "lost_records": [], "losses": [],
    }  # fmt: skip
    phases: list[Sample] = []
    guarantees: list[Sample] = []
    stalled: list[Sample] = []
    amiss: list[Sample] = []
    for report in view.connectors:
        own = _own_labels(report)
        parts = list(partitions_of(report))
        batches += [
            (labels(**own, path=path), sum(getattr(part, f"batches_{path}") for part in parts))
            for path in ("raw", "coalesced", "reencoded")
        ]
        for name, samples in rare.items():
            samples.append((labels(**own), sum(getattr(part, name) for part in parts)))
        by_phase = Counter(part.phase for part in parts)
        phases += [(labels(**own, phase=phase.value), by_phase[phase]) for phase in PartitionPhase]
        by_guarantee = Counter(part.guarantee for part in parts)
        guarantees += [(labels(**own, guarantee=word.value), by_guarantee[word]) for word in Guarantee]
        stalled += [(labels(**own, reason=reason), count) for reason, count in _stalled(parts)]
        if view.metrics_level is MetricsLevel.PARTITION:
            amiss += [
                _amiss(own, part) for part in parts if part.phase is not PartitionPhase.COPYING or part.reason
            ]
    yield from _family(
        "mirrorflow_batches_total", "counter", "Batches delivered, by the way they were made.", batches
    )
    about = "Writes that the target refused, after which it was asked again."
    yield from _family("mirrorflow_refused_writes_total", "counter", about, rare["refused_writes"])
    about = "Control records, and aborted ones with read_committed, left out."
    yield from _family("mirrorflow_skipped_records_total", "counter", about, rare["skipped_records"])
    about = "Records gone from the source before they were copied, passed over by policy."
    yield from _family("mirrorflow_lost_records_total", "counter", about, rare["lost_records"])
    about = "Losses of data, on either side, after which the policy was to go on."
    yield from _family("mirrorflow_losses_total", "counter", about, rare["losses"])
    yield from _family("mirrorflow_partitions", "gauge", "Partitions by what they are doing.", phases)
    about = "Partitions that have something to copy and stand still, by reason."
    yield from _family("mirrorflow_partitions_stalled", "gauge", about, stalled)
    yield from _family(
        "mirrorflow_guarantee", "gauge", "Partitions by what holds for their records.", guarantees
    )
    yield from _family(
        "mirrorflow_partition_phase", "gauge", "1 for a partition that is not simply copying.", amiss
    )


def _stalled(parts: list[PartitionReport]) -> list[tuple[str, int]]:
    """Counts stalled partitions by reason; 0 for each unused `StallReason`.

    Without the zeros a series would end while an alert evaluates it.
    """
    counted = Counter({reason.value: 0 for reason in StallReason})
    counted.update(part.reason for part in parts if part.is_stalled)
    return sorted(counted.items())


def _amiss(own: dict[str, str], part: PartitionReport) -> Sample:
    where = labels(
        **own, topic=part.target_topic, partition=part.partition, phase=part.phase.value, reason=part.reason
    )
    return where, 1


def _own_labels(report: ConnectorReport) -> dict[str, str]:
    ends = {"source": report.source_alias, "target": report.target_alias}
    return {"connector": report.name, "flow": report.flow, **ends}


def _connectors(view: WorkerView) -> Iterator[str]:
    """Errors, throttling and states of connectors."""
    errors: list[Sample] = []
    throttles: list[Sample] = []
    syncs: list[Sample] = []
    states: list[Sample] = []
    ages: list[Sample] = []
    refused: list[Sample] = []
    warnings: list[Sample] = []
    for report in view.connectors:
        own = _own_labels(report)
        counted: Counter[str] = Counter()
        for task in report.tasks:
            counted.update(task.errors)
        errors += [(labels(**own, reason=reason), counted[reason]) for reason in sorted(counted)]
        throttles.append((labels(**own), sum(task.throttle_ms for task in report.tasks)))
        if report.tasks:
            syncs.append((labels(**own), sum(task.offset_syncs for task in report.tasks)))
        settings = {key for task in report.tasks for key in task.refused_settings}
        refused.append((labels(**own), len(settings)))
        warnings.append((labels(**own), len(report.warnings)))
        states.append((labels(connector=report.name, state=report.state.lower()), 1))
        ages += [
            (
                labels(**own, cluster=one.cluster, topic=one.topic),
                round(view.now_s - one.timestamp_ms / 1000, 3),
            )
            for one in report.heartbeats
        ]
    yield from _family("mirrorflow_errors_total", "counter", "Errors by reason since the task began.", errors)
    about = "Offset syncs written since the task began."
    yield from _family("mirrorflow_offset_syncs_total", "counter", about, syncs)
    about = "Milliseconds that brokers made us wait for a quota."
    yield from _family("mirrorflow_throttle_ms_total", "counter", about, throttles)
    about = "Topic settings that the target did not take."
    yield from _family("mirrorflow_refused_settings", "gauge", about, refused)
    about = "Topics and settings that could not be followed; REST and the log name them."
    yield from _family("mirrorflow_warnings", "gauge", about, warnings)
    about = "Time since the newest heartbeat that was written to a topic, or has arrived in its copy."
    yield from _family("mirrorflow_heartbeat_age_seconds", "gauge", about, ages)
    yield from _family(
        "mirrorflow_connector_state", "gauge", "1 for the state that the connector is in.", states
    )


def _worker(view: WorkerView) -> Iterator[str]:
    """The worker metrics of Connect that dashboards for MM2 show."""
    info = [(labels(version=view.version, commit=view.commit), 1)]
    yield from _family("mirrorflow_build_info", "gauge", "The version that runs.", info)
    yield from _family(
        "mirrorflow_ready", "gauge", "1 once every partition has been asked.", [("", int(view.ready))]
    )
    yield from _family(
        "mirrorflow_setting_warnings", "gauge", "Warnings about settings.", [("", len(view.warnings))]
    )
    worker = "kafka_connect_worker_"
    tasks = sum(len(report.tasks) for report in view.connectors)
    about = "Connectors of this process."
    yield from _family(worker + "connector_count", "gauge", about, [("", len(view.connectors))])
    yield from _family(worker + "task_count", "gauge", "Tasks of this process.", [("", tasks)])
    statuses = [
        (labels(connector=report.name, task=task.task, status=task.state.lower()), 1)
        for report in view.connectors
        for task in report.tasks
    ]
    yield from _family(
        "kafka_connect_connector_status", "gauge", "1 for the state that a task is in.", statuses
    )
    for state in ("running", "paused", "failed", "unassigned"):
        by_state = [
            (labels(connector=report.name), sum(task.state.lower() == state for task in report.tasks))
            for report in view.connectors
        ]
        about = f"Tasks of a connector that are {state}."
        yield from _family(f"{worker}connector_{state}_task_count", "gauge", about, by_state)
    totals = [(labels(connector=report.name), len(report.tasks)) for report in view.connectors]
    yield from _family(worker + "connector_total_task_count", "gauge", "Tasks of a connector.", totals)


LATENCY = "kafka_connect_mirror_mirrorcheckpointconnector_checkpoint_latency_ms"


class Family(NamedTuple):
    """One metric: its name, type, meaning, and values by labels."""

    name: str
    kind: str
    about: str
    samples: Sequence[tuple[Mapping[str, str | int], float]]


def group_families(view: WorkerView) -> Iterator[Family]:
    """Yields all families; the renderer omits empty ones."""
    reports = [(report, report.groups) for report in view.connectors if report.groups is not None]
    latencies: list[tuple[Mapping[str, str | int], CheckpointLatency]] = [
        (
            {
                "source": report.source_alias,
                "target": report.target_alias,
                "group": one.group,
                "topic": one.topic,
                "partition": one.partition,
            },
            one,
        )
        for report, groups in reports
        for one in groups.latencies
        if view.metrics_level is MetricsLevel.PARTITION
    ]
    about = "How long the last checkpoint took until it was acknowledged."
    yield Family(LATENCY, "gauge", about, [(labels, one.latency_ms) for labels, one in latencies])
    for at, (suffix, word) in enumerate((("min", "least"), ("max", "greatest"), ("avg", "mean"))):
        samples = [(labels, one.spread_ms[at]) for labels, one in latencies if one.spread_ms is not None]
        about = f"How long checkpoints took until they were acknowledged, {word} of the window."
        yield Family(f"{LATENCY}_{suffix}", "gauge", about, samples)
    yield Family(
        "mirrorflow_groups",
        "gauge",
        "Consumer groups of the source that are selected, by what becomes of them.",
        [
            ({**_own_of(report), "state": state}, count)
            for report, groups in reports
            for state, count in _states(groups)
        ],
    )
    yield Family(
        "mirrorflow_group_partitions",
        "gauge",
        "Partitions that selected groups have offsets of, by how well these are known on the target.",
        [
            ({**_own_of(report), "translation": word}, count)
            for report, groups in reports
            for word, count in sorted(groups.translations.items())
        ],
    )
    yield Family(
        "mirrorflow_checkpoints_total",
        "counter",
        "Checkpoints written.",
        [(_own_of(report), groups.checkpoints) for report, groups in reports],
    )
    yield Family(
        "mirrorflow_group_offsets_total",
        "counter",
        "Offsets that groups of the target were given.",
        [(_own_of(report), groups.moved) for report, groups in reports],
    )


def _own_of(report: ConnectorReport) -> dict[str, str | int]:
    return {
        "connector": report.name,
        "flow": report.flow,
        "source": report.source_alias,
        "target": report.target_alias,
    }


def _states(groups: GroupsReport) -> tuple[tuple[str, int], ...]:
    translated = max(0, groups.selected - groups.failing - groups.active)
    return (
        ("translated", translated),
        ("active-on-target", groups.active),
        ("failing", groups.failing),
        ("not-synchronised", groups.unlike),
    )


_CONNECT = "kafka_connect_"
Labels = dict[str, str | int]


def connect_families(view: WorkerView) -> Iterator[Family]:
    """Yields all families; the renderer omits empty ones."""
    yield from _coordinator(view)
    yield from _clients(view)
    yield from _tasks(view)
    use = view.process()
    if use is not None:
        yield from _process(use)


def _coordinator(view: WorkerView) -> Iterator[Family]:
    assigned = sum(report.is_here for report in view.connectors)
    tasks = sum(len(report.tasks) for report in view.connectors)
    about = "Connectors that this node of a group runs."
    yield Family(f"{_CONNECT}coordinator_assigned_connectors", "gauge", about, [({}, assigned)])
    about = "Tasks that this node of a group runs."
    yield Family(f"{_CONNECT}coordinator_assigned_tasks", "gauge", about, [({}, tasks)])
    about = "1 while the nodes of a group settle who runs what."
    yield Family(f"{_CONNECT}worker_rebalance_rebalancing", "gauge", about, [({}, int(view.is_rebalancing))])
    copied = sum(
        part.bytes for report in view.connectors for task in report.tasks for part in task.partitions
    )
    for way, word in (("incoming", "read from sources"), ("outgoing", "written to the target")):
        about = f"Batch bytes that tasks have {word} since they began."
        yield Family(f"{_CONNECT}{way}_byte_total", "counter", about, [({}, copied)])


def _clients(view: WorkerView) -> Iterator[Family]:
    """A consumer and a producer for each task that copies, by their names in Java."""
    incoming, outgoing, free, lags = [], [], [], []
    for report, task in _copying(view):
        name = report.properties.get("name", report.name)
        flow = f"{report.source_alias}->{report.target_alias}"
        consumer: Labels = {"clientid": f'"{flow}|{name}-{task.task}|replication-consumer"'}
        producer: Labels = {"clientid": f'"connector-producer-{name}-{task.task}"'}
        copied = sum(part.bytes for part in task.partitions)
        incoming.append((consumer, copied))
        outgoing.append((producer, copied))
        if task.buffer_free_bytes >= 0:
            free.append((producer, task.buffer_free_bytes))
        lags += [({**consumer, **where}, lag) for where, lag in _lags(task, view.metrics_level)]
    about = "Batch bytes that the task has read from the source since it began."
    yield Family("kafka_consumer_incoming_byte_total", "counter", about, incoming)
    about = "Batch bytes that the task has written to the target since it began."
    yield Family("kafka_producer_outgoing_byte_total", "counter", about, _merged(outgoing))
    about = "Bytes that the task may still fetch before it has to send."
    yield Family("kafka_producer_buffer_available_bytes", "gauge", about, _merged(free))
    about = "Offsets not yet copied, by the topic of the source."
    yield Family("kafka_consumer_fetch_manager_records_lag", "gauge", about, lags)


def _lags(task: TaskReport, level: MetricsLevel) -> Iterator[tuple[Labels, int]]:
    found: dict[tuple[str, int | None], int] = {}
    for part in task.partitions:
        lag = lag_records(part)
        if lag >= 0 and level is not MetricsLevel.FLOW:
            where = (part.topic, part.partition if level is MetricsLevel.PARTITION else None)
            found[where] = found.get(where, 0) + lag
    for (topic, partition), lag in found.items():
        yield {"topic": topic, **({} if partition is None else {"partition": partition})}, lag


def _tasks(view: WorkerView) -> Iterator[Family]:
    active, commits = [], []
    for report, task in _copying(view):
        name = report.properties.get("name", report.name)
        labels: Labels = {"connector": f'"{name}"', "task": task.task}
        if task.active_records >= 0:
            active.append((labels, task.active_records))
        if task.commit_ms >= 0:
            commits.append((labels, round(task.commit_ms, 3)))
    about = "Records that are sent to the target and not yet acknowledged."
    yield Family(f"{_CONNECT}source_task_source_record_active_count", "gauge", about, _merged(active))
    about = "Mean time that the newest writes of positions took."
    yield Family(f"{_CONNECT}connector_task_offset_commit_avg_time_ms", "gauge", about, _merged(commits, max))


def _merged(
    samples: Iterable[tuple[Labels, float]], combine: Callable[[Iterable[float]], float] = sum
) -> list[tuple[Labels, float]]:
    """Returns one sample for each set of labels.

    A process with several flows has a connector of the same name in each, and these names do not contain the flow.
    """
    found: dict[tuple[tuple[str, str | int], ...], list[float]] = {}
    for labels, value in samples:
        found.setdefault(tuple(labels.items()), []).append(value)
    return [(dict(labels), combine(values)) for labels, values in found.items()]


def _copying(view: WorkerView) -> Iterator[tuple[ConnectorReport, TaskReport]]:
    for report in view.connectors:
        if report.connector_class.endswith("MirrorSourceConnector"):
            yield from ((report, task) for task in report.tasks)


def _process(use: ResourceUsage) -> Iterator[Family]:
    about = "Resident memory of this process and its tasks."
    yield Family("jvm_memory_used_bytes", "gauge", about, [({"area": "process"}, use.resident_bytes)])
    yield Family(
        "jvm_threads_current", "gauge", "Threads of this process and its tasks.", [({}, use.threads)]
    )
    about = "Always 0: there is no JVM that stops to collect garbage."
    yield Family("jvm_gc_collection_seconds_sum", "counter", about, [({"gc": "none"}, 0)])
    about = "CPU time of this process and its tasks."
    yield Family("process_cpu_seconds_total", "counter", about, [({}, round(use.cpu_s, 2))])
