"""The metrics of Kafka Connect, its clients, its JVM and checkpoint connectors in `/metrics`.

Strimzi's dashboard for MM2 queries these besides MM2's own metrics; names are those of Strimzi's JMX exporter
rules. Values are the nearest equivalents: where Java has a consumer and a producer for each task, a task here
has its own connections. The exporter keeps the quotation marks that JMX puts around client ids and connectors,
and the dashboard's expressions contain them.

At a `metrics.level` other than `partition` the latencies of groups (MirrorCheckpointMetrics) are omitted: MM2
has them by group and partition only.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from mirrorflow_core.reports import CheckpointLatency, ConnectorReport, GroupsReport, TaskReport
from mirrorflow_core.settings import MetricsLevel
from mirrorflow_replicator.http.samples import lag_records
from mirrorflow_replicator.http.worker_view import ResourceUsage, WorkerView

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
            ({**_own(report), "state": state}, count)
            for report, groups in reports
            for state, count in _states(groups)
        ],
    )
    yield Family(
        "mirrorflow_group_partitions",
        "gauge",
        "Partitions that selected groups have offsets of, by how well these are known on the target.",
        [
            ({**_own(report), "translation": word}, count)
            for report, groups in reports
            for word, count in sorted(groups.translations.items())
        ],
    )
    yield Family(
        "mirrorflow_checkpoints_total",
        "counter",
        "Checkpoints written.",
        [(_own(report), groups.checkpoints) for report, groups in reports],
    )
    yield Family(
        "mirrorflow_group_offsets_total",
        "counter",
        "Offsets that groups of the target were given.",
        [(_own(report), groups.moved) for report, groups in reports],
    )


def _own(report: ConnectorReport) -> dict[str, str | int]:
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
    yield from _worker(view)
    yield from _clients(view)
    yield from _tasks(view)
    use = view.process()
    if use is not None:
        yield from _process(use)


def _worker(view: WorkerView) -> Iterator[Family]:
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
