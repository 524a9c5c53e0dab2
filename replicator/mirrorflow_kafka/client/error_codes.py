"""Kafka's error codes as constants, and their mapping to MirrorFlow's exceptions.

Names and classes follow the protocol (kafka.apache.org/protocol, error codes), from kafka-python's table.
"""

from dataclasses import dataclass
from typing import Final

from kafka import errors as known

from mirrorflow_core.errors import (
    FEW_REPLICAS,
    AuthenticationFailedError,
    BrokerError,
    ClusterError,
    NotAuthorizedError,
    UnsupportedBrokerError,
)
from mirrorflow_core.partitions import TopicPartition

UNKNOWN_SERVER_ERROR: Final = -1
NONE: Final = 0
OFFSET_OUT_OF_RANGE: Final = 1
CORRUPT_MESSAGE: Final = 2
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
LEADER_NOT_AVAILABLE: Final = 5
NOT_LEADER_OR_FOLLOWER: Final = 6
REQUEST_TIMED_OUT: Final = 7
REPLICA_NOT_AVAILABLE: Final = 9
MESSAGE_TOO_LARGE: Final = 10
OFFSET_METADATA_TOO_LARGE: Final = 12
NETWORK_EXCEPTION: Final = 13  # set by this client; brokers never return it
COORDINATOR_LOAD_IN_PROGRESS: Final = 14
COORDINATOR_NOT_AVAILABLE: Final = 15
NOT_COORDINATOR: Final = 16
RECORD_LIST_TOO_LARGE: Final = 18
NOT_ENOUGH_REPLICAS: Final = 19
NOT_ENOUGH_REPLICAS_AFTER_APPEND: Final = 20
ILLEGAL_GENERATION: Final = 22
UNKNOWN_MEMBER_ID: Final = 25
REBALANCE_IN_PROGRESS: Final = 27
TOPIC_AUTHORIZATION_FAILED: Final = 29
GROUP_AUTHORIZATION_FAILED: Final = 30
CLUSTER_AUTHORIZATION_FAILED: Final = 31
INVALID_TIMESTAMP: Final = 32
UNSUPPORTED_VERSION: Final = 35
TOPIC_ALREADY_EXISTS: Final = 36
INVALID_PARTITIONS: Final = 37
INVALID_REPLICATION_FACTOR: Final = 38
INVALID_CONFIG: Final = 40
NOT_CONTROLLER: Final = 41
INVALID_REQUEST: Final = 42
POLICY_VIOLATION: Final = 44
OUT_OF_ORDER_SEQUENCE_NUMBER: Final = 45
DUPLICATE_SEQUENCE_NUMBER: Final = 46
INVALID_PRODUCER_EPOCH: Final = 47
INVALID_TXN_STATE: Final = 48
INVALID_PRODUCER_ID_MAPPING: Final = 49
INVALID_TRANSACTION_TIMEOUT: Final = 50  # above the brokers' transaction.max.timeout.ms
CONCURRENT_TRANSACTIONS: Final = 51
TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Final = 53
SECURITY_DISABLED: Final = 54  # an ACL request to a cluster without an authorizer
OPERATION_NOT_ATTEMPTED: Final = 55  # of the other partitions when one is refused
KAFKA_STORAGE_ERROR: Final = 56
SASL_AUTHENTICATION_FAILED: Final = 58
UNKNOWN_PRODUCER_ID: Final = 59
GROUP_ID_NOT_FOUND: Final = 69
FETCH_SESSION_ID_NOT_FOUND: Final = 70
INVALID_FETCH_SESSION_EPOCH: Final = 71
LISTENER_NOT_FOUND: Final = 72
FENCED_LEADER_EPOCH: Final = 74
UNKNOWN_LEADER_EPOCH: Final = 75
UNSUPPORTED_COMPRESSION_TYPE: Final = 76
OFFSET_NOT_AVAILABLE: Final = 78
FENCED_INSTANCE_ID: Final = 82
INVALID_RECORD: Final = 87
THROTTLING_QUOTA_EXCEEDED: Final = 89
PRODUCER_FENCED: Final = 90
UNKNOWN_TOPIC_ID: Final = 100
INCONSISTENT_TOPIC_ID: Final = 103
FETCH_SESSION_TOPIC_ID_ERROR: Final = 106
FENCED_MEMBER_EPOCH: Final = 110
STALE_MEMBER_EPOCH: Final = 113

# Error codes that leave open whether the request was executed: the broker has failed on the way, or waits for replicas.
OUTCOME_UNKNOWN: Final = frozenset(
    {
        UNKNOWN_SERVER_ERROR,
        NOT_LEADER_OR_FOLLOWER,
        REQUEST_TIMED_OUT,
        NETWORK_EXCEPTION,
        NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KAFKA_STORAGE_ERROR,
    }
)

# A coordinator's error codes after it has raised the epoch, or aborted the transaction and raised the epoch.
EPOCH_IS_OVER: Final = frozenset({INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, PRODUCER_FENCED})

