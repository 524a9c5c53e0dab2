"""The Kafka error codes that the simulated brokers return (org.apache.kafka.common.protocol.Errors)."""

from typing import Final

NONE: Final = 0
CORRUPT_MESSAGE: Final = 2
NOT_LEADER_OR_FOLLOWER: Final = 6
MESSAGE_TOO_LARGE: Final = 10
NOT_ENOUGH_REPLICAS: Final = 19
NOT_ENOUGH_REPLICAS_AFTER_APPEND: Final = 20
TOPIC_AUTHORIZATION_FAILED: Final = 29
INVALID_TIMESTAMP: Final = 32
OUT_OF_ORDER_SEQUENCE_NUMBER: Final = 45
INVALID_PRODUCER_EPOCH: Final = 47
INVALID_TXN_STATE: Final = 48
INVALID_PRODUCER_ID_MAPPING: Final = 49
CONCURRENT_TRANSACTIONS: Final = 51
TRANSACTION_COORDINATOR_FENCED: Final = 52
INVALID_RECORD: Final = 87
PRODUCER_FENCED: Final = 90


class RefusedError(Exception):
    """A broker refuses a request with *code*."""

    def __init__(self, code: int, message: str = "") -> None:
        self.code = code
        super().__init__(f"{code}: {message}")
