"""The metrics of checkpoint connectors in `/metrics`: MirrorCheckpointMetrics, and counts of groups.

MirrorCheckpointMetrics have the exporter's names. At a `metrics.level` other than `partition` the latencies
of groups are omitted: MM2 has them by group and partition only.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from mirrorflow_core.reports import CheckpointLatency, ConnectorReport, GroupsReport
from mirrorflow_core.settings import MetricsLevel
from mirrorflow_replicator.http.worker_view import WorkerView

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
