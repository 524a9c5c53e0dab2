"""Collects the facts about partitions whose offsets an application keeps outside Kafka, and translates those offsets.

Guarantees: nothing is written, and no topic is created. Each translation is compared with the logs of both clusters as they are
now, so that no offset lies outside of them. A partition that cannot be translated has a reason and does not affect the others.
`mirrorflow_core.offsets.application_offsets` decides; the command and the HTTP server of a checkpoint connector call this.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from mirrorflow_core.offsets.application_offsets import (
    ApplicationOffset,
    ApplicationTranslation,
    LogRange,
    TranslationFacts,
    translate_offset,
)
from mirrorflow_core.offsets.offset_translation import Translator
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST, list_offsets
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.connectors.known_offsets import KnownOffsets

OFFSETS_AT_ONCE: Final = 500  # translated in some 10 ms, during which the process does nothing else
RECREATED: Final = "a topic of this partition was re-created since it was copied, or its copy has lost all records that are known"


class _Pair(NamedTuple):
    """A partition on both clusters; its source is None if it is unknown, for the reason in `problem` if there is one."""

    source: TopicPartition | None
    copy: TopicPartition
    problem: str | None = None


class _PartitionSide(NamedTuple):
    """A partition on one of the clusters."""

    alias: str
    cluster: Cluster | None
    partition: TopicPartition | None
    logs: Mapping[TopicPartition, LogRange]

    @property
    def log(self) -> LogRange | None:
        """The range of its log; None if it cannot be read."""
        return None if self.partition is None else self.logs.get(self.partition)

    @property
    def missing(self) -> str | None:
        """A clause that the partition does not exist; None if it does, or if that is unknown."""
        if self.cluster is None or self.partition is None or _has(self.cluster, self.partition):
            return None
        return f"{self.alias} has no partition {self.partition}, or Describe on its topic is not granted"


class ApplicationOffsets:
    """Translates offsets between the clusters of one flow by what *known* has read.

    *aliases*: of source and target. *source* None: it cannot be reached, so offsets are not compared with its logs.
    """

    def __init__(
        self, known: KnownOffsets, aliases: tuple[str, str], *, source: Cluster | None, target: Cluster
    ) -> None:
        self._known = known
        self._aliases = aliases
        self._source = source
        self._target = target

    async def translate(
        self, offsets: Sequence[ApplicationOffset], *, reverse: bool
    ) -> list[ApplicationTranslation]:
        """Returns each offset of the source on the target, or with *reverse* those of the target on the source.

        Raises ClusterError.
        """
        partitions = {TopicPartition(offset.topic, offset.partition) for offset in offsets}
        sources_by_copy = self._known.sources_by_copy() if reverse else {}
        pairs = {
            partition: _pair_of_copy(partition, sources_by_copy.get(partition, ()))
            if reverse
            else _Pair(partition, self._known.rename(partition))
            for partition in partitions
        }
        sources = {pair.source: pair.copy for pair in pairs.values() if pair.source is not None}
        translator, recreated = await self._known.current_translator(sources, self._source)
        # Clusters are asked for known partitions only: clients keep the metadata of every topic that they ask for.
        known = {source: copy for source, copy in sources.items() if translator.extent(source) is not None}
        logs = await asyncio.gather(_logs(self._source, known), _logs(self._target, known.values()))
        facts = {
            partition: self._facts(pair, translator, recreated, logs, reverse=reverse)
            for partition, pair in pairs.items()
        }
        translations = []
        for number, offset in enumerate(offsets, 1):
            if not number % OFFSETS_AT_ONCE:
                await asyncio.sleep(0)
            partition = TopicPartition(offset.topic, offset.partition)
            source, mapped = pairs[partition].source, None
            if source is not None and facts[partition].problem is None:
                step = translator.translate_back if reverse else translator.translate
                mapped = step(source, offset.offset)
            translations.append(translate_offset(offset, mapped, facts[partition]))
        return translations

    def _facts(
        self,
        pair: _Pair,
        translator: Translator,
        recreated: Collection[TopicPartition],
        logs: Sequence[Mapping[TopicPartition, LogRange]],
        *,
        reverse: bool,
    ) -> TranslationFacts:
        source = _PartitionSide(self._aliases[0], self._source, pair.source, logs[0])
        copy = _PartitionSide(self._aliases[1], self._target, pair.copy, logs[1])
        extent = None if pair.source is None else translator.extent(pair.source)
        origin, destination = (copy, source) if reverse else (source, copy)
        problem = RECREATED if pair.problem is None and pair.source in recreated else pair.problem
        # What was copied of a partition is known also after its topic was deleted on the origin.
        if problem is None and extent is not None:
            problem = destination.missing
        return TranslationFacts(
            origin=origin.alias,
            destination=destination.alias,
            partition=destination.partition,
            problem=problem,
            origin_log=origin.log,
            destination_log=destination.log,
            extent=extent.reversed() if extent and reverse else extent,
        )


def _pair_of_copy(copy: TopicPartition, sources: Sequence[TopicPartition]) -> _Pair:
    if len(sources) > 1:
        names = " and ".join(source.topic for source in sources)
        return _Pair(None, copy, f"it is the copy of both {names}")
    return _Pair(sources[0] if sources else None, copy)


def _has(cluster: Cluster, partition: TopicPartition) -> bool:
    topic = cluster.metadata.topics.get(partition.topic)
    return topic is not None and not topic.error and partition.partition in topic.partitions


async def _logs(
    cluster: Cluster | None, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, LogRange]:
    """Returns the log ranges of those *partitions* that can be read; none without *cluster*. Raises ClusterError."""
    if cluster is None or not partitions:
        return {}
    await cluster.refresh({partition.topic for partition in partitions})
    existing = [partition for partition in partitions if _has(cluster, partition)]
    # The end first: a log that is deleted in between is then not taken for one that has lost records.
    ends = await list_offsets(cluster, existing, LATEST)
    starts = await list_offsets(cluster, existing, EARLIEST)
    return {
        partition: LogRange(starts[partition].offset, max(starts[partition].offset, ends[partition].offset))
        for partition in existing
        if not starts[partition].error and not ends[partition].error
    }
