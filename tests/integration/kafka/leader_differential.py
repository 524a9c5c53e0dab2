"""Sends the same requests to a real broker and to the model of one (`tests.model`), and returns both responses.

Requests are sequential, so that no response depends on time. Append times and producer ids do depend on it. They are
taken from the real broker, or only their kind is compared.
"""

import asyncio
import struct
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from kafka.protocol.producer import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.batch import Batch, split
from mirrorflow_core.wire.error_codes import CONCURRENT_TRANSACTIONS
from mirrorflow_core.wire.produce import API_KEY, VERSION, produce_request
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import LATEST
from mirrorflow_kafka.client.cluster import Cluster
from tests.model.coordinator import PREPARING, Coordinator, Marker
from tests.model.errors import (
    INVALID_PRODUCER_EPOCH,
    NONE,
    NOT_ENOUGH_REPLICAS,
    PRODUCER_FENCED,
    RefusedError,
)
from tests.model.leader import PartitionLeader
from tests.model.producer_state import Rules

COORDINATOR = 1  # the key type of FindCoordinator
OLD_VERSION = 1
TIMEOUT_MS = 600_000
SETTLED_S, STUCK_S = 20.0, 1.0
RELOADED_S = 5.0  # a restarted coordinator writes pending markers within a second
MARKERS_APART_MS = 2_000  # the time between the marker of the model and that of a broker
NOW = -2
_PRODUCE_RESPONSE = struct.Struct(">ihqqqi")
# Maps the coordinator's error to the error that the producer receives (ReplicaManager.handleProduceAppend).
_TRANSLATED = {PRODUCER_FENCED: INVALID_PRODUCER_EPOCH, CONCURRENT_TRANSACTIONS: NOT_ENOUGH_REPLICAS}


class ProduceResult(NamedTuple):
    """The compared fields of a produce response. `log_append_time` is `NOW` if it is the time of this append."""

    error: int
    base_offset: int
    log_append_time: int


class KnownProducer(NamedTuple):
    """A leader's state of a producer (DescribeProducers)."""

    epoch: int
    last_sequence: int
    txn_first_offset: int


class ModelCluster:
    """The leaders of topics with one partition each, and the transaction coordinator."""

    def __init__(self, rules: Rules) -> None:
        self.coordinator = Coordinator(self)
        self.leaders: dict[TopicPartition, PartitionLeader] = {}
        self.fixed_ms: int | None = None
        self._rules = rules
        self._markers: deque[Callable[[], None]] = deque()

    @property
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000 if self.fixed_ms is None else self.fixed_ms

    def create_topic(self, name: str, configs: dict[str, str]) -> None:
        self.leaders[TopicPartition(name, 0)] = PartitionLeader(self._rules, configs)

    def produce(self, partition: TopicPartition, data: bytes, transactional_id: str | None) -> ProduceResult:
        """Returns the result of one batch. For the first batch of a transaction, the leader queries the coordinator."""
        batch = split(bytearray(data))[0]
        leader, guard = self.leaders[partition], None
        try:
            if batch.is_transactional and self._rules.verifies:
                guard = leader.start_verification(batch, self.wall_ms)
            if guard is not None:
                self._verify(partition, batch, transactional_id)
            appended = leader.append(batch, self.wall_ms, guard)
        except RefusedError as error:
            return ProduceResult(error.code, -1, -1)
        return ProduceResult(NONE, appended.base_offset, appended.log_append_time)

    def _verify(self, partition: TopicPartition, batch: Batch, transactional_id: str | None) -> None:
        assert transactional_id is not None
        code = self.coordinator.verify(transactional_id, batch.producer_id, batch.producer_epoch, partition)
        if code:
            raise RefusedError(_TRANSLATED.get(code, code))

    def write_marker(self, partition: TopicPartition, marker: Marker, done: Callable[[int], None]) -> None:
        """Queues a marker (see `coordinator.Markers`) that `write_markers` writes."""
        self._markers.append(partial(self._write_marker, self.leaders[partition], marker, done))

    def write_markers(self) -> None:
        """Writes the markers of all ended transactions."""
        while self._markers:
            self._markers.popleft()()

    def _write_marker(self, leader: PartitionLeader, marker: Marker, done: Callable[[int], None]) -> None:
        try:
            leader.append_marker(
                producer_id=marker.producer_id,
                producer_epoch=marker.epoch,
                kind=marker.kind,
                coordinator_epoch=marker.coordinator_epoch,
                now_ms=self.wall_ms,
            )
        except RefusedError as error:
            done(error.code)
        else:
            done(NONE)


