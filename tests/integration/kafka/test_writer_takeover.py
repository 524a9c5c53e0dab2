"""The ownership protocol of `mirrorflow_core.writer` against real brokers: processes take a flow from each other.

Each process has connections of its own. What it copies are the batches of the source as they are; the verdict is a
Java consumer's, record by record.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pytest

from mirrorflow_core.partitions import UNKNOWN, OffsetPair, TopicPartition
from mirrorflow_core.settings import ClientSettings, OffsetStorageSettings, OffsetStore
from mirrorflow_core.wire import produce
from mirrorflow_core.wire.batch import Batch, rewrite, split
from mirrorflow_core.wire.error_codes import INVALID_PRODUCER_EPOCH
from mirrorflow_core.wire.records import Record, decode, encode
from mirrorflow_core.writer.broker_requests import (
    Done,
    InitProducerId,
    LogEnd,
    ReadClaims,
    ReadEnd,
    ReadPositions,
    Refused,
    Request,
    Steps,
    Transaction,
    send,
)
from mirrorflow_core.writer.claim import Claim, claims_topic
from mirrorflow_core.writer.flow_lock import LAST_EPOCH, Fenced, holds_lock
from mirrorflow_core.writer.flow_plan import FlowPlan, SessionStart, WritePoint, point_after, position_at
from mirrorflow_core.writer.ownership import Ownership, recover_task, renew_claim, take_flow, wait_for_turn
from mirrorflow_core.writer.position import WriteMode, WriterPosition
from mirrorflow_core.writer.stream import Span, Stream, sequence_of
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import batches_between, read_once
from mirrorflow_kafka.admin.log_requests import LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.compacted_topic import CompactedTopic
from mirrorflow_kafka.writer.flow_topics import FlowTopics, open_claims_topic
from mirrorflow_kafka.writer.protocol_runner import ProtocolRunner
from tests.harness.kafka.tools import digest
from tests.integration.kafka.flows import Flow, now_ms, numbered, write_batches

pytestmark = pytest.mark.more

PARTITIONS = 3
BATCH_RECORDS = 5
DEPTH = 4
FETCH_BYTES = 16_384
POLL_S = 0.01
ENDLESS = 1 << 60
FOREIGN_RECORDS = -2  # another writer's markers or records lie between our batches
T = TypeVar("T")
Requests = tuple[Request, ...]


@dataclass
class Process:
    """A process that wants the flow; once it owns it, it copies batch by batch."""

    name: str
    flow: Flow
    topic: str
    source: Cluster
    target: Cluster
    topics: FlowTopics
    runner: ProtocolRunner
    tasks: int = 2
    owned: Ownership | None = None
    starts: list[SessionStart] = field(default_factory=list)
    points: dict[TopicPartition, WritePoint] = field(default_factory=dict)  # where the streams begin
    streams: dict[TopicPartition, Stream] = field(default_factory=dict)

    @property
    def plan(self) -> FlowPlan:
        partitions = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
        return FlowPlan(
            claim=Claim(
                flow=self.flow.alias,
                process=self.name,
                source_alias=self.flow.alias,
                tasks=self.tasks,
                lock_epoch=UNKNOWN,
                time_ms=0,
            ),
            assignment=tuple(tuple(partitions[task :: self.tasks]) for task in range(self.tasks)),
        )

    async def take(self) -> Ownership:
        """Take the flow, which must succeed."""
        taken = await self.runner.run(take_flow(self.plan))
        assert isinstance(taken, Ownership)
        self.own(taken)
        return taken

    def own(self, taken: Ownership) -> None:
        self.owned, self.starts = taken, list(taken.tasks)
        for start in taken.tasks:
            self._start(start)

    def _start(self, start: SessionStart) -> None:
        assert start.problems == {}
        for partition, point in start.points.items():
            self._begin(partition, point)

    def _begin(self, partition: TopicPartition, point: WritePoint) -> None:
        pair = OffsetPair(point.next_source_offset - 1, -1, point.target_end - 1, point.source_epoch)
        self.points[partition], self.streams[partition] = point, Stream(pair)
        self.streams[partition].align(pair)

    def acknowledged(self, partition: TopicPartition) -> WritePoint:
        """Where a partition continues behind its last acknowledged record."""
        start, stream = self.points[partition], self.streams[partition]
        return point_after(start, stream, sequence=stream.delivered.ordinal, target_epoch=start.target_epoch)

    async def recover(self, task: int) -> None:
        """Take the partitions of a task over from ourselves."""
        start = await self.runner.run(
            recover_task(owned(self), self.starts[task].producers.ids, self.starts[task].points)
        )
        assert isinstance(start, SessionStart)
        self.starts[task] = start
        self._start(start)

    def next_offsets(self) -> dict[TopicPartition, int]:
        return {one: self.acknowledged(one).next_source_offset for one in self.points}

    async def log_end(self, partition: TopicPartition) -> LogEnd:
        return await self.runner.run(send(ReadEnd(partition)))

    async def batches_at(self, partition: TopicPartition, offset: int) -> deque[Batch]:
        """Batches of the source from *offset* on; none at the end of the log."""
        fetched = await read_once(self.source, partition, offset, max_bytes=FETCH_BYTES)
        found = deque(split(fetched.records))
        assert not found or found[0].base_offset == offset, "a batch was copied in part"
        return found

    async def copy(self, end: int) -> None:
        """Copy all partitions up to a source offset; a task that is refused recovers."""
        for task, start in enumerate(self.starts):
            while any(await asyncio.gather(*(self.copy_plain(one, task, end) for one in start.points))):
                await self.recover(task)

    async def copy_plain(self, partition: TopicPartition, task: int, end: int) -> int:
        """Copy plain batches up to a source offset, several in flight; return the first error code, 0 at the end."""
        stream = self.streams[partition]
        answers: deque[asyncio.Future[memoryview]] = deque()
        fetched: deque[Batch] = deque()
        offset, code = stream.next_offset, 0
        while not code and (answers or offset < end):
            while offset < end and len(stream.in_flight) < (DEPTH if stream.delivered.ordinal >= 0 else 1):
                fetched = fetched or await self.batches_at(partition, offset)
                if not fetched:
                    break
                batch = fetched.popleft()
                offset = batch.next_offset
                span = span_behind(stream, batch)
                stream.take(span)
                answers.append(await self.send(partition, task, batch, sequence_of(span.first)))
            if not answers:
                await asyncio.sleep(POLL_S)
                continue
            found = produced(await answers.popleft(), self.topics.on_target(partition))
            code = found.error
            if not code:
                _, continues = stream.acknowledge(found.base_offset)
                code = 0 if continues else FOREIGN_RECORDS
        await asyncio.gather(*answers)
        return code

    async def send(
        self, partition: TopicPartition, task: int, batch: Batch, sequence: int
    ) -> asyncio.Future[memoryview]:
        """Send a batch of the source under the plain producer; return the future of the answer."""
        home, plain = self.topics.on_target(partition), self.starts[task].producers.plain
        if self.target.leader(*home) is None:
            await self.target.refresh([home.topic])
        leader = self.target.leader(*home)
        assert leader is not None
        data = rewrite(
            batch, producer_id=plain.producer_id, producer_epoch=plain.epoch, base_sequence=sequence
        )
        parts = produce.produce_request({home.topic: [(home.partition, data)]}, timeout_ms=30_000)
        connection = await self.target.connection(leader, purpose="produce")
        return connection.send(produce.API_KEY, produce.VERSION, parts, flexible=False)

    async def copy_in_transaction(self, task: int, *, ends: bool) -> None:
        """Copy a batch of each partition of a task, and their positions, in one transaction, which *ends* or stays open."""
        producer, transactions = self.starts[task].producers.transactional, self.runner.transactions
        points: dict[TopicPartition, WritePoint] = {}
        async with transactions.turn(producer):
            homes = [self.topics.on_target(one) for one in self.starts[task].points]
            await transactions.add_partitions(producer, homes)
            for one in self.starts[task].points:
                point = self.acknowledged(one)
                batch = (await self.batches_at(one, point.next_source_offset))[0]
                await transactions.append(producer, self.topics.on_target(one), decode(batch))
                log_end = await self.log_end(one)
                points[one] = replace(
                    point,
                    next_source_offset=batch.next_offset,
                    source_epoch=batch.leader_epoch,
                    target_end=log_end.end,
                    target_epoch=log_end.leader_epoch,
                )
            await transactions.store_positions(
                producer, [self.position(one, task, points[one], WriteMode.TRANSACTION) for one in points]
            )
            if ends:
                await transactions.end(producer, commit=True)
                await transactions.wait_for_markers(producer)
                for one, point in points.items():
                    self._begin(one, point)

    async def store(self, task: int, *, left: bool = False) -> Done | Refused:
        """Store the positions of a task's partitions."""
        start = self.starts[task]
        positions = tuple(
            self.position(one, task, self.acknowledged(one), WriteMode.PLAIN, left=left)
            for one in start.points
        )
        transaction = Transaction(start.producers.transactional, positions=positions)
        return await self.runner.run(send(transaction))

    def position(
        self, partition: TopicPartition, task: int, point: WritePoint, mode: WriteMode, *, left: bool = False
    ) -> WriterPosition:
        producers = self.starts[task].producers
        return position_at(partition, point, producers, mode=mode, time_ms=now_ms(), left=left)

    async def stop(self) -> None:
        """Stop in order: the positions and the claim say that nothing follows."""
        for task in range(len(self.starts)):
            assert not isinstance(await self.store(task, left=True), Refused)
        assert await self.runner.run(renew_claim(owned(self), left=True))


