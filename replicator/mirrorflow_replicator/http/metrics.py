"""Renders `/metrics` as Prometheus text 0.0.4. A metric is added here.

MM2's metrics keep the names and labels of Strimzi's JMX exporter rules, including type gauge, so that dashboards for MM2 keep
working; so do those of Connect, its clients and its JVM that Strimzi's dashboard queries. Values are the nearest equivalents:
where Java has a consumer and a producer for each task, a task here has its own connections. The exporter keeps the quotation
marks that JMX puts around client ids and connectors, and the dashboard's expressions contain them. Metrics that MM2 lacks begin
with `mirrorflow_`. docs/metrics.md lists all.

`metric.names.formats` chooses the names of MM2's metrics: those of the rules, those of KIP-1280, or both. The latter have the
connector as a label and, by partition, the task.

`metrics.level` sets what values are aggregated over: a flow, a topic, or nothing. Counts and rates are added. For ages and
latencies the aggregate is the maximum (for `_min` metrics the minimum; averages are averaged over the partitions that moved).
Latencies of groups, which MM2 has by group and partition only, are omitted at any level but `partition`.

Families are rendered one at a time, so that the server can do other work in between.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mirrorflow_core.reports import ConnectorReport, Guarantee, PartitionPhase, PartitionReport, TaskReport
from mirrorflow_core.settings import MetricNames, MetricsLevel
from mirrorflow_core.stall_detection import StallReason
from mirrorflow_replicator.http.partition_rates import NO_RATE, Rate, Spread, shown_lag_records
from mirrorflow_replicator.http.progress import BATCH_PATHS
from mirrorflow_replicator.http.replicating_state import partitions_of
from mirrorflow_replicator.http.worker_view import Response, WorkerView

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MM2 = "kafka_connect_mirror_mirrorsourceconnector_"
CHECKPOINTS = "kafka_connect_mirror_mirrorcheckpointconnector_"
PLUGINS = "kafka_connect_mirror_plugins_"  # both connectors by KIP-1280
SAMPLES_PER_PIECE = 2000  # about 250 kB of text, a few milliseconds
_CONNECT = "kafka_connect_"
_WORKER = "kafka_connect_worker_"
_OURS = "mirrorflow_"
_SPREAD = ("min", "max", "avg")  # in the order of `Spread`
_TO_ESCAPE = re.compile(r'[\\"\n]')
_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n"}

Value = float | None
Labels = Mapping[str, str | int]
Sample = tuple[Labels | str, Value]  # labels, or their text with braces; the value, None where it is unknown


def escape_label(text: str) -> str:
    """Escapes backslash, quote and line feed in a label value, as the text format requires."""
    if _TO_ESCAPE.search(text) is None:
        return text
    return _TO_ESCAPE.sub(lambda match: _ESCAPES[match.group()], text)


def labels(values: Labels) -> str:
    """Returns `{name="value",...}`, escaped; "" without labels."""
    inner = ",".join(f'{name}="{escape_label(str(value))}"' for name, value in values.items())
    return f"{{{inner}}}" if inner else ""


def respond(view: WorkerView) -> Response:
    """Serves `GET /metrics`."""
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
    if MetricNames.LEGACY in view.metric_names:
        yield from _mm2_metrics(MM2, [(row.mm2, row) for row in rows])
    if MetricNames.NEW in view.metric_names:
        yield from _mm2_metrics(PLUGINS, [(row.plugin, row) for row in rows])
    yield from _row_metrics(rows)
    yield from _partitions(view)
    yield from _connectors(view)
    yield from _groups(view)
    yield from _schemas(view)
    yield from _coordinator(view)
    yield from _clients(view)
    yield from _tasks(view)
    yield from _process(view)


def _gauge(name: str, about: str, samples: Iterable[Sample], *, kind: str = "gauge") -> Iterator[str]:
    """Yields HELP, TYPE and the samples; nothing if there is no sample."""
    lines = [
        f"{name}{own if isinstance(own, str) else labels(own)} {value!r}\n"
        for own, value in samples
        if value is not None
    ]
    if not lines:
        return
    yield f"# HELP {name} {about}\n# TYPE {name} {kind}\n"
    for begin in range(0, len(lines), SAMPLES_PER_PIECE):
        yield "".join(lines[begin : begin + SAMPLES_PER_PIECE])


def _counter(name: str, about: str, samples: Iterable[Sample]) -> Iterator[str]:
    return _gauge(name, about, samples, kind="counter")


def _connector_labels(report: ConnectorReport) -> dict[str, str | int]:
    return {
        "connector": report.name,
        "flow": report.flow,
        "source": report.source_alias,
        "target": report.target_alias,
    }


# -- partitions, topics or flows


@dataclass(slots=True, kw_only=True)
class _Row:
    """One labelled aggregate: a partition, a topic or a flow."""

    mm2: str  # labels as in MM2
    plugin: str  # the same as KIP-1280 has them
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


def _rows(report: ConnectorReport, view: WorkerView) -> list[_Row]:
    """Returns the aggregates of *report* at the level of *view*, in the order of the partitions."""
    # All labels except topic and partition are equal for thousands of rows: built once.
    aliases = {"source": report.source_alias, "target": report.target_alias}
    mm2_head = labels(aliases)[:-1]
    own_head = labels(_connector_labels(report))[:-1]
    rows: dict[str, _Row] = {}
    for number, part in ((task.task, part) for task in report.tasks for part in task.partitions):
        tail = ""
        plugin: Labels = {"connector": report.name, **aliases}
        if view.metrics_level is not MetricsLevel.FLOW:
            tail = f',topic="{escape_label(part.target_topic)}"'
        if view.metrics_level is MetricsLevel.PARTITION:
            tail += f',partition="{part.partition}"'
            plugin = {"connector": report.name, "task": number, **aliases}
        row = rows.get(tail)
        if row is None:
            row = rows[tail] = _Row(
                mm2=f"{mm2_head}{tail}}}", plugin=f"{labels(plugin)[:-1]}{tail}}}", own=f"{own_head}{tail}}}"
            )
        _add(row, report, part, view)
    return list(rows.values())


def _add(row: _Row, report: ConnectorReport, part: PartitionReport, view: WorkerView) -> None:
    samples, now_s = view.samples, view.monotonic_s
    row.records += part.records
    row.bytes += part.bytes
    row.value_bytes += part.value_bytes
    rate = samples.rate(report.name, part.topic, part.partition, now_s)
    if rate is not NO_RATE:
        row.rate = rate if row.rate is NO_RATE else row.rate.plus(rate)
    ages, latencies = samples.spreads(report.name, part.topic, part.partition, now_s)
    row.ages, row.spreads = _combined_spread(row.ages, row.spreads, ages)
    row.latencies, row.latency_spreads = _combined_spread(row.latencies, row.latency_spreads, latencies)
    if part.record_age_ms is not None:
        row.age_ms = max(row.age_ms or 0.0, part.record_age_ms)
    if part.latency_ms is not None:
        row.latency_ms = max(row.latency_ms or 0.0, part.latency_ms)
    lag = shown_lag_records(report, part)
    if lag is not None:
        row.lag = (row.lag or 0) + lag
        lag_s = samples.lag_s(report.name, part, now_s, view.now_s) if lag else 0.0
        if lag_s is not None:
            row.lag_s = max(row.lag_s or 0.0, lag_s)


def _combined_spread(spread: Spread | None, count: int, other: Spread | None) -> tuple[Spread | None, int]:
    if other is None:
        return spread, count
    if spread is None:
        return other, 1
    average = (spread.average * count + other.average) / (count + 1)
    return Spread(min(spread.minimum, other.minimum), max(spread.maximum, other.maximum), average), count + 1


def _mm2_metrics(prefix: str, rows: list[tuple[str, _Row]]) -> Iterator[str]:
    """The metrics of MirrorSourceMetrics; *rows* are labels and aggregate."""

    def family(name: str, about: str, value: Callable[[_Row], Value]) -> Iterator[str]:
        return _gauge(prefix + name, about, ((own, value(row)) for own, row in rows))

    yield from family("record_count", "Records delivered to the target.", lambda row: row.records)
    yield from family("record_rate", "Records delivered each second.", lambda row: round(row.rate.records, 3))
    about = "Bytes of record values delivered to the target."
    yield from family("byte_count", about, lambda row: row.value_bytes)
    about = "Value bytes delivered each second."
    yield from family("byte_rate", about, lambda row: round(row.rate.value_bytes, 3))
    yield from family("record_age_ms", "Age of the last record when it was sent.", lambda row: row.age_ms)
    about = "Age of the last record when acknowledged."
    yield from family("replication_latency_ms", about, lambda row: row.latency_ms)
    for index, statistic in enumerate(_SPREAD):
        about = f"Age of records when they were fetched, {statistic} of the window."
        ages = ((own, round(row.ages[index], 3)) for own, row in rows if row.ages)
        yield from _gauge(f"{prefix}record_age_ms_{statistic}", about, ages)
    for index, statistic in enumerate(_SPREAD):
        about = f"Age of records when they were acknowledged, {statistic} of the window."
        latencies = ((own, round(row.latencies[index], 3)) for own, row in rows if row.latencies)
        yield from _gauge(f"{prefix}replication_latency_ms_{statistic}", about, latencies)


def _row_metrics(rows: list[_Row]) -> Iterator[str]:
    """The metrics that MM2 lacks, at the same level."""
    yield from _gauge(_OURS + "record_lag", "Offsets not yet copied.", ((row.own, row.lag) for row in rows))
    about = "Age of the oldest record not yet copied, at most; 0 without lag."
    ages = ((row.own, None if row.lag_s is None else round(row.lag_s, 3)) for row in rows)
    yield from _gauge(_OURS + "lag_seconds", about, ages)
    about = "Records delivered since the task began."
    yield from _counter(_OURS + "records_total", about, ((row.own, row.records) for row in rows))
    about = "Batch bytes delivered since the task began."
    yield from _counter(_OURS + "bytes_total", about, ((row.own, row.bytes) for row in rows))


def _partitions(view: WorkerView) -> Iterator[str]:
    """Counts by connector, and one sample for each partition that is not copying or has a problem."""
    reports = [(_connector_labels(report), list(partitions_of(report))) for report in view.connectors]

    def total(name: str) -> list[Sample]:
        return [(own, sum(getattr(part, name) for part in parts)) for own, parts in reports]

    batches = [
        ({**own, "path": path}, sum(getattr(part, f"batches_{path}") for part in parts))
        for own, parts in reports
        for path in BATCH_PATHS
    ]
    yield from _counter(_OURS + "batches_total", "Batches delivered, by the way they were made.", batches)
    about = "Writes that the target refused and that were retried."
    yield from _counter(_OURS + "refused_writes_total", about, total("refused_writes"))
    about = "Control records, and with read_committed aborted records, that were not copied."
    yield from _counter(_OURS + "skipped_records_total", about, total("skipped_records"))
    about = "Records that the source deleted before they were copied, skipped by policy."
    yield from _counter(_OURS + "lost_records_total", about, total("lost_records"))
    about = "Data losses on either cluster after which the flow continued, by policy."
    yield from _counter(_OURS + "losses_total", about, total("losses"))
    phases = [
        ({**own, "phase": phase.value}, counted[phase])
        for own, parts in reports
        for counted in [Counter(part.phase for part in parts)]
        for phase in PartitionPhase
    ]
    yield from _gauge(_OURS + "partitions", "Partitions by phase.", phases)
    yield from _stalls(reports, view.monotonic_s)
    guarantees = [
        ({**own, "guarantee": guarantee.value}, counted[guarantee])
        for own, parts in reports
        for counted in [Counter(part.guarantee for part in parts)]
        for guarantee in Guarantee
    ]
    yield from _gauge(_OURS + "guarantee", "Partitions by delivery guarantee.", guarantees)
    not_copying = [
        (
            {
                **own,
                "topic": part.target_topic,
                "partition": part.partition,
                "phase": part.phase.value,
                "reason": part.reason or "",
            },
            1,
        )
        for own, parts in reports
        for part in parts
        if view.metrics_level is MetricsLevel.PARTITION
        and (part.phase is not PartitionPhase.COPYING or part.reason is not None)
    ]
    yield from _gauge(
        _OURS + "partition_phase", "1 for a partition that is not copying, or has a reason.", not_copying
    )


def _stalls(
    reports: Sequence[tuple[dict[str, str | int], list[PartitionReport]]], now_s: float
) -> Iterator[str]:
    """Yields the number and the age of stalls by reason; 0 for each unused `StallReason`.

    Without the zeros a series would end while an alert evaluates it.
    """
    counts: list[Sample] = []
    ages: list[Sample] = []
    for own, parts in reports:
        ages_s: dict[str, list[float]] = {reason.value: [] for reason in StallReason}
        for part in parts:
            if part.stalled_since_ms is not None:
                ages_s.setdefault(part.reason or "", []).append(
                    max(0.0, now_s - part.stalled_since_ms / 1000)
                )
        for reason, of_reason in sorted(ages_s.items()):
            counts.append(({**own, "reason": reason}, len(of_reason)))
            ages.append(({**own, "reason": reason}, round(max(of_reason, default=0.0), 3)))
    about = "Partitions that have records to copy and do not advance, by reason."
    yield from _gauge(_OURS + "partitions_stalled", about, counts)
    about = "Time since the longest stalled partition made progress, by reason."
    yield from _gauge(_OURS + "stalled_seconds", about, ages)


# -- connectors


def _connectors(view: WorkerView) -> Iterator[str]:
    """Errors, throttling and states of connectors."""
    reports = [(_connector_labels(report), report) for report in view.connectors]
    errors: list[Sample] = []
    for own, report in reports:
        counted = Counter[str]()
        for task in report.tasks:
            counted.update(task.errors)
        errors += [({**own, "reason": reason}, counted[reason]) for reason in sorted(counted)]
    yield from _counter(_OURS + "errors_total", "Errors by reason since the task began.", errors)
    about = "Offset syncs written since the task began."
    syncs = [
        (own, sum(task.offset_syncs for task in report.tasks)) for own, report in reports if report.tasks
    ]
    yield from _counter(_OURS + "offset_syncs_total", about, syncs)
    about = "Milliseconds of throttling by broker quotas."
    throttles = [(own, sum(task.throttle_ms for task in report.tasks)) for own, report in reports]
    yield from _counter(_OURS + "throttle_ms_total", about, throttles)
    about = "Topic settings that the target refused."
    refused = [
        (own, len({key for task in report.tasks for key in task.refused_settings})) for own, report in reports
    ]
    yield from _gauge(_OURS + "refused_settings", about, refused)
    about = "Topics and settings that could not be synchronised; REST and the log name them."
    yield from _gauge(_OURS + "warnings", about, [(own, len(report.warnings)) for own, report in reports])
    about = "Time since the newest heartbeat that was written to a topic, or has arrived in its copy."
    ages = [
        (
            {**own, "cluster": beat.cluster, "topic": beat.topic},
            round(view.now_s - beat.timestamp_ms / 1000, 3),
        )
        for own, report in reports
        for beat in report.heartbeats
    ]
    yield from _gauge(_OURS + "heartbeat_age_seconds", about, ages)
    states = [({"connector": report.name, "state": report.state.lower()}, 1) for _, report in reports]
    yield from _gauge(_OURS + "connector_state", "1 for the state that the connector is in.", states)


def _checkpoint_latencies(
    prefix: str, view: WorkerView, further_labels: Callable[[ConnectorReport], Labels]
) -> Iterator[str]:
    """The metrics of MirrorCheckpointMetrics, with the *further_labels* of each connector."""
    latencies = [
        (
            {
                **further_labels(report),
                "source": report.source_alias,
                "target": report.target_alias,
                "group": latency.group,
                "topic": latency.topic,
                "partition": latency.partition,
            },
            latency,
        )
        for report in view.connectors
        if report.groups is not None
        for latency in report.groups.latencies
    ]
    name = f"{prefix}checkpoint_latency_ms"
    about = "How long the last checkpoint took until it was acknowledged."
    yield from _gauge(name, about, [(where, latency.latency_ms) for where, latency in latencies])
    for index, (suffix, statistic) in enumerate(zip(_SPREAD, ("least", "greatest", "mean"), strict=True)):
        about = f"How long checkpoints took until they were acknowledged, {statistic} of the window."
        samples = [
            (where, latency.spread_ms[index]) for where, latency in latencies if latency.spread_ms is not None
        ]
        yield from _gauge(f"{name}_{suffix}", about, samples)


def _groups(view: WorkerView) -> Iterator[str]:
    """The metrics of checkpoint connectors."""
    reports = [
        (_connector_labels(report), report.groups) for report in view.connectors if report.groups is not None
    ]
    if view.metrics_level is MetricsLevel.PARTITION and MetricNames.LEGACY in view.metric_names:
        yield from _checkpoint_latencies(CHECKPOINTS, view, lambda _: {})
    if view.metrics_level is MetricsLevel.PARTITION and MetricNames.NEW in view.metric_names:
        # One task has all groups.
        yield from _checkpoint_latencies(PLUGINS, view, lambda report: {"connector": report.name, "task": 0})
    states = [
        ({**own, "state": state}, count)
        for own, groups in reports
        for state, count in (
            ("translated", max(0, groups.selected - groups.failing - groups.active)),
            ("active-on-target", groups.active),
            ("failing", groups.failing),
            ("not-synchronised", groups.unlike),
        )
    ]
    about = "Selected consumer groups of the source, by state."
    yield from _gauge(_OURS + "groups", about, states)
    translations = [
        ({**own, "translation": precision}, count)
        for own, groups in reports
        for precision, count in sorted(groups.translations.items())
    ]
    about = "Partitions with offsets of selected groups, by precision of the translation."
    yield from _gauge(_OURS + "group_partitions", about, translations)
    checkpoints = [(own, groups.checkpoints) for own, groups in reports]
    yield from _counter(_OURS + "checkpoints_total", "Checkpoints written.", checkpoints)
    about = "Offsets committed to groups of the target."
    yield from _counter(
        _OURS + "group_offsets_total", about, [(own, groups.moved) for own, groups in reports]
    )
    followed = [
        ({**own, "followed_by": groups.followed_by or ""}, round(view.monotonic_s - groups.followed_s, 3))
        for own, groups in reports
        if groups.followed_s is not None
    ]
    about = (
        "Time since commits of the source's groups were last looked for, in the way that followed_by names."
    )
    yield from _gauge(_OURS + "groups_followed_age_seconds", about, followed)


def _schemas(view: WorkerView) -> Iterator[str]:
    """The metrics of schema connectors."""
    reports = [
        (_connector_labels(report), report.schemas)
        for report in view.connectors
        if report.schemas is not None
    ]
    about = "Subjects of the source that are copied."
    yield from _gauge(_OURS + "schema_subjects", about, [(own, schemas.subjects) for own, schemas in reports])
    states = [
        ({**own, "state": state}, count)
        for own, schemas in reports
        for state, count in (
            ("present", schemas.versions - schemas.missing),
            ("missing", schemas.missing),
        )
    ]
    about = "Versions of these subjects, by whether the target has them under their ids."
    yield from _gauge(_OURS + "schema_versions", about, states)
    about = "Schema versions, and whole contexts, that cannot be copied under their ids; the connector's warnings name them."
    yield from _gauge(
        _OURS + "schema_conflicts", about, [(own, schemas.conflicts) for own, schemas in reports]
    )
    about = "Schema versions that the connector has registered since it began."
    yield from _counter(
        _OURS + "schema_registered_total", about, [(own, schemas.registered) for own, schemas in reports]
    )
    about = "Time since the last pass over both registries without an error."
    ages = [
        (own, round(view.monotonic_s - schemas.passed_s, 3))
        for own, schemas in reports
        if schemas.passed_s is not None
    ]
    yield from _gauge(_OURS + "schema_sync_age_seconds", about, ages)


# -- the worker, as Connect shows it


def _worker(view: WorkerView) -> Iterator[str]:
    """The worker metrics of Connect that dashboards for MM2 show."""
    info: Labels = {"version": view.version or "", "commit": view.commit or ""}
    yield from _gauge(_OURS + "build_info", "The version that runs.", [(info, 1)])
    yield from _gauge(_OURS + "ready", "1 once every partition has reported.", [("", int(view.ready))])
    yield from _gauge(_OURS + "setting_warnings", "Warnings about settings.", [("", len(view.warnings))])
    tasks = [(report, task) for report in view.connectors for task in report.tasks]
    about = "Connectors of this process."
    yield from _gauge(_WORKER + "connector_count", about, [("", len(view.connectors))])
    yield from _gauge(_WORKER + "task_count", "Tasks of this process.", [("", len(tasks))])
    statuses: list[Sample] = [
        ({"connector": report.name, "task": task.task, "status": task.state.lower()}, 1)
        for report, task in tasks
    ]
    yield from _gauge("kafka_connect_connector_status", "1 for the state that a task is in.", statuses)
    for state in ("running", "paused", "failed", "unassigned"):
        by_state = [
            ({"connector": report.name}, sum(task.state.lower() == state for task in report.tasks))
            for report in view.connectors
        ]
        about = f"Tasks of a connector that are {state}."
        yield from _gauge(f"{_WORKER}connector_{state}_task_count", about, by_state)
    totals = [({"connector": report.name}, len(report.tasks)) for report in view.connectors]
    yield from _gauge(_WORKER + "connector_total_task_count", "Tasks of a connector.", totals)


def _coordinator(view: WorkerView) -> Iterator[str]:
    assigned = sum(report.is_here for report in view.connectors)
    about = "Connectors that this node of a group runs."
    yield from _gauge(f"{_CONNECT}coordinator_assigned_connectors", about, [("", assigned)])
    tasks = sum(len(report.tasks) for report in view.connectors)
    about = "Tasks that this node of a group runs."
    yield from _gauge(f"{_CONNECT}coordinator_assigned_tasks", about, [("", tasks)])
    about = "1 while the group rebalances."
    yield from _gauge(f"{_CONNECT}worker_rebalance_rebalancing", about, [("", int(view.is_rebalancing))])
    copied = sum(part.bytes for report in view.connectors for part in partitions_of(report))
    for direction, verb in (("incoming", "read from sources"), ("outgoing", "written to the target")):
        about = f"Batch bytes that tasks have {verb} since they began."
        yield from _counter(f"{_CONNECT}{direction}_byte_total", about, [("", copied)])


def _clients(view: WorkerView) -> Iterator[str]:
    """The client metrics of each task that copies, under the client ids that Java uses."""
    incoming, outgoing, free, lags = [], [], [], []
    for report, task in _source_tasks(view):
        name = report.properties.get("name", report.name)
        flow = f"{report.source_alias}->{report.target_alias}"
        consumer: Labels = {"clientid": f'"{flow}|{name}-{task.task}|replication-consumer"'}
        producer: Labels = {"clientid": f'"connector-producer-{name}-{task.task}"'}
        copied = sum(part.bytes for part in task.partitions)
        incoming.append((consumer, copied))
        outgoing.append((producer, copied))
        if task.buffer_free_bytes is not None:
            free.append((producer, task.buffer_free_bytes))
        lags += [({**consumer, **where}, lag) for where, lag in _lags(report, task, view.metrics_level)]
    about = "Batch bytes that the task has read from the source since it began."
    yield from _counter("kafka_consumer_incoming_byte_total", about, incoming)
    about = "Batch bytes that the task has written to the target since it began."
    yield from _counter("kafka_producer_outgoing_byte_total", about, _merged(outgoing))
    about = "Bytes that the task may still fetch before it has to send."
    yield from _gauge("kafka_producer_buffer_available_bytes", about, _merged(free))
    about = "Offsets not yet copied, by source topic."
    yield from _gauge("kafka_consumer_fetch_manager_records_lag", about, lags)


def _lags(report: ConnectorReport, task: TaskReport, level: MetricsLevel) -> Iterator[tuple[Labels, int]]:
    lags: dict[tuple[str, int | None], int] = {}
    for part in task.partitions:
        lag = shown_lag_records(report, part)
        if lag is not None and level is not MetricsLevel.FLOW:
            where = (part.topic, part.partition if level is MetricsLevel.PARTITION else None)
            lags[where] = lags.get(where, 0) + lag
    for (topic, partition), lag in lags.items():
        yield {"topic": topic, **({} if partition is None else {"partition": partition})}, lag


def _tasks(view: WorkerView) -> Iterator[str]:
    active, commits = [], []
    for report, task in _source_tasks(view):
        name = report.properties.get("name", report.name)
        labels: Labels = {"connector": f'"{name}"', "task": task.task}
        if task.active_records is not None:
            active.append((labels, task.active_records))
        if task.commit_ms is not None:
            commits.append((labels, round(task.commit_ms, 3)))
    about = "Records that are sent to the target and not yet acknowledged."
    yield from _gauge(f"{_CONNECT}source_task_source_record_active_count", about, _merged(active))
    about = "Mean time that the newest writes of positions took."
    yield from _gauge(f"{_CONNECT}connector_task_offset_commit_avg_time_ms", about, _merged(commits, max))


def _merged(
    samples: Iterable[tuple[Labels, float]], combine: Callable[[Iterable[float]], float] = sum
) -> list[tuple[Labels, float]]:
    """Returns one sample for each set of labels.

    A process with several flows has a connector of the same name in each, and these names do not contain the flow.
    """
    by_labels: dict[tuple[tuple[str, str | int], ...], list[float]] = {}
    for labels, value in samples:
        by_labels.setdefault(tuple(labels.items()), []).append(value)
    return [(dict(labels), combine(values)) for labels, values in by_labels.items()]


def _source_tasks(view: WorkerView) -> Iterator[tuple[ConnectorReport, TaskReport]]:
    for report in view.connectors:
        if report.connector_class.endswith("MirrorSourceConnector"):
            yield from ((report, task) for task in report.tasks)


def _process(view: WorkerView) -> Iterator[str]:
    use = view.process()
    if use is None:
        return
    about = "Resident memory of this process and its tasks."
    yield from _gauge("jvm_memory_used_bytes", about, [({"area": "process"}, use.resident_bytes)])
    yield from _gauge("jvm_threads_current", "Threads of this process and its tasks.", [("", use.threads)])
    about = "Always 0: there is no JVM that stops to collect garbage."
    yield from _counter("jvm_gc_collection_seconds_sum", about, [({"gc": "none"}, 0)])
    about = "CPU time of this process and its tasks."
    yield from _counter("process_cpu_seconds_total", about, [("", round(use.cpu_s, 2))])
