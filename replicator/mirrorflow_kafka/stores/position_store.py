"""Stores of source offsets: the offsets topic of Kafka Connect, or a file.

`connect.position_records` encodes the bytes, and the task decides which positions to write and when.
"""

import asyncio
import fcntl
import json
import os
import tempfile
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from mirrorflow_core.connect.position_records import (
    Malformed,
    PositionKey,
    Reset,
    decode,
    encode_key,
    encode_value,
)
from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.partitions import Position, TopicPartition
from mirrorflow_core.settings import OffsetStorageSettings, OffsetStore, SourceSettings
from mirrorflow_core.wire.records import Record
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.security.secret_rotation import Resolve
from mirrorflow_kafka.stores.compacted_topic import CompactedTopic

WARNINGS_MAX = 20  # the newest are kept; a topic full of unreadable records must not fill memory
TOPIC_KEY = "offset.storage.topic"
_SETTING = "offset.storage.file.filename"


class _Append(Protocol):
    async def __call__(self, values: Iterable[tuple[bytes, bytes]], *, now_ms: int) -> None: ...


class PositionStore(ABC):
    """The newest position of each source partition of one connector, from records in the order of the log.

    *append* stores keys and values safely.
    """

    def __init__(self, append: _Append, *, connector: str, source_alias: str) -> None:
        self._append = append
        self.positions: dict[TopicPartition, Position] = {}  # as last read or written
        self._warnings: deque[str] = deque(maxlen=WARNINGS_MAX)
        self._connector = connector
        self._source_alias = source_alias
        self._writing = asyncio.Lock()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about records that could not be read, newest last."""
        return tuple(self._warnings)

    @abstractmethod
    async def open(self) -> None:
        """Creates the store if it is missing, and reads it whole. Raises InvalidSettingError if it cannot keep positions."""

    @abstractmethod
    async def read_new(self) -> frozenset[TopicPartition]:
        """Reads new records; returns the partitions whose position was written or reset."""

    async def write(self, positions: Iterable[Position], *, now_ms: int) -> None:
        """Stores *positions*; returns when all are stored safely.

        Raises ClusterError if the target does not accept them, InvalidSettingError if the file cannot be written; some may
        have been written then.
        """
        async with self._writing:
            new = {
                TopicPartition(position.topic, position.partition): replace(position, written_ms=now_ms)
                for position in positions
            }
            await self._append(
                ((self._key(p), encode_value(position)) for p, position in new.items()), now_ms=now_ms
            )
            self.positions.update(new)

    def _key(self, partition: TopicPartition) -> bytes:
        return encode_key(PositionKey(self._connector, self._source_alias, *partition))

    def _take(self, key: bytes | None, value: bytes | None) -> TopicPartition | None:
        """Applies the next record; returns its partition, None if unreadable or of another connector."""
        decoded = decode(key, value, connector=self._connector, cluster=self._source_alias)
        if decoded is None:
            return None
        if isinstance(decoded, Malformed):
            # Keep the older position: it is correct, only further behind.
            self._warnings.append(decoded.problem)
            return None
        partition = TopicPartition(decoded.key.topic, decoded.key.partition)
        if isinstance(decoded, Reset):
            self.positions.pop(partition, None)
            return partition
        if decoded.warning is not None:
            self._warnings.append(decoded.warning)
        self.positions[partition] = decoded.position
        return partition


async def ensure_topic(settings: OffsetStorageSettings, *, resolve: Resolve) -> None:
    """Creates the topic before the first connector needs it, as Java's worker does. Raises as `OffsetsLog.open`."""
    cluster = await Cluster.connect(settings.client, resolve=resolve)
    try:
        await CompactedTopic(cluster, settings, key=TOPIC_KEY).open()
    finally:
        await cluster.close()


