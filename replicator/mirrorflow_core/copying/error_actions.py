"""Which reaction each error code of a broker needs: of a batch in a produce response, of a partition in a fetch response.

Error codes are Kafka's (Errors.java).
"""

from enum import Enum
from typing import Final

from mirrorflow_core.copying.effects import Retry
from mirrorflow_core.errors import (
    MirrorFlowError,
    NotAuthorizedError,
    PartitionError,
    RecordTooLargeError,
    SourceDataLostError,
    TargetDataLostError,
    accept_or_skip,
)
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.codecs import ZSTD
from mirrorflow_core.wire.error_codes import (
    CONCURRENT_TRANSACTIONS,
    CORRUPT_MESSAGE,
    DUPLICATE_SEQUENCE_NUMBER,
    EPOCH_IS_OVER,
    FENCED_LEADER_EPOCH,
    INCONSISTENT_TOPIC_ID,
    INVALID_PRODUCER_EPOCH,
    INVALID_RECORD,
    INVALID_TIMESTAMP,
    INVALID_TXN_STATE,
    KAFKA_STORAGE_ERROR,
    LEADER_NOT_AVAILABLE,
    LISTENER_NOT_FOUND,
    MESSAGE_TOO_LARGE,
    NETWORK_EXCEPTION,
    NOT_ENOUGH_REPLICAS,
    NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_NOT_AVAILABLE,
    OFFSET_OUT_OF_RANGE,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    OUTCOME_UNKNOWN,
    RECORD_LIST_TOO_LARGE,
    REPLICA_NOT_AVAILABLE,
    REQUEST_TIMED_OUT,
    THROTTLING_QUOTA_EXCEEDED,
    TOPIC_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_LEADER_EPOCH,
    UNKNOWN_PRODUCER_ID,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_COMPRESSION_TYPE,
    error_for,
    name_of,
)
from mirrorflow_core.wire.produce import ALL_CODECS

# Refusals that end the session: this producer is fenced, or it is open whether the batch was appended.
# A leader that is replaced, or whose disk fails, may have appended the batch before.
SESSION_ENDING_CODES: Final = (
    OUTCOME_UNKNOWN | EPOCH_IS_OVER | {DUPLICATE_SEQUENCE_NUMBER, UNKNOWN_PRODUCER_ID}
)
# Codecs of a target that refuses zstd (it is older, or its topic's format is).
BEFORE_ZSTD: Final = ALL_CODECS - {ZSTD}
_LEADER_MOVED = {
    UNKNOWN_TOPIC_OR_PARTITION,
    LEADER_NOT_AVAILABLE,
    NOT_LEADER_OR_FOLLOWER,
    REPLICA_NOT_AVAILABLE,
    NETWORK_EXCEPTION,
    LISTENER_NOT_FOUND,
    FENCED_LEADER_EPOCH,
    UNKNOWN_LEADER_EPOCH,
    OFFSET_NOT_AVAILABLE,
    UNKNOWN_TOPIC_ID,
    INCONSISTENT_TOPIC_ID,
}
_TEMPORARY = {
    CORRUPT_MESSAGE,
    REQUEST_TIMED_OUT,
    NOT_ENOUGH_REPLICAS,
    NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    DUPLICATE_SEQUENCE_NUMBER,
    INVALID_PRODUCER_EPOCH,
    INVALID_TXN_STATE,
    CONCURRENT_TRANSACTIONS,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,  # the next request of the task's transaction ends its session
    KAFKA_STORAGE_ERROR,
    UNKNOWN_PRODUCER_ID,
    THROTTLING_QUOTA_EXCEEDED,
}
_TOO_LARGE = {MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE}
# Refusals of single records, with the setting of the target topic that they are about.
_SETTING_OF_REFUSED_RECORD = {
    INVALID_TIMESTAMP: "message.timestamp.before.max.ms or message.timestamp.after.max.ms",
    INVALID_RECORD: "cleanup.policy, for a compacted topic accepts no record without a key",
}


class ErrorAction(Enum):
    """The reactions to an error code."""

    RESUME = "resume"  # determine again where to continue
    REFRESH_METADATA = "refresh metadata"  # leaders have moved, or are not elected yet
    RESOLVE_LOSS = "resolve loss"  # source offsets no longer exist
    SHRINK_BATCHES = "shrink batches"
    CHANGE_CODEC = "change codec"
    SPLIT_BATCH = "split batch"  # send the records before a refused one; then stop at it, or skip it
    STOP = "stop"


def action_for_produce_error(code: int) -> ErrorAction:
    """Returns the reaction to error *code* of a batch in a produce response."""
    if code in _TOO_LARGE:
        return ErrorAction.SHRINK_BATCHES
    if code == UNSUPPORTED_COMPRESSION_TYPE:
        return ErrorAction.CHANGE_CODEC
    if code in _SETTING_OF_REFUSED_RECORD:
        return ErrorAction.SPLIT_BATCH
    if code in _LEADER_MOVED:
        return ErrorAction.REFRESH_METADATA
    return ErrorAction.RESUME if code in _TEMPORARY else ErrorAction.STOP


def action_for_fetch_error(code: int) -> ErrorAction:
    """Returns the reaction to error *code* of a partition in a fetch response."""
    if code == OFFSET_OUT_OF_RANGE:
        return ErrorAction.RESOLVE_LOSS
    if code in _LEADER_MOVED or code in _TEMPORARY:
        return ErrorAction.REFRESH_METADATA
    return ErrorAction.STOP


class RefusedBatchError(PartitionError):
    """The target refuses a batch because of its contents."""

    reason = "BatchRefused"

    def __init__(
        self,
        *,
        topic: str,
        partition: int,
        offset: int,
        target_topic: str,
        code: int,
        message: str,
        skips: int = 0,
    ) -> None:
        """*skips* records from *offset* on are left out; 0: the partition stops."""
        self.offset = offset
        self.code = name_of(code)
        setting = _SETTING_OF_REFUSED_RECORD.get(code)
        what = "the batch" if setting is None else "the record" if skips < 2 else f"{skips} records"
        detail = f": {' '.join(message.split()).rstrip('.')}" if message else ""
        if setting is None:
            then = "compare the settings of the two topics (message.timestamp.*, cleanup.policy, compression.type)"
        elif skips:
            then = "left out, as mirrorflow.refused.records=skip says"
        else:
            then = accept_or_skip(f"set {setting}, on {target_topic}")
        super().__init__(
            f"target topic {target_topic} refuses {what} at source offset {offset} with {self.code}{detail}; {then}",
            topic=topic,
            partition=partition,
        )


def retry_of(error: MirrorFlowError) -> Retry:
    """Returns when a partition that *error* has stopped is tried again."""
    if isinstance(error, RecordTooLargeError):
        return Retry.WITH_NEW_LIMIT
    return Retry.NEVER if isinstance(error, SourceDataLostError | TargetDataLostError) else Retry.LATER


def fetch_error(code: int, source: TopicPartition, alias: str) -> MirrorFlowError:
    """Returns why *source* cannot be fetched from cluster *alias*, which has refused it with *code*."""
    if code == TOPIC_AUTHORIZATION_FAILED:
        return NotAuthorizedError(cluster=alias, operation="Read", resource=f"topic {source.topic}")
    return error_for(code, cluster=alias, request="Fetch", subject=str(source))
