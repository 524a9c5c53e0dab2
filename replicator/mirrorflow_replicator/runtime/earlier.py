"""How far an earlier generation of the flow has come (DESIGN 4.2, clause 9): where the next one has to go on in the source.

Asked of the topic in which the earlier generation has written: another naming gives the next one another topic, and in that
nothing of the earlier one is to be found.
"""

from collections.abc import Mapping, Sequence

from mirrorflow_replicator.errors import UndecidedError
from mirrorflow_replicator.flow.alignment import Evidence, GoOn, Pair
from mirrorflow_replicator.flow.identity import Anchor, Identity
from mirrorflow_replicator.flow.ladder import ladder
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.flow.transforms import HeaderEdits
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.witnesses import Testimony, settle
from mirrorflow_replicator.runtime.lane import Lane
from mirrorflow_replicator.runtime.walking import Extent, find_on


async def targets_of(target: Cluster, anchors: Mapping[Lane, Anchor]) -> dict[Lane, TopicPartition]:
    """Where the earlier generation, in which the lanes had *anchors*, has written: by the id of its topic.

    The lane's own target where that topic is gone, or never had an id.
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
    lane: Lane,
    generations: Sequence[Identity],
    anchor: Anchor,
    *,
    written: TopicPartition,
    heard: Testimony,
    extent: Extent,
) -> Pair:
    """The pair of the last record that the earlier one of *generations* has brought to *written*. Raises UndecidedError.

    *anchor* is the lane's in the earlier one, *heard* what is said of *written* behind the later one's fence.
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
    if not isinstance(at, GoOn):
        raise UndecidedError(
            topic=lane.topic,
            partition=lane.partition,
            evidence="the end of the earlier generation cannot be found",
        )
    if at.walk_records == 0:
        return at.known
    # Of what another stream did to headers nothing is known but that it was something else.
    edits: HeaderEdits | None = lane.packer.header_edits if earlier.stream == later.stream else None
    return await find_on(
        source,
        lane.source,
        target,
        written,
        earlier,
        at,
        extent=extent,
        read_committed="read_committed" in earlier.stream,
        header_edits=edits,
    )
