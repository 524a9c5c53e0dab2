"""Reads and writes a flow's identity topic on the target: holds of retention, and what earlier releases decided.

`decide` returns what the topic holds, never the own proposal unread.
"""

from collections.abc import Collection, Sequence

from mirrorflow_core.errors import ClusterChangedError, FlowExistsError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.topic_acls import AclBinding, decode_mark, encode_mark
from mirrorflow_core.wire.records import Record
from mirrorflow_core.wire.records import encode as encode_records
from mirrorflow_core.writer.identity import Decisions, Identity, Proposal, decode, encode, identity_topic
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
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


# Decisions bind permanently, so nothing may be removed: neither by time nor by size nor by key.
TOPIC_CONFIGS = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
PROPOSALS_PER_BATCH = 2_000  # about 400 bytes each: below the smallest usual max.message.bytes


def moved_name(flow: str) -> str:
    """Return the flow's name in its last identity once it has one owner.

    Copiers that do not know of owners take it for another flow, and refuse.
    """
    return f"{flow} (one owner)"


class DecisionLog:
    """Reads and writes the decisions of one flow."""

    def __init__(self, cluster: Cluster, source_alias: str, *, replication_factor: int) -> None:
        self.decisions = Decisions()
        self._cluster = cluster
        self._partition = TopicPartition(identity_topic(source_alias), 0)
        self._replication_factor = replication_factor
        self._read_to = 0

    async def ensure(self) -> None:
        """Create the topic if it is missing."""
        topic = self._partition.topic
        await self._cluster.refresh([topic])
        if self._cluster.leader(topic, 0) is None:
            await admin.create_topic_and_wait(
                self._cluster,
                admin.NewTopic(
                    name=topic,
                    partitions=1,
                    replication_factor=self._replication_factor,
                    configs=TOPIC_CONFIGS,
                ),
            )

    async def exists(self) -> bool:
        """Return whether the topic exists, so that there can be decisions."""
        topic = self._partition.topic
        if self._cluster.leader(topic, 0) is None:
            await self._cluster.refresh([topic])
        return self._cluster.leader(topic, 0) is not None

    async def read(self) -> Decisions:
        """Read the decisions since the last call; return all. Records that retention removed are skipped."""
        ends = await admin.list_offsets(self._cluster, [self._partition], LATEST)
        end = ends[self._partition]
        if end.error:
            raise_for(
                end.error, cluster=self._cluster.alias, request="ListOffsets", subject=str(self._partition)
            )
        if self._read_to == 0:
            begins = await admin.list_offsets(self._cluster, [self._partition], EARLIEST)
            self._read_to = max(0, begins[self._partition].offset)
        async for records, _ in records_between(
            self._cluster, self._partition, self._read_to, end.offset, read_committed=False
        ):
            for record in records:
                if record.key is None or record.value is None:
                    continue
                proposal = decode(bytes(record.key), bytes(record.value))
                if proposal is not None:
                    self.decisions.read(proposal)
        self._read_to = end.offset
        return self.decisions

    async def decide(self, proposals: Sequence[Proposal], *, now_ms: int) -> Decisions:
        """Write *proposals*, then read: the first proposal for a key binds, whichever copier wrote it."""
        for start in range(0, len(proposals), PROPOSALS_PER_BATCH):
            await self._append(proposals[start : start + PROPOSALS_PER_BATCH], now_ms)
        return await self.read()

    async def _append(self, proposals: Sequence[Proposal], now_ms: int) -> None:
        records = [Record(0, now_ms, *encode(proposal), ()) for proposal in proposals]
        batch = encode_records(records, codec=0, producer_id=-1, producer_epoch=-1, base_sequence=-1)
        answers = await admin.produce(self._cluster, {self._partition: batch}, timeout_ms=PRODUCE_TIMEOUT_MS)
        code = answers[self._partition]
        if code:
            raise_for(code, cluster=self._cluster.alias, request="Produce", subject=str(self._partition))


def check_owner(
    decided: Identity, settings: SourceSettings, *, source_cluster_id: str, target_cluster_id: str
) -> None:
    """Check that *decided* is of the same clusters as a flow with *settings*, and of it or one that it takes over.

    Raises ClusterChangedError, FlowExistsError.
    """
    for alias, expected, found in (
        (settings.source_alias, decided.source_cluster_id, source_cluster_id),
        (settings.target_alias, decided.target_cluster_id, target_cluster_id),
    ):
        if expected != found:
            raise ClusterChangedError(alias=alias, expected=expected, found=found)
    names = {settings.flow, *settings.takes_over}
    if decided.flow not in names | set(map(moved_name, names)):
        raise FlowExistsError(
            source=settings.source_alias,
            target=settings.target_alias,
            owner=decided.flow,
            claimant=settings.flow,
        )
