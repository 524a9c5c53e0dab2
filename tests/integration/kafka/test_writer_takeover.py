"""The ownership protocol of `mirrorflow_core.writer` against real brokers. Processes take a flow from each other.

Each process has its own connections and copies the source's batches unchanged. A Java consumer compares source and copy
record by record.
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
    ask,
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
NO_END = 1 << 60
FOREIGN_RECORDS = -2  # markers or records of a foreign writer are between batches of the flow
T = TypeVar("T")
Requests = tuple[Request, ...]


@dataclass
class Process:
    """A process that takes the flow and, once it owns the flow, copies batch by batch."""

    name: str
    flow: Flow
    topic: str
    source: Cluster
    target: Cluster
    topics: FlowTopics
    runner: ProtocolRunner
    tasks: int = 2
    owned: Ownership | None = None
    session_starts: list[SessionStart] = field(default_factory=list)
    points: dict[TopicPartition, WritePoint] = field(default_factory=dict)  # starts of the streams
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
        """Takes the flow, which must succeed."""
        taken = await self.runner.run(take_flow(self.plan))
        assert isinstance(taken, Ownership)
        self.own(taken)
        return taken

    def own(self, taken: Ownership) -> None:
        self.owned, self.session_starts = taken, list(taken.tasks)
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
        """Returns the point at which a partition continues after its last acknowledged record."""
        start, stream = self.points[partition], self.streams[partition]
        return point_after(start, stream, sequence=stream.delivered.ordinal, target_epoch=start.target_epoch)

    async def recover(self, task: int) -> None:
        """Takes over the partitions of a task from an earlier session of this process."""
        start = await self.runner.run(
            recover_task(
                owned(self), self.session_starts[task].producers.ids, self.session_starts[task].points
            )
        )
        assert isinstance(start, SessionStart)
        self.session_starts[task] = start
        self._start(start)

    def next_offsets(self) -> dict[TopicPartition, int]:
        return {partition: self.acknowledged(partition).next_source_offset for partition in self.points}

    async def log_end(self, partition: TopicPartition) -> LogEnd:
        return await self.runner.run(ask(ReadEnd(partition)))

    async def batches_at(self, partition: TopicPartition, offset: int) -> deque[Batch]:
        """Returns source batches from *offset* on, or none at the log end."""
        fetched = await read_once(self.source, partition, offset, max_bytes=FETCH_BYTES)
        batches = deque(split(fetched.records))
        assert not batches or batches[0].base_offset == offset, "a batch was copied in part"
        return batches

    async def copy(self, end: int) -> None:
        """Copies all partitions up to a source offset. A refused task recovers."""
        for task, start in enumerate(self.session_starts):
            while any(
                await asyncio.gather(*(self.copy_plain(partition, task, end) for partition in start.points))
            ):
                await self.recover(task)

    async def copy_plain(self, partition: TopicPartition, task: int, end: int) -> int:
        """Copies plain batches up to a source offset, several in flight.

        Returns the first error code, or 0 at the end.
        """
        stream = self.streams[partition]
        responses: deque[asyncio.Future[memoryview]] = deque()
        fetched: deque[Batch] = deque()
        offset, code = stream.next_offset, 0
        while not code and (responses or offset < end):
            while offset < end and len(stream.in_flight) < (DEPTH if stream.delivered.ordinal >= 0 else 1):
                fetched = fetched or await self.batches_at(partition, offset)
                if not fetched:
                    break
                batch = fetched.popleft()
                offset = batch.next_offset
                span = span_after(stream, batch)
                stream.take(span)
                responses.append(await self.send(partition, task, batch, sequence_of(span.first)))
            if not responses:
                await asyncio.sleep(POLL_S)
                continue
            response = produced(await responses.popleft(), self.topics.on_target(partition))
            code = response.error
            if not code:
                _, continues, _ = stream.acknowledge(response.base_offset)
                code = 0 if continues else FOREIGN_RECORDS
        await asyncio.gather(*responses)
        return code

    async def send(
        self, partition: TopicPartition, task: int, batch: Batch, sequence: int
    ) -> asyncio.Future[memoryview]:
        """Sends a batch of the source with the plain producer, and returns the future of the response."""
        target_partition, plain = self.topics.on_target(partition), self.session_starts[task].producers.plain
        if self.target.leader(*target_partition) is None:
            await self.target.refresh([target_partition.topic])
        leader = self.target.leader(*target_partition)
        assert leader is not None
        data = rewrite(
            batch, producer_id=plain.producer_id, producer_epoch=plain.epoch, base_sequence=sequence
        )
        parts = produce.produce_request(
            {target_partition.topic: [(target_partition.partition, data)]}, timeout_ms=30_000
        )
        connection = await self.target.connection(leader, purpose="produce")
        return connection.send(produce.API_KEY, produce.VERSION, parts, flexible=False)

    async def copy_in_transaction(self, task: int, *, ends: bool) -> None:
        """Copies a batch of each partition of a task, and their positions, in one transaction.

        The transaction is committed only if *ends* is true.
        """
        producer, transactions = self.session_starts[task].producers.transactional, self.runner.transactions
        points: dict[TopicPartition, WritePoint] = {}
        async with transactions.turn(producer):
            target_partitions = [
                self.topics.on_target(partition) for partition in self.session_starts[task].points
            ]
            await transactions.add_partitions(producer, target_partitions)
            for partition in self.session_starts[task].points:
                point = self.acknowledged(partition)
                batch = (await self.batches_at(partition, point.next_source_offset))[0]
                await transactions.append(producer, self.topics.on_target(partition), decode(batch))
                log_end = await self.log_end(partition)
                points[partition] = replace(
                    point,
                    next_source_offset=batch.next_offset,
                    source_epoch=batch.leader_epoch,
                    target_end=log_end.end,
                    target_epoch=log_end.leader_epoch,
                )
            await transactions.store_positions(
                producer,
                [
                    self.position(partition, task, points[partition], WriteMode.TRANSACTION)
                    for partition in points
                ],
            )
            if ends:
                await transactions.end(producer, commit=True)
                await transactions.wait_for_markers(producer)
                for partition, point in points.items():
                    self._begin(partition, point)

    async def store(self, task: int, *, left: bool = False) -> Done | Refused:
        """Stores the positions of a task's partitions."""
        start = self.session_starts[task]
        positions = tuple(
            self.position(partition, task, self.acknowledged(partition), WriteMode.PLAIN, left=left)
            for partition in start.points
        )
        transaction = Transaction(start.producers.transactional, positions=positions)
        return await self.runner.run(ask(transaction))

    def position(
        self, partition: TopicPartition, task: int, point: WritePoint, mode: WriteMode, *, left: bool = False
    ) -> WriterPosition:
        producers = self.session_starts[task].producers
        return position_at(partition, point, producers, mode=mode, time_ms=now_ms(), left=left)

    async def stop(self) -> None:
        """Stops gracefully. Positions and claim then record that no batch follows."""
        for task in range(len(self.session_starts)):
            assert not isinstance(await self.store(task, left=True), Refused)
        assert await self.runner.run(renew_claim(owned(self), left=True))


