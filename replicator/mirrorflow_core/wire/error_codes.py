"""Kafka's error codes as constants, and their mapping to MirrorFlow's exceptions.

Source: Errors.java, and kafka.apache.org/protocol, error codes.
"""

from dataclasses import dataclass
from typing import Final

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
NON_EMPTY_GROUP: Final = 68
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
# The protocol's names from code 0 on.
_NAMES: Final = [
    "NONE",
    "OFFSET_OUT_OF_RANGE",
    "CORRUPT_MESSAGE",
    "UNKNOWN_TOPIC_OR_PARTITION",
    "INVALID_FETCH_SIZE",
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_OR_FOLLOWER",
    "REQUEST_TIMED_OUT",
    "BROKER_NOT_AVAILABLE",
    "REPLICA_NOT_AVAILABLE",
    "MESSAGE_TOO_LARGE",
    "STALE_CONTROLLER_EPOCH",
    "OFFSET_METADATA_TOO_LARGE",
    "NETWORK_EXCEPTION",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "INVALID_TOPIC",
    "RECORD_LIST_TOO_LARGE",
    "NOT_ENOUGH_REPLICAS",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "INVALID_REQUIRED_ACKS",
    "ILLEGAL_GENERATION",
    "INCONSISTENT_GROUP_PROTOCOL",
    "INVALID_GROUP_ID",
    "UNKNOWN_MEMBER_ID",
    "INVALID_SESSION_TIMEOUT",
    "REBALANCE_IN_PROGRESS",
    "INVALID_COMMIT_OFFSET_SIZE",
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "INVALID_TIMESTAMP",
    "UNSUPPORTED_SASL_MECHANISM",
    "ILLEGAL_SASL_STATE",
    "UNSUPPORTED_VERSION",
    "TOPIC_ALREADY_EXISTS",
    "INVALID_PARTITIONS",
    "INVALID_REPLICATION_FACTOR",
    "INVALID_REPLICATION_ASSIGNMENT",
    "INVALID_CONFIG",
    "NOT_CONTROLLER",
    "INVALID_REQUEST",
    "UNSUPPORTED_FOR_MESSAGE_FORMAT",
    "POLICY_VIOLATION",
    "OUT_OF_ORDER_SEQUENCE_NUMBER",
    "DUPLICATE_SEQUENCE_NUMBER",
    "INVALID_PRODUCER_EPOCH",
    "INVALID_TXN_STATE",
    "INVALID_PRODUCER_ID_MAPPING",
    "INVALID_TRANSACTION_TIMEOUT",
    "CONCURRENT_TRANSACTIONS",
    "TRANSACTION_COORDINATOR_FENCED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "SECURITY_DISABLED",
    "OPERATION_NOT_ATTEMPTED",
    "KAFKA_STORAGE_ERROR",
    "LOG_DIR_NOT_FOUND",
    "SASL_AUTHENTICATION_FAILED",
    "UNKNOWN_PRODUCER_ID",
    "REASSIGNMENT_IN_PROGRESS",
    "DELEGATION_TOKEN_AUTH_DISABLED",
    "DELEGATION_TOKEN_NOT_FOUND",
    "DELEGATION_TOKEN_OWNER_MISMATCH",
    "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
    "DELEGATION_TOKEN_AUTHORIZATION_FAILED",
    "DELEGATION_TOKEN_EXPIRED",
    "INVALID_PRINCIPAL_TYPE",
    "NON_EMPTY_GROUP",
    "GROUP_ID_NOT_FOUND",
    "FETCH_SESSION_ID_NOT_FOUND",
    "INVALID_FETCH_SESSION_EPOCH",
    "LISTENER_NOT_FOUND",
    "TOPIC_DELETION_DISABLED",
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_LEADER_EPOCH",
    "UNSUPPORTED_COMPRESSION_TYPE",
    "STALE_BROKER_EPOCH",
    "OFFSET_NOT_AVAILABLE",
    "MEMBER_ID_REQUIRED",
    "PREFERRED_LEADER_NOT_AVAILABLE",
    "GROUP_MAX_SIZE_REACHED",
    "FENCED_INSTANCE_ID",
    "ELIGIBLE_LEADERS_NOT_AVAILABLE",
    "ELECTION_NOT_NEEDED",
    "NO_REASSIGNMENT_IN_PROGRESS",
    "GROUP_SUBSCRIBED_TO_TOPIC",
    "INVALID_RECORD",
    "UNSTABLE_OFFSET_COMMIT",
    "THROTTLING_QUOTA_EXCEEDED",
    "PRODUCER_FENCED",
    "RESOURCE_NOT_FOUND",
    "DUPLICATE_RESOURCE",
    "UNACCEPTABLE_CREDENTIAL",
    "INCONSISTENT_VOTER_SET",
    "INVALID_UPDATE_VERSION",
    "FEATURE_UPDATE_FAILED",
    "PRINCIPAL_DESERIALIZATION_FAILURE",
    "SNAPSHOT_NOT_FOUND",
    "POSITION_OUT_OF_RANGE",
    "UNKNOWN_TOPIC_ID",
    "DUPLICATE_BROKER_REGISTRATION",
    "BROKER_ID_NOT_REGISTERED",
    "INCONSISTENT_TOPIC_ID",
    "INCONSISTENT_CLUSTER_ID",
    "TRANSACTIONAL_ID_NOT_FOUND",
    "FETCH_SESSION_TOPIC_ID_ERROR",
    "INELIGIBLE_REPLICA",
    "NEW_LEADER_ELECTED",
    "OFFSET_MOVED_TO_TIERED_STORAGE",
    "FENCED_MEMBER_EPOCH",
    "UNRELEASED_INSTANCE_ID",
    "UNSUPPORTED_ASSIGNOR",
    "STALE_MEMBER_EPOCH",
    "MISMATCHED_ENDPOINT_TYPE",
    "UNSUPPORTED_ENDPOINT_TYPE",
    "UNKNOWN_CONTROLLER_ID",
    "UNKNOWN_SUBSCRIPTION_ID",
    "TELEMETRY_TOO_LARGE",
    "INVALID_REGISTRATION",
    "TRANSACTION_ABORTABLE",
    "INVALID_RECORD_STATE",
    "SHARE_SESSION_NOT_FOUND",
    "INVALID_SHARE_SESSION_EPOCH",
    "FENCED_STATE_EPOCH",
    "INVALID_VOTER_KEY",
    "DUPLICATE_VOTER",
    "VOTER_NOT_FOUND",
]
# Codes after which the same request may succeed later (RetriableException).
_RETRIABLE: Final = frozenset(
    (
        3,
        5,
        6,
        7,
        9,
        13,
        14,
        15,
        16,
        19,
        20,
        41,
        51,
        56,
        70,
        71,
        72,
        74,
        75,
        78,
        80,
        83,
        84,
        88,
        89,
        100,
        103,
        106,
        122,
        123,
    )
)
# Codes after which cached leaders and topics are outdated (InvalidMetadataException).
_STALE_METADATA: Final = frozenset((3, 5, 6, 9, 13, 56, 72, 74, 75, 80, 83, 84, 100, 103))