class Pair:
    """A real cluster of one broker, and a simulated one with the same topics."""

    def __init__(self, real: Cluster, rules: Rules) -> None:
        self.real = real
        self.model = ModelCluster(rules)
        self.tolerance_ms = 0  # allowed difference of times that both take from their own clocks

    # -- produce

    async def produce(
        self, partition: TopicPartition, data: bytes, transactional_id: str | None
    ) -> tuple[ProduceResult, ProduceResult]:
        """Returns the results of one batch from the real broker and from the model."""
        node_id = self.real.leader(*partition)
        assert node_id is not None
        parts = produce_request(
            {partition.topic: [(partition.partition, data)]},
            timeout_ms=10_000,
            transactional_id=transactional_id,
        )
        connection = await self.real.connection(node_id)
        before_ms = self.model.wall_ms
        body = bytes(await connection.send(API_KEY, VERSION, parts, flexible=False))
        real = _produce_result(partition, body)
        appended_ms = real.log_append_time
        # The model appends in the same millisecond, because a repeated batch returns this time again.
        self.model.fixed_ms = appended_ms if before_ms <= appended_ms <= self.model.wall_ms else None
        model = self.model.produce(partition, data, transactional_id)
        self.model.fixed_ms = None
        after_ms = self.model.wall_ms
        if 0 < abs(appended_ms - model.log_append_time) <= self.tolerance_ms:
            model = model._replace(log_append_time=appended_ms)
        return _with_now(real, before_ms, after_ms), _with_now(model, before_ms, after_ms)

    # -- transactions

    async def init_producer_id(self, transactional_id: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns error, producer id and epoch from the real broker and from the model.

        The real broker assigns ids in its own order.
        """
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=TIMEOUT_MS,
            producer_id=-1,
            producer_epoch=-1,
            max_version=OLD_VERSION,
        )
        response = await self._call(transactional_id, request)
        if self.model.coordinator.metadata_of(transactional_id) is None:
            self.model.coordinator._next_producer_id = response.producer_id
        while True:
            result = self.model.coordinator.init_producer_id(transactional_id, TIMEOUT_MS, self.model.wall_ms)
            if result[0] != CONCURRENT_TRANSACTIONS:
                return (response.error_code, response.producer_id, response.producer_epoch), result
            self.model.write_markers()

    async def add_partition(
        self, transactional_id: str, producer: tuple[int, int], partition: TopicPartition
    ) -> tuple[int, int]:
        """Returns both error codes."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(
                    name=partition.topic, partitions=[partition.partition]
                )
            ],
            max_version=OLD_VERSION,
        )
        response = await self._call(transactional_id, request, codes_of=_partition_codes)
        model = self.model.coordinator.add_partitions(
            transactional_id, *producer, [partition], self.model.wall_ms
        )
        return next(iter(_partition_codes(response))), model

    async def end(self, transactional_id: str, producer: tuple[int, int], *, commit: bool) -> tuple[int, int]:
        """Ends a transaction, and returns both error codes when the markers of both are written.

        A leader refuses a marker if the partition has a batch of a later epoch of the same producer. The marker is then
        dropped, and the transactional id cannot be used again.
        """
        request = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=commit,
            max_version=OLD_VERSION,
        )
        real = (await self._call(transactional_id, request)).error_code
        model = self.model.coordinator.end(
            transactional_id, *producer, commit=commit, now_ms=self.model.wall_ms
        )
        self.model.write_markers()
        await self._settled(transactional_id, request)
        return real, model

    async def _settled(self, transactional_id: str, request: Any) -> None:
        """Waits until the markers of the last transaction are written.

        If the model expects that they never are, asserts that the broker never writes them either.
        """
        key = (COORDINATOR, transactional_id)
        connection = await self.real.connection(await self.real.coordinator(key))
        is_stuck = self.is_stuck(transactional_id)
        until_s = time.monotonic() + (STUCK_S if is_stuck else SETTLED_S)
        while (code := (await connection.call(request)).error_code) == CONCURRENT_TRANSACTIONS:
            if time.monotonic() > until_s:
                break
            await asyncio.sleep(0.002)
        assert (code == CONCURRENT_TRANSACTIONS) is is_stuck, code

    def is_stuck(self, transactional_id: str) -> bool:
        """Returns whether the last transaction never completes, according to the model."""
        transaction = self.model.coordinator.metadata_of(transactional_id)
        return transaction is not None and transaction.state in PREPARING

    async def _call(self, transactional_id: str, request: Any, **options: Any) -> Any:
        return await self.real.call(request, coordinator=(COORDINATOR, transactional_id), **options)

    # -- the state of both

    async def producers(
        self, partition: TopicPartition
    ) -> tuple[dict[int, KnownProducer], dict[int, KnownProducer]]:
        """Returns both leaders' producer states."""
        real = (await admin.describe_producers(self.real, [partition]))[partition]
        assert not real.error
        described = {
            producer.producer_id: KnownProducer(
                producer.epoch, producer.last_sequence, producer.current_txn_start_offset
            )
            for producer in real.producers
        }
        model = {
            producer.producer_id: KnownProducer(
                producer.epoch,
                producer.last_sequence,
                -1 if producer.txn_first_offset is None else producer.txn_first_offset,
            )
            for producer in self.model.leaders[partition].producers.producers.values()
        }
        return described, model

    async def ends(self, partition: TopicPartition) -> tuple[tuple[int, int], tuple[int, int]]:
        """Returns high watermark and last stable offset of both."""
        high = (await admin.list_offsets(self.real, [partition], LATEST))[partition].offset
        stable = (await admin.list_offsets(self.real, [partition], LATEST, read_committed=True))[
            partition
        ].offset
        leader = self.model.leaders[partition]
        return (high, stable), (leader.log.high_watermark, leader.last_stable_offset)

    async def restarted(self) -> None:
        """Restarts the model after the real broker was killed and started, with only the state of its log.

        Afterwards, a repeated batch may return the time of a marker.
        """
        self.tolerance_ms = MARKERS_APART_MS
        while True:
            await self.real.refresh()
            if self.real.metadata.topics and all(
                partition_metadata.leader >= 0
                for topic in self.real.metadata.topics.values()
                for partition_metadata in topic.partitions.values()
            ):
                break
            await asyncio.sleep(0.1)
        for leader in self.model.leaders.values():
            leader.elect(leader.log.end, is_restarted=True)
        if await self._writes_markers_again():
            self.model.coordinator.fail_over()
            self.model.write_markers()
        # The real broker does the same as soon as it has read its own log.
        until_s = time.monotonic() + SETTLED_S
        for partition in self.model.leaders:
            while (ends := await self.ends(partition))[0] != ends[1]:
                assert time.monotonic() < until_s, (partition.topic, ends)
                await asyncio.sleep(0.05)

    async def _writes_markers_again(self) -> bool:
        """Returns whether markers of an uncompleted transaction are written again.

        A coordinator that does not know the leader drops them.
        """
        until_s = time.monotonic() + RELOADED_S
        while time.monotonic() < until_s:
            for partition in self.model.leaders:
                real, model = await self.ends(partition)
                if real[0] > model[0]:
                    return True
            await asyncio.sleep(0.1)
        return False


def _partition_codes(response: Any) -> set[int]:
    return {
        partition.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for partition in topic.results_by_partition
    }


def _produce_result(partition: TopicPartition, body: bytes) -> ProduceResult:
    """Returns the only result in a produce response."""
    start = 4 + 2 + len(partition.topic.encode()) + 4
    number, error, base_offset, append_time, *_ = _PRODUCE_RESPONSE.unpack_from(body, start)
    assert number == partition.partition
    return ProduceResult(error, base_offset, append_time)


def _with_now(result: ProduceResult, before_ms: int, after_ms: int) -> ProduceResult:
    is_now = before_ms - 2 <= result.log_append_time <= after_ms + 2
    return result._replace(log_append_time=NOW) if is_now else result
