"""A partition whose offsets cannot be translated has a reason that names the cluster and the partition."""

import asyncio

from mirrorflow_core.offsets.application_offsets import NOTHING_KNOWN, ApplicationOffset
from mirrorflow_core.offsets.offset_syncs import OffsetSyncStore, Sync
from mirrorflow_core.offsets.offset_translation import Translator
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.client.metadata import Metadata, PartitionMetadata, TopicMetadata
from mirrorflow_replicator.connectors.application_offsets import RECREATED, ApplicationOffsets

LEADERLESS = PartitionMetadata(leader=-1, leader_epoch=0, replicas=(0,), isr=(0,))


class Clusterless:
    """A cluster with topics of one partition, whose logs need not be read."""

    def __init__(self, *topics: str, asked: list[str]) -> None:
        self._asked = asked
        known = {name: TopicMetadata(name=name, partitions={0: LEADERLESS}) for name in topics}
        self.metadata = Metadata(cluster_id="c", controller_id=0, brokers={}, topics=known)

    async def refresh(self, topics):
        self._asked += topics

    def leader(self, topic, partition):
        return 0 if topic in self.metadata.topics else None


class Known:
    """Offset syncs for the topic *synced*.

    All topics are copied to `A.copy`, or to a topic of the same name.
    """

    def __init__(self, *, synced=(), collide=False, recreated=()):
        self._syncs = OffsetSyncStore(must_read_to_end=False)
        self._syncs.mark_read_to_end()
        for topic in synced:
            self._syncs.add(TopicPartition(topic, 0), Sync(10, 10))
        self._collide, self._recreated = collide, recreated

    def rename(self, partition):
        return TopicPartition("A.copy" if self._collide else f"A.{partition.topic}", partition.partition)

    def sources_by_copy(self):
        sources: dict[TopicPartition, list[TopicPartition]] = {}
        for source in sorted(self._syncs.partitions):
            sources.setdefault(self.rename(source), []).append(source)
        return sources

    async def current_translator(self, partitions, source):
        return Translator(self._syncs), frozenset(TopicPartition(topic, 0) for topic in self._recreated)


def why(known, topic, *, reverse=False, asked=None):
    asked = [] if asked is None else asked
    clusters = {"source": Clusterless(asked=asked), "target": Clusterless(asked=asked)}
    translator = ApplicationOffsets(known, ("A", "B"), **clusters)  # type: ignore[arg-type]
    offsets = [ApplicationOffset(topic=topic, partition=0, offset=5)]
    (translation,) = asyncio.run(translator.translate(offsets, reverse=reverse))
    assert translation.offset is None
    asked.sort()
    return translation.why


def test_the_reason_names_a_missing_partition():
    grant = ", or Describe on its topic is not granted"

    assert f"B has no partition A.t-0{grant}" == why(Known(synced=["t"]), "t")
    assert f"A has no partition t-0{grant}" == why(Known(synced=["t"]), "A.t", reverse=True)


def test_partitions_without_known_offsets_cause_no_request():
    """Otherwise a client could fill the memory of the process with names of topics that do not exist."""
    asked: list[str] = []

    assert why(Known(synced=["t"]), "u", asked=asked) == NOTHING_KNOWN
    assert why(Known(synced=["t"]), "A.u", asked=asked, reverse=True) == NOTHING_KNOWN
    assert asked == []
    why(Known(synced=["t"]), "t", asked=asked)
    assert asked == ["A.t", "t"]


def test_two_source_topics_with_one_copy_are_ambiguous_in_reverse():
    known = Known(synced=["t", "u"], collide=True)

    assert "it is the copy of both t and u" == why(known, "A.copy", reverse=True)


def test_a_topic_that_was_created_again_is_not_translated_by_its_old_map():
    known = Known(synced=["t"], recreated=["t"])

    assert RECREATED == why(known, "t")
    assert RECREATED == why(known, "A.t", reverse=True)