# Errors about the request's destination, not its content: retry at the right broker. CONCURRENT_TRANSACTIONS
# is included: the coordinator is still completing the previous transaction.
COORDINATOR_MOVED: Final = frozenset(
    {COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, CONCURRENT_TRANSACTIONS}
)
CONTROLLER_MOVED: Final = frozenset({NOT_CONTROLLER})

_UNAUTHORIZED: Final = {
    TOPIC_AUTHORIZATION_FAILED: "topic",
    GROUP_AUTHORIZATION_FAILED: "group",
    CLUSTER_AUTHORIZATION_FAILED: "cluster",
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactional id",
}
# The operation of an ACL (AclOperation) that a request needs on a topic.
_OPERATIONS: Final = {
    "Fetch": "Read",
    "DescribeProducers": "Read",
    "Produce": "Write",
    "AddPartitionsToTxn": "Write",
    "ListOffsets": "Describe",
    "OffsetForLeaderEpoch": "Describe",
    "Metadata": "Describe",
}
# Codes that are newer than kafka-python's table, or that it names differently from Kafka.
_NAMES: Final = {
    UNKNOWN_SERVER_ERROR: "UNKNOWN_SERVER_ERROR",
    MESSAGE_TOO_LARGE: "MESSAGE_TOO_LARGE",
    NOT_LEADER_OR_FOLLOWER: "NOT_LEADER_OR_FOLLOWER",
    COORDINATOR_LOAD_IN_PROGRESS: "COORDINATOR_LOAD_IN_PROGRESS",
    COORDINATOR_NOT_AVAILABLE: "COORDINATOR_NOT_AVAILABLE",
    NOT_COORDINATOR: "NOT_COORDINATOR",
}

_ADVICE: Final = {NOT_ENOUGH_REPLICAS: f"start the brokers that hold its replicas; {FEW_REPLICAS}"}


def name_of(code: int) -> str:
    """Returns the protocol's name of *code*, such as TOPIC_ALREADY_EXISTS."""
    if code == NONE:
        return "NONE"
    name = _NAMES.get(code) or str(known.for_code(code).message)
    return f"ERROR_{code}" if name == "UNKNOWN" else name  # a code newer than the table


def is_retriable(code: int) -> bool:
    """Returns whether the same request may succeed later."""
    return code != NONE and bool(known.for_code(code).retriable)


def is_metadata_stale(code: int) -> bool:
    """Returns whether the code means that the cached leaders and topics are outdated."""
    return code != NONE and bool(known.for_code(code).invalid_metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRefusal:
    """Why a broker refused one of several items of a request."""

    code: int
    message: str  # the broker's own words, or the code's name

    def __str__(self) -> str:
        """Returns the broker's words in one line, without a dot at the end."""
        return " ".join(self.message.split()).rstrip(".")

    @classmethod
    def of(cls, code: int, message: str | None = None) -> "BrokerRefusal | None":
        """Returns the refusal for *code*, None for 0."""
        return None if code == NONE else cls(code=code, message=message or name_of(code))


def error_for(
    code: int, *, cluster: str, request: str, subject: str = "", message: str | None = None
) -> ClusterError:
    """Returns the exception for *code*, which is not 0. *subject* is the topic, group, ... concerned.

    It is NotAuthorizedError, AuthenticationFailedError, UnsupportedBrokerError, or a BrokerError that is
    retriable if the protocol defines its code so.
    """
    if code in _UNAUTHORIZED:
        kind = _UNAUTHORIZED[code]
        resource = kind if kind == "cluster" or not subject else f"{kind} {subject}"
        operation = _OPERATIONS.get(request, request) if kind == "topic" else request
        return NotAuthorizedError(cluster=cluster, operation=operation, resource=resource)
    if code == SASL_AUTHENTICATION_FAILED:
        return AuthenticationFailedError(
            cluster=cluster, address=subject, mechanism="SASL", problem=message or name_of(code)
        )
    if code == UNSUPPORTED_VERSION:
        return UnsupportedBrokerError(
            cluster=cluster, feature=request, needs="a version of Kafka that knows it"
        )
    name = f"{name_of(code)}: {message.rstrip('.')}" if message else name_of(code)
    return BrokerError(
        cluster=cluster,
        request=request,
        code=code,
        name=name,
        subject=subject,
        retriable=is_retriable(code),
        advice=_ADVICE.get(code, ""),
    )


def raise_for(
    code: int, *, cluster: str, request: str, subject: str = "", message: str | None = None
) -> None:
    """Raises `error_for` *code*; does nothing for 0."""
    if code != NONE:
        raise error_for(code, cluster=cluster, request=request, subject=subject, message=message)


def partition_error(code: int, *, cluster: str, request: str, partition: TopicPartition) -> ClusterError:
    """Returns `error_for` a *code* about a partition; permissions are those of its topic."""
    subject = partition.topic if code == TOPIC_AUTHORIZATION_FAILED else str(partition)
    return error_for(code, cluster=cluster, request=request, subject=subject)
