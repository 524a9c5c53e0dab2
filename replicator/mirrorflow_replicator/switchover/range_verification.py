"""Compares the newest records of each partition with those of its copy, when both are complete.

`mirrorflow verify` compares everything, with Spark, while the flow runs. This is the last proof before applications move, while
writes are refused, so it is bounded. It reads both logs backwards from the sealed end of the source and the end of the copy:
their newest records must be the same, in the same order. The digests are those of `mirrorflow verify`.
Guarantee: an equal result means that the last `Comparison.records` records are equal. It reports no difference that retention,
compaction, markers or the flow's own changes of headers explain.
"""

import asyncio
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.record_digests import RecordDigester
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.wire.records import decode
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import consumed_batches
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.plugins import make_naming
from mirrorflow_replicator.copy.task_parts import flow_topics

# Of each partition. Some tens of milliseconds with small records; what came before was compared while writes were accepted.
RECORDS: Final = 1_000
# Offsets without records (markers, aborted or compacted ones) are searched as far as this many times the records.
SEARCH_FACTOR: Final = 16
PARTITIONS_AT_ONCE: Final = 16
NO_STARTS: Final[Mapping[TopicPartition, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class TailRecord:
    """A record near the end of a log, by digests of its key and of all that is compared."""

    offset: int
    key: bytes
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The newest records of a log, in order. *is_whole*: the log, as it was ever written, has no others."""

    records: Sequence[TailRecord]
    is_whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result for one partition of the source. `difference` is a sentence; "": equal."""

    records: int  # that both sides have, and were compared
    difference: str = ""


async def compare_newest(
    settings: SourceSettings,
    source: Cluster,
    target: Cluster,
    ends: Mapping[TopicPartition, int],
    *,
    starts: Mapping[TopicPartition, int] = NO_STARTS,
    records: int = RECORDS,
) -> dict[TopicPartition, Comparison]:
    """Compares the last *records* records before *ends*, which are ends of the source, with the last ones of the copies.

    All records before *ends* must have been copied. Records before *starts* are not compared: where the flow has started after
    another one had ended, the copy may have a diverged tail in their place. Raises ClusterError, CorruptRecordsError.
    """
    topics, edits = flow_topics(settings), make_naming(settings).header_edits
    copies = {partition: topics.on_target(partition) for partition in ends}
    bounds, (stamps, policies, policies_of_source) = await asyncio.gather(
        _bounds(source, target, copies, starts),
        asyncio.gather(
            _topic_setting(target, copies.values(), "message.timestamp.type"),
            _topic_setting(target, copies.values(), "cleanup.policy"),
            _topic_setting(source, ends, "cleanup.policy"),
        ),
    )
    source_starts, target_starts, target_ends = bounds
    run_id, limit = secrets.token_hex(8), asyncio.Semaphore(PARTITIONS_AT_ONCE)

    async def compare(partition: TopicPartition) -> Comparison:
        copy = copies[partition]
        timestamps = stamps.get(copy.topic) != "LogAppendTime"
        of_source = RecordDigester(
            run_id, partition.partition, edits=edits(partition.topic), timestamps=timestamps
        )
        of_target = RecordDigester(run_id, partition.partition, timestamps=timestamps)
        async with limit:
            sent = await _tail(
                source,
                partition,
                source_starts[partition],
                ends[partition],
                of_source,
                records=records,
                read_committed=settings.read_committed,
            )
            if partition in starts:
                sent = replace(sent, is_whole=False)
            # A copier may have aborted on the target what it has written again since.
            copied = await _tail(
                target,
                copy,
                target_starts[copy],
                target_ends[copy],
                of_target,
                records=records,
                read_committed=True,
            )
        policy = (policies.get(copy.topic) or "") + (policies_of_source.get(partition.topic) or "")
        return compared(partition, sent, copied, is_compacted="compact" in policy)

    return dict(zip(ends, await asyncio.gather(*map(compare, ends)), strict=True))


async def _bounds(
    source: Cluster,
    target: Cluster,
    copies: Mapping[TopicPartition, TopicPartition],
    starts: Mapping[TopicPartition, int],
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Returns where partitions of the source start to be compared, and the starts and ends of their *copies*."""
    source_starts, target_starts, target_ends = await asyncio.gather(
        admin.offsets_at(source, copies, EARLIEST),
        admin.offsets_at(target, copies.values(), EARLIEST),
        admin.offsets_at(target, copies.values(), LATEST, read_committed=True),
    )
    since = {key: max(start, starts.get(key, 0)) for key, start in source_starts.items()}
    return since, target_starts, target_ends


async def _topic_setting(
    cluster: Cluster, partitions: Iterable[TopicPartition], key: str
) -> dict[str, str | None]:
    names = sorted({partition.topic for partition in partitions})
    return await admin.describe_topic_setting(cluster, names, key)


def compared(partition: TopicPartition, sent: Tail, copied: Tail, *, is_compacted: bool) -> Comparison:
    """Compares the newest records of *partition* on both sides, from the end backwards.

    In a compacted partition, only the newest record of each key that both sides have counts: the cleaner removes the others at
    different times. So does retention: where one side has fewer records, older ones are not compared.
    """
    if is_compacted:
        newest = {record.key: record for record in sent.records}
        pairs = [(newest[record.key], record) for record in _newest_of(copied) if record.key in newest]
    else:
        pairs = list(zip(reversed(sent.records), reversed(copied.records), strict=False))
        for side, other, name in ((sent, copied, "its copy"), (copied, sent, "the source")):
            if side.records and not other.records and other.is_whole:
                offset = side.records[-1].offset
                return Comparison(
                    records=0, difference=f"{partition}: {name} lacks the record at offset {offset}"
                )
    for original, copy in pairs:
        if original.digest != copy.digest:
            both = f"the record at offset {original.offset} differs from that at offset {copy.offset} of its copy"
            return Comparison(records=len(pairs), difference=f"{partition}: {both}")
    return Comparison(records=len(pairs))


def _newest_of(tail: Tail) -> Sequence[TailRecord]:
    return list({record.key: record for record in tail.records}.values())


async def _tail(
    cluster: Cluster,
    partition: TopicPartition,
    start: int,
    end: int,
    digester: RecordDigester,
    *,
    records: int,
    read_committed: bool,
) -> Tail:
    """Returns the last *records* records in [*start*, *end*), read in growing stretches before what is read already."""
    newest: list[TailRecord] = []
    upper, stride = end, records
    lowest = max(start, end - records * SEARCH_FACTOR)
    while len(newest) < records and upper > lowest:
        lower = max(lowest, upper - stride)
        newest = [
            TailRecord(
                offset=record.offset, key=digester.digest_key(record.key), digest=digester.digest(record)
            )
            async for batch in consumed_batches(
                cluster, partition, lower, upper, read_committed=read_committed
            )
            for record in decode(batch)
            if lower <= record.offset < upper
        ] + newest
        upper, stride = lower, stride * 2
    return Tail(records=newest[-records:], is_whole=upper == 0)
