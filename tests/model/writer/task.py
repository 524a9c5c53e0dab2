"""One session of a task in the model: the product's state machine and transactions with simulated brokers.

This module carries out effects and requests, as `mirrorflow_replicator.copy` does. It makes no decisions.
"""

import math
import random
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mirrorflow_core.copying import transaction_requests
from mirrorflow_core.copying.effects import (
    Alert,
    Effects,
    EndSession,
    ReadBatchLimit,
    ResolveLoss,
    Signal,
    StopPartition,
)
from mirrorflow_core.copying.partition import CopierState, PartitionCopier, ResumeFacts
from mirrorflow_core.copying.session import CopySession
from mirrorflow_core.copying.transaction import TaskTransaction
from mirrorflow_core.copying.transaction_requests import Now
from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.send_window import LEAST_BYTES
from mirrorflow_core.wire.error_codes import OFFSET_OUT_OF_RANGE, OPERATION_NOT_ATTEMPTED
from mirrorflow_core.wire.fetch import FetchFrom, FetchKey, PartitionFetchResponse
from mirrorflow_core.writer import write_mode as modes
from mirrorflow_core.writer.broker_requests import Done, Producer
from mirrorflow_core.writer.flow_plan import SessionStart
from mirrorflow_core.writer.position import WriterPosition
from tests.model.batches import LOG_APPEND_TIME
from tests.model.errors import NONE, TOPIC_AUTHORIZATION_FAILED
from tests.model.writer.packer import ModelPacker
from tests.model.writer.partition_logs import SkippedOffsets, SourceLog, SourceRecords, control_batch
from tests.model.writer.world import CLAIMS, NO_RESPONSE, Call, Connection, Coroutine, Until, refused

if TYPE_CHECKING:
    from tests.model.writer.process import Process

# The product's intervals, scaled to a world in which each request takes one millisecond.
POSITION_MS = 25
COMMIT_MS = 15
SCALE = modes.COMMIT_INTERVAL_MS / COMMIT_MS
DRAIN_MS = 10_000
DENIED_MS = 5
DEPTH = 4
BATCH_RECORDS = 5
RESPONSE_BYTES = 1
REQUEST_BYTES = 1 << 20
LATE_FETCH_SHARE = 0.5  # of the copying partitions of a session that ends
# With a slow target, the first transaction has some batches, and a connection accepts more than a transaction may have.
SLOW_RECORD_BYTES = LEAST_BYTES // 12
SLOW_DEPTH = 100


class Link:
    """The connection of a partition, and the responses that have arrived on it."""

    def __init__(self, leader_epoch: int) -> None:
        self.leader_epoch = leader_epoch  # of the target, from the task's metadata
        self.connection: Connection | None = None
        self.responses: deque[Any] = deque()
        self.is_ready = False  # whether there may be something to send
        self.due_ms: int | None = None  # the time at which it resumes

    @property
    def is_connected(self) -> bool:
        return self.connection is not None and not self.connection.is_cut