def span_behind(stream: Stream, batch: Batch) -> Span:
    return Span(
        stream.next_ordinal,
        batch.count,
        batch.base_offset,
        batch.next_offset,
        batch.max_timestamp,
        batch.size_bytes,
        source_epoch=batch.leader_epoch,
    )


def produced(body: memoryview, home: TopicPartition) -> produce.PartitionProduceResponse:
    answers, _ = produce.parse_produce_response(body)
    return answers[home]


@asynccontextmanager
async def process(flow: Flow, topic: str, name: str, *, tasks: int = 2) -> AsyncIterator[Process]:
    """A process with its own connections; the internal topics exist."""
    async with AsyncExitStack() as stack:
        clusters = []
        for side in (flow.source, flow.target):
            client = ClientSettings(
                alias=side.name, client_id=name, properties={"bootstrap.servers": side.internal_bootstrap}
            )
            connected = await Cluster.connect(client, resolve=dict)
            stack.push_async_callback(connected.close)
            clusters.append(connected)
        source, target = clusters
        storage = OffsetStorageSettings(
            store=OffsetStore.KAFKA,
            topic=f"mm2-offsets.{flow.alias}.internal",
            partitions=5,
            replication_factor=1,
            client=client,
        )
        await CompactedTopic(target, storage, key="offset.storage.topic").open()
        await open_claims_topic(target, storage, flow.alias)
        topics = FlowTopics(
            source_alias=flow.alias,
            connector="MirrorSourceConnector",
            offsets=storage.topic,
            target_topic=flow.remote,
        )
        runner = ProtocolRunner(source, target, topics)
        yield Process(name, flow, topic, source, target, topics, runner, tasks)


