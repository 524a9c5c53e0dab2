"""Writes the checkpoints of groups to the target's checkpoints topic, and creates the topic.

A checkpoint that could not be written is written with the next ones; all are written again where the topic has lost its records.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Final

from mirrorflow_core.connect.mirror_records import Checkpoint, encode_checkpoint_key, encode_checkpoint_value
from mirrorflow_core.offsets.checkpoints import Point, Points
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.reports import CheckpointLatency
from mirrorflow_core.settings import CheckpointSettings
from mirrorflow_core.wire.records import Record
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores import compacted_topic
from mirrorflow_kafka.stores.own_topics import new_mirror_topic
from mirrorflow_replicator.connectors.internal_topics import correct_topic_configs
from mirrorflow_replicator.connectors.known_offsets import KnownOffsets
from mirrorflow_replicator.connectors.pass_warnings import PassWarnings
from mirrorflow_replicator.http.partition_rates import Window

REPLICATION_FACTOR_KEY: Final = "checkpoints.topic.replication.factor"


class CheckpointWriter:
    """The checkpoints topic of a flow. *may_write* is asked directly before each write."""

    def __init__(
        self,
        settings: CheckpointSettings,
        known: KnownOffsets,
        clusters: tuple[Cluster, Cluster],
        warnings: PassWarnings,
        may_write: Callable[[], Awaitable[bool]],
    ) -> None:
        """*clusters*: the target as it is administered, and as the topic is written."""
        self._settings = settings
        self._target, self._writer = clusters
        self._warnings = warnings
        self._may_write = may_write
        self.topic = known.checkpoints_topic
        self._store = known.checkpoints
        self._losses = compacted_topic.RecordLosses(self._target, self.topic)
        self._has_created_topic = False  # as far as it was possible
        self.unwritten: dict[str, dict[TopicPartition, Point]] = {}  # by group
        self.written = 0  # checkpoints
        self._latencies: dict[tuple[str, TopicPartition], tuple[float, Window]] = {}

    @property
    def latencies(self) -> tuple[CheckpointLatency, ...]:
        """How long the last write of each checkpoint took."""
        return tuple(
            CheckpointLatency(
                group=group,
                topic=partition.topic,
                partition=partition.partition,
                latency_ms=latency_ms,
                spread_ms=window.spread(time.monotonic()),
            )
            for (group, partition), (latency_ms, window) in sorted(
                self._latencies.items(), key=lambda item: item[0]
            )
        )

    def forget(self, group: str) -> None:
        """Drops the latencies of *group*, which does not exist any more."""
        self._latencies = {key: value for key, value in self._latencies.items() if key[0] != group}

    def keep(self, group: str, points: Points) -> None:
        """Takes new *points* of *group*, which are written with the next checkpoints."""
        if points:
            self._store.take(group, points)
            if self._settings.emit_s is not None:
                self.unwritten.setdefault(group, {}).update(points)

    async def check_topic(self) -> None:
        """Creates the topic and corrects its settings; creates it again and makes all checkpoints due if it has lost its records.

        Only where checkpoints are written at all.
        """
        if self._settings.emit_s is None or not await self._may_write():
            return
        if not self._has_created_topic:
            await self._create_topic()
        own = new_mirror_topic(self.topic, self._settings.replication_factor)
        subject = ("topic", self.topic, "settings")
        uncorrected = await self._warnings.isolated(
            subject,
            f"The settings of checkpoints topic {self.topic} cannot be checked",
            correct_topic_configs(self._target, [own]),
        )
        if uncorrected is not None and uncorrected.warnings:
            self._warnings.note(subject, uncorrected.warnings[0])
        has_lost = await self._warnings.isolated(
            ("topic", self.topic, "losses"),
            f"Whether {self.topic} has lost checkpoints is not known",
            self._losses.has_lost_records(),
        )
        if has_lost:
            await self._create_topic()
            for group, points in self._store.items():
                self.unwritten[group] = {**points, **self.unwritten.get(group, {})}

    async def _create_topic(self) -> None:
        await self._warnings.isolated(
            ("topic", self.topic, "creation"),
            f"Checkpoints topic {self.topic} cannot be created",
            compacted_topic.create_mirror_topic(
                self._target,
                self.topic,
                replication_factor=self._settings.replication_factor,
                key=REPLICATION_FACTOR_KEY,
            ),
        )
        self._has_created_topic = True

    async def write(self) -> None:
        """Writes the checkpoints that are due. Raises UnreachableError."""
        if self.unwritten:
            await self._warnings.isolated(
                ("topic", self.topic, "writing"),
                f"Checkpoints cannot be written to {self.topic}",
                self._append(),
            )

    async def _append(self) -> bool:
        if not await self._may_write():
            return False
        now_ms, began_s = time.time_ns() // 1_000_000, time.monotonic()
        written = {group: dict(points) for group, points in self.unwritten.items()}
        records = []
        for group, points in written.items():
            unfit = None
            for partition, point in list(points.items()):
                checkpoint = Checkpoint(
                    group=group,
                    topic=partition.topic,
                    partition=partition.partition,
                    upstream_offset=point.upstream_offset,
                    downstream_offset=point.downstream_offset,
                    metadata=point.metadata,
                )
                try:
                    key, value = encode_checkpoint_key(checkpoint), encode_checkpoint_value(checkpoint)
                except ValueError as error:
                    unfit = f"Group {group} has no checkpoint for {partition}: {error}."
                    del points[partition]
                    continue
                records.append(Record(0, now_ms, key, value, ()))
            self._warnings.note(("group", group, "record"), unfit)
        if records:
            await compacted_topic.append(self._writer, self.topic, records)
        latency_ms = float(round(1000 * (time.monotonic() - began_s)))
        self.written += len(records)
        self.unwritten = {}
        for group, points in written.items():
            self._store.note_written(group, points, now_ms)
            self._note_latency(group, points, latency_ms)
        return True

    def _note_latency(self, group: str, points: Points, latency_ms: float) -> None:
        now_s = time.monotonic()
        for partition in points:
            _, window = self._latencies.get((group, partition), (0.0, Window(now_s)))
            window.take(now_s, latency_ms)
            self._latencies[group, partition] = (latency_ms, window)