class OffsetsLog(PositionStore):
    """Kafka Connect's offsets topic on the target, as MM2 uses it, so that either can take over.

    A write returns when its records are replicated (acks=all). Reads see what a read_committed consumer sees, because Java
    with exactly-once support writes offsets in transactions. Records of other connectors are neither kept nor changed. Tasks
    that fence others write their positions in transactions instead (`writer.producer_transactions`).
    """

    def __init__(
        self, cluster: Cluster, settings: OffsetStorageSettings, *, connector: str, source_alias: str
    ) -> None:
        self._log = CompactedTopic(cluster, settings, key=TOPIC_KEY)
        super().__init__(self._log.append, connector=connector, source_alias=source_alias)

    async def open(self) -> None:
        if warning := await self._log.open():
            self._warnings.append(warning)
        await self.read_new()

    async def read_new(self) -> frozenset[TopicPartition]:
        changed = set()

        def take(record: Record) -> None:
            if about := self._take(record.key, record.value):
                changed.add(about)

        # Not concurrently with a write: an older record must not replace the newer position just written.
        async with self._writing:
            await self._log.refresh()
            await self._log.read_new(take)
        return frozenset(changed)


class OffsetsFile(PositionStore):
    """A JSON file with keys and values of the offsets topic, for use on a laptop (`offset.storage.store=file`).

    The file is complete at any time: a temporary file is written, synced and renamed. Processes that share it, such as the
    tasks of one connector, keep each other's changes. It does not show removals.
    """

    def __init__(self, path: Path, *, connector: str, source_alias: str) -> None:
        super().__init__(self._store, connector=connector, source_alias=source_alias)
        self._path = path

    async def open(self) -> None:
        await asyncio.to_thread(self._merge, {})
        await self.read_new()

    async def read_new(self) -> frozenset[TopicPartition]:
        # Not concurrently with a write, as in `OffsetsLog`.
        async with self._writing:
            before = dict(self.positions)
            stored = await asyncio.to_thread(self._load)
            self.positions.clear()
            for key, value in stored.items():
                self._take(key.encode(), json.dumps(value, separators=(",", ":")).encode())
            after = dict(self.positions)
        return frozenset(
            partition for partition in before.keys() | after if before.get(partition) != after.get(partition)
        )

    async def _store(self, values: Iterable[tuple[bytes, bytes]], *, now_ms: int) -> None:
        await asyncio.to_thread(self._merge, {key.decode(): json.loads(value) for key, value in values})

    def _load(self) -> dict[str, Any]:
        try:
            stored = json.loads(self._path.read_bytes() or b"{}")
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._unusable(f"it cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise self._unusable("it is not JSON") from error
        if not isinstance(stored, dict):
            raise self._unusable("it is not a JSON object")
        return stored

    def _merge(self, changes: Mapping[str, Any]) -> None:
        """Merges *changes* into the file's current content."""
        try:
            with self._locked():
                merged = {**self._load(), **changes}
                if changes:
                    self._replace(json.dumps(merged, indent=0).encode())
        except OSError as error:
            raise self._unusable(f"it cannot be written ({error.strerror})") from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # A separate lock file, because each write replaces the file with the positions.
        with self._path.with_name(self._path.name + ".lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _replace(self, data: bytes) -> None:
        """Replaces the file with *data* atomically, also in case of a power loss."""
        folder = self._path.parent
        descriptor, name = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as beside:
                beside.write(data)
                beside.flush()
                os.fsync(beside.fileno())
            Path(name).replace(self._path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        directory = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _unusable(self, problem: str) -> InvalidSettingError:
        return InvalidSettingError(
            key=_SETTING,
            problem=f"{self._path}: {problem}",
            action="name a file in a folder that this user may write",
        )


def position_store(settings: SourceSettings, target: Cluster) -> PositionStore:
    """Returns the configured store, not yet opened."""
    if settings.offsets.store is OffsetStore.FILE:
        assert settings.offsets.file is not None, "the settings of a file store name its file"
        return OffsetsFile(
            Path(settings.offsets.file), connector=settings.name, source_alias=settings.source_alias
        )
    return OffsetsLog(target, settings.offsets, connector=settings.name, source_alias=settings.source_alias)
