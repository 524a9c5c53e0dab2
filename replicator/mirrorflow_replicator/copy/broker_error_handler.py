"""Chooses and carries out the reaction to a broker's error code for a partition.

After a produce error it refreshes leaders, has batches made smaller, split or encoded by another codec, skips records, or stops
the partition. After a fetch error it refreshes leaders, finds out which source records are lost, or stops the partition. A refused
write passes through:

    client.broker_writer   `Pipe.on_response` reads the error code from the response
    partition_writer       `refused` removes the batch from those in flight; INVALID_TXN_STATE ends the start of the task
    task_transaction       `refused` ends the start of the task after a code of `position_writer.FINAL_CODES`: the producer is
                           fenced, or it is unknown what was appended
    this module            reacts to the code
    partition_resumer      decides where the partition continues, or that the task is started again (`writer.task_restart_reason`)

Error codes are Kafka's (Errors.java).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from mirrorflow_core.errors import (
    MirrorFlowError,
    NotAuthorizedError,
    PartitionError,
    RecordTooLargeError,
    SourceDataLostError,
    TargetDataLostError,
    accept_or_skip,
)
from mirrorflow_core.stall_detection import Obstacle, ObstacleKind
from mirrorflow_core.wire.codecs import ZSTD
from mirrorflow_core.wire.fetch import PartitionFetchResponse
from mirrorflow_core.wire.produce import ALL_CODECS
from mirrorflow_core.writer.stream import Span
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.error_codes import (
    CONCURRENT_TRANSACTIONS,
    CORRUPT_MESSAGE,
    DUPLICATE_SEQUENCE_NUMBER,
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
from mirrorflow_replicator.copy.batch_limits import BatchLimits
from mirrorflow_replicator.copy.broker_routes import BrokerRoutes
from mirrorflow_replicator.copy.copier_context import CopierState, DetectedLoss, RefusedRecords
from mirrorflow_replicator.copy.partition_copier import PartitionCopier
from mirrorflow_replicator.copy.partition_resumer import STOPPED_RETRY_S, PartitionResumer

log = logging.getLogger("mirrorflow.task")

# Errors that end only when a person decides and restarts the process. The cause of any other may be fixed
# without any event here.
_FINAL = (SourceDataLostError, TargetDataLostError)
# Codecs of a target that refuses zstd (it is older, or its topic's format is).
BEFORE_ZSTD = ALL_CODECS - {ZSTD}


class ErrorAction(Enum):
    """The reactions to an error code."""

    RESUME = "resume"  # determine anew where to continue
    REFRESH_METADATA = "refresh metadata"  # leaders have moved, or are not elected yet
    RESOLVE_LOSS = "resolve loss"  # source offsets no longer exist
    SHRINK_BATCHES = "shrink batches"
    CHANGE_CODEC = "change codec"
    SPLIT_BATCH = "split batch"  # send the records before a refused one; then stop at it, or skip it
    STOP = "stop"


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
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,  # the next request of the task's transaction ends its start
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
        said = f": {' '.join(message.split()).rstrip('.')}" if message else ""
        if setting is None:
            then = "compare the settings of the two topics (message.timestamp.*, cleanup.policy, compression.type)"
        elif skips:
            then = "left out, as mirrorflow.refused.records=skip says"
        else:
            then = accept_or_skip(f"set {setting}, on {target_topic}")
        super().__init__(
            f"target topic {target_topic} refuses {what} at source offset {offset} with {self.code}{said}; {then}",
            topic=topic,
            partition=partition,
        )


class BrokerErrorHandler:
    """Reacts to produce and fetch errors of the partitions of a task."""

    def __init__(
        self,
        *,
        source: Cluster,
        target: Cluster,
        routes: BrokerRoutes,
        resumer: PartitionResumer,
        errors: Counter[str],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        skips_refused: bool = False,
    ) -> None:
        self._source = source
        self._target = target
        self._routes = routes
        self._resumer = resumer
        self._errors = errors
        self._spawn = spawn
        self._skips_refused = skips_refused
        self._limits = BatchLimits(target, spawn=spawn)
        self._told: WeakKeyDictionary[PartitionCopier, str] = WeakKeyDictionary()
        self._finding_loss: WeakSet[PartitionCopier] = WeakSet()  # copiers whose loss is being determined

    def on_produce_error(self, copier: PartitionCopier, code: int, message: str, span: Span) -> None:
        """Reacts to the error *code* of *span*, a batch of *copier*."""
        self._errors[name_of(code)] += 1
        action = action_for_produce_error(code)
        if action is ErrorAction.REFRESH_METADATA:
            self._routes.stale(copier)
        elif action is ErrorAction.SHRINK_BATCHES:
            self._limits.refused(copier, span)
        elif action is ErrorAction.CHANGE_CODEC:
            copier.packer.allow_codecs(BEFORE_ZSTD)
        elif action is ErrorAction.STOP and code == TOPIC_AUTHORIZATION_FAILED:
            copier.stop(
                NotAuthorizedError(
                    cluster=self._target.alias, operation="Write", resource=f"topic {copier.target_topic}"
                ),
            )
        elif action is ErrorAction.SPLIT_BATCH:
            self._refused_records(copier, code, message, span)
        elif action is ErrorAction.STOP:
            copier.stop(_refused(copier, code, message, span))

    def _refused_records(self, copier: PartitionCopier, code: int, message: str, span: Span) -> None:
        """Has the records before the first refused one of *span* sent; then stops at it, or leaves it out."""
        if copier.state is not CopierState.COPYING:
            return  # It was in flight behind a refused batch, and is sent again.
        refused = sorted({index for index in copier.refused_records if 0 <= index < span.count})
        # Without the indexes the first refused record is found by halving.
        first = refused[0] if refused else span.count // 2
        if first > 0:
            copier.packer.cut_before(span.source_offset(span.first + first))
            return
        if not self._skips_refused:
            copier.stop(_refused(copier, code, message, span))
            return
        skips = next((at for at, index in enumerate(refused) if at != index), len(refused)) or 1
        is_whole = skips == span.count
        next_offset = span.next_offset if is_whole else span.source_offset(span.first + skips)
        error = _refused(copier, code, message, span, skips=skips)
        copier.leave_out(RefusedRecords(span.first, next_offset, error))

    def on_fetch_error(self, copier: PartitionCopier, code: int, response: PartitionFetchResponse) -> None:
        """Reacts to a fetch response for *copier* with an error, another replica to read from, or a diverging epoch."""
        if code:
            self._errors[name_of(code)] += 1
            copier.note_obstacle(Obstacle(kind=ObstacleKind.FETCH_REFUSED, name=name_of(code)))
            copier.context.changed(copier)
        if not code and response.diverging is None:
            self._routes.read_at(copier, response.preferred_replica)
            return
        if response.diverging is not None:
            copier.cursor.note_ends(response)
            copier.note_obstacle(Obstacle(kind=ObstacleKind.DIVERGED))
            copier.context.changed(copier)
        action = ErrorAction.RESOLVE_LOSS if response.diverging is not None else action_for_fetch_error(code)
        if action is ErrorAction.RESOLVE_LOSS and copier.packer:
            # Records that were read before the source lost them are written first: they are not lost.
            copier.write_first()
        elif response.diverging is not None:
            # The resumer compares the source with the target and finds what was lost. If it finds nothing,
            # the backoff for consecutive refusals delays the next attempt.
            copier.delay()
            copier.resync()
        elif action is ErrorAction.RESOLVE_LOSS:
            if copier not in self._finding_loss:
                self._finding_loss.add(copier)
                self._spawn(self._find_loss(copier, copier.resyncs, copier.cursor.offset))
        elif action is ErrorAction.STOP and code == TOPIC_AUTHORIZATION_FAILED:
            copier.stop(
                NotAuthorizedError(
                    cluster=self._source.alias, operation="Read", resource=f"topic {copier.topic}"
                ),
            )
        elif action is ErrorAction.STOP:
            copier.stop(
                error_for(code, cluster=self._source.alias, request="Fetch", subject=str(copier.source))
            )
        else:
            self._routes.stale(copier)

    def stopped(self, copier: PartitionCopier, error: MirrorFlowError) -> None:
        """Logs once that *copier* has stopped, and has it retried if the cause may be fixed from outside.

        Also called when a copier lost records and continues by loss policy.
        """
        self._errors[error.reason] += 1
        if self._told.get(copier) != str(error):
            self._told[copier] = str(error)
            log.warning("%s", error)
        if isinstance(error, RecordTooLargeError):
            self._spawn(self._wait_for_limit(copier))
        elif not isinstance(error, _FINAL):
            self._resumer.retry_stopped(copier)

    def stop_again(self, copier: PartitionCopier, earlier: PartitionCopier) -> None:
        """Stops *copier* for a while if *earlier*, of the start before, was stopped by a refused batch.

        It may have ended that start (UNKNOWN_SERVER_ERROR), and would end each one, and delay the other partitions.
        """
        if earlier.is_halted and isinstance(earlier.error, RefusedBatchError):
            copier.stop(earlier.error)

    async def _wait_for_limit(self, copier: PartitionCopier) -> None:
        await asyncio.sleep(STOPPED_RETRY_S)
        if copier.state is not CopierState.STOPPED:
            return
        await self._limits.read_settings(copier)
        self._resumer.retry_stopped(copier, pause_s=0.0)

    async def _find_loss(self, copier: PartitionCopier, resyncs: int, wanted: int) -> None:
        """Determines what was lost where offset *wanted* cannot be read; the resumer applies the loss policy.

        Does nothing if *copier* was resynced since and may read elsewhere: the next fetch shows whether there
        is a loss. A loss handled twice would be taken for a beginning, and skip what the policy wants copied.
        """
        try:
            first = (await admin.list_offsets(self._source, [copier.source], EARLIEST))[copier.source]
            end = (await admin.list_offsets(self._source, [copier.source], LATEST))[copier.source]
        finally:
            self._finding_loss.discard(copier)
        if copier.resyncs != resyncs:
            return
        if first.error or end.error:
            self._routes.stale(copier)
        elif wanted < first.offset:
            copier.lose(
                DetectedLoss(wanted, first.offset, "source records were deleted before they were copied")
            )
        elif wanted > end.offset:
            copier.lose(DetectedLoss(wanted, end.offset, "the source's log was truncated"))
        else:
            self._routes.stale(copier)


def _refused(
    copier: PartitionCopier, code: int, message: str, span: Span, *, skips: int = 0
) -> RefusedBatchError:
    return RefusedBatchError(
        topic=copier.topic,
        partition=copier.partition,
        offset=span.base_offset,
        target_topic=copier.target_topic,
        code=code,
        message=message,
        skips=skips,
    )
