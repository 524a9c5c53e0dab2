"""Polls the source's end offsets of stopped partitions: their lag grows, although no fetch reports it."""

import asyncio
from collections.abc import Callable, Collection

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.copy.copier_context import CopierState
from mirrorflow_replicator.copy.partition_copier import PartitionCopier
from mirrorflow_replicator.copy.read_cursor import UNKNOWN

POLL_INTERVAL_S = (
    10.0  # one request for all partitions; the reported lag of a stopped one is at most this old
)


async def follow_stopped_ends(
    source: Cluster,
    *,
    lanes: Callable[[], Collection[PartitionCopier]],
    read_committed: bool,
    on_change: Callable[[PartitionCopier], object],
    on_error: Callable[[MirrorFlowError], None],
) -> None:
    """Polls until cancelled.

    Calls *on_change* with each copier whose end offset changed or became unknown.
    """
    while True:
        await asyncio.sleep(POLL_INTERVAL_S)
        stopped = [lane for lane in lanes() if lane.state is CopierState.STOPPED]
        if not stopped:
            continue
        partitions = [lane.source for lane in stopped]
        try:
            ends = await admin.list_offsets(source, partitions, LATEST, read_committed=read_committed)
        except MirrorFlowError as error:
            on_error(error)
            continue
        for lane in stopped:
            found = ends[lane.source]
            end = UNKNOWN if found.error else found.offset
            if lane.state is CopierState.STOPPED and lane.cursor.end_offset != end:
                lane.cursor.end_offset = end
                on_change(lane)