def span_after(stream: Stream, batch: Batch) -> Span:
    return Span(
        stream.next_ordinal,
        batch.count,
        batch.base_offset,
        batch.next_offset,
        batch.max_timestamp,
        batch.size_bytes,
        source_epoch=batch.leader_epoch,
    )


def produced(body: memoryview, target_partition: TopicPartition) -> produce.PartitionProduceResponse:
    responses, _ = produce.parse_produce_response(body)
    return responses[target_partition]


@asynccontextmanager
async def process(flow: Flow, topic: str, name: str, *, tasks: int = 2) -> AsyncIterator[Process]:
    """Yields a process with its own connections. The internal topics exist."""
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
    """Creates a source topic with *batches* in each partition, and its empty copy."""
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
    """Returns the end offset, which is the same for all source partitions."""
    partitions = [TopicPartition(process.topic, partition) for partition in range(PARTITIONS)]
    (end,) = set((await admin.offsets_at(process.source, partitions, LATEST)).values())
    return end


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  the condition has no event
        await asyncio.sleep(POLL_S)


async def feed(source: Cluster, topic: str, number: int) -> None:
    """Appends batches to all source partitions until cancelled, always in complete rounds."""
    while True:
        data = encode(source_batch(number), codec=0, producer_id=-1, producer_epoch=-1, base_sequence=-1)
        partitions = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        error_codes = await asyncio.shield(
            admin.produce(source, dict.fromkeys(partitions, data), timeout_ms=30_000)
        )
        assert not any(error_codes.values())
        number += 1


