"""Runs the generators of `mirrorflow_core.writer`: sends the requests that they yield, and returns the responses.

Requests that are yielded together are sent together. Requests about many partitions are combined: a takeover
queries each leader once, not once for each partition.

Retriable errors are repeated. What a transaction coordinator refuses is answered with `Refused`, and a read about one
partition that fails with `Unavailable`, so that the other partitions continue. Other errors that a user must resolve, and
reads of the flow's own topics that fail for a minute, are raised: the protocol has no response for them, and a process that
was taking a flow over must begin again.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Final, TypeVar

from mirrorflow_core.backoff import Backoff
from mirrorflow_core.errors import (
    ClusterError,
    CorruptRecordsError,
    NotAuthorizedError,
    UnsupportedBrokerError,
)
from mirrorflow_core.partitions import UNKNOWN, TopicPartition
from mirrorflow_core.settings import TRANSACTION_TIMEOUT_MS
from mirrorflow_core.wire.error_codes import NONE, partition_error
from mirrorflow_core.wire.fetch import PartitionFetchResponse
from mirrorflow_core.writer.broker_requests import (
    InitProducerId,
    LeaderEpochEnd,
    LogEnd,
    Pause,
    Producer,
    ReadAborted,
    ReadBatches,
    ReadClaims,
    ReadEnd,
    ReadEpochEnd,
    ReadIdleLimit,
    ReadLastSequence,
    ReadOffsetMap,
    ReadPositions,
    ReadSourceStart,
    ReadWallClock,
    ReportLoss,
    Request,
    SourceStart,
    Steps,
    Transaction,
    Unavailable,
)
from mirrorflow_core.writer.position import WriterPosition
from mirrorflow_core.writer.stored_positions import store_positions
from mirrorflow_core.writer.transaction_log import LogBatch
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST, ListedOffset
from mirrorflow_kafka.admin.transaction_log_reader import (
    MARKER_POLL_MIN_S,
    MARKER_POLL_S,
    Decode,
    LogCache,
    LogSpan,
    aborted_transactions,
    log_spans,
    read_batches,
    read_log,
    read_starts,
    retrying,
)
from mirrorflow_kafka.client.cluster import REQUEST_TIMEOUT_S, Cluster
from mirrorflow_kafka.writer.flow_topics import FlowTopics
from mirrorflow_kafka.writer.partition_availability import RESPONSE_S
from mirrorflow_kafka.writer.producer_transactions import ProducerTransactions, partition_numbers

FETCHES_MAX: Final = 32  # at the same time; each may return a megabyte
MARKER_POLLS_MAX: Final = 20  # in 0.4 s
_IDLE_KEY: Final = "connections.max.idle.ms"
_IDLE_LIMIT_MS: Final = 600_000  # Kafka's default
_JITTER: Final = 0.5  # of a pause, so that two processes do not stay in step
T = TypeVar("T")
log = logging.getLogger(__name__)
OffsetMap = Callable[[ReadOffsetMap], Awaitable[int | None]]


class ProtocolRunner:
    """Answers the protocol's requests for one flow.

    *start_at* returns the timestamp (ms since 1970, EARLIEST, LATEST) at which a partition without a position starts,
    unless it is to start from its beginning.
    *offset_map* answers `ReadOffsetMap`; without it no target offset can be translated. *logs* shortens repeated reads of claims and
    positions.
    """

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        topics: FlowTopics,
        *,
        start_at: Callable[[TopicPartition], int] = lambda _: EARLIEST,
        offset_map: OffsetMap | None = None,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        logs: LogCache | None = None,
    ) -> None:
        self.transactions = ProducerTransactions(target, topics, timeout_ms=transaction_timeout_ms)
        self._source = source
        self._target = target
        self._topics = topics
        self._start_at = start_at
        self._offset_map = offset_map
        self._logs = logs
        self._fetches = asyncio.Semaphore(FETCHES_MAX)

    async def run(self, steps: Steps[T]) -> T:
        """Runs *steps* to their end and returns their result. Raises MirrorFlowError."""
        try:
            asked = next(steps)
            while True:
                asked = steps.send(await self.respond(asked))
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            steps.close()

    async def store_positions(self, producer: Producer, positions: Sequence[WriterPosition]) -> bool:
        """Stores *positions* in transactions of *producer*, not too many in each; returns False if one is refused."""
        return await self.run(store_positions(producer, positions)) is None

    async def respond(self, asked: Sequence[Request]) -> tuple[Any, ...]:
        """Returns the responses to requests that do not depend on each other. Raises MirrorFlowError."""
        groups: dict[Hashable, list[int]] = {}
        for number, request in enumerate(asked):
            groups.setdefault(_combined(request) or number, []).append(number)
        outcomes = await asyncio.gather(
            *(self._respond_to_group([asked[number] for number in group]) for group in groups.values()),
            return_exceptions=True,
        )
        responses: list[Any] = [None] * len(asked)
        for group, outcome in zip(groups.values(), outcomes, strict=True):
            if isinstance(outcome, BaseException):
                raise outcome
            for number, response in zip(group, outcome, strict=True):
                responses[number] = response
        return tuple(responses)

    async def _respond_to_group(self, group: Sequence[Request]) -> Sequence[Any]:
        partitions = [
            request.partition
            for request in group
            if isinstance(request, ReadEnd | ReadEpochEnd | ReadSourceStart)
        ]
        match group[0]:
            case ReadEnd():
                return await self._log_ends(partitions)
            case ReadSourceStart(_, from_beginning):
                return await self._source_starts(partitions, from_beginning=from_beginning)
            case ReadEpochEnd(_, epoch, on_target):
                return await self._epoch_ends(partitions, epoch, on_target=on_target)
        return [await self._respond_to(group[0])]

    async def _respond_to(self, request: Request) -> Any:
        match request:
            case InitProducerId(transactional_id):
                return await self.transactions.initialize(transactional_id)
            case Transaction():
                return await self.transactions.run(request)
            case ReadClaims(barrier):
                return await self._read_internal(self._topics.claims, self._topics.claim_in, barrier)
            case ReadPositions(barrier):
                return await self._positions(barrier)
            case ReadBatches() | ReadAborted() | ReadLastSequence() | ReadOffsetMap():
                try:
                    return await self._read_partition(request)
                except (ClusterError, CorruptRecordsError) as error:
                    return Unavailable(error)
            case ReportLoss(partition, next_source_offset, why):
                log.warning(
                    "%s is to continue at source offset %d, as the loss policy says: %s",
                    partition,
                    next_source_offset,
                    why,
                )
                return None
            case ReadIdleLimit():
                return await self._idle_limit_ms()
            case Pause(ms):
                await asyncio.sleep(ms / 1000 * random.uniform(1, 1 + _JITTER))  # noqa: S311 it spreads only
                return time.monotonic_ns() // 1_000_000
            case ReadWallClock():
                return time.time_ns() // 1_000_000
        raise AssertionError(request)

    async def _read_partition(
        self, request: ReadBatches | ReadAborted | ReadLastSequence | ReadOffsetMap
    ) -> object:
        copy = self._topics.on_target(request.partition)
        match request:
            case ReadBatches(_, start, end):
                async with self._fetches:
                    return await read_batches(self._target, copy, start, end, timeout_s=RESPONSE_S)
            case ReadAborted(_, offset):
                async with self._fetches:
                    return await aborted_transactions(self._target, copy, offset, timeout_s=RESPONSE_S)
            case ReadLastSequence(_, producer_id, producer_epoch):
                return await self._last_sequence(copy, producer_id, producer_epoch)
            case ReadOffsetMap():
                return None if self._offset_map is None else await self._offset_map(request)

    async def _read_internal(
        self,
        partition: TopicPartition,
        decode: Decode,
        barrier: Producer | None,
        *,
        span: LogSpan | None = None,
        first: PartitionFetchResponse | None = None,
    ) -> tuple[LogBatch, ...]:
        marker = self.transactions.barrier(barrier, partition)
        async with self._fetches:
            return await read_log(
                self._target, partition, decode, marker=marker, span=span, first=first, cache=self._logs
            )

    async def _positions(self, barrier: Producer) -> tuple[tuple[LogBatch, ...], ...]:
        offsets = self._topics.offsets
        numbers = await retrying(lambda: partition_numbers(self._target, offsets, is_fresh=True))
        partitions = [TopicPartition(offsets, number) for number in numbers]
        spans = await self._spans_after(barrier, partitions)
        # With a cache, most of the logs is known.
        starts = await read_starts(self._target, spans) if self._logs is None else {}
        return tuple(
            await asyncio.gather(
                *(
                    self._read_internal(
                        partition,
                        self._topics.position_in,
                        barrier,
                        span=spans.get(partition),
                        first=starts.get(partition),
                    )
                    for partition in partitions
                )
            )
        )

    async def _spans_after(
        self, barrier: Producer, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, LogSpan]:
        """Returns the spans of *partitions*, once they are long enough for the markers of *barrier*.

        A coordinator writes markers some milliseconds after its response. Two requests find that out for all partitions, and a read
        that comes too early takes three for each. After MARKER_POLLS_MAX the reads themselves wait.
        """
        markers = {partition: self.transactions.barrier(barrier, partition) for partition in partitions}
        async for attempt in Backoff(min_s=MARKER_POLL_MIN_S, max_s=MARKER_POLL_S):
            spans = await log_spans(self._target, partitions)
            if attempt == MARKER_POLLS_MAX or not any(
                marker is not None and partition in spans and spans[partition].end <= marker.offset
                for partition, marker in markers.items()
            ):
                return spans
        raise AssertionError("the attempts do not end")

    async def _last_sequence(
        self, partition: TopicPartition, producer_id: int, producer_epoch: int
    ) -> int | None:
        try:
            states = await admin.describe_producers(self._target, [partition], timeout_s=RESPONSE_S)
        except UnsupportedBrokerError:
            return None
        response = states[partition]
        if response.error:
            alias = self._target.alias
            raise partition_error(
                response.error, cluster=alias, request="DescribeProducers", partition=partition
            )
        return next(
            (
                producer.last_sequence
                for producer in response.producers
                if (producer.producer_id, producer.epoch) == (producer_id, producer_epoch)
            ),
            None,
        )

    async def _idle_limit_ms(self) -> int:
        """Returns the longest limit of the brokers; Kafka's default for those whose limit cannot be read."""
        settings: dict[int, dict[str, int]] = {}
        with contextlib.suppress(NotAuthorizedError):
            settings = await admin.describe_brokers(self._target, [_IDLE_KEY])
        ids = settings.keys() | self._target.metadata.brokers.keys()
        log.warning(
            "%s has forgotten the transactional id of the last writer, which cannot be fenced. Copying begins when its "
            "connections are closed (%s).",
            self._target.alias,
            _IDLE_KEY,
        )
        return max(settings.get(id_, {}).get(_IDLE_KEY, _IDLE_LIMIT_MS) for id_ in ids)

    async def _source_starts(
        self, partitions: Sequence[TopicPartition], *, from_beginning: bool
    ) -> Sequence[SourceStart | Unavailable]:
        when: dict[int, set[TopicPartition]] = {LATEST: {*partitions}}
        for partition in partitions:
            start = EARLIEST if from_beginning else self._start_at(partition)
            when.setdefault(start, set()).add(partition)
        listed = await asyncio.gather(
            *(
                admin.list_offsets(self._source, wanted, timestamp, timeout_s=_response_timeout_s(timestamp))
                for timestamp, wanted in when.items()
            )
        )
        ends = listed[0]
        begins = {
            partition: first for part in listed for partition, first in part.items()
        }  # LATEST comes first
        return [
            _unavailable(
                self._source, "ListOffsets", partition, begins[partition].error or ends[partition].error
            )
            or _source_start(begins[partition], ends[partition])
            for partition in partitions
        ]

    async def _log_ends(self, partitions: Sequence[TopicPartition]) -> Sequence[LogEnd | Unavailable]:
        target = self._target
        wanted = [self._topics.on_target(partition) for partition in partitions]
        starts, stables, ends = await asyncio.gather(
            admin.list_offsets(target, wanted, EARLIEST, timeout_s=RESPONSE_S),
            admin.list_offsets(target, wanted, LATEST, read_committed=True, timeout_s=RESPONSE_S),
            admin.list_offsets(target, wanted, LATEST, timeout_s=RESPONSE_S),
        )
        # The leader's present epoch: no record has a newer one, and where the log has lost something, the
        # epoch of its last record then ends at the same offset.
        return [
            _unavailable(
                target,
                "ListOffsets",
                partition,
                starts[partition].error or stables[partition].error or ends[partition].error,
            )
            or LogEnd(
                starts[partition].offset,
                stables[partition].offset,
                ends[partition].offset,
                ends[partition].leader_epoch,
            )
            for partition in wanted
        ]

    async def _epoch_ends(
        self, partitions: Sequence[TopicPartition], epoch: int, *, on_target: bool
    ) -> Sequence[LeaderEpochEnd | Unavailable]:
        if epoch < 0:
            return [LeaderEpochEnd(UNKNOWN, UNKNOWN)] * len(partitions)
        cluster = self._target if on_target else self._source
        wanted = (
            [self._topics.on_target(partition) for partition in partitions] if on_target else list(partitions)
        )
        ends = await admin.end_offset_for_leader_epoch(
            cluster, dict.fromkeys(wanted, epoch), timeout_s=RESPONSE_S
        )
        return [
            _unavailable(cluster, "OffsetForLeaderEpoch", partition, ends[partition].error)
            or LeaderEpochEnd(ends[partition].leader_epoch, ends[partition].end_offset)
            for partition in wanted
        ]


