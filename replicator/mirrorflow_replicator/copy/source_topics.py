"""Reads what a task must know about its topics: where the source ends, and which copies have LogAppendTime."""

from collections.abc import Collection

from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.copy.partition_copier import PartitionCopier

TIMESTAMP_TYPE = "message.timestamp.type"


async def note_ends(source: Cluster, lanes: Collection[PartitionCopier], *, read_committed: bool) -> None:
    """Sets the current end offset of each of *lanes*. Raises ClusterError."""
    ends = await admin.list_offsets(
        source, [lane.source for lane in lanes], LATEST, read_committed=read_committed
    )
    for lane in lanes:
        lane.start_end = lane.cursor.end_offset = ends[lane.source].offset


async def note_stamped_topics(target: Cluster, lanes: Collection[PartitionCopier]) -> None:
    """Notes which target topics of *lanes* use LogAppendTime, where that may be read. Raises ClusterError."""
    topics = sorted({lane.target_topic for lane in lanes})
    kinds = await admin.describe_topic_setting(target, topics, TIMESTAMP_TYPE)
    for lane in lanes:
        if kinds.get(lane.target_topic) == "LogAppendTime":
            lane.around.stamped.add(lane.target_topic)