async def numbers(cluster: Cluster, partition: TopicPartition, end: int) -> list[int]:
    """Returns the numbers of the records in a log without aborted transactions."""
    return [
        int(record.value or b"")
        async for batch, _ in batches_between(cluster, partition, 0, end)
        if not batch.is_control
        for record in decode(batch)
    ]


async def run_until(runner: ProtocolRunner, steps: Steps[T], stops: Callable[[Request], bool]) -> Requests:
    """Runs *steps* until a request satisfies *stops*, and returns those requests, which are not sent."""
    requests = next(steps)
    while not any(map(stops, requests)):
        requests = steps.send(await runner.respond(requests))
    return requests


async def continue_run(runner: ProtocolRunner, steps: Steps[T], requests: Requests) -> T:
    """Sends the requests at which `run_until` stopped, and runs *steps* to the end."""
    try:
        while True:
            requests = steps.send(await runner.respond(requests))
    except StopIteration as stop:
        result: T = stop.value
        return result


def is_of_task(request: Request) -> bool:
    return isinstance(request, InitProducerId) and ":task-" in request.transactional_id


# The requests before which a newcomer that has the lock is paused during its takeover.
PAUSE_POINTS: Mapping[str, Callable[[Request], bool]] = {
    "barrier": lambda request: isinstance(request, Transaction) and request.is_barrier,
    "claims": lambda request: isinstance(request, ReadClaims),
    "positions": lambda request: isinstance(request, ReadPositions),
    "ids": is_of_task,
    "claim": lambda request: isinstance(request, Transaction) and request.claim is not None,
    "fence": lambda request: isinstance(request, Transaction) and bool(request.partitions),
    "lookup": lambda request: isinstance(request, ReadEnd),
    "position": lambda request: isinstance(request, Transaction) and bool(request.positions),
}


def test_a_newcomer_continues_exactly_at_the_fence_of_the_owner(flow: Flow, unique_topic: Callable[[], str]):
    """The owner writes continuously. What it sends after the fence is refused and is not in the log."""
    topic = new_topic(flow, unique_topic, batches=10)

    async def main() -> None:
        async with process(flow, topic, "a") as owner, process(flow, topic, "b") as newcomer:
            await owner.take()
            feeding = asyncio.create_task(feed(newcomer.source, topic, 10))
            writing = [
                asyncio.create_task(owner.copy_plain(partition, task, NO_END))
                for task, start in enumerate(owner.session_starts)
                for partition in start.points
            ]
            await until(lambda: min(owner.next_offsets().values()) >= 20 * BATCH_RECORDS)
            assert not isinstance(await owner.store(0), Refused)
            await newcomer.take()
            codes = await asyncio.gather(*writing)
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            assert set(codes) == {INVALID_PRODUCER_EPOCH}

            for task, start in enumerate(owner.session_starts):
                assert isinstance(await owner.store(task), Refused)
                for partition in start.points:
                    point, target_partition = (
                        owner.acknowledged(partition),
                        newcomer.topics.on_target(partition),
                    )
                    end = (await newcomer.log_end(partition)).end
                    late = (await owner.batches_at(partition, point.next_source_offset))[0]
                    response = await owner.send(partition, task, late, point.sequence + 1)
                    assert produced(await response, target_partition).error == INVALID_PRODUCER_EPOCH
                    assert (await newcomer.log_end(partition)).end == end
                    copied = list(range(newcomer.next_offsets()[partition]))
                    assert await numbers(newcomer.target, target_partition, end) == copied
            assert isinstance(
                await owner.runner.run(
                    recover_task(
                        owned(owner), owner.session_starts[0].producers.ids, owner.session_starts[0].points
                    )
                ),
                Fenced,
            )
            await newcomer.copy(await source_end(newcomer))

    asyncio.run(main())
    flow.assert_exact(topic)
    claims = claims_topic(flow.alias)
    assert flow.target.partition_count(claims) == 1
    assert flow.target.topic_config(claims)["cleanup.policy"] == "compact"


