"""What a broker returns about the log of a partition."""

from collections.abc import Iterable

from mirrorflow_core.writer.transaction_log import LogBatch, Marker


def aborted_after(log: Iterable[LogBatch], offset: int) -> dict[int, int]:
    """The transactions that begin before *offset* and are aborted there or later: their first offsets, by producer id."""
    begun: dict[int, int] = {}
    found: dict[int, int] = {}
    for batch in log:
        if batch.marker is not None:
            first = begun.pop(batch.producer_id, offset)
            if batch.marker is Marker.ABORT and first < offset <= batch.base_offset:
                found[batch.producer_id] = first
        elif batch.is_transactional:
            begun.setdefault(batch.producer_id, batch.base_offset)
    return found
