"""The topics of a flow on the target: where its claims and positions are, and the bytes of their records."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from mirrorflow_core.connect.position_records import Malformed, PositionKey, Reset, Stored, encode_key
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import OffsetStorageSettings, StorageTopicSettings
from mirrorflow_core.wire.records import Record, partition_for
from mirrorflow_core.writer.claim import Claim, claims_topic, decode_claim, encode_claim
from mirrorflow_core.writer.position import (
    WriterPosition,
    decode_position,
    encode_position,
    obeyed_position,
    reset_position,
)
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.compacted_topic import CompactedTopic
from mirrorflow_kafka.stores.own_topics import new_claims_topic

log = logging.getLogger(__name__)


async def open_claims_topic(cluster: Cluster, storage: OffsetStorageSettings, source_alias: str) -> str:
    """Creates the claims topic if it is missing, replicated as the offsets topic; returns a warning or "".

    Raises InvalidSettingError if it is not compacted and cannot be, or has several partitions; ClusterError.
    """
    new = new_claims_topic(storage, source_alias)
    settings = StorageTopicSettings(
        topic=new.name,
        partitions=new.partitions,
        replication_factor=new.replication_factor,
        topic_configs=new.configs,
        client=storage.client,
    )
    return await CompactedTopic(cluster, settings, key=new.name, single=True).open()


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowTopics:
    """The names of a flow's topics. `target_topic` returns the name on the target of a topic of the source."""

    source_alias: str
    connector: str
    offsets: str  # the offsets topic
    target_topic: Callable[[str], str]

    @property
    def claims(self) -> TopicPartition:
        """The only partition of the claims topic."""
        return TopicPartition(claims_topic(self.source_alias), 0)

    def on_target(self, partition: TopicPartition) -> TopicPartition:
        """Returns the partition of the target to which a partition of the source is copied."""
        return TopicPartition(self.target_topic(partition.topic), partition.partition)

    def claim_record(self, claim: Claim) -> Record:
        """Returns the record of a claim."""
        return Record(0, time.time_ns() // 1_000_000, *encode_claim(claim))

    def position_record(self, position: WriterPosition, *, partitions: int) -> tuple[TopicPartition, Record]:
        """Returns the record of a position, and its partition of the offsets topic, which has so many *partitions*."""
        key = encode_key(PositionKey(self.connector, self.source_alias, position.topic, position.partition))
        home = TopicPartition(self.offsets, partition_for(key, partitions))
        return home, Record(0, time.time_ns() // 1_000_000, key, encode_position(position))

    def claim_in(self, record: Record) -> Claim | None:
        """Returns the claim in a record, None if there is none."""
        if record.key is None or record.value is None:
            return None
        try:
            return decode_claim(record.key, record.value)
        except ValueError as error:
            log.warning("The record at offset %d of %s is not a claim: %s", record.offset, self.claims, error)
            return None

    def position_in(self, record: Record) -> WriterPosition | None:
        """Returns the position in a record; None if it is of another connector, or unusable."""
        match decode_position(record.key, record.value, connector=self.connector, cluster=self.source_alias):
            case WriterPosition() as position:
                return position
            case Stored() as stored:
                return replace(obeyed_position(stored.position), time_ms=record.timestamp)
            case Reset() as reset:
                return replace(reset_position(reset), time_ms=record.timestamp)
            case Malformed(problem=problem):
                log.warning("The record at offset %d of %s: %s", record.offset, self.offsets, problem)
        return None
