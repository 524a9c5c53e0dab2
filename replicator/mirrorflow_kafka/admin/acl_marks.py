"""Records on the target which of its ACLs the flow created; the flow removes only those.

The records are marks in the flow's identity topic (`stores.decision_log`, which skips them); the last mark of
an ACL counts. A mark is written before its ACL is created and again after the ACL is removed, so an ACL stays
known as the flow's own even if the process ends in between. A mark without an ACL has no effect.
"""

from collections.abc import Collection

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.topics.topic_acls import AclBinding, decode_mark, encode_mark
from mirrorflow_core.wire.records import Record
from mirrorflow_core.wire.records import encode as encode_records
from mirrorflow_core.writer.identity import identity_topic
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_offsets import LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.error_codes import raise_for
from mirrorflow_kafka.stores.compacted_topic import PRODUCE_TIMEOUT_MS, records_between

MARKS_PER_BATCH = 1_000  # some 300 bytes each: below the smallest usual max.message.bytes


class AclMarks:
    """Reads and writes the ACL marks of the flow from *source_alias* under the naming policy *naming*."""

    def __init__(self, cluster: Cluster, source_alias: str, *, naming: str) -> None:
        self._cluster = cluster
        self._partition = TopicPartition(identity_topic(source_alias), 0)
        self._naming = naming
        self._ours: set[AclBinding] = set()
        self._read_to = 0

    async def read(self) -> frozenset[AclBinding]:
        """Read new marks; return all ACLs that are marked as created by the flow. Raises ClusterError."""
        if self._cluster.leader(self._partition.topic, 0) is None:
            await self._cluster.refresh([self._partition.topic])
        end = (await admin.list_offsets(self._cluster, [self._partition], LATEST))[self._partition]
        raise_for(end.error, cluster=self._cluster.alias, request="ListOffsets", subject=str(self._partition))
        async for records, _ in records_between(
            self._cluster, self._partition, self._read_to, end.offset, read_committed=False
        ):
            for record in records:
                if record.key is None or record.value is None:
                    continue
                mark = decode_mark(bytes(record.key), bytes(record.value), naming=self._naming)
                if mark is not None:
                    acl, ours = mark
                    (self._ours.add if ours else self._ours.discard)(acl)
        self._read_to = end.offset
        return frozenset(self._ours)

    async def write(
        self, *, ours: Collection[AclBinding], others: Collection[AclBinding], now_ms: int
    ) -> None:
        """Mark *ours* as created by the flow, and *others* as not. Raises ClusterError."""
        marks = [(acl, True) for acl in ours if acl not in self._ours]
        marks += [(acl, False) for acl in others if acl in self._ours]
        for at in range(0, len(marks), MARKS_PER_BATCH):
            records = [
                Record(0, now_ms, *encode_mark(acl, naming=self._naming, ours=is_ours), ())
                for acl, is_ours in marks[at : at + MARKS_PER_BATCH]
            ]
            batch = encode_records(records, codec=0, producer_id=-1, producer_epoch=-1, base_sequence=-1)
            answers = await admin.produce(
                self._cluster, {self._partition: batch}, timeout_ms=PRODUCE_TIMEOUT_MS
            )
            raise_for(
                answers[self._partition],
                cluster=self._cluster.alias,
                request="Produce",
                subject=str(self._partition),
            )
        self._ours.update(ours)
        self._ours.difference_update(others)
