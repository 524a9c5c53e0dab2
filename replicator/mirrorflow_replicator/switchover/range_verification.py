"""Compares the newest records of each partition with those of its copy, when both are complete.

`mirrorflow verify` compares everything, with Spark, while the flow runs. This is the last proof before applications move, while
writes are refused, so it is bounded. It reads both logs backwards from the sealed end of the source and the end of the copy:
their newest records must be the same, in the same order. The digests are those of `mirrorflow verify`: of partition, timestamp, key, value
and headers, with the flow's changes of headers, so that they are the same on both sides; offsets, producer ids and batches are not.
Guarantee: an equal result means that the last `Comparison.records` records are equal. It reports no difference that retention,
compaction, markers or the flow's own changes of headers explain.

The seal has a digest of each partition's newest records. `Comparison.has_sealed_digest` says whether the copy ends with these.
"""

import asyncio
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from types import MappingProxyType
from typing import Final

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.record_digests import RecordDigester
from mirrorflow_core.settings import SourceSettings, StartPosition
from mirrorflow_core.switchover.observation import TailDigest, TailDigests
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
# Digests do not compress, and those of all partitions are in one record of the journal. No writer knows their key in advance, so with 64
# bits no two different tails are equal by chance.
TAIL_DIGEST_BYTES: Final = 8
NO_STARTS: Final[Mapping[TopicPartition, int]] = MappingProxyType({})
NOT_SEALED: Final[Mapping[TopicPartition, TailDigest]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class TailRecord:
    """A record near the end of a log, by digests of its key and of all that is compared."""

    offset: int
    key: bytes
    digest: bytes
    is_kept_by_cleaner: bool = True  # as the newest of its key: it has a key and a value


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The newest records of a log, in order. *is_whole*: the log, as it was ever written, has no others."""

    records: Sequence[TailRecord]
    is_whole: bool = False

    def digest_of_newest(self, records: int) -> str:
        """Returns the digest of the newest *records* records, in their order; "" if there are fewer."""
        if not 0 < records <= len(self.records):
            return ""
        newest = (record.digest for record in self.records[-records:])
        return blake2b(b"".join(newest), digest_size=TAIL_DIGEST_BYTES).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTails:
    """The newest records of all partitions of the source before their ends, by digests with *key*."""

    key: str
    tails: Mapping[TopicPartition, Tail]
    compacted: Collection[TopicPartition]  # a cleaner may remove records on one side only

    def digests(self) -> TailDigests:
        """Returns them for the seal; compacted partitions have none."""
        return TailDigests(
            key=self.key,
            partitions={
                partition: TailDigest(records=0, digest="")
                if partition in self.compacted
                else TailDigest(records=len(tail.records), digest=tail.digest_of_newest(len(tail.records)))
                for partition, tail in self.tails.items()
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result for one partition of the source. `difference` is a sentence; "": equal."""

    records: int  # that both sides have, and were compared
    difference: str = ""
    has_sealed_digest: bool = False  # the copy ends with the records of the seal's digest


def new_digest_key() -> str:
    """Returns a key of digests that no writer knows in advance."""
    return secrets.token_hex(8)


async def read_source_tails(
    settings: SourceSettings,
    source: Cluster,
    target: Cluster,
    ends: Mapping[TopicPartition, int],
    *,
    key: str,
    starts: Mapping[TopicPartition, int] = NO_STARTS,
    records: int = RECORDS,
) -> SourceTails:
    """Returns the last *records* records before *ends* of the source, by digests of what *target* has of them.

    Records before *starts* are left out: where the flow has started after another one had ended, the copy may have a diverged tail
    in their place. Raises ClusterError, CorruptRecordsError.
    """
    edits, copies = make_naming(settings).header_edits, _copies(settings, ends)
    stamps, policies, policies_of_source, source_starts = await asyncio.gather(
        _topic_setting(target, copies.values(), "message.timestamp.type"),
        _topic_setting(target, copies.values(), "cleanup.policy"),
        _topic_setting(source, ends, "cleanup.policy"),
        admin.offsets_at(source, ends, EARLIEST),
    )
    limit = asyncio.Semaphore(PARTITIONS_AT_ONCE)

    async def read(partition: TopicPartition) -> Tail:
        digester = RecordDigester(
            key,
            partition.partition,
            edits=edits(partition.topic),
            timestamps=_has_timestamps(stamps, copies[partition]),
        )
        async with limit:
            tail = await _tail(
                source,
                partition,
                max(source_starts[partition], starts.get(partition, 0)),
                ends[partition],
                digester,
                records=records,
                read_committed=settings.read_committed,
            )
        return replace(tail, is_whole=False) if partition in starts else tail

    tails = dict(zip(ends, await asyncio.gather(*map(read, ends)), strict=True))
    compacted = frozenset(
        partition
        for partition, copy in copies.items()
        if "compact" in (policies.get(copy.topic) or "") + (policies_of_source.get(partition.topic) or "")
    )
    return SourceTails(key=key, tails=tails, compacted=compacted)


async def compare_newest(
    settings: SourceSettings,
    target: Cluster,
    sent: SourceTails,
    *,
    sealed: Mapping[TopicPartition, TailDigest] = NOT_SEALED,
    records: int = RECORDS,
) -> dict[TopicPartition, Comparison]:
    """Compares the newest records of the source with the last *records* records of the copies, and the copies with what is *sealed*.

    All records before the ends of *sent* must have been copied. Raises ClusterError, CorruptRecordsError.
    """
    copies = _copies(settings, sent.tails)
    stamps, starts, ends = await asyncio.gather(
        _topic_setting(target, copies.values(), "message.timestamp.type"),
        admin.offsets_at(target, copies.values(), EARLIEST),
        admin.offsets_at(target, copies.values(), LATEST, read_committed=True),
    )
    limit = asyncio.Semaphore(PARTITIONS_AT_ONCE)

    async def compare(partition: TopicPartition) -> Comparison:
        copy = copies[partition]
        digester = RecordDigester(sent.key, partition.partition, timestamps=_has_timestamps(stamps, copy))
        async with limit:
            # A copier may have aborted on the target what it has written again since.
            copied = await _tail(
                target, copy, starts[copy], ends[copy], digester, records=records, read_committed=True
            )
        if settings.start is not StartPosition.EARLIEST:
            copied = replace(copied, is_whole=False)  # records from before the flow began are not copied
        result = compared(partition, sent.tails[partition], copied, is_compacted=partition in sent.compacted)
        return with_seal(result, partition, sealed.get(partition), copied)

    return dict(zip(copies, await asyncio.gather(*map(compare, copies)), strict=True))


def with_seal(
    comparison: Comparison, partition: TopicPartition, sealed: TailDigest | None, copied: Tail
) -> Comparison:
    """Returns *comparison* with whether the copy ends with the records that are *sealed*.

    Where retention has removed some of them on the target, the digest cannot be computed: that is no difference.
    """
    if sealed is None or not sealed.digest:
        return comparison
    digest = copied.digest_of_newest(sealed.records)
    if not digest and not copied.is_whole:
        return comparison
    if digest == sealed.digest:
        return replace(comparison, has_sealed_digest=True)
    problem = f"{partition}: its copy does not end with the {sealed.records} records that were sealed"
    return replace(comparison, difference=comparison.difference or problem)


def _copies(
    settings: SourceSettings, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, TopicPartition]:
    topics = flow_topics(settings)
    return {partition: topics.on_target(partition) for partition in partitions}


def _has_timestamps(types: Mapping[str, str | None], copy: TopicPartition) -> bool:
    """Returns whether the target keeps the timestamps of records."""
    return types.get(copy.topic) != "LogAppendTime"


async def _topic_setting(
    cluster: Cluster, partitions: Iterable[TopicPartition], key: str
) -> dict[str, str | None]:
    names = sorted({partition.topic for partition in partitions})
    return await admin.describe_topic_setting(cluster, names, key)


def compared(partition: TopicPartition, sent: Tail, copied: Tail, *, is_compacted: bool) -> Comparison:
    """Compares the newest records of *partition* on both sides, from the end backwards.

    In a compacted partition, only the newest record of each key that both sides have counts: the cleaner removes the others at
    different times. So does retention: where one side has fewer records, older ones are not compared, unless the copy is whole: then it
    lacks the others, or a key. A source that was created again may be whole and have fewer than its copy.
    """
    if is_compacted:
        newest = {record.key: record for record in sent.records}
        pairs = [(newest[record.key], record) for record in _newest_of(copied) if record.key in newest]
    else:
        pairs = list(zip(reversed(sent.records), reversed(copied.records), strict=False))
    for original, copy in pairs:
        if original.digest != copy.digest:
            both = f"the record at offset {original.offset} differs from that at offset {copy.offset} of its copy"
            return Comparison(records=len(pairs), difference=f"{partition}: {both}")
    missing = (_missing_key if is_compacted else _missing)(sent, copied)
    return Comparison(records=len(pairs), difference=missing and f"{partition}: {missing}")


def _missing(sent: Tail, copied: Tail) -> str:
    """Returns what one side lacks that no retention explains; "": nothing."""
    if copied.is_whole and len(copied.records) < len(sent.records):
        return f"its copy lacks the record at offset {sent.records[-1 - len(copied.records)].offset}"
    if sent.is_whole and not sent.records and copied.records:
        return f"the source lacks the record at offset {copied.records[-1].offset}"
    return ""


def _missing_key(sent: Tail, copied: Tail) -> str:
    """Returns which key of a compacted partition a whole copy lacks; "": none. A cleaner keeps the newest record of each key."""
    keys = {record.key for record in copied.records}
    for record in _newest_of(sent):
        if copied.is_whole and record.is_kept_by_cleaner and record.key not in keys:
            return f"its copy has no record of the key at offset {record.offset}"
    return ""


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
                offset=record.offset,
                key=digester.digest_key(record.key),
                digest=digester.digest(record),
                is_kept_by_cleaner=record.key is not None and record.value is not None,
            )
            async for batch in consumed_batches(
                cluster, partition, lower, upper, read_committed=read_committed
            )
            for record in decode(batch)
            if lower <= record.offset < upper
        ] + newest
        upper, stride = lower, stride * 2
    return Tail(records=newest[-records:], is_whole=upper == 0 and len(newest) <= records)
