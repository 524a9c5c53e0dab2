"""Transaction requests: InitProducerId, AddPartitionsToTxn and EndTxn, the last two in version 1.

Later EndTxn versions raise the producer epoch at every commit (KIP-890), but an epoch is that of one session of a task.
Version 1 of both reports fencing only as INVALID_PRODUCER_EPOCH (47), as Produce does.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kafka.protocol.producer.transaction import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)

from mirrorflow_core.errors import BrokerError, NotAuthorizedError, UnreachableError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.error_codes import (
    CONCURRENT_TRANSACTIONS,
    NONE,
    OPERATION_NOT_ATTEMPTED,
    TOPIC_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    partition_error,
)
from mirrorflow_kafka.admin.configs import describe_broker_configs
from mirrorflow_kafka.client.cluster import ANY_BROKER_TIMEOUT_S, CALL_TIMEOUT_S, Cluster

TRANSACTION_COORDINATOR: Final = 1  # FindCoordinator's key type
OLD_VERSION: Final = 1
TRANSACTIONS_TOPIC: Final = "__transaction_state"
REPLICATION_KEY: Final = "transaction.state.log.replication.factor"
# Codes of AddPartitionsToTxn that are about one partition: its topic is denied or does not exist.
OF_PARTITION: Final = frozenset({TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION})
NO_PRODUCER_ID: Final = -1
NOBODYS_PRODUCER_ID: Final = 2**63 - 1  # controllers count up from 0


async def init_producer_id(
    cluster: Cluster,
    transactional_id: str | None,
    *,
    timeout_ms: int,
    timeout_s: float = CALL_TIMEOUT_S,
    waits: bool = True,
) -> tuple[int, int]:
    """Returns a producer id and epoch from InitProducerId.

    With a transactional id this is the same producer id with the next epoch, and an open transaction is
    aborted. *timeout_ms* is how long a transaction may stay open. Without *waits*, the error that the markers
    of the last transaction are not written yet (CONCURRENT_TRANSACTIONS) is raised at once. Raises NotAuthorizedError,
    UnreachableError, and BrokerError, also for a response without a producer id: with -1 brokers do not check
    sequence numbers.
    """
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=-1,
        producer_epoch=-1,
    )
    where = None if transactional_id is None else (TRANSACTION_COORDINATOR, transactional_id)
    final_code = NONE if waits else CONCURRENT_TRANSACTIONS
    response = await cluster.call(request, coordinator=where, timeout_s=timeout_s, final_code=final_code)
    cluster.raise_for(response.error_code, "InitProducerId", transactional_id)
    if response.producer_id <= NO_PRODUCER_ID or response.producer_epoch < 0:
        raise BrokerError(
            cluster=cluster.alias,
            request="InitProducerId",
            code=0,
            name="no producer id",
            subject=transactional_id,
        )
    return int(response.producer_id), int(response.producer_epoch)


async def may_coordinate(cluster: Cluster) -> bool:
    """Returns False if the cluster certainly cannot coordinate transactions. Raises ClusterError.

    That is so if `__transaction_state` does not exist and cannot be created, because
    `transaction.state.log.replication.factor` exceeds the number of brokers. Brokers report this as
    COORDINATOR_NOT_AVAILABLE, which looks transient, so retrying would never end.
    """
    await cluster.refresh([TRANSACTIONS_TOPIC])
    known = cluster.metadata.topics.get(TRANSACTIONS_TOPIC)
    if known is not None and known.error != UNKNOWN_TOPIC_OR_PARTITION:
        return True  # the topic exists, or this client may not see whether it does
    try:
        entries = await describe_broker_configs(cluster, min(cluster.metadata.brokers), [REPLICATION_KEY])
    except NotAuthorizedError:
        return True
    wanted = entries.get(REPLICATION_KEY)
    if wanted is None or wanted.value is None or int(wanted.value) <= len(cluster.metadata.brokers):
        return True
    # Brokers that are down now still count as replicas of partitions. The result binds the flow permanently.
    await cluster.refresh()
    held = {
        replica
        for topic in cluster.metadata.topics.values()
        for partition in topic.partitions.values()
        for replica in partition.replicas
    }
    return int(wanted.value) <= len(held | set(cluster.metadata.brokers))


async def add_partitions_to_txn(
    cluster: Cluster,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Iterable[tuple[str, int]],
    *,
    timeout_s: float = CALL_TIMEOUT_S,
) -> None:
    """Begins the transaction, or adds partitions to it. Raises ClusterError (code 47: fenced)."""
    codes = await try_add_partitions_to_txn(
        cluster, transactional_id, producer_id, producer_epoch, partitions, timeout_s=timeout_s
    )
    raise_for_refused(cluster, transactional_id, codes)


def raise_for_refused(cluster: Cluster, transactional_id: str, codes: Mapping[TopicPartition, int]) -> None:
    """Raises the error of a refused AddPartitionsToTxn, with the topic or the transactional id that it is about."""
    refused = [(partition, code) for partition, code in codes.items() if code != NONE]
    # The others have OPERATION_NOT_ATTEMPTED.
    for partition, code in sorted(refused, key=lambda row: row[1] == OPERATION_NOT_ATTEMPTED):
        if code in OF_PARTITION:
            raise partition_error(
                code, cluster=cluster.alias, request="AddPartitionsToTxn", partition=partition
            )
        cluster.raise_for(code, "AddPartitionsToTxn", transactional_id)


async def try_add_partitions_to_txn(
    cluster: Cluster,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Iterable[tuple[str, int]],
    *,
    timeout_s: float = CALL_TIMEOUT_S,
) -> Mapping[TopicPartition, int]:
    """As `add_partitions_to_txn`, but returns the error code of each partition. Raises UnreachableError.

    If one partition is refused, none is added: the others have code 55 (OPERATION_NOT_ATTEMPTED). Code 0 also
    means that the previous transaction is complete: its markers are written and replicated.
    """
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    topic_class = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=producer_epoch,
        v3_and_below_topics=[topic_class(*item) for item in by_topic.items()],
        max_version=OLD_VERSION,
    )
    where = (TRANSACTION_COORDINATOR, transactional_id)
    response = await cluster.call(
        request, coordinator=where, timeout_s=timeout_s, codes_of=lambda response: _codes(response).values()
    )
    return _codes(response)


def _codes(response: Any) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, result.partition_index): result.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for result in topic.results_by_partition
    }


async def end_txn(
    cluster: Cluster,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    *,
    committed: bool,
    timeout_s: float = CALL_TIMEOUT_S,
) -> None:
    """Commits or abort the transaction. Raises ClusterError (code 47: fenced; 48: no such transaction)."""
    request = EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        committed=committed,
        max_version=OLD_VERSION,
    )
    where = (TRANSACTION_COORDINATOR, transactional_id)
    response = await cluster.call(request, coordinator=where, timeout_s=timeout_s)
    cluster.raise_for(response.error_code, "EndTxn", transactional_id)


async def transactional_ids_of(cluster: Cluster, producer_ids: Iterable[int]) -> dict[int, str]:
    """Returns the transactional id of each of *producer_ids*, as all coordinators know them (KIP-664, Kafka 3.0 or later).

    Those that this client may not describe are absent. Raises ClusterError.
    """
    from kafka.protocol.admin.transactions import ListTransactionsRequest  # noqa: PLC0415 for stalls alone

    wanted = sorted(set(producer_ids))
    names: dict[int, str] = {}
    for node_id in sorted(cluster.metadata.brokers) if wanted else ():
        request = ListTransactionsRequest(state_filters=[], producer_id_filters=wanted)
        response = await cluster.call(request, node_id=node_id)
        cluster.raise_for(response.error_code, "ListTransactions")
        names |= {state.producer_id: state.transactional_id for state in response.transaction_states}
    return names


async def may_write_as(cluster: Cluster, transactional_id: str) -> bool:
    """Returns whether this client has WRITE on *transactional_id*, without using it. Raises ClusterError.

    The request goes to any broker: brokers check the ACL before they check whether they coordinate the id, or
    whether the producer id exists. FindCoordinator is avoided because it could create `__transaction_state`.
    """
    request = EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=NOBODYS_PRODUCER_ID,
        producer_epoch=0,
        committed=False,
        max_version=OLD_VERSION,
    )
    nodes = sorted(cluster.metadata.brokers)
    for node_id in nodes:
        try:
            connection = await cluster.connection(node_id)
            response = await connection.call(request, timeout_s=ANY_BROKER_TIMEOUT_S)
        except UnreachableError:
            if node_id == nodes[-1]:
                raise
        else:
            return bool(response.error_code != TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    raise AssertionError("a cluster has brokers")
