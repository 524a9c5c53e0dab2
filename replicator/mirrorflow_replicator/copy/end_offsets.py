"""Reads where the source partitions of copiers end: when copying begins, and while a copier reads nothing.

A copier that fetches learns the end from its fetch responses. One that is stopped, or that a rate limit holds for long, does not
fetch, and its lag would stay as it was: a flow that falls behind would look as if it had caught up.
"""

import asyncio
from collections.abc import Callable, Collection

from mirrorflow_core.copying.partition import CopierState, PartitionCopier
from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import UNKNOWN
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.writer.partition_availability import RESPONSE_S

POLL_INTERVAL_S = (
    10.0  # one request for all partitions; the reported lag of one that reads nothing is at most this old
)
HELD_MIN_S = 1.0  # a shorter wait for the rate limit ends before the known ends are old


async def note_ends(source: Cluster, copiers: Collection[PartitionCopier], *, read_committed: bool) -> None:
    """Sets the current end offset of each of *copiers*; `follow_ends` learns one that is not known soon. Raises ClusterError."""
    partitions = [copier.source for copier in copiers]
    ends = await admin.list_offsets(
        source, partitions, LATEST, read_committed=read_committed, timeout_s=RESPONSE_S
    )
    for copier in copiers:
        copier.note_end(ends[copier.source].offset, is_start=True)


async def follow_ends(
    source: Cluster,
    *,
    copiers: Callable[[], Collection[PartitionCopier]],
    held_s: Callable[[], float],
    read_committed: bool,
    on_change: Callable[[PartitionCopier], object],
    on_error: Callable[[MirrorFlowError], None],
) -> None:
    """Polls the end offsets of copiers that read nothing until cancelled; *held_s*: how long the rate limit still holds all.

    The first known end of a copier is its end at the start, if that is unknown. Calls *on_change* with each copier whose end
    offset changed or became unknown.
    """
    while True:
        await asyncio.sleep(POLL_INTERVAL_S)
        for copier in copiers():
            end = copier.cursor.end_offset
            # During an open transaction, noting the end would drop what is known of the records that it hides.
            if copier.start_end == UNKNOWN != end and not copier.cursor.is_held_back:
                copier.note_end(end, is_start=True)
                on_change(copier)
        # Also those that have not begun: the session may have left them out.
        waiting = [copier for copier in copiers() if _reads_nothing(copier, held_s())]
        if not waiting:
            continue
        partitions = [copier.source for copier in waiting]
        try:
            ends = await admin.list_offsets(
                source, partitions, LATEST, read_committed=read_committed, timeout_s=RESPONSE_S
            )
        except MirrorFlowError as error:
            on_error(error)
            continue
        for copier in waiting:
            listed = ends[copier.source]
            end = UNKNOWN if listed.error else listed.offset
            if _reads_nothing(copier, held_s()) and copier.cursor.end_offset != end:
                copier.note_end(end, is_start=copier.start_end == UNKNOWN)
                on_change(copier)


def _reads_nothing(copier: PartitionCopier, held_s: float) -> bool:
    return copier.state is CopierState.STOPPED or copier.stream is None or held_s > HELD_MIN_S
