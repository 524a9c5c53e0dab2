"""Translates the start offsets of share groups (KIP-932), and decides which are set on the target.

A share group has no committed offset. It has a start offset for each partition: all records before it are finished. Records after it
may be finished, too; no request names them, so a group that continues on the target gets them again. Kafka promises the
same to members of a share group: each record at least once. In doubt the older offset is used, and a start offset on the target
never moves back.

No I/O: `connectors.share_groups` collects the facts.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.offsets.checkpoints import (
    DUE,
    Group,
    GroupOffset,
    TranslatedGroup,
    Writable,
)
from mirrorflow_core.offsets.offset_translation import (
    Rename,
    TranslatedOffset,
    TranslatedOffsets,
    Translator,
)
from mirrorflow_core.partitions import TopicPartition

REPEATS: Final = (
    "it is a share group: records that were acknowledged after its start offset are delivered again"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareStart:
    """Where a group starts in one partition. `lag_records` are not finished from there on; None: its broker reports none."""

    offset: int
    lag_records: int | None = None


def writable_share_group(group: Group | None) -> Writable:
    """Returns whether start offsets may be set for the target's *group*; None: the target does not know it."""
    if group is None:
        return Writable.YES
    if not group.is_share_group:
        return Writable.OTHER_KIND
    return Writable.YES if group.is_idle else Writable.ACTIVE


def translate_starts(
    starts: Mapping[TopicPartition, ShareStart],
    ends: Mapping[TopicPartition, int],
    *,
    selects: Callable[[str], bool],
    rename: Rename,
    translator: Translator,
) -> dict[TopicPartition, TranslatedOffset]:
    """Returns *starts* translated, by target partition, for the topics that the flow copies.

    *ends*: end offsets of the source, read after *starts*. With them, `at_most` covers what was finished after the start offset.
    """
    translated = {}
    for partition, start in starts.items():
        if not selects(partition.topic):
            continue
        mapped = translator.translate(partition, start.offset)
        at_most = None if mapped is None else mapped.at_most
        translated[rename(partition)] = TranslatedOffset(
            upstream_offset=start.offset,
            downstream_offset=None if mapped is None else mapped.at_least,
            at_most=_last_repeat(at_most, start, ends.get(partition)),
            source=partition,
        )
    return translated


def _last_repeat(at_most: int | None, start: ShareStart, end: int | None) -> int | None:
    """Returns the target offset before which all records lie that are delivered again; None: unknown."""
    if at_most is None or start.lag_records is None or end is None:
        return None
    finished_records = end - start.offset - start.lag_records
    return at_most + max(0, finished_records)


def before_known_offsets(now: TranslatedOffsets, translator: Translator) -> frozenset[TopicPartition]:
    """Returns the target partitions whose group starts before all that is known of the copy: there it starts at the beginning."""
    return frozenset(
        partition
        for partition, translated in now.items()
        if translated.downstream_offset is None
        and translated.source is not None
        and (extent := translator.extent(translated.source)) is not None
        and translated.upstream_offset <= extent.upstream
    )


def starts_to_set(now: TranslatedOffsets, target: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Returns the start offsets to set. *target*: those that the group has there."""
    return {
        partition: translated.downstream_offset
        for partition, translated in now.items()
        if translated.downstream_offset is not None
        and (partition not in target or target[partition] < translated.downstream_offset)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupFacts(TranslatedGroup):
    """The facts about one share group. `target` None: its start offsets there were not read."""

    target: Mapping[TopicPartition, int] | None


def share_group_offsets(facts: ShareGroupFacts) -> Iterator[GroupOffset]:
    """Yields one report for each partition with a start offset of the group, sorted by target partition."""
    for target, translated in sorted(facts.translated.items()):
        source = translated.source or target
        own = None if facts.target is None else facts.target.get(target)
        offset = translated.downstream_offset
        written = own is not None and offset is not None and own >= offset
        yield GroupOffset(
            group=facts.group,
            topic=source.topic,
            partition=source.partition,
            target_topic=target.topic,
            source_offset=translated.upstream_offset,
            target_offset=offset,
            at_most=translated.at_most,
            checkpoint_offset=None,
            checkpoint_written_ms=None,
            group_offset=own,
            written=written,
            why=_remark(own, translated) if written else facts.why_not_moved(offset) or DUE,
            has_members_on_source=facts.has_members_on_source,
            has_members_on_target=facts.has_members_on_target,
        )


def _remark(own: int | None, translated: TranslatedOffset) -> str | None:
    if own is not None and translated.downstream_offset is not None and own > translated.downstream_offset:
        return f"the target's group is ahead, at {own}, and never goes back"
    return None if translated.translation == "exact" else REPEATS
