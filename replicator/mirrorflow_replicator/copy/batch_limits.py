"""Learns how large a batch each target topic accepts, from refusals and from the topic's settings.

    refused for its size ──> guess: half of it, without compression
                        └──> DescribeConfigs ──> settings have changed ──> the limit that they give
                                            └──> unchanged, or not readable ──> the guess stays

Only changed settings replace a guess. Settings of limited topics are read again from time to time, so that
batches do not stay small after a limit was raised. Before the first refusal nothing is requested and nothing
is limited.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any
from weakref import WeakKeyDictionary

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.wire.produce import BatchLimit, limit_of
from mirrorflow_core.writer.stream import Span
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.copy.copier_context import CopierState
from mirrorflow_replicator.copy.partition_copier import PartitionCopier

WATCH_S = 30.0  # how often the settings of a limited topic are read again: one request for each topic

log = logging.getLogger("mirrorflow.task")


class BatchLimits:
    """The limits of a task's partitions; `Packer.limit` holds the limit of each."""

    def __init__(self, target: Cluster, *, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._target = target
        self._spawn = spawn
        # By the topic's settings as last applied; None while they were not read.
        self._by_settings: WeakKeyDictionary[PartitionCopier, BatchLimit | None] = WeakKeyDictionary()
        self._reading: dict[str, asyncio.Task[BatchLimit | None]] = {}
        self._unreadable: set[str] = set()  # topics whose settings could not be read: logged once
        self._is_watching = False

    def refused(self, lane: PartitionCopier, span: Span) -> None:
        """Handles a refusal of *span* of *lane* for its size."""
        if lane.state is not CopierState.COPYING:
            return  # It was in flight behind a refused batch, and packed by the same limit.
        if span.count > 1:
            lane.packer.limit = lane.packer.limit.after_refusal()
        before = self._by_settings.setdefault(lane, None)
        self._spawn(self._learn(lane, span, before))
        if not self._is_watching:
            self._is_watching = True
            self._spawn(self._watch())

    async def read_settings(self, lane: PartitionCopier) -> None:
        """Reads the settings of *lane*'s target topic, and applies them if they have changed."""
        self._apply(await self._read(lane.target_topic), lane)

    def _apply(self, limit: BatchLimit | None, lane: PartitionCopier) -> None:
        if limit is None or limit == self._by_settings.get(lane):
            return
        self._by_settings[lane] = limit
        lane.packer.limit = limit
        if lane.state is CopierState.COPYING:
            lane.doubt()  # What is packed already was packed by another limit.

    async def _learn(self, lane: PartitionCopier, span: Span, before: BatchLimit | None) -> None:
        """Reads the settings after *span* was refused; *before* is the limit applied then.

        Stops the copier if one record alone is too large.
        """
        await self.read_settings(lane)
        if span.count == 1 and before == self._by_settings[lane] and lane.state is not CopierState.LEAVING:
            lane.stop(lane.packer.too_large(span.base_offset, span.size_bytes))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            lanes = [lane for lane in self._by_settings if lane.state is not CopierState.LEAVING]
            for topic in dict.fromkeys(lane.target_topic for lane in lanes):
                limit = await self._read(topic)
                for lane in lanes:
                    if lane.target_topic == topic:
                        self._apply(limit, lane)

    async def _read(self, topic: str) -> BatchLimit | None:
        """Returns the limit by the settings of *topic*; None if they cannot be read.

        Concurrent callers share one request.
        """
        reading = self._reading.get(topic)
        if reading is None:
            reading = self._reading[topic] = asyncio.create_task(self._describe(topic))
            reading.add_done_callback(lambda _: self._reading.pop(topic, None))
        return await asyncio.shield(reading)

    async def _describe(self, topic: str) -> BatchLimit | None:
        try:
            described = await admin.describe_topic_configs(self._target, [topic])
        except MirrorFlowError as error:
            if topic not in self._unreadable:
                self._unreadable.add(topic)
                log.info("The largest batch that %s takes is found by halving: %s", topic, error)
            return None
        return limit_of({entry.name: entry.value or "" for entry in described.get(topic, ())})
