"""Finds where an earlier generation of the flow ended, and so where the next one continues in the source.

See docs/exactly-once.md, clause 9. It reads the topic that the earlier generation wrote to: with another
naming policy the next generation has another topic, which holds nothing of the earlier one.
"""

from collections.abc import Mapping, Sequence

from mirrorflow_core.errors import UndecidedError
from mirrorflow_core.exactly_once.alignment import Evidence, OffsetPair, ResumeAt
from mirrorflow_core.exactly_once.identity import Anchor, Identity
from mirrorflow_core.exactly_once.resume_points import ladder
from mirrorflow_core.naming.transforms import HeaderEdits
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.admin.target_probe import ProbeResult, settle
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.copy.copier_context import DetectedLoss
from mirrorflow_replicator.copy.partition_copier import PartitionCopier
from mirrorflow_replicator.copy.resume.source_scan import LogExtent, SourceScan
from mirrorflow_replicator.copy.resume.source_truncation import REWRITTEN, lose_truncated, truncation_of


async def targets_of(
    target: Cluster, anchors: Mapping[PartitionCopier, Anchor]
) -> dict[PartitionCopier, TopicPartition]:
    """Returns the target partitions that the earlier generation wrote to, by the topic ids of its *anchors*.

    Where that topic is gone, or never had an id, it is the partition copier's own target. Raises
    ClusterError.
    """

    def names() -> dict[str, str]:
        return {str(topic.topic_id): name for name, topic in target.metadata.topics.items()}

    known = names()
    if any(one.target_topic_id and one.target_topic_id not in known for one in anchors.values()):
        await target.refresh()
        known = names()
    return {
        lane: TopicPartition(known.get(anchor.target_topic_id, lane.target_topic), lane.partition)
        for lane, anchor in anchors.items()
    }


async def end_of(
    source: Cluster,
    target: Cluster,
    lane: PartitionCopier,
    generations: Sequence[Identity],
    anchor: Anchor,
    *,
    written: TopicPartition,
    heard: ProbeResult,
    extent: LogExtent,
) -> OffsetPair:
    """Returns the pair of the last record that the earlier of *generations* brought to *written*.

    Raises UndecidedError.

    *anchor* is the earlier generation's; *heard* is what the target answered about *written* behind the later
    one's fence.
    """
    earlier, later = generations
    evidence = Evidence(
        epoch=earlier.producer_epoch,
        ladder=ladder(anchor, lane.position, None),
        memory=None,
        log_start=heard.log_start,
        high_watermark=heard.high_watermark,
        ended=True,
    )
    at, _ = await settle(target, written, evidence, producer_id=earlier.producer_id)
    if not isinstance(at, ResumeAt):
        raise UndecidedError(
            topic=lane.topic,
            partition=lane.partition,
            evidence="the end of the earlier generation cannot be found",
        )
    shared = tuple(pair for pair in evidence.ladder if pair.ordinal <= at.known.ordinal)
    # What another stream did to headers is unknown, except that it was something else.
    edits: HeaderEdits | None = lane.packer.header_edits if earlier.stream == later.stream else None
    scan = SourceScan(
        source=source,
        partition=lane.source,
        target=target,
        target_partition=written,
        identity=earlier,
        extent=extent,
        is_compacted=lane.is_compacted,
        read_committed="read_committed" in earlier.stream,
        header_edits=edits,
    )
    truncation = await truncation_of(source, lane.source, shared)
    if truncation is not None:
        await lose_truncated(lane, truncation, shared[0], scan)
        return at.known
    if at.walk_records == 0:
        return at.known
    found = await scan.find(at)
    if isinstance(found, OffsetPair):
        return found
    lane.loss = DetectedLoss(at.known.source_offset + at.walk_records + 1, found.offset, REWRITTEN)
    return at.known