def test_the_next_process_continues_after_transactions_and_after_a_graceful_stop(
    flow: Flow, unique_topic: Callable[[], str]
):
    """An owner dies inside a transaction, which is aborted.

    The next owner stops gracefully, so that nothing is fenced or looked up.
    """
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
            ends = {partition: await second.log_end(partition) for partition in second.points}
        async with process(flow, topic, "c", tasks=1) as third:
            assert await third.runner.run(wait_for_turn(third.plan)) is None
            await third.take()
            assert third.next_offsets() == second.next_offsets()
            assert {partition: await third.log_end(partition) for partition in third.points} == ends
            await third.copy(12 * BATCH_RECORDS)

    asyncio.run(main())
    copied = digest(flow.target, flow.remote(topic), isolation="read_committed")
    assert copied == digest(flow.source, topic)


def test_a_newcomer_that_is_overtaken_between_two_requests_is_fenced(
    flow: Flow, unique_topic: Callable[[], str]
):
    """At each step of its takeover, a different process takes the flow and copies. Then the newcomer continues."""
    topic = new_topic(flow, unique_topic, batches=4 * len(PAUSE_POINTS))

    async def main() -> None:
        async with process(flow, topic, "o") as owner:
            await owner.take()
            await owner.copy(2 * BATCH_RECORDS)
        for number, stops in enumerate(PAUSE_POINTS.values()):
            end = (4 * number + 4) * BATCH_RECORDS
            async with (
                process(flow, topic, f"a{number}") as late,
                process(flow, topic, f"b{number}") as winner,
            ):
                steps = take_flow(late.plan)
                requests = await run_until(late.runner, steps, stops)
                await winner.take()
                await winner.copy(end - BATCH_RECORDS)
                assert isinstance(await continue_run(late.runner, steps, requests), Fenced)
                await winner.copy(end)
                assert await winner.runner.run(holds_lock(owned(winner).lock))

    asyncio.run(main())
    flow.assert_exact(topic)


@pytest.mark.parametrize("moment", ["fence", "lookup"])
def test_a_copy_deleted_during_a_takeover_waits_and_other_copies_are_taken_over(
    flow: Flow, unique_topic: Callable[[], str], moment: str
):
    topic, deleted = new_topic(flow, unique_topic, batches=2), new_topic(flow, unique_topic, batches=2)
    partitions = tuple(TopicPartition(topic, number) for number in range(PARTITIONS))
    deleted_partitions = tuple(TopicPartition(deleted, number) for number in range(PARTITIONS))

    async def main() -> None:
        async with process(flow, topic, "a") as owner, process(flow, topic, "b") as newcomer:
            assert isinstance(
                await owner.runner.run(
                    take_flow(replace(owner.plan, assignment=(partitions, deleted_partitions)))
                ),
                Ownership,
            )
            steps = take_flow(replace(newcomer.plan, assignment=(partitions, deleted_partitions)))
            requests = await run_until(newcomer.runner, steps, PAUSE_POINTS[moment])
            flow.target.delete_topic(flow.remote(deleted))
            taken = await continue_run(newcomer.runner, steps, requests)
            assert isinstance(taken, Ownership)
            taken_start, deleted_start = taken.tasks
            assert (set(taken_start.points), taken_start.waiting) == (set(partitions), {})
            assert (deleted_start.points, deleted_start.problems, set(deleted_start.waiting)) == (
                {},
                {},
                set(deleted_partitions),
            )
            assert all(
                "UNKNOWN_TOPIC_OR_PARTITION" in str(problem) for problem in deleted_start.waiting.values()
            )
            newcomer.own(taken)
            await newcomer.copy(2 * BATCH_RECORDS)

    asyncio.run(main())
    flow.assert_exact(topic)


