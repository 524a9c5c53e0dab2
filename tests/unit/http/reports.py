"""Builds the reports and worker views that tests of REST, progress and metrics show."""

from typing import Any

from mirrorflow_core.reports import ConnectorReport, PartitionPhase, PartitionReport, TaskReport
from mirrorflow_replicator.http.partition_rates import Samples
from mirrorflow_replicator.http.worker_view import Response, WorkerView

NOW_S = 1_700_000_000.0


def partition(number: int = 0, topic: str = "orders", **changes) -> PartitionReport:
    values: dict[str, Any] = {
        "topic": topic,
        "target_topic": f"A.{topic}",
        "partition": number,
        "phase": PartitionPhase.COPYING,
        "source_offset": 90,
        "source_end_offset": 100,
        "target_offset": 90,
        "records": 90,
        "bytes": 900,
        "value_bytes": 800,
        "record_timestamp_ms": int(NOW_S * 1000) - 4000,
    }
    return PartitionReport(**(values | changes))


def task(*partitions: PartitionReport, number: int = 0, **changes) -> TaskReport:
    values: dict[str, Any] = {"task": number, "state": "RUNNING", "partitions": partitions}
    return TaskReport(**(values | changes))


def connector(*tasks: TaskReport, name: str = "A->B.source", **changes) -> ConnectorReport:
    values: dict[str, Any] = {
        "name": name,
        "connector_class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
        "flow": "f",
        "source_alias": "A",
        "target_alias": "B",
        "properties": {"topics": ".*"},
        "state": "RUNNING",
        "worker_id": "host:8083",
        "started_at_s": NOW_S - 100,
        "tasks": tasks,
        "task_properties": tuple({"task.id": str(number)} for number in range(len(tasks))),
        "topics": ("A.orders",),
    }
    return ConnectorReport(**(values | changes))


def view(*connectors: ConnectorReport, **changes) -> WorkerView:
    values: dict[str, Any] = {
        "connectors": connectors,
        "now_s": NOW_S,
        "monotonic_s": NOW_S,
        "version": "1.2.3",
        "commit": "abc",
        "kafka_cluster_id": "cluster-b",
    }
    return WorkerView(**(values | changes))


def content(response: Response) -> bytes:
    return response.body if isinstance(response.body, bytes) else b"".join(response.body)


def samples_of_progress(report: ConnectorReport, *, over_s: float = 10.0) -> Samples:
    """Returns samples in which each partition of *report* has copied all its records within *over_s*."""
    samples = Samples()
    for task_report in report.tasks:
        at_start = [_at_start(part) for part in task_report.partitions]
        samples.observe(report.name, task(*at_start, number=task_report.task), NOW_S - over_s)
        samples.observe(report.name, task_report, NOW_S)
    return samples


def _at_start(part: PartitionReport) -> PartitionReport:
    return partition(
        part.partition, part.topic, records=0, bytes=0, value_bytes=0, source_offset=0, source_end_offset=1
    )
