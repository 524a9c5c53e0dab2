"""Producer identities and their transactions, in the old versions of the requests.

Versions matter here: later EndTxn versions raise the epoch at every commit (KIP-890), which would take the identity
away from the other copiers that share it; version 1 of both keeps INVALID_PRODUCER_EPOCH (47) as the one word for
"fenced", as produce answers have it.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kafka.protocol.producer import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest

from mirrorflow_replicator.errors import BrokerError, NotAuthorizedError
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.kafka.cluster import CALL_TIMEOUT_S, Cluster
from mirrorflow_replicator.kafka.codes import (
    NONE,
    OPERATION_NOT_ATTEMPTED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    raise_for,
)
from mirrorflow_replicator.kafka.configs import describe_broker_configs

TRANSACTION_COORDINATOR: Final = 1  # FindCoordinator's key type
OLD_VERSION: Final = 1
TRANSACTIONS_TOPIC: Final = "__transaction_state"
REPLICATION_KEY: Final = "transaction.state.log.replication.factor"
NO_PRODUCER_ID: Final = -1
NOBODYS_PRODUCER_ID: Final = 2**63 - 1  # controllers count up from 0


async def init_producer_id(
    cluster: Cluster, transactional_id: str | None, *, timeout_ms: int, timeout_s: float = CALL_TIMEOUT_S
) -> tuple[int, int]:
    """A producer id and epoch; with a transactional id always the same id with the next epoch, open work aborted.

    *timeout_ms* is how long a transaction may stay open. Raises NotAuthorizedError, BrokerError, UnreachableError. An
    answer without a producer id is an error too: with -1 nobody would check sequences.
    """
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=-1,
        producer_epoch=-1,
    )
    where = None if transactional_id is None else (TRANSACTION_COORDINATOR, transactional_id)
    answer = await cluster.call(request, coordinator=where, timeout_s=timeout_s)
    subject = transactional_id or ""
    raise_for(answer.error_code, cluster=cluster.alias, request="InitProducerId", subject=subject)
    if answer.producer_id <= NO_PRODUCER_ID or answer.producer_epoch < 0:
        raise BrokerError(
            cluster=cluster.alias, request="InitProducerId", code=0, name="no producer id", subject=subject
        )
    return int(answer.producer_id), int(answer.producer_epoch)


async def may_coordinate(cluster: Cluster) -> bool:
    """False if the cluster certainly cannot coordinate transactions: their topic is not there, and with
    `transaction.state.log.replication.factor` above the number of brokers it cannot be created. Raises ClusterError.

    Brokers call it COORDINATOR_NOT_AVAILABLE, as if it would pass; one who asks again waits for ever.
    """
    await cluster.refresh([TRANSACTIONS_TOPIC])
    known = cluster.metadata.topics.get(TRANSACTIONS_TOPIC)
    if known is not None and known.error != UNKNOWN_TOPIC_OR_PARTITION:
        return True  # it is there, or we may not see whether it is
    try:
        entries = await describe_broker_configs(cluster, min(cluster.metadata.brokers), [REPLICATION_KEY])
    except NotAuthorizedError:
        return True
    wanted = entries.get(REPLICATION_KEY)
    if wanted is None or wanted.value is None or int(wanted.value) <= len(cluster.metadata.brokers):
        return True
    # A broker that is away now is known by what it holds: what is decided here binds the flow for good.
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
    """Begin the transaction, or take further partitions into it. Raises ClusterError (47: fenced)."""
    codes = await try_add_partitions_to_txn(
        cluster, transactional_id, producer_id, producer_epoch, partitions, timeout_s=timeout_s
    )
    for code in sorted(codes.values(), key=lambda code: code in {NONE, OPERATION_NOT_ATTEMPTED}):
        raise_for(code, cluster=cluster.alias, request="AddPartitionsToTxn", subject=transactional_id)


async def try_add_partitions_to_txn(
    cluster: Cluster,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Iterable[tuple[str, int]],
    *,
    timeout_s: float = CALL_TIMEOUT_S,
) -> Mapping[TopicPartition, int]:
    """The same with the error code of each partition. One that is wrong keeps the others out: they have 55.

    An answer of 0 says as well that the transaction before is over, its markers written and replicated. Raises
    UnreachableError.
    """
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=producer_epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=numbers)
            for topic, numbers in by_topic.items()
        ],
        max_version=OLD_VERSION,
    )
    where = (TRANSACTION_COORDINATOR, transactional_id)
    answer = await cluster.call(request, coordinator=where, timeout_s=timeout_s, codes_of=_partition_codes)
    return {
        TopicPartition(topic.name, one.partition_index): one.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for one in topic.results_by_partition
    }


def _partition_codes(answer: Any) -> set[int]:
    return {
        one.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for one in topic.results_by_partition
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
    """Commit or abort. Raises ClusterError (47: fenced; 48: there is no such transaction)."""
    request = EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        committed=committed,
        max_version=OLD_VERSION,
    )
    answer = await cluster.call(
        request, coordinator=(TRANSACTION_COORDINATOR, transactional_id), timeout_s=timeout_s
    )
    raise_for(answer.error_code, cluster=cluster.alias, request="EndTxn", subject=transactional_id)


async def may_write_as(cluster: Cluster, transactional_id: str) -> bool:
    """Whether we have WRITE on *transactional_id*, which nothing is done with. Raises ClusterError.

    Any broker looks at the ACL first, and only then finds that it does not coordinate the id, or that the transaction that
    is to be ended is nobody's. Looking for the coordinator could create the topic of all transactions.
    """
    node_id = min(cluster.metadata.brokers)
    request = EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=NOBODYS_PRODUCER_ID,
        producer_epoch=0,
        committed=False,
        max_version=OLD_VERSION,
    )
    answer = await (await cluster.connection(node_id)).call(request, timeout_s=CALL_TIMEOUT_S)
    return bool(answer.error_code != TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


async def empty_transaction(
    cluster: Cluster,
    transactional_id: str,
    *,
    producer_id: int,
    producer_epoch: int,
    partitions: Iterable[tuple[str, int]],
) -> None:
    """A transaction without records: every partition's leader then knows the epoch, and refuses all older ones.

    Committed, not aborted: another task of the flow may have records in the transaction already.
    Returns when that is so: all markers are written and replicated. Takes one offset of each partition, seen by no reader.
    Raises ClusterError (47: fenced).
    """
    await add_partitions_to_txn(cluster, transactional_id, producer_id, producer_epoch, partitions)
    # The first answer says that the coordinator has decided, the second (51 until then, which is asked again) that the
    # markers are in the logs. In between a copier of the old epoch could still write behind what we take for its end.
    for _ in range(2):
        await end_txn(cluster, transactional_id, producer_id, producer_epoch, committed=True)