def test_an_owner_replaced_while_it_reinitializes_its_ids_is_fenced(
    flow: Flow, unique_topic: Callable[[], str]
):
    """It increases the new owner's epochs, checks the lock again and stops. The new owner recovers."""
    topic = new_topic(flow, unique_topic, batches=12)

    async def main() -> None:
        async with process(flow, topic, "a") as owner, process(flow, topic, "b") as newcomer:
            await owner.take()
            await owner.copy(4 * BATCH_RECORDS)
            steps = recover_task(
                owned(owner), owner.session_starts[0].producers.ids, owner.session_starts[0].points
            )
            requests = await run_until(owner.runner, steps, is_of_task)
            await newcomer.take()
            await newcomer.copy(8 * BATCH_RECORDS)
            assert isinstance(await continue_run(owner.runner, steps, requests), Fenced)
            assert isinstance(await newcomer.store(0), Refused)
            await newcomer.recover(0)
            await newcomer.copy(12 * BATCH_RECORDS)
            assert not isinstance(await newcomer.store(0), Refused)

    asyncio.run(main())
    flow.assert_exact(topic)


def test_a_task_continues_after_a_batch_whose_response_is_lost(flow: Flow, unique_topic: Callable[[], str]):
    """Its next session reads from the log whether the batch was written."""
    topic = new_topic(flow, unique_topic, batches=6)

    async def main() -> None:
        async with process(flow, topic, "a", tasks=1) as owner:
            await owner.take()
            await owner.copy(2 * BATCH_RECORDS)
            for is_sent in (True, False):
                before = owner.next_offsets()
                for partition, offset in before.items():
                    batch = (await owner.batches_at(partition, offset))[0]
                    if is_sent:
                        sequence = sequence_of(owner.streams[partition].next_ordinal)
                        await (await owner.send(partition, 0, batch, sequence))
                await owner.recover(0)
                copied = BATCH_RECORDS * is_sent
                assert owner.next_offsets() == {
                    partition: offset + copied for partition, offset in before.items()
                }
            await owner.copy(6 * BATCH_RECORDS)

    asyncio.run(main())
    flow.assert_exact(topic)


def test_a_producer_in_the_last_epochs_is_fenced_and_its_successors_do_not_wait(
    flow: Flow, unique_topic: Callable[[], str]
):
    """After the last epoch, the coordinator assigns a new producer id.

    Waiting for closed connections would take minutes.
    """
    topic = new_topic(flow, unique_topic, batches=8)

    async def main() -> None:
        async with process(flow, topic, "a", tasks=1) as first:
            await first.take()
            await first.copy(2 * BATCH_RECORDS)
            _, producer_id, epoch = plain = first.session_starts[0].producers.plain
            while epoch < LAST_EPOCH - 2:
                _, epoch = await admin.init_producer_id(
                    first.target, plain.transactional_id, timeout_ms=60_000
                )
        async with process(flow, topic, "b", tasks=1) as second, process(flow, topic, "c", tasks=1) as third:
            await second.take()
            await second.copy(4 * BATCH_RECORDS)
            assert second.session_starts[0].producers.plain[1:] == (producer_id, LAST_EPOCH - 1)
            await third.take()
            assert third.session_starts[0].producers.plain.producer_id != producer_id
            for partition in second.points:
                late = (await second.batches_at(partition, second.next_offsets()[partition]))[0]
                sequence = sequence_of(second.streams[partition].next_ordinal)
                response = produced(
                    await (await second.send(partition, 0, late, sequence)),
                    second.topics.on_target(partition),
                )
                assert response.error == INVALID_PRODUCER_EPOCH
            await third.copy(6 * BATCH_RECORDS)
        async with process(flow, topic, "d", tasks=1) as last:
            await last.take()
            await last.copy(8 * BATCH_RECORDS)

    asyncio.run(main())
    flow.assert_exact(topic)
