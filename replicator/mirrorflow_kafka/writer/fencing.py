"""Finds out whether the writers of a flow can be fenced on a target (KIP-98)."""

import asyncio
from typing import Final

from mirrorflow_core.errors import UnreachableError
from mirrorflow_core.settings import OffsetStore
from mirrorflow_core.writer.transactional_ids import TransactionalIds
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.connection import Connection

_APIS: Final = {22: "InitProducerId", 24: "AddPartitionsToTxn", 26: "EndTxn"}


async def why_unfenced(target: Cluster, source_alias: str, store: OffsetStore) -> str | None:
    """Returns why no writer of the flow from *source_alias* can be fenced; None if they can be. Raises ClusterError."""
    if store is OffsetStore.FILE:
        return "positions in a file (offset.storage.store=file) cannot be part of a transaction"
    for connection in await _connections(target):
        for key, api in _APIS.items():
            if key not in connection.versions:
                return f"broker {connection.node_id} of {target.alias} does not offer {api}"
    ids = TransactionalIds(source_alias)
    if not await admin.may_write_as(target, ids.lock):
        return f"{target.alias} does not grant Write on transactional ids that begin with {ids.prefix}"
    if not await admin.may_coordinate(target):
        return f"{target.alias} has fewer brokers than transaction.state.log.replication.factor, so it has no transactions"
    return None


async def _connections(target: Cluster) -> list[Connection]:
    """Connects to the brokers that answer; one that does not must not hold up the flow. Raises ClusterError if none does."""
    connecting = map(target.connection, sorted(target.metadata.brokers))
    results = await asyncio.gather(*connecting, return_exceptions=True)
    failed = [result for result in results if isinstance(result, BaseException)]
    for error in failed:
        if len(failed) == len(results) or not isinstance(error, UnreachableError):
            raise error
    return [result for result in results if isinstance(result, Connection)]
