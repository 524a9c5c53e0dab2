"""Broker responses about the log of a partition."""

from collections.abc import Iterable

from mirrorflow_core.writer.transaction_log import LogBatch, Marker


def aborted_after(log: Iterable[LogBatch], offset: int) -> dict[int, int]:
    """Returns the aborted transactions that start before *offset* and end there or later, as first offset by producer
    id.
    """
    open_transactions: dict[int, int] = {}
    aborted: dict[int, int] = {}
    for batch in log:
        if batch.marker is not None:
            first = open_transactions.pop(batch.producer_id, offset)
            if batch.marker is Marker.ABORT and first < offset <= batch.base_offset:
                aborted[batch.producer_id] = first
        elif batch.is_transactional:
            open_transactions.setdefault(batch.producer_id, batch.base_offset)
    return aborted
