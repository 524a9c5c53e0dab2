"""Kafka's error codes that the simulated brokers answer with (org.apache.kafka.common.protocol.Errors)."""

from typing import Final

NONE: Final = 0
OFFSET_OUT_OF_RANGE: Final = 1
CORRUPT_MESSAGE: Final = 2
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
LEADER_NOT_AVAILABLE: Final = 5
NOT_LEADER_OR_FOLLOWER: Final = 6
REQUEST_TIMED_OUT: Final = 7
MESSAGE_TOO_LARGE: Final = 10
COORDINATOR_NOT_AVAILABLE: Final = 15
NOT_COORDINATOR: Final = 16
NOT_ENOUGH_REPLICAS: Final = 19
NOT_ENOUGH_REPLICAS_AFTER_APPEND: Final = 20
TOPIC_AUTHORIZATION_FAILED: Final = 29
INVALID_TIMESTAMP: Final = 32
TOPIC_ALREADY_EXISTS: Final = 36
OUT_OF_ORDER_SEQUENCE_NUMBER: Final = 45
DUPLICATE_SEQUENCE_NUMBER: Final = 46
INVALID_PRODUCER_EPOCH: Final = 47
INVALID_TXN_STATE: Final = 48
INVALID_PRODUCER_ID_MAPPING: Final = 49
INVALID_TRANSACTION_TIMEOUT: Final = 50
CONCURRENT_TRANSACTIONS: Final = 51
TRANSACTION_COORDINATOR_FENCED: Final = 52
TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Final = 53
OPERATION_NOT_ATTEMPTED: Final = 55
FETCH_SESSION_ID_NOT_FOUND: Final = 70
INVALID_FETCH_SESSION_EPOCH: Final = 71
FENCED_LEADER_EPOCH: Final = 74
UNKNOWN_LEADER_EPOCH: Final = 75
INVALID_RECORD: Final = 87
PRODUCER_FENCED: Final = 90
UNKNOWN_TOPIC_ID: Final = 100
TRANSACTIONAL_ID_NOT_FOUND: Final = 105


class RefusedError(Exception):
    """A broker does not do what it was asked, and answers with *code*."""

    def __init__(self, code: int, message: str = "") -> None:
        self.code = code
        super().__init__(f"{code}: {message}")