def _unavailable(cluster: Cluster, request: str, partition: TopicPartition, code: int) -> Unavailable | None:
    """Returns the response for a *partition* whose leader has answered with *code*; None for 0."""
    if code == NONE:
        return None
    return Unavailable(partition_error(code, cluster=cluster.alias, request=request, partition=partition))


def _response_timeout_s(timestamp: int) -> float:
    """Returns for how long an offset is waited for; a leader may have to search in segments for that of a time."""
    return RESPONSE_S if timestamp in {EARLIEST, LATEST} else REQUEST_TIMEOUT_S


def _source_start(begin: ListedOffset, end: ListedOffset) -> SourceStart:
    """Returns the start at *begin*, or at the *end* of the log if no record is as new."""
    offset = begin.offset if begin.offset >= 0 else end.offset
    return SourceStart(offset, begin.leader_epoch if offset < end.offset else UNKNOWN)


def _combined(request: Request) -> Hashable | None:
    """Returns what the requests have in common that one request to a broker can answer; None if it stays alone."""
    match request:
        case ReadEnd():
            return ReadEnd
        case ReadSourceStart(_, from_beginning):
            return ReadSourceStart, from_beginning
        case ReadEpochEnd(_, epoch, on_target):
            return ReadEpochEnd, epoch, on_target
    return None
