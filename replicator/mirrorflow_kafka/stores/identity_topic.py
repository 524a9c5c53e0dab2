"""Reads and writes a flow's identity topic on the target: marks of ACLs, and holds of retention.

The last mark of an ACL counts: the flow removes only ACLs that it has created. A mark is written before its ACL is created and
again after the ACL is removed, so an ACL stays known as the flow's own even if the process ends in between. A mark without an
ACL has no effect.
"""

import time
from collections.abc import Collection, Sequence

from mirrorflow_core.topics.retention_hold import HoldRecord, Holds, decode_hold, encode_hold, identity_topic
from mirrorflow_core.topics.topic_acls import AclBinding, decode_mark, encode_mark
from mirrorflow_core.wire.error_codes import TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION
from mirrorflow_core.wire.records import Record
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.compacted_topic import MirrorLog, append
from mirrorflow_kafka.stores.own_topics import new_identity_topic


class AclMarks:
    """Reads and writes the ACL marks of the flow from *source_alias* under the naming policy *naming*."""

    def __init__(self, cluster: Cluster, source_alias: str, *, naming: str) -> None:
        self._cluster = cluster
        self._log = MirrorLog(cluster, identity_topic(source_alias), read_committed=False)
        self._naming = naming
        self._owned: set[AclBinding] = set()

    async def read(self) -> frozenset[AclBinding]:
        """Reads new marks; returns all ACLs that are marked as created by the flow. Raises ClusterError."""
        async for record in self._log.read_new():
            mark = decode_mark(record.key or b"", record.value or b"", naming=self._naming)
            if mark is not None:
                acl, owned = mark
                (self._owned.add if owned else self._owned.discard)(acl)
        return frozenset(self._owned)

    async def write(
        self, *, owned: Collection[AclBinding], others: Collection[AclBinding], now_ms: int
    ) -> None:
        """Marks *owned* as created by the flow, and *others* as not. Raises ClusterError."""
        marks = [(acl, True) for acl in owned if acl not in self._owned]
        marks += [(acl, False) for acl in others if acl in self._owned]
        records = [
            Record(0, now_ms, *encode_mark(acl, naming=self._naming, owned=is_owned))
            for acl, is_owned in marks
        ]
        await append(self._cluster, self._log.topic, records)
        self._owned.update(owned)
        self._owned.difference_update(others)


class HoldLog:
    """Reads and writes the retention holds of one flow."""

    def __init__(self, cluster: Cluster, source_alias: str, *, replication_factor: int) -> None:
        self._holds = Holds()
        self._cluster = cluster
        self._source_alias = source_alias
        self._log = MirrorLog(cluster, identity_topic(source_alias), read_committed=False)
        self._replication_factor = replication_factor

    async def ensure(self) -> None:
        """Creates the topic if it is missing."""
        topic = self._log.topic
        await self._cluster.refresh([topic])
        if self._cluster.leader(topic, 0) is None:
            new = new_identity_topic(self._source_alias, self._replication_factor)
            await admin.create_topic_and_wait(self._cluster, new)

    @property
    def held(self) -> frozenset[str]:
        """The topics whose holds were not restored when the log was last read."""
        return self._holds.topics

    async def exists(self) -> bool:
        """Returns whether the topic exists, so that there can be holds; also while it has no leader.

        A topic that is hidden counts as missing, unless holds were read from it before.
        """
        topic = self._log.topic
        if self._cluster.leader(topic, 0) is not None:
            return True
        await self._cluster.refresh([topic])
        known = self._cluster.metadata.topics.get(topic)
        if known is not None and known.error == TOPIC_AUTHORIZATION_FAILED:
            return bool(self.held)
        return known is not None and known.error != UNKNOWN_TOPIC_OR_PARTITION

    async def read(self) -> Holds:
        """Reads the holds since the last call; returns all."""
        async for record in self._log.read_new():
            hold = decode_hold(record.key or b"", record.value or b"")
            if hold is not None:
                self._holds.take(hold, time.monotonic())
        return self._holds

    async def write(self, holds: Sequence[HoldRecord], *, now_ms: int) -> Holds:
        """Writes *holds*, then reads: the first record of a hold counts, whichever process wrote it."""
        records = [Record(0, now_ms, *encode_hold(hold)) for hold in holds]
        await append(self._cluster, self._log.topic, records)
        return await self.read()
