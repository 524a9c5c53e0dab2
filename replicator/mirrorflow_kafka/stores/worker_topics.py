"""Reads and writes the config and status topics of a distributed Connect worker, on the target.

When `put` returns, its records are replicated and have been read back, with everything written before them.
`read_new` returns each record once, in order, including the worker's own. A record that cannot be read is
skipped and listed in `warnings`; Connect's other records (session keys, fencing, tracked topics) are ignored.

`connect.worker_records` encodes the bytes and `connect.worker_state` interprets them; the worker decides what
it may write.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from mirrorflow_core.connect.worker_records import (
    ConfigRecord,
    ConnectorConfig,
    TaskConfig,
    TasksCommit,
    WorkerStatus,
    decode_config,
    decode_status,
    encode_config,
    encode_status,
)
from mirrorflow_core.connect.worker_state import LatestStatuses, WorkerConfigs
from mirrorflow_core.settings import StorageTopicSettings
from mirrorflow_core.wire.records import Record
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.compacted_topic import CompactedTopic

# Records read but not yet returned by `read_new`. Beyond this the oldest are dropped; the worker state
# includes them.
UNSEEN_MAX = 10_000
WARNINGS_MAX = 20  # the newest are kept; a topic full of unreadable records must not fill memory
T = TypeVar("T")


class _WorkerTopic(Generic[T]):
    """One topic: reads new records, and reads back what was written. *take* receives each record that is read.

    *check* returns what is still to be written, after all records before it were read.
    """

    def __init__(
        self,
        log: CompactedTopic,
        *,
        encode: Callable[[T], tuple[bytes, bytes | None]],
        decode: Callable[[bytes | None, bytes | None], T | None],
        take: Callable[[T], None],
        check: Callable[[Sequence[T]], Iterable[T]] | None = None,
    ) -> None:
        self.offset = (
            0  # after the last record read; workers exchange the config topic's in the group protocol
        )
        self._log = log
        self._encode = encode
        self._decode = decode
        self._apply = take
        self._check = check
        self._lock = asyncio.Lock()
        self._unseen: deque[T] = deque(maxlen=UNSEEN_MAX)
        self._warnings: deque[str] = deque(maxlen=WARNINGS_MAX)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about records that could not be read, newest last."""
        return tuple(self._warnings)

    async def open(self) -> None:
        """Creates the topic if it is missing, and reads it to its end.

        Raises InvalidSettingError if the topic does not meet Connect's requirements; ClusterError.
        """
        async with self._lock:
            if warning := await self._log.open():
                self._warnings.append(warning)
            await self._log.read_new(self._take)
            self._unseen.clear()

    async def read_new(self) -> Sequence[T]:
        """Reads to the end; returns the records since the last call, or since `open`. Raises ClusterError."""
        async with self._lock:
            await self._log.read_new(self._take)
            new = tuple(self._unseen)
            self._unseen.clear()
            return new

    async def put(self, *values: T, now_ms: int) -> None:
        """Writes *values* in order. Raises ClusterError; some may have been written then."""
        async with self._lock:
            if self._check is not None:
                await self._log.read_new(self._take)
                values = tuple(self._check(values))
            await self._log.append(map(self._encode, values), now_ms=now_ms)
            await self._log.read_new(self._take)

    def _take(self, record: Record) -> None:
        self.offset = record.offset + 1
        try:
            decoded = self._decode(record.key, record.value)
        except ValueError as problem:
            key = (record.key or b"").decode("utf-8", "replace")
            self._warnings.append(f"The record {key!r} cannot be read: {problem}")
            return
        if decoded is not None:
            self._apply(decoded)
            self._unseen.append(decoded)


class ConfigTopic(_WorkerTopic[ConfigRecord]):
    """The config topic: connectors, tasks and target states.

    `put` leaves out task configs of a connector that was deleted meanwhile: a new connector of that name would begin with them.
    """

    def __init__(self, cluster: Cluster, settings: StorageTopicSettings) -> None:
        self.configs = WorkerConfigs()
        log = CompactedTopic(cluster, settings, key="config.storage.topic", single=True)
        super().__init__(
            log, encode=encode_config, decode=decode_config, take=self.configs.take, check=self._without_gone
        )

    def _without_gone(self, values: Sequence[ConfigRecord]) -> Iterable[ConfigRecord]:
        known = self.configs.connectors.keys() | {
            value.connector for value in values if isinstance(value, ConnectorConfig)
        }
        return (
            value
            for value in values
            if not isinstance(value, TaskConfig | TasksCommit) or value.connector in known
        )


class StatusTopic(_WorkerTopic[WorkerStatus]):
    """The status topic: states of connectors and tasks; a status DESTROYED is written as a tombstone."""

    def __init__(self, cluster: Cluster, settings: StorageTopicSettings) -> None:
        self.statuses = LatestStatuses()
        log = CompactedTopic(cluster, settings, key="status.storage.topic")
        super().__init__(log, encode=encode_status, decode=decode_status, take=self.statuses.take)
