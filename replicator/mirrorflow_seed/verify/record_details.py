"""Reads records that differ again, for what a result says of them: their differing fields, and their keys.

A comparison holds digests, so the first records that differ are read once more, one by one, at their offsets. A record
that cannot be read again, because it was deleted meanwhile or its batch is damaged, has no details; others have theirs.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from mirrorflow_core.errors import ClusterError, CorruptRecordsError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.wire.records import Record, decode
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.plugins import make_naming
from mirrorflow_seed.verify.compared_sides import OpenSides
from mirrorflow_seed.verify.offset_windows import (
    Difference,
    DifferenceKind,
    VerifyRange,
    VerifyRangeResult,
    WindowResult,
)
from mirrorflow_seed.verify.range_reader import DeletedMeanwhileError, OffsetRange, OffsetRangeReader

# Records that differ and are read again for their fields and keys, in each range.
NAMED_RECORDS_MAX: Final = 20
SPOT_RESPONSE_BYTES: Final = 32 << 10  # brokers return the first batch whole whatever its size
# Raised for one record that differs, where others can be read: it then has neither fields nor key.
UNREADABLE: Final = (DeletedMeanwhileError, CorruptRecordsError)
# Length of a key that a result keeps, enough to recognize it. A record's key may have megabytes.
KEY_TEXT_MAX: Final = 200


async def describe_windows(
    windows: list[WindowResult],
    sides: Mapping[str, Cluster],
    settings: SourceSettings,
    verify_range: VerifyRange,
    *,
    keeps_keys: bool,
) -> list[WindowResult]:
    """Returns *windows* with what the first records that differ are, as far as they can be read again. Raises ClusterError."""
    described: list[WindowResult] = []
    left = NAMED_RECORDS_MAX
    for window in windows:
        differences = list(window.differences)
        for index, difference in enumerate(differences):
            if left and _is_read_again(difference, keeps_keys=keeps_keys):
                left -= 1
                with contextlib.suppress(*UNREADABLE):
                    differences[index] = await _described(
                        difference, sides, settings, verify_range, keeps_keys=keeps_keys
                    )
        described.append(replace(window, differences=tuple(differences)))
    return described


async def describe_results(
    results: Sequence[tuple[VerifyRange, VerifyRangeResult]],
    load: Callable[[], SourceSettings],
    open_sides: OpenSides,
    *,
    keeps_keys: bool,
) -> list[VerifyRangeResult]:
    """Returns *results* with what their first records that differ are, which are read again, as far as they can be read."""
    differences = [list(result.windows[0].differences) for _, result in results]
    read_again = [
        (number, index, _spot(verify_range, difference))
        for number, (verify_range, _) in enumerate(results)
        for index, difference in enumerate(differences[number])
        if _is_read_again(difference, keeps_keys=keeps_keys)
    ][:NAMED_RECORDS_MAX]
    if read_again:
        unread = iter(read_again)
        with contextlib.suppress(ClusterError, *UNREADABLE):
            settings = load()
            async for sides in open_sides(settings, [spot for _, _, spot in read_again]):
                number, index, spot = next(unread)
                with contextlib.suppress(*UNREADABLE):
                    differences[number][index] = await _described(
                        differences[number][index], sides, settings, spot, keeps_keys=keeps_keys
                    )
    return [
        replace(result, windows=(replace(result.windows[0], differences=tuple(named)),))
        for (_, result), named in zip(results, differences, strict=True)
    ]


def _spot(verify_range: VerifyRange, difference: Difference) -> VerifyRange:
    """Returns the range of the two records of *difference*; it is empty on a side that has no such record."""
    source, target = (
        (0, 0) if offset is None else (offset, offset + 1)
        for offset in (difference.source_offset, difference.target_offset)
    )
    return replace(
        verify_range, source_from=source[0], source_to=source[1], target_from=target[0], target_to=target[1]
    )


def _is_read_again(difference: Difference, *, keeps_keys: bool) -> bool:
    """Whether a record that differs is read again: to name its fields, or for its key."""
    return keeps_keys or difference.kind is DifferenceKind.CHANGED


async def _described(
    difference: Difference,
    sides: Mapping[str, Cluster],
    settings: SourceSettings,
    verify_range: VerifyRange,
    *,
    keeps_keys: bool,
) -> Difference:
    """Returns *difference* with the fields in which a changed record differs, and its key if *keeps_keys*.

    The sides that have the record are read again. Raises ClusterError, and UNREADABLE if this record cannot be read.
    """
    source = target = None
    if difference.source_offset is not None:
        source = await _record_at(
            sides["source"],
            TopicPartition(verify_range.topic, verify_range.partition),
            difference.source_offset,
            read_committed=settings.read_committed,
        )
    is_read = difference.kind is DifferenceKind.CHANGED or difference.source_offset is None
    if is_read and difference.target_offset is not None:
        target = await _record_at(
            sides["target"],
            TopicPartition(verify_range.target_topic, verify_range.partition),
            difference.target_offset,
            read_committed=True,
        )
    record = source or target
    if keeps_keys and record is not None:
        difference = replace(difference, key=key_text(record.key))
    if source is None or target is None:
        return difference
    if edits := make_naming(settings).header_edits(verify_range.topic):
        source = source._replace(headers=edits.edited(source.headers))
    return replace(difference, fields=differing_fields(source, target, timestamps=verify_range.timestamps))


async def _record_at(
    cluster: Cluster, partition: TopicPartition, offset: int, *, read_committed: bool
) -> Record | None:
    reader = OffsetRangeReader(
        cluster,
        partition,
        OffsetRange(offset, offset + 1),
        read_committed=read_committed,
        response_bytes=SPOT_RESPONSE_BYTES,
        reads_ahead=False,
    )
    try:
        while (batches := await reader.more()) is not None:
            for batch in batches:
                for record in decode(batch):
                    if record.offset == offset:
                        return record
    finally:
        await reader.close()
    return None


def differing_fields(source: Record, target: Record, *, timestamps: bool) -> tuple[str, ...]:
    """Returns the names of the fields in which two records differ."""
    names = ("key", "value", "headers", "timestamp") if timestamps else ("key", "value", "headers")
    return tuple(name for name in names if getattr(source, name) != getattr(target, name))


def key_text(key: bytes | None) -> str | None:
    """Returns a record's key as printable text of at most KEY_TEXT_MAX characters and an ellipsis, in hex where it is no text.

    A text that begins like hex is written in hex, too, so that it is not taken for other bytes.
    """
    if key is None:
        return None
    try:
        text = bytes(key).decode()
    except UnicodeDecodeError:
        text = ""
    if not (text or not key) or not text.isprintable() or text.startswith("0x"):
        text = f"0x{bytes(key[:KEY_TEXT_MAX]).hex()}"
    return text if len(text) <= KEY_TEXT_MAX else f"{text[:KEY_TEXT_MAX]}\N{HORIZONTAL ELLIPSIS}"
