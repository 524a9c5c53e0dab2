"""Turns the partitions of a flow into levels and into rows of topics, the worst first. Pure."""

from dataclasses import dataclass

from mirrorflow_cli.run_progress import PHASES
from mirrorflow_console.flow_views import Level
from mirrorflow_console.partition_table import PartitionTable


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """A topic of a flow, summed over its partitions; None: unknown."""

    topic: str
    target: str
    level: Level
    phase: str
    partitions: int
    lag_records: int | None
    lag_s: float | None
    records_per_s: float
    bytes_per_s: float
    guarantee: str
    reasons: str


def topic_rows(partitions: PartitionTable) -> list[TopicRow]:
    """Returns the topics of *partitions*, the worst first."""
    rows = [_topic_row(topic, partitions.taken(own)) for topic, own in partitions.by_topic().items()]
    return sorted(rows, key=lambda row: (row.level, -(row.lag_s or 0.0), -(row.lag_records or 0), row.topic))


def _topic_row(topic: str, partitions: PartitionTable) -> TopicRow:
    lags = [lag for lag in partitions.column("lagRecords") if lag is not None]
    ages_s = partitions.each(lambda lag, age_s: age_s if lag else None, "lagRecords", "lagSeconds")
    known_ages_s = [age_s for age_s in ages_s if age_s is not None]
    phases = partitions.values("phase")
    return TopicRow(
        topic=topic,
        target=partitions.column("targetTopic")[0],
        level=min(partition_levels(partitions)),
        phase=next((phase for phase in PHASES if phase in phases), ""),
        partitions=len(partitions),
        lag_records=sum(lags) if lags else None,
        lag_s=max(known_ages_s, default=0.0 if lags and not sum(lags) else None),
        records_per_s=sum(partitions.column("recordsPerSecond")),
        bytes_per_s=sum(partitions.column("bytesPerSecond")),
        guarantee=" ".join(sorted(partitions.values("guarantee"))),
        reasons=" ".join(sorted(partitions.values("reason") - {""})),
    )


def worst_topics(partitions: PartitionTable) -> list[tuple[str, int | None]]:
    """Returns the topics of users with their lags in records, the greatest first; None: unknown."""
    lags: dict[str, int | None] = {}
    for topic, lag in zip(partitions.column("topic"), partitions.column("lagRecords"), strict=True):
        known = lags.get(topic)
        lags[topic] = known if lag is None else lag + (known or 0)
    shown = [(topic, lag) for topic, lag in lags.items() if not is_internal(topic)]
    return sorted(shown, key=lambda topic_lag: -(topic_lag[1] or 0))


def is_internal(topic: str) -> bool:
    """Whether *topic* is kept by Kafka or by a replicator rather than by users."""
    return (
        topic.startswith("__")
        or topic.endswith((".internal", "-internal"))
        or topic.rsplit(".", maxsplit=1)[-1] == "heartbeats"
    )


def partition_levels(partitions: PartitionTable) -> list[Level]:
    """Returns the level of each of *partitions*."""
    return partitions.each(partition_level, "phase", "stalledSeconds")


def partition_level(phase: str, stalled_s: float | None) -> Level:
    """Returns the level of a partition in *phase*. *stalled_s*: for how long it has copied nothing, None: it is not stalled."""
    if phase == "stopped":
        return Level.BROKEN
    if stalled_s is not None:
        return Level.WARNING
    return Level.WAITING if phase in {"starting", "waiting"} else Level.FINE
