"""Samples the source's records, so that `mirrorflow check` can report those that copies would refuse.

Each leader lists the first record of its partitions, which usually is the oldest, and the one with the highest timestamp. Records
of compacted topics are read as well: one fetch from the beginning of a partition, of a limited number of partitions.
"""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.topics.topic_configs import ConfigEntry, is_compacted
from mirrorflow_core.wire.batch import split
from mirrorflow_core.wire.records import decode
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import read_once
from mirrorflow_kafka.client.cluster import Cluster

# ListOffsets timestamps: the first record that has one, and the record with the highest one (Kafka 3.0).
FIRST_TIMESTAMP, MAX_TIMESTAMP = 0, -3
EARLIEST = -2
READ_PARTITIONS_MAX = 100
READ_BYTES = 64 * 1024  # of each partition


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRecord:
    """A record of the source; `timestamp_ms` is -1 if it is unknown."""

    partition: TopicPartition
    offset: int
    timestamp_ms: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSample:
    """Records of a topic: the oldest of its partitions' first records, the newest of all, and one without a key."""

    oldest: SampledRecord | None = None
    newest: SampledRecord | None = None
    keyless: SampledRecord | None = None


NO_SAMPLE = TopicSample()


async def sample_topics(
    source: Cluster, topics: Mapping[str, int], configs: Mapping[str, Collection[ConfigEntry]]
) -> dict[str, TopicSample]:
    """Returns the sample of each topic; *topics* is topic -> partition count. Raises ClusterError.

    Partitions without records, and those that return an error, are left out.
    """
    partitions = [TopicPartition(topic, number) for topic, count in topics.items() for number in range(count)]
    firsts = await _listed(source, partitions, FIRST_TIMESTAMP)
    newest = await _listed(source, partitions, MAX_TIMESTAMP)
    compacted = [one for one in partitions if is_compacted(configs.get(one.topic, ()))]
    samples: dict[str, TopicSample] = {}
    for record in firsts:
        sample = samples.get(record.partition.topic, NO_SAMPLE)
        if sample.oldest is None or record.timestamp_ms < sample.oldest.timestamp_ms:
            samples[record.partition.topic] = replace(sample, oldest=record)
    for record in newest:
        sample = samples.get(record.partition.topic, NO_SAMPLE)
        if sample.newest is None or record.timestamp_ms > sample.newest.timestamp_ms:
            samples[record.partition.topic] = replace(sample, newest=record)
    for record in await _keyless(source, compacted[:READ_PARTITIONS_MAX]):
        samples[record.partition.topic] = replace(
            samples.get(record.partition.topic, NO_SAMPLE), keyless=record
        )
    return samples


async def _listed(
    source: Cluster, partitions: Collection[TopicPartition], timestamp: int
) -> list[SampledRecord]:
    return [
        SampledRecord(partition=partition, offset=listed.offset, timestamp_ms=listed.timestamp)
        for partition, listed in (await admin.list_offsets(source, partitions, timestamp)).items()
        if not listed.error and listed.offset >= 0
    ]


async def _keyless(source: Cluster, partitions: Collection[TopicPartition]) -> list[SampledRecord]:
    """Returns the first record without a key of each partition that has one near its beginning."""
    starts = await admin.list_offsets(source, partitions, EARLIEST)
    found = await asyncio.gather(
        *(_first_keyless(source, one, at.offset) for one, at in starts.items() if not at.error)
    )
    return [record for record in found if record is not None]


async def _first_keyless(source: Cluster, partition: TopicPartition, start: int) -> SampledRecord | None:
    try:
        fetched = await read_once(source, partition, start, max_bytes=READ_BYTES)
        for batch in split(fetched.records):
            for record in () if batch.is_control else decode(batch):
                if record.key is None and record.offset >= start:
                    return SampledRecord(
                        partition=partition, offset=record.offset, timestamp_ms=record.timestamp
                    )
    except MirrorFlowError:
        pass  # a missing permission is reported by itself, and `run` reports records that cannot be read
    return None
