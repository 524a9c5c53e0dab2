"""Measures the load of a source connector's partitions, and moves some to other tasks to balance it.

    ends of the source's logs, stored offsets, some batches ──> loads ──> `mirrorflow_core.partition_assignment`

It needs no right that the connector does not have, and asks no task: tasks may run on other nodes, or be
Java's.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence

from mirrorflow_core.errors import MirrorFlowError, NotAuthorizedError
from mirrorflow_core.partition_assignment import (
    Assignment,
    Balance,
    Rates,
    assign_by_load,
    behind,
    loads,
    moved,
)
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.wire.batch import split
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import read_once
from mirrorflow_kafka.admin.log_requests import LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.position_store import PositionStore, position_store

# Batches read at most in one check, of the busiest partitions whose record size is unknown or was measured
# long ago.
SAMPLES_MAX = 16
SAMPLE_BYTES = 64 << 10  # a whole batch at least
SAMPLE_RECORDS = 200  # before the end: transaction markers among so many have little weight
SAMPLE_AGE_CHECKS = 10

log = logging.getLogger("mirrorflow.worker")


class LoadBalancer:
    """Balances the tasks of one connector. A process that begins to lead it creates a new one, without measurements."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._store: PositionStore | None = None
        self._rates = Rates()
        self._balance = Balance()
        self._record_bytes: dict[TopicPartition, float] = {}
        self._sampled: dict[TopicPartition, int] = {}  # in which check
        self._copied: Mapping[TopicPartition, int] = {}  # the last offset of each, in the last check
        self._checks = 0
        self.loads: Mapping[TopicPartition, float] = {}
        self.warning: str | None = None  # what could not be measured, and why

    def assign(self, partitions: set[TopicPartition], held: Sequence[Sequence[TopicPartition]]) -> Assignment:
        """Returns an assignment of *partitions* to tasks; *held* is the current one."""
        return assign_by_load(partitions, self._settings.tasks_max, held, self.loads)

    async def balance(self, source: Cluster, target: Cluster, assignment: Assignment) -> Assignment:
        """Measures the loads; returns a balanced assignment, usually *assignment* itself. Raises ClusterError."""
        partitions = [partition for task in assignment for partition in task]
        positions = await self._positions(target)
        committed = self._settings.read_committed
        listed = await admin.list_offsets(source, partitions, LATEST, read_committed=committed)
        ends = {partition: end.offset for partition, end in listed.items() if not end.error}
        gained = {partition: end - self._rates.ends.get(partition, end) for partition, end in ends.items()}
        copied = {partition: position.source_offset for partition, position in positions.positions.items()}
        lags, self._copied = behind(ends, copied, self._copied), copied
        self._rates = self._rates.updated(ends, asyncio.get_running_loop().time())
        self._checks += 1
        await self._sample(
            source, {partition: max(gained[partition], lags.get(partition, 0)) for partition in ends}
        )
        self.loads = loads(self._rates.per_s, lags, self._record_bytes)
        self._balance, balanced = self._balance.checked(assignment, self.loads)
        _log_moves(assignment, balanced, self.loads)
        return balanced

    def failed(self, error: MirrorFlowError) -> None:
        """Notes that a measurement failed: the tasks keep their assignment."""
        self.warning = f"Tasks are not balanced by load: {error}"

    async def _positions(self, target: Cluster) -> PositionStore:
        if self._store is None:
            store = position_store(self._settings, target)
            await store.open()
            self._store = store
        else:
            await self._store.read_new()
        return self._store

    async def _sample(self, source: Cluster, unread: Mapping[TopicPartition, int]) -> None:
        """Reads a few batches of the busiest partitions of *unread*, to measure their record sizes.

        *unread* has, for each partition, the number of offsets before its end that may be read.
        """
        for known in (self._record_bytes, self._sampled):
            for gone in known.keys() - unread.keys():
                del known[gone]
        since = self._checks - SAMPLE_AGE_CHECKS
        due = [
            partition
            for partition, count in unread.items()
            if count > 0 and self._sampled.get(partition, since) <= since
        ]
        busiest = sorted(
            due, key=lambda partition: (-self._rates.per_s.get(partition, 0.0), -unread[partition], partition)
        )
        self.warning = None
        for partition in busiest[:SAMPLES_MAX]:
            start = self._rates.ends[partition] - min(SAMPLE_RECORDS, unread[partition])
            try:
                fetched = await read_once(source, partition, start, max_bytes=SAMPLE_BYTES)
                batches = list(split(fetched.records))
            except NotAuthorizedError as error:
                self.warning = (
                    f"Tasks are balanced by records, not by bytes, where no record can be read: {error}"
                )
                return
            except MirrorFlowError as error:
                log.info("The record size of %s cannot be measured: %s", partition, error)
                continue
            offsets = sum(batch.next_offset - batch.base_offset for batch in batches)
            if offsets:
                self._record_bytes[partition] = sum(batch.size_bytes for batch in batches) / offsets
                self._sampled[partition] = self._checks


def _log_moves(before: Assignment, after: Assignment, loads: Mapping[TopicPartition, float]) -> None:
    task_of = {partition: task for task, had in enumerate(after) for partition in had}
    for partition in moved(before, after):
        log.info(
            "Moving %s (%.0f bytes/s) to task %d to balance the load",
            partition,
            loads.get(partition, 0.0),
            task_of[partition],
        )