class Task:
    """A task that copies until it stops or its session ends."""

    def __init__(
        self,
        process: "Process",
        start: SessionStart,
        earlier: Mapping[TopicPartition, PartitionCopier],
        losses_seen: int,  # how often the offsets topic had lost its records when the session started
    ) -> None:
        self.process, self.producers = process, start.producers
        self.left_out = list(start.waiting)
        self.world = process.world
        self.random: random.Random = process.world.random
        options = self.world.options
        self.session = CopySession(
            start=start,
            source_alias="a",
            target_alias="b",
            loss_policy=process.plan.loss_policy,
            log_append_time_topics=process.log_append_time_topics,
            plain_age_limit_ms=modes.plain_age_limit_ms(options.producer_expiration_ms),
        )
        self.record_bytes = SLOW_RECORD_BYTES if options.record_ms else 0
        self.depth = SLOW_DEPTH if options.record_ms else DEPTH
        self.end_reason: str | None = None  # why the session has ended
        self.losses_seen = losses_seen
        self.is_leaving = False  # whether sending has stopped
        self.has_left = False
        self.transaction = TaskTransaction(
            self.session,
            timeout_ms=round(options.transaction_timeout_ms * SCALE),
            metadata_epoch=lambda partition: self.links[self.by_source[partition]].leader_epoch,
            now_s=self._now.monotonic_s,
        )
        self.links = {
            self._copier(partition, earlier.get(partition)): Link(self.world.metadata[partition])
            for partition in start.points
        }
        self.copiers = list(self.links)
        self.by_source = {copier.source: copier for copier in self.copiers}
        self.store_ms = self.world.now_ms + POSITION_MS
        # The next source offsets of the stored positions.
        self.stored = {partition: point.next_source_offset for partition, point in start.points.items()}

    def _copier(self, partition: TopicPartition, earlier: PartitionCopier | None) -> PartitionCopier:
        most = self.process.batch_records.get(partition, BATCH_RECORDS)
        packer = ModelPacker(partition, self.producers.plain, most, self.record_bytes)
        copier = PartitionCopier(partition, partition.topic, self.session, packer)
        copier.started(earlier)
        return copier

    @property
    def _now(self) -> Now:
        return Now(self.world.now_ms * SCALE / 1000, self.world.now_ms)

    def copy(self) -> Coroutine:
        """Copies until the process stops or is fenced; returns the acknowledged positions if only the session ends."""
        name = f"{self.process.name} session"
        actors = [
            self.world.spawn(f"{name} copies", self._copy(), self.process),
            self.world.spawn(f"{name} commits", self._commit_all(), self.process),
        ]
        yield Until(lambda: bool(self.end_reason) or self.has_left or self.process.is_out)
        self._end_partitions()
        for actor in actors:
            self.world.abandon(actor)
        self.close()
        if not self.end_reason or self.process.is_out or self.is_leaving:
            return None
        return self.transaction.acknowledged_positions(self.copiers, self.world.now_ms)

    def close(self) -> None:
        """Closes the connections; sent batches may still arrive."""
        self.world.busy.discard((self.process, self.producers.transactional.transactional_id))
        for link in self.links.values():
            if link.connection is not None:
                link.connection.is_cut = True
                if link.connection.actor is not None and self.random.random() < 0.3:
                    self.world.slow_down(link.connection.actor)

    def _end_partitions(self) -> None:
        """Has all partitions leave, as at the end of a session; responses to fetches arrive until the readers are closed."""
        draw = random.Random(
            self.world.steps
        )  # not the world's: a response that is dropped changes nothing else
        for copier in self.copiers:
            asked = None
            if copier.state is CopierState.COPYING and draw.random() < LATE_FETCH_SHARE:
                cursor = copier.cursor
                asked = FetchFrom(cursor.offset, cursor.leader_epoch, cursor.last_epoch, RESPONSE_BYTES)
            self.apply(copier, copier.leave())
            source = self.world.sources[copier.source]
            if asked is not None and source.is_online and asked.offset != source.end:
                self._fetch(copier, asked)

    def _end(self, reason: str | None) -> None:
        if reason and not self.end_reason:
            self.end_reason = reason
            self.transaction.end(reason)
            self.world.events.append(f"{self.world.steps} {self.process.name}: {reason}")

    # -- effects

    def apply(self, copier: PartitionCopier, effects: Effects) -> None:
        """Carries out the effects of an event of *copier*."""
        link = self.links[copier]
        for effect in effects:
            match effect:
                case Signal.READY:
                    link.is_ready = True
                case Signal.JOIN_TRANSACTION:
                    self.transaction.want(copier)
                case Signal.RESUME | Signal.RESUME_LATER:
                    pause_ms = self.random.choice((0, 0, 1, 5)) if copier.refusals else 0
                    link.due_ms = self.world.now_ms + pause_ms
                case Signal.REFRESH_LEADER:
                    self.apply(copier, copier.source_leader_seen(copier.cursor.leader_epoch))
                case ResolveLoss():
                    end = self.world.sources[copier.source].end
                    self.apply(copier, copier.loss_resolved(effect, 0, end))
                case ReadBatchLimit(span):
                    packer = copier.packer
                    assert isinstance(packer, ModelPacker)
                    packer.max_records = max(1, span.count // 2)
                    self.process.batch_records[copier.source] = packer.max_records
                case Alert():
                    self.process.losses.add(copier.source)
                case StopPartition():
                    link.due_ms = self.world.now_ms + DENIED_MS
                case EndSession(reason):
                    self._end(reason)

    # -- copying

    def _copy(self) -> Coroutine:
        while not self.end_reason:
            for copier, link in self.links.items():
                self._advance(copier, link)
            if self._has_available_partition():
                self._end("an excluded partition is available")
            if self._has_lost_positions():
                self._end("the offsets topic has lost its records")
            due = [link.due_ms for link in self.links.values() if link.due_ms is not None]
            yield Until(
                lambda: (
                    self._has_available_partition()
                    or self._has_lost_positions()
                    or any(self._can_act(copier, link) for copier, link in self.links.items())
                ),
                max(min(due), self.world.now_ms + 1) if due and not self.is_leaving else None,
            )

    def _has_available_partition(self) -> bool:
        return not self.is_leaving and any(self.world.is_available(partition) for partition in self.left_out)

    def _has_lost_positions(self) -> bool:
        return not self.is_leaving and self.losses_seen != self.world.position_losses

    def _can_act(self, copier: PartitionCopier, link: Link) -> bool:
        if self.end_reason:
            return False
        if link.responses or self.world.metadata[copier.source] != link.leader_epoch:
            return True
        if self.is_leaving:
            return False
        if copier.is_drained and not link.is_connected:
            return self.world.leaders[copier.source].is_online
        if link.due_ms is not None:
            return self.world.now_ms >= link.due_ms
        return self._can_send(copier, link) or self._can_fetch(copier, link)

    def _can_send(self, copier: PartitionCopier, link: Link) -> bool:
        stream = copier.stream
        return (
            link.is_ready and link.is_connected and stream is not None and len(stream.in_flight) < self.depth
        )

    def _can_fetch(self, copier: PartitionCopier, link: Link) -> bool:
        """Returns whether the source has new or changed records for a partition that has sent all fetched ones."""
        if copier.packer or not link.is_connected or copier.is_held:
            return False
        source, request = self.world.sources[copier.source], copier.next_fetch(RESPONSE_BYTES)
        if request is None or not source.is_online:
            return False
        return request.offset != source.end or _diverges(source, request)

    def _advance(self, copier: PartitionCopier, link: Link) -> None:
        while link.responses:
            self._take(copier, link.responses.popleft())
        if self.world.metadata[copier.source] != link.leader_epoch:
            link.leader_epoch = self.world.metadata[copier.source]
            self.apply(copier, copier.leader_changed())
        if self.is_leaving:
            return
        leader = self.world.leaders[copier.source]
        if copier.is_drained and leader.is_online and not link.is_connected:
            link.connection = self.world.connect(self.process, copier.source)
            self.apply(copier, copier.connected())
        if link.due_ms is not None and self.world.now_ms >= link.due_ms:
            link.due_ms = None
            self._resume(copier, link)
        while not self.end_reason:
            if self._can_send(copier, link):
                self._send(copier, link)
            elif self._can_fetch(copier, link):
                request = copier.next_fetch(RESPONSE_BYTES)
                assert request is not None
                self._fetch(copier, request)
            else:
                break

    def _take(self, copier: PartitionCopier, response: Any) -> None:
        """Handles the response to the oldest batch in flight."""
        if not isinstance(response, int):
            appended, _ = response
            effects = copier.acknowledged(appended.base_offset, appended.log_append_time, self.world.now_ms)
            self.process.copied += 1
        elif response == NO_RESPONSE:
            effects = copier.response_lost()
        else:
            effects = copier.refused(response, "")
        self.apply(copier, effects)

    def _resume(self, copier: PartitionCopier, link: Link) -> None:
        if copier.repeat is not None:
            offset = copier.repeat.base_offset
            is_stamped = any(
                batch.attributes & LOG_APPEND_TIME
                for batch in self.world.leaders[copier.source].log.batches
                if batch.base_offset == offset
            )
            copier.repeat_answered(is_log_append_time=is_stamped)
        seen = ResumeFacts(link.is_connected, "", "", link.leader_epoch)
        self.apply(copier, copier.resumed(seen, self.world.now_ms))

    def _fetch(self, copier: PartitionCopier, request: FetchFrom) -> None:
        """Fetches one batch, or offsets that consumers never receive."""
        source, offset = self.world.sources[copier.source], request.offset
        key, end = FetchKey(copier.topic.encode(), copier.partition), source.end
        records: Any = []
        error, diverging = NONE, None
        if _diverges(source, request):
            diverging = source.epoch_end(request.last_epoch)
        elif offset > end:
            error = OFFSET_OUT_OF_RANGE
        elif isinstance(fetched := source.fetch(offset), SkippedOffsets):
            records = [SourceRecords(control_batch(offset, fetched), (), ())]
        else:
            records = [fetched]
        response = PartitionFetchResponse(key, error, end, end, 0, (), -1, records, diverging)
        self.apply(copier, copier.fetched(response, offset))

    def _send(self, copier: PartitionCopier, link: Link) -> None:
        """Sends one batch, if there is one."""
        link.is_ready = False
        batch: Any
        batch, effects = copier.next_batch(self.world.now_ms, REQUEST_BYTES)
        if batch is not None:
            assert link.connection is not None
            link.connection.queue.append((batch, link.responses.append))
            link.connection.sent_ms = self.world.now_ms
            if batch.is_transactional:
                self.transaction.sent(len(batch.values) * self.record_bytes)
        self.apply(copier, effects)

    # -- transactions

    def _commit_all(self) -> Coroutine:
        while not self.end_reason:
            if self.process.is_stopping:
                yield from self._leave()
                return
            if self.world.now_ms >= self.store_ms:
                self.transaction.store(filter(self._has_progress, self.copiers))
                self.store_ms = self.world.now_ms + POSITION_MS
            steps = self.transaction.due(self._now)
            if steps is not None:
                yield from self._in_turn(steps)
                # A commit takes a large part of the model's time, and must not delay the next one.
                self.transaction.took_ms.clear()
                continue
            yield Until(self._has_to_work, self._next_ms())

    def _has_to_work(self) -> bool:
        if self.process.is_stopping or self.transaction.has_wishes:
            return True
        if self._now.monotonic_s >= self.transaction.next_due_s:
            return True
        return self.world.now_ms >= self.store_ms and any(map(self._has_progress, self.copiers))

    def _next_ms(self) -> int | None:
        due_s = self.transaction.next_due_s
        due = [] if math.isinf(due_s) else [math.ceil(due_s * 1000 / SCALE)]
        if any(map(self._has_progress, self.copiers)):
            due.append(self.store_ms)
        return max(min(due), self.world.now_ms + 1) if due else None

    def _has_progress(self, copier: PartitionCopier) -> bool:
        """Returns whether what was acknowledged or skipped has no stored position yet."""
        if copier.stream is None:
            return False
        return self.stored[copier.source] != copier.stream.delivered.source_offset + 1

    def _in_turn(self, steps: transaction_requests.Steps) -> Coroutine:
        """Runs one transaction of a producer at a time, as the runner does."""
        key = self.process, self.producers.transactional.transactional_id
        yield Until(lambda: key not in self.world.busy)
        self.world.busy.add(key)
        try:
            yield from self._perform(steps)
        except MirrorFlowError as error:
            self._end(str(error))
        self._end(self.transaction.end_reason)
        self.world.busy.discard(key)

    def _perform(self, steps: transaction_requests.Steps) -> Coroutine:
        result: Any = None
        while True:
            try:
                request = steps.send(result)
            except StopIteration:
                return
            response = yield from self._respond(request)
            result = response, self._now

    def _respond(self, request: transaction_requests.TransactionRequest) -> Coroutine:
        match request:
            case transaction_requests.CarryOut(copier, effects):
                self.apply(copier, effects)
            case transaction_requests.Drain(copiers, ends_s):
                ends_ms = min(self.world.now_ms + DRAIN_MS, math.ceil(ends_s * 1000 / SCALE))
                yield Until(
                    lambda: bool(self.end_reason) or all(copier.is_drained for copier in copiers), ends_ms
                )
            case transaction_requests.BeginTransaction(producer, positions):
                # At its response, the markers of the last transaction are written, or never will be.
                yield from self._add(producer, {*self.world.by_offsets_partition(positions)})
            case transaction_requests.AskLeaders(partitions):
                return (yield from self._read_leader_epochs(partitions))
            case transaction_requests.AddPartitions(producer, partitions):
                return (yield from self._add_data(producer, partitions))
            case transaction_requests.StorePositions(producer, positions):
                yield from self._store_positions(producer, positions)
            case transaction_requests.Commit(producer):
                yield from self._commit(producer)
            case transaction_requests.AwaitMarkers(producer):
                yield from self._await_markers(producer)
            case _:
                return (yield from self._complete(request.producer))
        return None

    def _add(self, producer: Producer, partitions: set[TopicPartition]) -> Coroutine:
        code = yield from self.world.add_partitions(self.process, producer, partitions)
        if code != NONE:
            raise MirrorFlowError(f"AddPartitionsToTxn failed with {code}")

    def _add_data(self, producer: Producer, partitions: Any) -> Coroutine:
        """Adds data partitions. A coordinator refuses all partitions of a request if it refuses one."""
        if self.world.denied.isdisjoint(partitions):
            yield from self._add(producer, set(partitions))
            return dict.fromkeys(partitions, NONE)
        return {
            partition: TOPIC_AUTHORIZATION_FAILED
            if partition in self.world.denied
            else OPERATION_NOT_ATTEMPTED
            for partition in partitions
        }

    def _read_leader_epochs(self, partitions: Any) -> Coroutine:
        """Reads the epochs from the leaders, because metadata may be older than an election."""
        leaders = {partition: self.world.leaders[partition] for partition in partitions}
        epochs = yield Call(
            lambda: {partition: leader.epoch for partition, leader in leaders.items() if leader.is_online}
        )
        for partition in leaders.keys() - epochs.keys():
            raise MirrorFlowError(f"{partition} has no leader")
        return epochs

    def _store_positions(self, producer: Producer, positions: Any) -> Coroutine:
        by_offsets_partition: dict[TopicPartition, tuple[WriterPosition, ...]] = (
            self.world.by_offsets_partition(positions)
        )
        yield from self._add(producer, {*by_offsets_partition})
        for partition, group in by_offsets_partition.items():
            response = yield from self.world.append_in_transaction(self.process, producer, partition, group)
            if isinstance(response, int):
                raise MirrorFlowError(f"storing the positions failed with {response}")
        self.stored |= {position.topic_partition: position.next_source_offset for position in positions}

    def _commit(self, producer: Producer) -> Coroutine:
        code = yield from self.world.end_transaction(self.process, producer, commit=True)
        if code != NONE:
            raise MirrorFlowError(f"EndTxn failed with {code}")

    def _await_markers(self, producer: Producer) -> Coroutine:
        if not (yield from self.world.await_marker(producer)):
            raise MirrorFlowError("the offsets topic lacks a marker")

    def _complete(self, producer: Producer) -> Coroutine:
        """Runs an empty transaction, which starts when the markers of the last one are written, or never will be."""
        code = yield from self.world.add_partitions(self.process, producer, {CLAIMS})
        if code == NONE:
            code = yield from self.world.end_transaction(self.process, producer, commit=True)
        return Done() if code == NONE else refused(code)

    def _leave(self) -> Coroutine:
        """Stops in order: waits for batches in flight, then stores the positions as left."""
        self.is_leaving = True
        for copier in self.copiers:
            self.apply(copier, copier.leave())
        yield Until(lambda: all(copier.is_drained for copier in self.copiers), self.world.now_ms + DRAIN_MS)
        if not self.end_reason:
            yield from self._in_turn(self.transaction.finish(self._now))
        if not self.end_reason:
            yield from self._in_turn(self.transaction.store_left(self.copiers, self._now))
        self.has_left = True


def _diverges(source: SourceLog, request: FetchFrom) -> bool:
    """Returns whether the source returns a diverging epoch for the last fetched epoch of *request* (KIP-595)."""
    fetched = source.epoch_end(request.last_epoch)
    is_different = fetched.epoch < request.last_epoch or fetched.end < request.offset
    return request.last_epoch >= 0 and is_different
