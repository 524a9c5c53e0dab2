"""One-time upgrade: converts the state of releases before flow ownership into positions of the flow's owner.

    fence the earlier release's producers ──> count what they wrote in each partition ──> store positions in Java's format

Those releases stored an *identity* of the flow, which is a producer id and epoch (`core.writer.identity`). `flow_takeover`
calls this module after it has claimed the flow, so no other process migrates it at the same time.

Guarantees: copiers of the earlier release stop, because the last identity names another flow; each record that they have written
is counted once.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace

from mirrorflow_core.errors import BrokerError, FlowNotMovedError, FlowTakenError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.wire.error_codes import EPOCH_IS_OVER, INVALID_PRODUCER_ID_MAPPING
from mirrorflow_core.wire.records import decode
from mirrorflow_core.writer.broker_requests import Producer
from mirrorflow_core.writer.identity import (
    LAST_EPOCH,
    Decisions,
    Identity,
    NumberedRecord,
    last_known,
    records_behind,
)
from mirrorflow_core.writer.position import WriterPosition
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import consumed_batches, read_batches
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.decision_log import DecisionLog, check_owner, migrated_name
from mirrorflow_kafka.stores.position_store import position_store
from mirrorflow_kafka.writer.protocol_runner import ProtocolRunner
from mirrorflow_replicator.copy.task_parts import flow_topics

READS_MAX = 16  # partitions whose logs are read at the same time
# No transaction is open, or the coordinator has forgotten the id, or has raised its epoch.
_NOTHING_TO_COMMIT = EPOCH_IS_OVER | {INVALID_PRODUCER_ID_MAPPING}


class LegacyFlowMigration:
    """Migrates one flow."""

    def __init__(self, settings: SourceSettings, source: Cluster, target: Cluster) -> None:
        self._settings = settings
        self._source = source
        self._target = target
        self._topics = flow_topics(settings)
        self._log = DecisionLog(
            target, settings.source_alias, replication_factor=settings.offsets.replication_factor
        )
        self._reads = asyncio.Semaphore(READS_MAX)

    async def due(self) -> Identity | None:
        """Returns the last identity if an earlier release has copied the flow since it last had an owner, else None.

        Raises FlowExistsError if it has copied another flow, ClusterChangedError, ClusterError.
        """
        if not await self._log.exists():
            return None
        identity = (await self._decisions()).identity
        if identity is None:
            return None
        check_owner(
            identity,
            self._settings,
            source_cluster_id=self._source.cluster_id,
            target_cluster_id=self._target.cluster_id,
        )
        return identity if not self._is_retired(identity) or await self._last_known() else None

    async def migrate(self, last: Identity, runner: ProtocolRunner, lock: Producer) -> None:
        """Migrates the flow, whose last known identity is *last*, under *lock*.

        Raises FlowNotMovedError, FlowTakenError, ClusterError.
        """
        identity = await self._retire(last, runner.transactions.timeout_ms)
        known = await self._last_known()
        running = {one: record for one, record in known.items() if not record.is_last}
        if running:
            await self._fence(identity, running)
        ends = dict(zip(known, await asyncio.gather(*map(self._end, known, known.values())), strict=True))
        positions = [self._position(one, ends[one], record) for one, record in known.items()]
        if not await runner.store_positions(lock, positions):
            raise FlowTakenError(source=self._settings.source_alias)

    def _is_retired(self, identity: Identity) -> bool:
        return identity.flow == migrated_name(self._settings.flow)

    async def _last_known(self) -> dict[TopicPartition, NumberedRecord]:
        store = position_store(self._settings, self._target)
        await store.open()
        await store.read_new()
        return last_known(store.positions, store.foreign, await self._decisions())

    async def _decisions(self) -> Decisions:
        return await self._log.read()

    async def _retire(self, decided: Identity, timeout_ms: int) -> Identity:
        """Stores and returns the last identity, with a newer epoch than any copier has."""
        while not self._is_retired(decided := (await self._decisions()).identity or decided):
            producer_id, epoch = await self._newer_epoch(decided, timeout_ms)
            last = replace(
                decided,
                generation=decided.generation + 1,
                producer_id=producer_id,
                producer_epoch=epoch,
                flow=migrated_name(self._settings.flow),
                why="one owner",
            )
            await self._log.decide([last], now_ms=time.time_ns() // 1_000_000)
        return decided

    async def _newer_epoch(self, decided: Identity, timeout_ms: int) -> tuple[int, int]:
        name = decided.transactional_id
        if not name:
            return decided.producer_id, min(decided.producer_epoch + 1, LAST_EPOCH)
        # Its records were accepted once each; a new epoch would abort them.
        try:
            await admin.end_txn(
                self._target, name, decided.producer_id, decided.producer_epoch, committed=True
            )
        except BrokerError as error:
            if error.code not in _NOTHING_TO_COMMIT:
                raise
        return await admin.init_producer_id(self._target, name, timeout_ms=timeout_ms)

    async def _fence(self, identity: Identity, running: Mapping[TopicPartition, NumberedRecord]) -> None:
        if not identity.transactional_id:
            subject = str(next(iter(running)))
            problem = (
                "it was not stopped, and without an ACL for its transactional id its copiers cannot be fenced"
            )
            raise FlowNotMovedError(source=self._settings.source_alias, subject=subject, problem=problem)
        await admin.empty_transaction(
            self._target,
            identity.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            partitions=[self._topics.on_target(one) for one in running],
        )

    async def _end(self, partition: TopicPartition, known: NumberedRecord) -> int:
        """Returns the source offset behind the last record that was written."""
        if known.is_last:
            return known.source_offset + 1
        async with self._reads:
            copy = self._topics.on_target(partition)
            end = (await admin.offsets_at(self._target, [copy], LATEST))[copy]
            writer = (await self._decisions()).generation(known.generation)
            if writer is None or end <= known.target_offset:
                raise self._error(copy, "it was not stopped, and its last records are gone from the target")
            batches = await read_batches(self._target, copy, max(0, known.target_offset + 1), end)
            written = records_behind(known, batches, (writer.producer_id, writer.producer_epoch))
            return await self._behind(partition, known.source_offset + 1, written)

    async def _behind(self, partition: TopicPartition, start: int, count: int) -> int:
        """Returns the source offset behind *count* records from *start* on."""
        ends = await admin.offsets_at(self._source, [partition], LATEST)
        starts = await admin.offsets_at(self._source, [partition], EARLIEST)
        if count and starts[partition] > start:
            raise self._error(partition, "it was not stopped, and the source no longer has its last records")
        async for batch in consumed_batches(
            self._source, partition, start, ends[partition], read_committed=self._settings.read_committed
        ):
            if not count:
                break
            for record in decode(batch):
                if record.offset >= start and count:
                    start, count = record.offset + 1, count - 1
        if count:
            raise self._error(partition, "it was not stopped, and the source has fewer records than its copy")
        return start

    def _error(self, partition: TopicPartition, problem: str) -> FlowNotMovedError:
        return FlowNotMovedError(source=self._settings.source_alias, subject=str(partition), problem=problem)

    def _position(self, partition: TopicPartition, next_offset: int, known: NumberedRecord) -> WriterPosition:
        is_same = next_offset == known.source_offset + 1
        return WriterPosition(
            topic=partition.topic,
            partition=partition.partition,
            next_source_offset=next_offset,
            java_offset=next_offset - 1,
            source_epoch=known.source_epoch if is_same else -1,
        )
