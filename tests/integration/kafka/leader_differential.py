"""The same requests to a real broker and to the model of one (`tests.model`), and what both answer.

Requests go one after the other, so no answer depends on time. What does (the time of an append, the ids of producers) is
taken from the real broker, or compared only in kind.
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

COORDINATOR = 1  # FindCoordinator's key type
OLD_VERSION = 1
TIMEOUT_MS = 600_000
SETTLED_S, STUCK_S = 20.0, 1.0
RELOADED_S = 5.0  # a coordinator that was started anew writes what it has to write within a second
MARKERS_APART_MS = 2_000  # the model and a broker write a marker
NOW = -2
_ANSWER = struct.Struct(">ihqqqi")
# The error that the producer receives for the coordinator's error (ReplicaManager.handleProduceAppend).
_TRANSLATED = {PRODUCER_FENCED: INVALID_PRODUCER_EPOCH, CONCURRENT_TRANSACTIONS: NOT_ENOUGH_REPLICAS}


class Answered(NamedTuple):
    """What is compared of a produce answer; `log_append_time` is `NOW` where it is of this append."""

    error: int
    base_offset: int
    log_append_time: int


class Known(NamedTuple):
    """What a leader remembers of a producer (DescribeProducers)."""

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

    def produce(self, at: TopicPartition, data: bytes, transactional_id: str | None) -> Answered:
        """The answer to one batch. A leader asks the coordinator about the first one of a transaction."""
        batch = split(bytearray(data))[0]
        leader, guard = self.leaders[at], None
        try:
            if batch.is_transactional and self._rules.verifies:
                guard = leader.start_verification(batch, self.wall_ms)
            if guard is not None:
                self._verify(at, batch, transactional_id)
            found = leader.append(batch, self.wall_ms, guard)
        except RefusedError as error:
            return Answered(error.code, -1, -1)
        return Answered(NONE, found.base_offset, found.log_append_time)

    def _verify(self, at: TopicPartition, batch: Batch, transactional_id: str | None) -> None:
        assert transactional_id is not None
        code = self.coordinator.verify(transactional_id, batch.producer_id, batch.producer_epoch, at)
        if code:
            raise RefusedError(_TRANSLATED.get(code, code))

    def write_marker(self, partition: TopicPartition, marker: Marker, done: Callable[[int], None]) -> None:
        """See `coordinator.Markers`; it is written by `write_markers`."""
        self._markers.append(partial(self._write_marker, self.leaders[partition], marker, done))

    def write_markers(self) -> None:
        """Write the markers of all transactions that were ended."""
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
        self.tolerance_ms = 0  # of times that both have taken from clocks of their own

    # -- produce

    async def produce(
        self, at: TopicPartition, data: bytes, transactional_id: str | None
    ) -> tuple[Answered, Answered]:
        """Both answers to one batch: the real broker's, the model's."""
        node_id = self.real.leader(*at)
        assert node_id is not None
        parts = produce_request(
            {at.topic: [(at.partition, data)]}, timeout_ms=10_000, transactional_id=transactional_id
        )
        connection = await self.real.connection(node_id)
        before_ms = self.model.wall_ms
        body = bytes(await connection.send(API_KEY, VERSION, parts, flexible=False))
        real = _answer(at, body)
        appended_ms = real.log_append_time
        # The model appends in the same millisecond: it is asked for again when the batch is repeated.
        self.model.fixed_ms = appended_ms if before_ms <= appended_ms <= self.model.wall_ms else None
        model = self.model.produce(at, data, transactional_id)
        self.model.fixed_ms = None
        after_ms = self.model.wall_ms
        if 0 < abs(appended_ms - model.log_append_time) <= self.tolerance_ms:
            model = model._replace(log_append_time=appended_ms)
        return _timeless(real, before_ms, after_ms), _timeless(model, before_ms, after_ms)

    # -- transactions

    async def init_producer_id(self, transactional_id: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Both answers: error, producer id, epoch. The real one gives its ids in its own order."""
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=TIMEOUT_MS,
            producer_id=-1,
            producer_epoch=-1,
            max_version=OLD_VERSION,
        )
        answer = await self._call(transactional_id, request)
        if self.model.coordinator.known(transactional_id) is None:
            self.model.coordinator._next_producer_id = answer.producer_id
        while True:
            found = self.model.coordinator.init_producer_id(transactional_id, TIMEOUT_MS, self.model.wall_ms)
            if found[0] != CONCURRENT_TRANSACTIONS:
                return (answer.error_code, answer.producer_id, answer.producer_epoch), found
            self.model.write_markers()

    async def add_partition(
        self, transactional_id: str, producer: tuple[int, int], at: TopicPartition
    ) -> tuple[int, int]:
        """Both error codes."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=at.topic, partitions=[at.partition])
            ],
            max_version=OLD_VERSION,
        )
        answer = await self._call(transactional_id, request, codes_of=_partition_codes)
        model = self.model.coordinator.add_partitions(transactional_id, *producer, [at], self.model.wall_ms)
        return next(iter(_partition_codes(answer))), model

    async def end(self, transactional_id: str, producer: tuple[int, int], *, commit: bool) -> tuple[int, int]:
        """Both error codes; returns when the markers of both are written.

        A marker that a leader refuses, because the partition has a batch of a later epoch of the same producer, is given
        up: then the transactional id is of no use any more.
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
        """Wait until the markers of the last transaction are written, or see that they never will be, as the model says."""
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
        """Whether the last transaction will never be over, as the model has it."""
        found = self.model.coordinator.known(transactional_id)
        return found is not None and found.state in PREPARING

    async def _call(self, transactional_id: str, request: Any, **how: Any) -> Any:
        return await self.real.call(request, coordinator=(COORDINATOR, transactional_id), **how)

    # -- what both have

    async def producers(self, at: TopicPartition) -> tuple[dict[int, Known], dict[int, Known]]:
        """What both leaders remember."""
        real = (await admin.describe_producers(self.real, [at]))[at]
        assert not real.error
        found = {
            one.producer_id: Known(one.epoch, one.last_sequence, one.current_txn_start_offset)
            for one in real.producers
        }
        model = {
            one.producer_id: Known(
                one.epoch, one.last_sequence, -1 if one.txn_first_offset is None else one.txn_first_offset
            )
            for one in self.model.leaders[at].producers.producers.values()
        }
        return found, model

    async def ends(self, at: TopicPartition) -> tuple[tuple[int, int], tuple[int, int]]:
        """High watermark and last stable offset of both."""
        high = (await admin.list_offsets(self.real, [at], LATEST))[at].offset
        stable = (await admin.list_offsets(self.real, [at], LATEST, read_committed=True))[at].offset
        leader = self.model.leaders[at]
        return (high, stable), (leader.log.high_watermark, leader.last_stable_offset)

    async def restarted(self) -> None:
        """The real broker was killed and started; the model's log leads on, with what a log says of producers.

        From now on a repeat may be answered with the time of a marker.
        """
        self.tolerance_ms = MARKERS_APART_MS
        while True:
            await self.real.refresh()
            if self.real.metadata.topics and all(
                one.leader >= 0
                for topic in self.real.metadata.topics.values()
                for one in topic.partitions.values()
            ):
                break
            await asyncio.sleep(0.1)
        for leader in self.model.leaders.values():
            leader.elect(leader.log.end, is_restarted=True)
        if await self._writes_markers_again():
            self.model.coordinator.fail_over()
            self.model.write_markers()
        # The real one does so, too, as soon as it has read its own log.
        until_s = time.monotonic() + SETTLED_S
        for at in self.model.leaders:
            while (ends := await self.ends(at))[0] != ends[1]:
                assert time.monotonic() < until_s, (at.topic, ends)
                await asyncio.sleep(0.05)

    async def _writes_markers_again(self) -> bool:
        """Whether the markers of a transaction that is never over come again: a coordinator that knows no leader yet drops them."""
        until_s = time.monotonic() + RELOADED_S
        while time.monotonic() < until_s:
            for at in self.model.leaders:
                real, model = await self.ends(at)
                if real[0] > model[0]:
                    return True
            await asyncio.sleep(0.1)
        return False


def _partition_codes(answer: Any) -> set[int]:
    return {
        one.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for one in topic.results_by_partition
    }


def _answer(at: TopicPartition, body: bytes) -> Answered:
    """The only answer in a produce response."""
    start = 4 + 2 + len(at.topic.encode()) + 4
    partition, error, base_offset, append_time, *_ = _ANSWER.unpack_from(body, start)
    assert partition == at.partition
    return Answered(error, base_offset, append_time)


def _timeless(one: Answered, before_ms: int, after_ms: int) -> Answered:
    is_now = before_ms - 2 <= one.log_append_time <= after_ms + 2
    return one._replace(log_append_time=NOW) if is_now else one
