"""Reads and writes a flow's identity topic on the target: marks of ACLs, holds of retention, decisions of earlier releases.

The last mark of an ACL counts: the flow removes only ACLs that it has created. A mark is written before its ACL is created and
again after the ACL is removed, so an ACL stays known as the flow's own even if the process ends in between. A mark without an
ACL has no effect.
"""

import time
from collections.abc import Collection, Sequence

from mirrorflow_core.errors import ClusterChangedError, FlowExistsError
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.topic_acls import AclBinding, decode_mark, encode_mark
from mirrorflow_core.wire.records import Record
from mirrorflow_core.writer.identity import Decisions, Identity, Proposal, decode, encode, identity_topic
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.compacted_topic import MirrorLog, append

# Decisions bind permanently, so nothing may be removed: neither by time nor by size nor by key.
TOPIC_CONFIGS = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


class AclMarks:
    """Reads and writes the ACL marks of the flow from *source_alias* under the naming policy *naming*."""

    def __init__(self, cluster: Cluster, source_alias: str, *, naming: str) -> None:
        self._cluster = cluster
        self._log = MirrorLog(cluster, identity_topic(source_alias), read_committed=False)
        self._naming = naming
        self._ours: set[AclBinding] = set()

    async def read(self) -> frozenset[AclBinding]:
        """Reads new marks; returns all ACLs that are marked as created by the flow. Raises ClusterError."""
        async for record in self._log.read_new():
            mark = decode_mark(record.key or b"", record.value or b"", naming=self._naming)
            if mark is not None:
                acl, ours = mark
                (self._ours.add if ours else self._ours.discard)(acl)
        return frozenset(self._ours)

    async def write(
        self, *, ours: Collection[AclBinding], others: Collection[AclBinding], now_ms: int
    ) -> None:
        """Marks *ours* as created by the flow, and *others* as not. Raises ClusterError."""
        marks = [(acl, True) for acl in ours if acl not in self._ours]
        marks += [(acl, False) for acl in others if acl in self._ours]
        records = [
            Record(0, now_ms, *encode_mark(acl, naming=self._naming, ours=is_ours)) for acl, is_ours in marks
        ]
        await append(self._cluster, self._log.topic, records)
        self._ours.update(ours)
        self._ours.difference_update(others)


def migrated_name(flow: str) -> str:
    """Returns the flow's name in its last identity once it has one owner.

    Copiers that do not know of owners take it for another flow, and refuse.
    """
    return f"{flow} (one owner)"


class DecisionLog:
    """Reads and writes the decisions of one flow."""

    def __init__(self, cluster: Cluster, source_alias: str, *, replication_factor: int) -> None:
        self.decisions = Decisions()
        self._cluster = cluster
        self._log = MirrorLog(cluster, identity_topic(source_alias), read_committed=False)
        self._replication_factor = replication_factor

    async def ensure(self) -> None:
        """Creates the topic if it is missing."""
        topic = self._log.topic
        await self._cluster.refresh([topic])
        if self._cluster.leader(topic, 0) is None:
            new = admin.NewTopic(
                name=topic,
                partitions=1,
                replication_factor=self._replication_factor,
                configs=TOPIC_CONFIGS,
            )
            await admin.create_topic_and_wait(self._cluster, new)

    async def exists(self) -> bool:
        """Returns whether the topic exists, so that there can be decisions."""
        if self._cluster.leader(self._log.topic, 0) is None:
            await self._cluster.refresh([self._log.topic])
        return self._cluster.leader(self._log.topic, 0) is not None

    async def read(self) -> Decisions:
        """Reads the decisions since the last call; returns all."""
        async for record in self._log.read_new():
            proposal = decode(record.key or b"", record.value or b"")
            if proposal is not None:
                self.decisions.read(proposal, time.monotonic())
        return self.decisions

    async def decide(self, proposals: Sequence[Proposal], *, now_ms: int) -> Decisions:
        """Writes *proposals*, then reads: the first proposal for a key binds, whichever copier wrote it."""
        records = [Record(0, now_ms, *encode(proposal)) for proposal in proposals]
        await append(self._cluster, self._log.topic, records)
        return await self.read()


def check_owner(
    decided: Identity, settings: SourceSettings, *, source_cluster_id: str, target_cluster_id: str
) -> None:
    """Checks that *decided* is of the same clusters as a flow with *settings*, and of it or one that it takes over.

    Raises ClusterChangedError, FlowExistsError.
    """
    for alias, expected, found in (
        (settings.source_alias, decided.source_cluster_id, source_cluster_id),
        (settings.target_alias, decided.target_cluster_id, target_cluster_id),
    ):
        if expected != found:
            raise ClusterChangedError(alias=alias, expected=expected, found=found)
    names = {settings.flow, *settings.takes_over}
    if decided.flow not in names | set(map(migrated_name, names)):
        raise FlowExistsError(
            source=settings.source_alias,
            target=settings.target_alias,
            owner=decided.flow,
            claimant=settings.flow,
        )
