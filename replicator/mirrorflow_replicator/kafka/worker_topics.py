"""The config and status topics of a distributed worker, on the target.

Promises: what `put` returned from is replicated and has been read back, with all that others wrote before it; what was
read can be had in order, once, by `read_new`, our own records included. A record that cannot be read is passed over and
told of in `warnings`; Connect's other records (session keys, fencing, tracked topics) are left alone.

The bytes are `connect.worker_records`', their meaning `connect.worker_state`'s; who may write what is the worker's affair.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from mirrorflow_replicator.connect.worker_records import (
    ConfigRecord,
    WorkerStatus,
    decode_config,
    decode_status,
    encode_config,
    encode_status,
)
from mirrorflow_replicator.connect.worker_state import WorkerConfigs, WorkerStatuses
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.storage_log import StorageLog
from mirrorflow_replicator.settings import StorageTopicSettings
from mirrorflow_replicator.wire.records import Record

# Read, and not yet given out. Whoever does not ask loses the oldest; what they amount to is known all the same.
UNSEEN_MAX = 10_000
WARNINGS_MAX = 20  # the newest are kept; a topic full of rubbish must not fill memory
T = TypeVar("T")


class _Following(Generic[T]):
    """What both topics have in common: reading on, and reading back what was written."""

    def __init__(self, log: StorageLog) -> None:
        self._log = log
        self._lock = asyncio.Lock()
        self._unseen: deque[T] = deque(maxlen=UNSEEN_MAX)
        self._warnings: deque[str] = deque(maxlen=WARNINGS_MAX)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What could not be read, newest last."""
        return tuple(self._warnings)

    async def open(self) -> None:
        """Create the topic if it is missing, and read it to its end.

        Raises InvalidSettingError if it is not as Connect needs it; ClusterError.
        """
        async with self._lock:
            if warning := await self._log.open():
                self._warnings.append(warning)
            await self._log.read_new(self._take)
            self._unseen.clear()

    async def read_new(self) -> Sequence[T]:
        """Read to the end; the records since the last call, or since `open`. Raises ClusterError."""
        async with self._lock:
            await self._log.read_new(self._take)
            new = tuple(self._unseen)
            self._unseen.clear()
            return new

    async def _put(self, values: Iterable[tuple[bytes, bytes | None]], *, now_ms: int) -> None:
        async with self._lock:
            await self._log.append(values, now_ms=now_ms)
            await self._log.read_new(self._take)

    def _take(self, record: Record) -> None:
        try:
            found = self._understood(record)
        except ValueError as problem:
            key = (record.key or b"").decode("utf-8", "replace")
            self._warnings.append(f"The record {key!r} cannot be read: {problem}")
            return
        if found is not None:
            self._unseen.append(found)

    def _understood(self, record: Record) -> T | None:
        raise NotImplementedError


class ConfigTopic(_Following[ConfigRecord]):
    """What is to run."""

    def __init__(self, cluster: Cluster, settings: StorageTopicSettings) -> None:
        super().__init__(StorageLog(cluster, settings, key="config.storage.topic", single=True))
        self.configs = WorkerConfigs()
        self.offset = 0  # behind the last record that counts, as workers tell each other in their group

    async def put(self, *records: ConfigRecord, now_ms: int) -> None:
        """Write *records* in their order. Raises ClusterError; some may have been written then."""
        await self._put([encode_config(record) for record in records], now_ms=now_ms)

    def _understood(self, record: Record) -> ConfigRecord | None:
        self.offset = record.offset + 1
        found = decode_config(record.key, record.value)
        if found is not None:
            self.configs.take(found)
        return found


class StatusTopic(_Following[WorkerStatus]):
    """How it fares."""

    def __init__(self, cluster: Cluster, settings: StorageTopicSettings) -> None:
        super().__init__(StorageLog(cluster, settings, key="status.storage.topic"))
        self.statuses = WorkerStatuses()

    async def put(self, *statuses: WorkerStatus, now_ms: int) -> None:
        """Write *statuses*, DESTROYED as tombstones. Raises ClusterError; some may have been written then."""
        await self._put([encode_status(status) for status in statuses], now_ms=now_ms)

    def _understood(self, record: Record) -> WorkerStatus | None:
        found = decode_status(record.key, record.value)
        if found is not None:
            self.statuses.take(found)
        return found
