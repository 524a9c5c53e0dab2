"""The same requests to a real broker and to the model of one (`tests.model`), and what both answer.

Requests go one after the other, so no answer depends on time. What does (the time of an append, the ids of producers) is
taken from the real broker, or compared only in kind.
"""

import asyncio
import itertools
import struct
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

from kafka.protocol.producer import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.produce import API_KEY, VERSION, produce_request
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.target_probe import LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.error_codes import CONCURRENT_TRANSACTIONS
from tests.model.broker import SimulatedCluster
from tests.model.coordinator import PREPARING
from tests.model.producer_state import Rules
from tests.model.wire import Produced

COORDINATOR = 1  # FindCoordinator's key type
OLD_VERSION = 1
TIMEOUT_MS = 600_000
SETTLED_S, STUCK_S = 20.0, 1.0
RELOADED_S = 5.0  # a coordinator that was started anew writes what it has to write within a second
MARKERS_APART_MS = 2_000  # the model and a broker write a marker
_ANSWER = struct.Struct(">ihqqqi")


class Answered(NamedTuple):
    """What is compared of a produce answer; `log_append_time` "now" where it is of this append."""

    error: int
    base_offset: int
    log_append_time: int | str


class Known(NamedTuple):
    """What a leader remembers of a producer (DescribeProducers)."""

    epoch: int
    last_sequence: int
    txn_first_offset: int


class Immediate:
    """A world in which what is to happen soon happens when it is asked for."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.fixed_ms: int | None = None

    @property
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000 if self.fixed_ms is None else self.fixed_ms

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._waiting.append((delay_s, next(self._order), action))

    def run(self) -> None:
        """Do all that is due within a second."""
        while soon := sorted(one for one in self._waiting if one[0] < 1.0):
            self._waiting.remove(soon[0])
            soon[0][2]()


class Pair:
    """A real cluster of one broker, and a simulated one with the same topics."""

    def __init__(self, real: Cluster, rules: Rules) -> None:
        self.real = real
        self.world = Immediate()
        self.model = SimulatedCluster("model", self.world, rules=rules)
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
        before_ms = self.world.wall_ms
        body = bytes(await connection.send(API_KEY, VERSION, parts, flexible=False))
        appended_ms = _answer(at, body).log_append_time
        # The model appends in the same millisecond: it is asked for again when the batch is repeated.
        self.world.fixed_ms = appended_ms if before_ms <= appended_ms <= self.world.wall_ms else None
        answers: list[bytes] = []
        self.model.handle(1, "Produce", VERSION, b"".join(bytes(part) for part in parts), answers.append)
        self.world.run()
        self.world.fixed_ms = None
        after_ms = self.world.wall_ms
        real, model = (_answer(at, one) for one in (body, answers[0]))
        if 0 < abs(real.log_append_time - model.log_append_time) <= self.tolerance_ms:
            model = model._replace(log_append_time=real.log_append_time)
        return tuple(_timeless(one, before_ms, after_ms) for one in (real, model))  # type: ignore[return-value]

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
            found = self.model.coordinator.init_producer_id(transactional_id, TIMEOUT_MS, self.world.wall_ms)
            if found[0] != CONCURRENT_TRANSACTIONS:
                return (answer.error_code, answer.producer_id, answer.producer_epoch), found
            self.world.run()

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
        model = self.model.coordinator.add_partitions(transactional_id, *producer, [at], self.world.wall_ms)
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
            transactional_id, *producer, commit=commit, now_ms=self.world.wall_ms
        )
        self.world.run()
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
        request = SimpleNamespace(topics=[SimpleNamespace(name=at.topic, partition_indexes=[at.partition])])
        answer = self.model.answer(1, "DescribeProducers", 0, request).topics[0].partitions[0]
        model = {
            one.producer_id: Known(one.producer_epoch, one.last_sequence, one.current_txn_start_offset)
            for one in answer.active_producers
        }
        return found, model

    async def ends(self, at: TopicPartition) -> tuple[tuple[int, int], tuple[int, int]]:
        """High watermark and last stable offset of both."""
        high = (await admin.list_offsets(self.real, [at], LATEST))[at].offset
        stable = (await admin.list_offsets(self.real, [at], LATEST, read_committed=True))[at].offset
        found = self.model.partition(at)
        assert found is not None
        return (high, stable), (found.leader.log.high_watermark, found.leader.last_stable_offset)

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
        for topic in self.model.topics.values():
            for one in topic.partitions:
                one.leader.elect(one.leader.log.end, is_restarted=True)
        if await self._writes_markers_again():
            self.model.coordinator.fail_over()
            self.world.run()
        # The real one does so, too, as soon as it has read its own log.
        until_s = time.monotonic() + SETTLED_S
        for topic_name in self.model.topics:
            while (ends := await self.ends(TopicPartition(topic_name, 0)))[0] != ends[1]:
                assert time.monotonic() < until_s, (topic_name, ends)
                await asyncio.sleep(0.05)

    async def _writes_markers_again(self) -> bool:
        """Whether the markers of a transaction that is never over come again: a coordinator that knows no leader yet drops them."""
        until_s = time.monotonic() + RELOADED_S
        while time.monotonic() < until_s:
            for topic in self.model.topics:
                real, model = await self.ends(TopicPartition(topic, 0))
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


def _answer(at: TopicPartition, body: bytes) -> Produced:
    """The only answer in a produce response."""
    start = 4 + 2 + len(at.topic.encode()) + 4
    partition, error, base_offset, append_time, log_start, _ = _ANSWER.unpack_from(body, start)
    assert partition == at.partition
    return Produced(error, base_offset, append_time, log_start)


def _timeless(one: Produced, before_ms: int, after_ms: int) -> Answered:
    is_now = before_ms - 2 <= one.log_append_time <= after_ms + 2
    return Answered(one.error, one.base_offset, "now" if is_now else one.log_append_time)
