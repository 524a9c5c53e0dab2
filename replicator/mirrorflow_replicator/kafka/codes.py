"""Kafka's error codes: by number, and as errors of ours.

Names and classes are those of the protocol (kafka.apache.org/protocol, error codes), taken from kafka-python's table.
"""

from dataclasses import dataclass
from typing import Final

from kafka import errors as known

from mirrorflow_replicator.errors import (
    AuthenticationFailedError,
    BrokerError,
    NotAuthorizedError,
    UnsupportedBrokerError,
)

NONE: Final = 0
OFFSET_OUT_OF_RANGE: Final = 1
CORRUPT_MESSAGE: Final = 2
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
LEADER_NOT_AVAILABLE: Final = 5
NOT_LEADER_OR_FOLLOWER: Final = 6
REQUEST_TIMED_OUT: Final = 7
NETWORK_EXCEPTION: Final = 13  # ours: no answer of a broker carries it
COORDINATOR_LOAD_IN_PROGRESS: Final = 14
COORDINATOR_NOT_AVAILABLE: Final = 15
NOT_COORDINATOR: Final = 16
TOPIC_AUTHORIZATION_FAILED: Final = 29
GROUP_AUTHORIZATION_FAILED: Final = 30
CLUSTER_AUTHORIZATION_FAILED: Final = 31
UNSUPPORTED_VERSION: Final = 35
TOPIC_ALREADY_EXISTS: Final = 36
NOT_CONTROLLER: Final = 41
INVALID_PRODUCER_EPOCH: Final = 47
INVALID_TXN_STATE: Final = 48
INVALID_PRODUCER_ID_MAPPING: Final = 49
CONCURRENT_TRANSACTIONS: Final = 51
TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Final = 53
SECURITY_DISABLED: Final = 54  # ACLs are asked for where no authorizer is set
OPERATION_NOT_ATTEMPTED: Final = 55  # told of the partitions beside the one that is wrong
SASL_AUTHENTICATION_FAILED: Final = 58
PRODUCER_FENCED: Final = 90
UNKNOWN_TOPIC_ID: Final = 100

# What a coordinator says of an epoch that it has raised since, or of a transaction that it has aborted and raised it for.
EPOCH_IS_OVER: Final = frozenset({INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, PRODUCER_FENCED})

# What the answer says of where the request went, not of the request: ask again where it belongs.
# CONCURRENT_TRANSACTIONS as well: the coordinator is still completing the transaction before.
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
# Codes newer than kafka-python's table, and those that it names otherwise than Kafka does.
_NAMES: Final = {
    -1: "UNKNOWN_SERVER_ERROR",
    10: "MESSAGE_TOO_LARGE",
    6: "NOT_LEADER_OR_FOLLOWER",
    14: "COORDINATOR_LOAD_IN_PROGRESS",
    15: "COORDINATOR_NOT_AVAILABLE",
    16: "NOT_COORDINATOR",
}


def name_of(code: int) -> str:
    """The protocol's name, as TOPIC_ALREADY_EXISTS."""
    if code == NONE:
        return "NONE"
    name = _NAMES.get(code) or str(known.for_code(code).message)
    return f"ERROR_{code}" if name == "UNKNOWN" else name  # a code newer than the table


def is_retriable(code: int) -> bool:
    """Whether the same request may succeed later."""
    return code != NONE and bool(known.for_code(code).retriable)


def is_metadata_stale(code: int) -> bool:
    """Whether the answer says that what we believe of leaders and topics is old."""
    return code != NONE and bool(known.for_code(code).invalid_metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a broker did not do one of several things asked in one request."""

    code: int
    message: str  # the broker's own words, or the code's name

    @classmethod
    def of(cls, code: int, message: str | None = None) -> "Refusal | None":
        """None for 0."""
        return None if code == NONE else cls(code=code, message=message or name_of(code))


def raise_for(
    code: int, *, cluster: str, request: str, subject: str = "", message: str | None = None
) -> None:
    """Raise our error for *code*; nothing for 0. *subject* is the topic, group, ... that it is about.

    Raises NotAuthorizedError, AuthenticationFailedError, UnsupportedBrokerError or BrokerError.
    """
    if code == NONE:
        return
    if code in _UNAUTHORIZED:
        kind = _UNAUTHORIZED[code]
        resource = kind if kind == "cluster" or not subject else f"{kind} {subject}"
        raise NotAuthorizedError(cluster=cluster, operation=request, resource=resource)
    if code == SASL_AUTHENTICATION_FAILED:
        raise AuthenticationFailedError(
            cluster=cluster, address=subject, mechanism="SASL", problem=message or name_of(code)
        )
    if code == UNSUPPORTED_VERSION:
        raise UnsupportedBrokerError(
            cluster=cluster, feature=request, needs="a version of Kafka that knows it"
        )
    name = f"{name_of(code)}: {message.rstrip('.')}" if message else name_of(code)
    raise BrokerError(
        cluster=cluster, request=request, code=code, name=name, subject=subject, retriable=is_retriable(code)
    )
