"""Finds in a refused batch the records that the target refuses, and where copying continues after them."""

from collections.abc import Sequence
from typing import NamedTuple

from mirrorflow_core.errors import PartitionError
from mirrorflow_core.writer.stream import Span


class RefusedRecords(NamedTuple):
    """Records that the target refuses and that are skipped: `ordinal` is that of the first of them."""

    ordinal: int
    next_offset: int  # the source offset after them
    source_epoch: int  # leader epoch of the offset before that; -1: unknown
    error: PartitionError


class RefusedPart(NamedTuple):
    """The first refused records of a batch; none, if the records before *cut_at*, a source offset, are to be sent first."""

    cut_at: int | None
    records: int
    next_offset: int  # the source offset after them
    source_epoch: int  # as in `RefusedRecords`


def refused_part(span: Span, indexes: Sequence[int]) -> RefusedPart:
    """Returns which records of *span*, a refused batch, are refused first; *indexes* are those that the target named.

    Without indexes the first refused record is found by halving.
    """
    refused = sorted({index for index in indexes if 0 <= index < span.count})
    first = refused[0] if refused else span.count // 2
    if first > 0:
        cut_at = span.source_offset(span.first + first)
        return RefusedPart(cut_at, 0, cut_at, span.source_epoch)
    count = next((place for place, index in enumerate(refused) if place != index), len(refused)) or 1
    if count < span.count:
        return RefusedPart(None, count, span.source_offset(span.first + count), span.source_epoch)
    epoch = span.skipped_epochs[-1].epoch if span.skipped_epochs else span.source_epoch
    return RefusedPart(None, count, span.next_offset, epoch)