def new_topic(flow: Flow, unique_topic: Callable[[], str], batches: int) -> str:
    """A topic of the source with *batches* in each partition, and its empty copy."""
    topic = flow.source.create_topic(unique_topic(), partitions=PARTITIONS)
    flow.target.create_topic(flow.remote(topic), partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        write_batches(
            flow.source, topic, [source_batch(number) for number in range(batches)], partition=partition
        )
    return topic


def source_batch(number: int) -> list[Record]:
    return numbered(number * BATCH_RECORDS, BATCH_RECORDS, timestamp=now_ms())


def owned(process: Process) -> Ownership:
    assert process.owned is not None
    return process.owned


async def source_end(process: Process) -> int:
    """Where all partitions of the source end."""
    homes = [TopicPartition(process.topic, partition) for partition in range(PARTITIONS)]
    (end,) = set((await admin.offsets_at(process.source, homes, LATEST)).values())
    return end


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  the change of a window has no event
        await asyncio.sleep(POLL_S)


async def feed(source: Cluster, topic: str, number: int) -> None:
    """Append batches to all partitions of the source, until cancelled between two of them."""
    while True:
        data = encode(source_batch(number), codec=0, producer_id=-1, producer_epoch=-1, base_sequence=-1)
        homes = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        answers = await asyncio.shield(admin.produce(source, dict.fromkeys(homes, data), timeout_ms=30_000))
        assert not any(answers.values())
        number += 1


async def numbers(cluster: Cluster, partition: TopicPartition, end: int) -> list[int]:
    """The numbers of the records in a log without aborted transactions."""
    return [
        int(record.value or b"")
        async for batch, _ in batches_between(cluster, partition, 0, end)
        if not batch.is_control
        for record in decode(batch)
    ]


async def run_before(runner: ProtocolRunner, steps: Steps[T], stops: Callable[[Request], bool]) -> Requests:
    """Run *steps* until they yield a request for which it *stops*; those requests are not sent."""
    asked = next(steps)
    while not any(map(stops, asked)):
        asked = steps.send(await runner.answer(asked))
    return asked


async def run_on(runner: ProtocolRunner, steps: Steps[T], asked: Requests) -> T:
    """Send the requests at which `run_before` has stopped, and run *steps* to their end."""
    try:
        while True:
            asked = steps.send(await runner.answer(asked))
    except StopIteration as stop:
        result: T = stop.value
        return result


def is_of_task(request: Request) -> bool:
    return isinstance(request, InitProducerId) and ":task-" in request.transactional_id


# The requests of a takeover before which a newcomer sleeps, once it has the lock.
MOMENTS: Mapping[str, Callable[[Request], bool]] = {
    "barrier": lambda one: isinstance(one, Transaction) and one.is_barrier,
    "claims": lambda one: isinstance(one, ReadClaims),
    "positions": lambda one: isinstance(one, ReadPositions),
    "ids": is_of_task,
    "claim": lambda one: isinstance(one, Transaction) and one.claim is not None,
    "fence": lambda one: isinstance(one, Transaction) and bool(one.partitions),
    "lookup": lambda one: isinstance(one, ReadEnd),
    "position": lambda one: isinstance(one, Transaction) and bool(one.positions),
}


def test_a_newcomer_continues_exactly_where_the_fence_cut_off_the_owner(
    flow: Flow, unique_topic: Callable[[], str]
):
    """The owner writes all the time; what it sends behind the fence is refused, and not in the log."""
    topic = new_topic(flow, unique_topic, batches=10)

    async def main() -> None:
        async with process(flow, topic, "a") as owner, process(flow, topic, "b") as newcomer:
            await owner.take()
            feeding = asyncio.create_task(feed(newcomer.source, topic, 10))
            writing = [
                asyncio.create_task(owner.copy_plain(one, task, ENDLESS))
                for task, start in enumerate(owner.starts)
                for one in start.points
            ]
            await until(lambda: min(owner.next_offsets().values()) >= 20 * BATCH_RECORDS)
            assert not isinstance(await owner.store(0), Refused)
            await newcomer.take()
            codes = await asyncio.gather(*writing)
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            assert set(codes) == {INVALID_PRODUCER_EPOCH}

            for task, start in enumerate(owner.starts):
                assert isinstance(await owner.store(task), Refused)
                for one in start.points:
                    point, home = owner.acknowledged(one), newcomer.topics.on_target(one)
                    end = (await newcomer.log_end(one)).end
                    late = (await owner.batches_at(one, point.next_source_offset))[0]
                    answer = await owner.send(one, task, late, point.sequence + 1)
                    assert produced(await answer, home).error == INVALID_PRODUCER_EPOCH
                    assert (await newcomer.log_end(one)).end == end
                    copied = list(range(newcomer.next_offsets()[one]))
                    assert await numbers(newcomer.target, home, end) == copied
            assert isinstance(
                await owner.runner.run(
                    recover_task(owned(owner), owner.starts[0].producers.ids, owner.starts[0].points)
                ),
                Fenced,
            )
            await newcomer.copy(await source_end(newcomer))

    asyncio.run(main())
    flow.assert_exact(topic)
    claims = claims_topic(flow.alias)
    assert flow.target.partition_count(claims) == 1
    assert flow.target.topic_config(claims)["cleanup.policy"] == "compact"


def test_positions_of_transactions_and_of_an_orderly_stop_are_where_the_next_process_continues(
    flow: Flow, unique_topic: Callable[[], str]
):
    """An owner dies inside a transaction, which is aborted; the next one stops in order, so nothing is fenced or looked up."""
    topic = new_topic(flow, unique_topic, batches=12)

    async def main() -> None:
        async with process(flow, topic, "a") as first:
            await first.take()
            for _ in range(3):
                for task in range(first.tasks):
                    await first.copy_in_transaction(task, ends=True)
            await first.copy_in_transaction(0, ends=False)
        async with process(flow, topic, "b") as second:
            await second.take()
            assert second.next_offsets() == first.next_offsets()
            await second.copy(8 * BATCH_RECORDS)
            await second.stop()
            ends = {one: await second.log_end(one) for one in second.points}
        async with process(flow, topic, "c", tasks=1) as third:
            assert await third.runner.run(wait_for_turn(third.plan)) is None
            await third.take()
            assert third.next_offsets() == second.next_offsets()
            assert {one: await third.log_end(one) for one in third.points} == ends
            await third.copy(12 * BATCH_RECORDS)

    asyncio.run(main())
    copied = digest(flow.target, flow.remote(topic), isolation="read_committed")
    assert copied == digest(flow.source, topic)


def test_a_newcomer_that_is_overtaken_between_two_requests_is_out(
    flow: Flow, unique_topic: Callable[[], str]
):
    """At every step of its takeover another process takes the flow and copies; then the newcomer wakes up."""
    topic = new_topic(flow, unique_topic, batches=4 * len(MOMENTS))

    async def main() -> None:
        async with process(flow, topic, "o") as owner:
            await owner.take()
            await owner.copy(2 * BATCH_RECORDS)
        for number, stops in enumerate(MOMENTS.values()):
            end = (4 * number + 4) * BATCH_RECORDS
            async with (
                process(flow, topic, f"a{number}") as late,
                process(flow, topic, f"b{number}") as winner,
            ):
                steps = take_flow(late.plan)
                asked = await run_before(late.runner, steps, stops)
                await winner.take()
                await winner.copy(end - BATCH_RECORDS)
                assert isinstance(await run_on(late.runner, steps, asked), Fenced)
                await winner.copy(end)
                assert await winner.runner.run(holds_lock(owned(winner).lock))

    asyncio.run(main())
    flow.assert_exact(topic)


@pytest.mark.parametrize("moment", ["fence", "lookup"])
def test_a_copy_that_is_deleted_during_a_takeover_waits_and_the_others_are_taken(
    flow: Flow, unique_topic: Callable[[], str], moment: str
):
    topic, deleted = new_topic(flow, unique_topic, batches=2), new_topic(flow, unique_topic, batches=2)
    parts = tuple(TopicPartition(topic, number) for number in range(PARTITIONS))
    gone = tuple(TopicPartition(deleted, number) for number in range(PARTITIONS))

    async def main() -> None:
        async with process(flow, topic, "a") as owner, process(flow, topic, "b") as newcomer:
            assert isinstance(
                await owner.runner.run(take_flow(replace(owner.plan, assignment=(parts, gone)))), Ownership
            )
            steps = take_flow(replace(newcomer.plan, assignment=(parts, gone)))
            asked = await run_before(newcomer.runner, steps, MOMENTS[moment])
            flow.target.delete_topic(flow.remote(deleted))
            taken = await run_on(newcomer.runner, steps, asked)
            assert isinstance(taken, Ownership)
            taken_start, left_out = taken.tasks
            assert (set(taken_start.points), taken_start.waiting) == (set(parts), {})
            assert (left_out.points, left_out.problems, set(left_out.waiting)) == ({}, {}, set(gone))
            assert all("UNKNOWN_TOPIC_OR_PARTITION" in str(one) for one in left_out.waiting.values())
            newcomer.own(taken)
            await newcomer.copy(2 * BATCH_RECORDS)

    asyncio.run(main())
    flow.assert_exact(topic)


def test_an_owner_that_is_replaced_while_it_takes_its_ids_again_is_out(
    flow: Flow, unique_topic: Callable[[], str]
):
    """It raises the new owner's ids, checks the lock once more, and stops; the new owner recovers."""
    topic = new_topic(flow, unique_topic, batches=12)

    async def main() -> None:
        async with process(flow, topic, "a") as owner, process(flow, topic, "b") as newcomer:
            await owner.take()
            await owner.copy(4 * BATCH_RECORDS)
            steps = recover_task(owned(owner), owner.starts[0].producers.ids, owner.starts[0].points)
            asked = await run_before(owner.runner, steps, is_of_task)
            await newcomer.take()
            await newcomer.copy(8 * BATCH_RECORDS)
            assert isinstance(await run_on(owner.runner, steps, asked), Fenced)
            assert isinstance(await newcomer.store(0), Refused)
            await newcomer.recover(0)
            await newcomer.copy(12 * BATCH_RECORDS)
            assert not isinstance(await newcomer.store(0), Refused)

    asyncio.run(main())
    flow.assert_exact(topic)


def test_a_task_continues_behind_a_batch_whose_answer_is_lost(flow: Flow, unique_topic: Callable[[], str]):
    """Its next start finds in the log whether the batch is there."""
    topic = new_topic(flow, unique_topic, batches=6)

    async def main() -> None:
        async with process(flow, topic, "a", tasks=1) as owner:
            await owner.take()
            await owner.copy(2 * BATCH_RECORDS)
            for is_sent in (True, False):
                before = owner.next_offsets()
                for one, offset in before.items():
                    batch = (await owner.batches_at(one, offset))[0]
                    if is_sent:
                        sequence = sequence_of(owner.streams[one].next_ordinal)
                        await (await owner.send(one, 0, batch, sequence))
                await owner.recover(0)
                copied = BATCH_RECORDS * is_sent
                assert owner.next_offsets() == {one: offset + copied for one, offset in before.items()}
            await owner.copy(6 * BATCH_RECORDS)

    asyncio.run(main())
    flow.assert_exact(topic)


def test_a_writer_in_the_last_epochs_of_its_id_is_fenced_and_its_successors_do_not_wait(
    flow: Flow, unique_topic: Callable[[], str]
):
    """The coordinator gives another producer id behind the last epoch. A wait for closed connections would take minutes."""
    topic = new_topic(flow, unique_topic, batches=8)

    async def main() -> None:
        async with process(flow, topic, "a", tasks=1) as first:
            await first.take()
            await first.copy(2 * BATCH_RECORDS)
            _, producer_id, epoch = plain = first.starts[0].producers.plain
            while epoch < LAST_EPOCH - 2:
                _, epoch = await admin.init_producer_id(
                    first.target, plain.transactional_id, timeout_ms=60_000
                )
        async with process(flow, topic, "b", tasks=1) as second, process(flow, topic, "c", tasks=1) as third:
            await second.take()
            await second.copy(4 * BATCH_RECORDS)
            assert second.starts[0].producers.plain[1:] == (producer_id, LAST_EPOCH - 1)
            await third.take()
            assert third.starts[0].producers.plain.producer_id != producer_id
            for one in second.points:
                late = (await second.batches_at(one, second.next_offsets()[one]))[0]
                sequence = sequence_of(second.streams[one].next_ordinal)
                answer = produced(
                    await (await second.send(one, 0, late, sequence)), second.topics.on_target(one)
                )
                assert answer.error == INVALID_PRODUCER_EPOCH
            await third.copy(6 * BATCH_RECORDS)
        async with process(flow, topic, "d", tasks=1) as last:
            await last.take()
            await last.copy(8 * BATCH_RECORDS)

    asyncio.run(main())
    flow.assert_exact(topic)
