"""Finds out whether the writers of a flow can be fenced on a target (KIP-98), and in which partitions at present."""

import contextlib
from collections.abc import Iterable
from typing import Final

from mirrorflow_core.errors import NotAuthorizedError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import OffsetStore
from mirrorflow_core.writer.transactional_ids import TransactionalIds
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.error_codes import is_metadata_stale, is_retriable
from mirrorflow_kafka.client.metadata import NO_LEADER, PartitionMetadata

_MIN_IN_SYNC: Final = "min.insync.replicas"
_APIS: Final = {22: "InitProducerId", 24: "AddPartitionsToTxn", 26: "EndTxn"}


async def why_unfenced(target: Cluster, source_alias: str, store: OffsetStore) -> str:
    """Returns why no writer of the flow from *source_alias* can be fenced; "" if they can be. Raises ClusterError."""
    if store is OffsetStore.FILE:
        return "positions in a file (offset.storage.store=file) cannot be part of a transaction"
    for node_id in sorted(target.metadata.brokers):
        versions = (await target.connection(node_id)).versions
        for key, api in _APIS.items():
            if key not in versions:
                return f"broker {node_id} of {target.alias} does not offer {api}"
    ids = TransactionalIds(source_alias)
    if not await admin.may_write_as(target, ids.lock):
        return f"{target.alias} does not grant Write on transactional ids that begin with {ids.prefix}"
    if not await admin.may_coordinate(target):
        return f"{target.alias} has fewer brokers than transaction.state.log.replication.factor, so it has no transactions"
    return ""


async def writable_partitions(
    target: Cluster, partitions: Iterable[TopicPartition]
) -> frozenset[TopicPartition]:
    """Returns those of *partitions* that have a leader, and enough replicas in sync to accept a write, by known metadata.

    No transaction can end in the others, so that one of them would hold up all partitions of its task. Raises ClusterError.
    """
    wanted = frozenset(partitions)
    known = {one: _partition(target, one) for one in wanted}
    in_sync = {one: found for one, found in known.items() if found is not None and found.leader != NO_LEADER}
    short = {one.topic for one, found in in_sync.items() if len(found.isr) < len(found.replicas)}
    least: dict[str, int] = {}
    if short:
        with contextlib.suppress(NotAuthorizedError):
            configs = await admin.describe_topic_configs(target, short)
            least = {
                topic: int(entry.value)
                for topic, entries in configs.items()
                for entry in entries
                if entry.name == _MIN_IN_SYNC and entry.value
            }
    return frozenset(one for one, found in in_sync.items() if len(found.isr) >= least.get(one.topic, 1))


async def answering_partitions(
    target: Cluster, partitions: Iterable[TopicPartition]
) -> frozenset[TopicPartition]:
    """Returns those of `writable_partitions` whose leaders answer; a dead leader is in the metadata for some seconds.

    A fence over a partition of a dead leader keeps the transactional id busy on brokers before 4.0. Raises ClusterError.
    """
    writable = await writable_partitions(target, partitions)
    listed = await admin.list_offsets(target, writable, LATEST)
    return frozenset(
        one
        for one, found in listed.items()
        if not is_metadata_stale(found.error) and not is_retriable(found.error)
    )


def _partition(target: Cluster, one: TopicPartition) -> PartitionMetadata | None:
    topic = target.metadata.topics.get(one.topic)
    return None if topic is None else topic.partitions.get(one.partition)
