"""Runs the transactions of this process's producers on the target, at most one of each producer at a time.

Positions and claims are written in them, so that a fenced process cannot write any. After an error it is
unknown what was appended: the producer needs a new epoch, whose initialization aborts what is open.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from mirrorflow_core.backoff import backoff_s
from mirrorflow_core.errors import (
    BrokerError,
    ClusterError,
    InternalTopicUnavailableError,
    MirrorFlowError,
    MissingMarkerError,
    ShortTransactionsError,
    UnreachableError,
)
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SLOW_TRANSACTION_MS, TRANSACTION_TIMEOUT_MS
from mirrorflow_core.wire.error_codes import (
    CONCURRENT_TRANSACTIONS,
    INVALID_TRANSACTION_TIMEOUT,
    NETWORK_EXCEPTION,
    NONE,
    OUTCOME_UNKNOWN,
    UNKNOWN_TOPIC_OR_PARTITION,
    error_for,
    is_metadata_stale,
    is_retriable,
    partition_error,
    raise_for,
)
from mirrorflow_core.wire.records import SEQUENCE_MASK, Record, encode_split
from mirrorflow_core.writer.broker_requests import NO_RESPONSE, Busy, Done, Producer, Refused, Transaction
from mirrorflow_core.writer.partition_start import MARKER_WAIT_MS
from mirrorflow_core.writer.position import WriterPosition
from mirrorflow_core.writer.transactional_ids import TransactionalIds
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import RETRY_MAX_S, RETRY_MIN_S
from mirrorflow_kafka.admin.log_requests import LATEST
from mirrorflow_kafka.admin.transaction_log_reader import MARKER_POLL_S, ExpectedMarker, read_batches
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.compacted_topic import BATCH_BYTES_MAX, PRODUCE_TIMEOUT_MS
from mirrorflow_kafka.writer.flow_topics import FlowTopics

# How long a request waits for its coordinator, or for the markers of the producer's last transaction; then a
# partition of that transaction has no leader.
COORDINATOR_TIMEOUT_S: Final = 30.0
# For a leader to respond, before records are written or committed in a transaction. A leader that needs longer is being
# replaced, or this process cannot reach it: then the task's next start leaves its partitions out.
LEADER_TIMEOUT_S: Final = 10.0
PRODUCE_ATTEMPTS_MAX: Final = 30  # an election takes seconds, the detection of a dead broker 9 s
FIRST_MARKER_POLL_S: Final = 0.002  # a marker takes some milliseconds, and consumers wait for the next commit
SHORTEST_TRANSACTION_MS: Final = 1_000  # a usual one takes a quarter of that


SequenceKey = tuple[int, int, TopicPartition]  # producer id, epoch, partition of the target


class ProducerTransactions:
    """The transactions of this process; `run` has whole ones, the other methods the steps of one that copies records."""

    def __init__(
        self,
        cluster: Cluster,
        topics: FlowTopics,
        *,
        sequences: Mapping[SequenceKey, int] | None = None,
        timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    ) -> None:
        """*sequences* are those of another process that has used the same producers before.

        `timeout_ms` is how long a transaction may stay open; `initialize` lowers it to what the coordinators accept.
        """
        self.timeout_ms = timeout_ms
        self._cluster = cluster
        self._topics = topics
        self._lock_id = TransactionalIds(topics.source_alias).lock
        self._turns: dict[str, asyncio.Lock] = {}
        # Where the markers of a producer's last barrier cannot lie below, by partition of claims and offsets topic.
        self._barriers: dict[Producer, dict[TopicPartition, int]] = {}
        # Producers with a request whose response did not arrive, or does not show what was done.
        self._without_response: set[Producer] = set()
        # Where the positions of a producer's open transaction begin, by partition of the offsets topic.
        self._open_positions: dict[Producer, dict[TopicPartition, int]] = {}
        # The next sequence number, by producer id, epoch and partition of the target.
        self._sequences: Counter[SequenceKey] = Counter(sequences)

    def sequences(self, producer: Producer) -> dict[SequenceKey, int]:
        """Returns the next sequence numbers of *producer*, for the process that uses it from now on."""
        used = producer[1:]
        return {key: number for key, number in self._sequences.items() if key[:2] == used}

    def turn(self, producer: Producer) -> asyncio.Lock:
        """Returns the lock to hold from the first `add_partitions` of a transaction to its `end`."""
        return self._turns.setdefault(producer.transactional_id, asyncio.Lock())

    async def initialize(self, transactional_id: str) -> Producer | Busy | Refused:
        """Takes a transactional id. Raises NotAuthorizedError and others that a user must resolve."""
        timeout_ms = self.timeout_ms
        try:
            producer_id, epoch = await admin.init_producer_id(
                self._cluster,
                transactional_id,
                timeout_ms=timeout_ms,
                timeout_s=COORDINATOR_TIMEOUT_S,
                waits=False,
            )
        except (BrokerError, UnreachableError) as error:
            refused = refusal(error)
            if refused.error_code == INVALID_TRANSACTION_TIMEOUT:
                if timeout_ms <= SHORTEST_TRANSACTION_MS:
                    raise ShortTransactionsError(cluster=self._cluster.alias, timeout_ms=timeout_ms) from None
                # Several ids are initialized at the same time: each halves what it has tried.
                self.timeout_ms = min(self.timeout_ms, max(timeout_ms // 2, SHORTEST_TRANSACTION_MS))
                return await self.initialize(transactional_id)
            return Busy() if refused.error_code == CONCURRENT_TRANSACTIONS else refused
        for known in [key for key in self._sequences if key[0] == producer_id and key[1] != epoch]:
            del self._sequences[known]
        self._barriers = {
            producer: ends for producer, ends in self._barriers.items() if producer[0] != transactional_id
        }
        self._without_response = {
            producer for producer in self._without_response if producer[0] != transactional_id
        }
        self._open_positions = {
            producer: ends
            for producer, ends in self._open_positions.items()
            if producer[0] != transactional_id
        }
        return Producer(transactional_id, producer_id, epoch)

    async def run(self, request: Transaction) -> Done | Refused:
        """Runs one whole transaction. Raises InternalTopicUnavailableError, NotAuthorizedError and others that a user must resolve."""
        producer = request.producer
        async with self.turn(producer):
            try:
                barrier = await self._internal_partitions() if request.is_barrier else ()
                records = await self._records(request)
                left_out = await self._begin(producer, request.partitions, records.keys() | set(barrier))
                # The producer's last transaction is complete now: its markers are below the end.
                bounds = await admin.offsets_at(self._cluster, barrier, LATEST) if barrier else None
                await self._append_all(producer, records)
                await self.end(producer, commit=request.commit)
                await self.wait_for_markers(producer)
            except (BrokerError, MissingMarkerError, UnreachableError) as error:
                if isinstance(error, BrokerError) and is_metadata_stale(error.code):
                    await self._require_internal_topics()
                return refusal(error)
            if bounds is not None:
                self._barriers[producer] = bounds
        return Done(left_out)

    async def _begin(
        self, producer: Producer, partitions: Iterable[TopicPartition], internal: Iterable[TopicPartition]
    ) -> dict[TopicPartition, MirrorFlowError]:
        """Begins a transaction over the copies of *partitions* and *internal* ones.

        Returns the partitions that it leaves out, because their topics are denied or deleted: a coordinator refuses all
        partitions of a request if it refuses one. Raises ClusterError.
        """
        copies, always = (
            {self._topics.on_target(partition): partition for partition in partitions},
            frozenset(internal),
        )
        left_out: dict[TopicPartition, MirrorFlowError] = {}
        while True:
            wanted = {*copies, *always} or {self._topics.claims}
            codes = await self.try_add_partitions(producer, wanted)
            refused = {
                partition: code
                for partition, code in codes.items()
                if partition in copies and code in admin.OF_PARTITION
            }
            if not refused:
                admin.raise_for_refused(self._cluster, producer.transactional_id, codes)
                return left_out
            for copy, code in refused.items():
                left_out[copies.pop(copy)] = partition_error(
                    code, cluster=self._cluster.alias, request="AddPartitionsToTxn", partition=copy
                )

    def barrier(self, producer: Producer | None, partition: TopicPartition) -> ExpectedMarker | None:
        """Returns the marker of the producer's last barrier in a partition; None if there was no barrier."""
        if producer is None or partition not in self._barriers.get(producer, {}):
            return None
        return ExpectedMarker(producer.producer_id, producer.epoch, self._barriers[producer][partition])

    async def begin_transaction(self, producer: Producer, positions: Iterable[WriterPosition]) -> None:
        """Begins a transaction that will store *positions*, once the markers of the last one are written.

        Raises ClusterError.
        """
        await self.add_partitions(producer, await self._position_records(positions))

    async def leader_epochs(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Asks the leaders of *partitions* for their epochs. Raises ClusterError."""
        listed = await admin.list_offsets(self._cluster, partitions, LATEST, timeout_s=LEADER_TIMEOUT_S)
        for partition, result in listed.items():
            if result.error:
                alias = self._cluster.alias
                raise partition_error(result.error, cluster=alias, request="ListOffsets", partition=partition)
        return {partition: result.leader_epoch for partition, result in listed.items()}

    async def store_positions(self, producer: Producer, positions: Iterable[WriterPosition]) -> None:
        """Writes positions in the open transaction. Raises ClusterError."""
        records = await self._position_records(positions)
        await self.add_partitions(producer, records)
        await self._append_all(producer, records)

    async def _records(self, request: Transaction) -> dict[TopicPartition, list[Record]]:
        """Returns the records of claim and positions by the partition that they are written to."""
        records = await self._position_records(request.positions)
        if request.claim is not None:
            records[self._topics.claims] = [self._topics.claim_record(request.claim)]
        return records

    async def _position_records(
        self, positions: Iterable[WriterPosition]
    ) -> dict[TopicPartition, list[Record]]:
        records: dict[TopicPartition, list[Record]] = {}
        topics = self._topics
        for position in positions:
            count = len(await partition_numbers(self._cluster, topics.offsets))
            home, record = topics.position_record(position, partitions=count)
            records.setdefault(home, []).append(record)
        return records

    async def _internal_partitions(self) -> list[TopicPartition]:
        offsets = self._topics.offsets
        numbers = await partition_numbers(self._cluster, offsets, is_fresh=True)
        return [self._topics.claims, *(TopicPartition(offsets, number) for number in numbers)]

    async def _require_internal_topics(self) -> None:
        """Raises InternalTopicUnavailableError if the topic of claims or of positions was deleted, or has no leader."""
        topics = self._topics.claims.topic, self._topics.offsets
        await self._cluster.refresh(topics)
        for topic in topics:
            known = self._cluster.metadata.topics.get(topic)
            if known is None or known.error == UNKNOWN_TOPIC_OR_PARTITION:
                raise InternalTopicUnavailableError(cluster=self._cluster.alias, topic=topic)
            for number in known.partitions:
                if self._cluster.leader(topic, number) is None:
                    raise InternalTopicUnavailableError(
                        cluster=self._cluster.alias, topic=topic, leaderless=number
                    )

    async def add_partitions(self, producer: Producer, partitions: Iterable[TopicPartition]) -> None:
        """Begins the transaction with partitions of the target, or adds them to it. Raises ClusterError."""
        codes = await self.try_add_partitions(producer, partitions)
        admin.raise_for_refused(self._cluster, producer.transactional_id, codes)

    async def try_add_partitions(
        self, producer: Producer, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """As `add_partitions`, but returns the error code of each partition. Raises UnreachableError."""
        self._require_responses(producer)
        with self._noting_lost_responses(producer):
            return await admin.try_add_partitions_to_txn(
                self._cluster, *producer, partitions, timeout_s=COORDINATOR_TIMEOUT_S
            )

    async def _append_all(
        self, producer: Producer, records: Mapping[TopicPartition, Sequence[Record]]
    ) -> None:
        appends = (self.append(producer, home, of_partition) for home, of_partition in records.items())
        for outcome in await asyncio.gather(*appends, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def append(self, producer: Producer, home: TopicPartition, records: Sequence[Record]) -> None:
        """Appends *records* to a partition of the open transaction. Raises ClusterError."""
        key = producer.producer_id, producer.epoch, home
        for data, count in encode_split(
            records,
            max_bytes=BATCH_BYTES_MAX,
            codec=0,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=self._sequences[key],
            transactional=True,
        ):
            base_offset = await self._append_batch(producer, home, data)
            # Not after a refusal, which has used no numbers. Otherwise nothing follows in this epoch.
            self._sequences[key] = (self._sequences[key] + count) & SEQUENCE_MASK
            if home.topic == self._topics.offsets:
                self._open_positions.setdefault(producer, {}).setdefault(home, base_offset or 0)

    async def _append_batch(self, producer: Producer, home: TopicPartition, data: bytearray) -> int | None:
        """Appends one batch and returns its offset; a repetition has the same sequences, so the leader keeps it once."""
        codes: list[int] = []
        with self._noting_unknown_outcomes(producer):
            while True:
                responses = await admin.append(
                    self._cluster,
                    {home: data},
                    timeout_ms=PRODUCE_TIMEOUT_MS,
                    transactional_id=producer.transactional_id,
                )
                code, base_offset = responses[home]
                if code == NONE:
                    return base_offset
                if code == NETWORK_EXCEPTION:
                    raise self._no_response(producer)
                codes.append(code)
                if len(codes) == PRODUCE_ATTEMPTS_MAX or not is_retriable(code):
                    if not OUTCOME_UNKNOWN.isdisjoint(codes):
                        self._without_response.add(producer)
                    raise error_for(code, cluster=self._cluster.alias, request="Produce", subject=str(home))
                await asyncio.sleep(backoff_s(len(codes), lowest_s=RETRY_MIN_S, highest_s=RETRY_MAX_S))

    async def end(self, producer: Producer, *, commit: bool) -> None:
        """Commits or aborts; the markers may still be on their way then.

        Raises ClusterError; after UnreachableError the producer needs a new epoch, and the log shows what was decided.
        """
        self._require_responses(producer)
        if not commit:
            self._open_positions.pop(producer, None)
        with self._noting_lost_responses(producer):
            await admin.end_txn(self._cluster, *producer, committed=commit, timeout_s=COORDINATOR_TIMEOUT_S)

    def _require_responses(self, producer: Producer) -> None:
        if producer in self._without_response:
            raise self._no_response(producer)

    def _noting_lost_responses(self, producer: Producer) -> contextlib.AbstractContextManager[None]:
        """As `_noting_unknown_outcomes`, for requests to the coordinator.

        The lock needs no new epoch: the processes of a group share it, so each of its transactions may be ended by another
        EndTxn.
        """
        is_lock = producer.transactional_id == self._lock_id
        return contextlib.nullcontext() if is_lock else self._noting_unknown_outcomes(producer)

    @contextlib.contextmanager
    def _noting_unknown_outcomes(self, producer: Producer) -> Iterator[None]:
        """Notes that a request of *producer* may be executed later, or was, unless the response is a refusal."""
        try:
            yield
        except BaseException as error:  # also when it is cancelled
            is_refusal = isinstance(error, MirrorFlowError) and not isinstance(error, UnreachableError)
            if not is_refusal or (isinstance(error, BrokerError) and error.code in OUTCOME_UNKNOWN):
                self._without_response.add(producer)
            raise

    async def wait_for_markers(self, producer: Producer) -> None:
        """Waits until the positions that *producer* has just committed are decided; raises ClusterError if they stay open.

        A marker is lost if its partition has no leader when it is due (KAFKA-20734). The next transaction of *producer*
        over that partition would decide them, and it may be aborted.
        """
        now = asyncio.get_running_loop().time
        until_s = now() + MARKER_WAIT_MS / 1000
        left, asked = self._open_positions.pop(producer, {}), 0
        while left:
            asked += 1
            try:
                left = await self._undecided(producer, left)
            except (BrokerError, UnreachableError) as error:
                if not error.retriable:  # otherwise an election is under way
                    raise
            if left and now() >= until_s:
                partitions = ", ".join(map(str, sorted(left)))
                raise MissingMarkerError(cluster=self._cluster.alias, partitions=partitions)
            if left:
                await asyncio.sleep(backoff_s(asked, lowest_s=FIRST_MARKER_POLL_S, highest_s=MARKER_POLL_S))

    async def _undecided(
        self, producer: Producer, positions: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Returns those of *positions* that the producer's transaction still holds open. Raises ClusterError."""
        stables = await admin.offsets_at(self._cluster, positions, LATEST, read_committed=True)
        # Another transaction may hold the last stable offset: then only the log shows whether ours has ended.
        held = {home: first for home, first in positions.items() if stables[home] <= first}
        ends = await admin.offsets_at(self._cluster, held, LATEST) if held else {}
        logs = await asyncio.gather(
            *(read_batches(self._cluster, home, first, ends[home]) for home, first in held.items())
        )
        return {
            home: first
            for (home, first), batches in zip(held.items(), logs, strict=True)
            if not ExpectedMarker(producer.producer_id, producer.epoch, first).is_in(batches)
        }

    def _no_response(self, producer: Producer) -> UnreachableError:
        """Returns the error of a producer that needs a new epoch: a late request could join its next transaction."""
        return UnreachableError(
            cluster=self._cluster.alias,
            addresses=producer.transactional_id,
            problem="a request of its transaction was not answered",
        )


def short_timeout_warning(alias: str, timeout_ms: int) -> str | None:
    """Returns what a user should know if transactions on cluster *alias* may last for *timeout_ms* only; None if that is enough."""
    if timeout_ms >= SLOW_TRANSACTION_MS:
        return None
    return (
        f"Transactions on {alias} end after {timeout_ms} ms: slow ones are aborted, and their records are copied again. Set "
        f"transaction.max.timeout.ms of its brokers, and transaction.timeout.ms, to at least {SLOW_TRANSACTION_MS}."
    )


def refusal(error: ClusterError) -> Refused:
    """Returns the refusal with the code of a broker's error; NO_RESPONSE for any other error."""
    return Refused(error.code if isinstance(error, BrokerError) else NO_RESPONSE)


async def partition_numbers(cluster: Cluster, topic: str, *, is_fresh: bool = False) -> Sequence[int]:
    """Returns the partitions of *topic*; with *is_fresh* as a broker knows them now. Raises ClusterError if it does not exist."""
    known = cluster.metadata.topics.get(topic)
    if is_fresh or known is None or known.error or not known.partitions:
        await cluster.refresh([topic])
        known = cluster.metadata.topics[topic]
        raise_for(known.error, cluster=cluster.alias, request="Metadata", subject=topic)
    return sorted(known.partitions)
