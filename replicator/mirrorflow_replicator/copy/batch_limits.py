"""Learns how large batches may be where a target topic has refused one for its size.

The first refusal lowers the limit at once. Then the topic's settings are read: they give the exact limit, and they are read
again as long as the task runs, because a person may raise them. Where they cannot be read, each refusal halves the limit again.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any
from weakref import WeakKeyDictionary

from mirrorflow_core.copying.effects import Effects
from mirrorflow_core.copying.partition import CopierState, PartitionCopier
from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.wire.produce import BatchLimit, limit_of
from mirrorflow_core.writer.stream import Span
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster

WATCH_S = 30.0  # how often the settings of a limited topic are read again: one request for each topic

log = logging.getLogger("mirrorflow.task")


class BatchLimits:
    """The limits of a task's partitions; `Packer.limit` holds the limit of each."""

    def __init__(
        self,
        target: Cluster,
        *,
        apply: Callable[[PartitionCopier, Effects], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._target = target
        self._apply_effects = apply
        self._spawn = spawn
        # By the topic's settings as last applied; None while they were not read.
        self._by_settings: WeakKeyDictionary[PartitionCopier, BatchLimit | None] = WeakKeyDictionary()
        self._reading: dict[str, asyncio.Task[BatchLimit | None]] = {}
        self._unreadable: set[str] = set()  # topics whose settings could not be read: logged once
        self._is_watching = False

    def refused(self, copier: PartitionCopier, span: Span) -> None:
        """Reads the settings of *copier*'s target topic, which has refused *span* for its size."""
        before = self._by_settings.setdefault(copier, None)
        self._spawn(self._learn(copier, span, before))
        if not self._is_watching:
            self._is_watching = True
            self._spawn(self._watch())

    async def read_settings(self, copier: PartitionCopier) -> None:
        """Reads the settings of *copier*'s target topic, and applies them if they have changed."""
        self._apply(await self._read(copier.target_topic), copier)

    def _apply(self, limit: BatchLimit | None, copier: PartitionCopier) -> None:
        if limit is None or limit == self._by_settings.get(copier):
            return
        self._by_settings[copier] = limit
        self._apply_effects(copier, copier.limited(limit))

    async def _learn(self, copier: PartitionCopier, span: Span, before: BatchLimit | None) -> None:
        """Reads the settings after *span* was refused; *before* is the limit applied then.

        Stops the copier if one record alone is too large.
        """
        await self.read_settings(copier)
        if span.count == 1 and before == self._by_settings[copier]:
            self._apply_effects(copier, copier.found_too_large(span))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            copiers = [copier for copier in self._by_settings if copier.state is not CopierState.LEAVING]
            for topic in dict.fromkeys(copier.target_topic for copier in copiers):
                limit = await self._read(topic)
                for copier in copiers:
                    if copier.target_topic == topic:
                        self._apply(limit, copier)

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