_ADVICE: Final = {NOT_ENOUGH_REPLICAS: f"start the brokers that hold its replicas; {FEW_REPLICAS}"}


def name_of(code: int) -> str:
    """Returns the protocol's name of *code*, such as TOPIC_ALREADY_EXISTS."""
    if code == UNKNOWN_SERVER_ERROR:
        return "UNKNOWN_SERVER_ERROR"
    return _NAMES[code] if 0 <= code < len(_NAMES) else f"ERROR_{code}"  # a code newer than the table


def is_retriable(code: int) -> bool:
    """Returns whether the same request may succeed later."""
    return code in _RETRIABLE


def is_metadata_stale(code: int) -> bool:
    """Returns whether the code means that the cached leaders and topics are outdated."""
    return code in _STALE_METADATA


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
    code: int, *, cluster: str, request: str, subject: str | None = None, message: str | None = None
) -> ClusterError:
    """Returns the exception for *code*, which is not 0. *subject* is the topic, group, ... concerned.

    It is NotAuthorizedError, AuthenticationFailedError, UnsupportedBrokerError, or a BrokerError that is
    retriable if the protocol defines its code so.
    """
    if code in _UNAUTHORIZED:
        kind = _UNAUTHORIZED[code]
        resource = kind if kind == "cluster" or subject is None else f"{kind} {subject}"
        operation = _OPERATIONS.get(request, request) if kind == "topic" else request
        return NotAuthorizedError(cluster=cluster, operation=operation, resource=resource)
    if code == SASL_AUTHENTICATION_FAILED:
        return AuthenticationFailedError(
            cluster=cluster, address=subject or cluster, mechanism="SASL", problem=message or name_of(code)
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
        advice=_ADVICE.get(code),
    )


def raise_for(
    code: int, *, cluster: str, request: str, subject: str | None = None, message: str | None = None
) -> None:
    """Raises `error_for` *code*; does nothing for 0."""
    if code != NONE:
        raise error_for(code, cluster=cluster, request=request, subject=subject, message=message)


def partition_error(code: int, *, cluster: str, request: str, partition: TopicPartition) -> ClusterError:
    """Returns `error_for` a *code* about a partition; permissions are those of its topic."""
    subject = partition.topic if code == TOPIC_AUTHORIZATION_FAILED else str(partition)
    return error_for(code, cluster=cluster, request=request, subject=subject)
