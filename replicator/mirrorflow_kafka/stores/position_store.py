"""The interface of stores of source offsets, and the in-memory state that both implementations share."""

import asyncio
import fcntl
import json
import os
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from mirrorflow_core.connect.position_records import (
    Malformed,
    PositionKey,
    Reset,
    Stored,
    decode,
    encode_key,
    encode_value,
)
from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.partitions import UNKNOWN, Position, TopicPartition
from mirrorflow_core.settings import OffsetStorageSettings, OffsetStore, SourceSettings
from mirrorflow_core.wire.records import Record
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.security.rotation import Resolve
from mirrorflow_kafka.stores.compacted_topic import CompactedTopic

WARNINGS_MAX = 20  # the newest are kept; a topic full of unreadable records must not fill memory


class PositionStore(Protocol):
    """A store of source offsets, implemented by `offsets_topic.OffsetsLog` and `offsets_file.OffsetsFile`."""

    @property
    def positions(self) -> Mapping[TopicPartition, Position]:
        """The newest known position of each source partition, as last read or written."""

    @property
    def foreign(self) -> AbstractSet[TopicPartition]:
        """Partitions whose newest record, or removal, is not an earlier release's."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about records that could not be read, newest last."""

    async def open(self) -> None:
        """Create the store if it is missing, and read it whole."""

    async def read_new(self) -> frozenset[TopicPartition]:
        """Read new records; return the partitions whose position was written or reset."""

    async def write(self, positions: Iterable[Position], *, now_ms: int) -> None:
        """Store *positions*."""


class KnownPositions:
    """Keeps the newest position of each partition, from records passed in log order."""

    def __init__(self, *, connector: str, source_alias: str) -> None:
        self.positions: dict[TopicPartition, Position] = {}
        self.foreign: set[TopicPartition] = set()
        self.warnings: deque[str] = deque(maxlen=WARNINGS_MAX)
        self._connector = connector
        self._source_alias = source_alias

    def key(self, partition: TopicPartition) -> bytes:
        """Return the record key of *partition*, in the bytes that Java writes."""
        return encode_key(
            PositionKey(self._connector, self._source_alias, partition.topic, partition.partition)
        )

    def written(self, positions: Iterable[Position], now_ms: int) -> dict[TopicPartition, Position]:
        """Return *positions* as written at *now_ms*, by partition."""
        return {
            TopicPartition(one.topic, one.partition): replace(one, written_ms=now_ms) for one in positions
        }

    def take(self, key: bytes | None, value: bytes | None) -> TopicPartition | None:
        """Apply the next record; return its partition, None if unreadable or of another connector."""
        found = decode(key, value, connector=self._connector, cluster=self._source_alias)
        match found:
            case Stored(key=key_, position=position, warning=warning):
                if warning:
                    self.warnings.append(warning)
                partition = TopicPartition(key_.topic, key_.partition)
                if position.sequence == UNKNOWN:
                    self.foreign.add(partition)
                else:
                    self.foreign.discard(partition)
                self.positions[partition] = position
                return partition
            case Reset(key=key_):
                partition = TopicPartition(key_.topic, key_.partition)
                self.foreign.add(partition)
                self.positions.pop(partition, None)
                return partition
            case Malformed(problem=problem):
                # Keep the older position: it is correct, only further behind.
                self.warnings.append(problem)
        return None


TOPIC_KEY = "offset.storage.topic"


async def ensure_topic(settings: OffsetStorageSettings, *, resolve: Resolve) -> None:
    """Create the topic before the first connector needs it, as Java's worker does. Raises as `OffsetsLog.open`."""
    cluster = await Cluster.connect(settings.client, resolve=resolve)
    try:
        await CompactedTopic(cluster, settings, key=TOPIC_KEY).open()
    finally:
        await cluster.close()


class OffsetsLog:
    """The offsets topic of one connector."""

    def __init__(
        self, cluster: Cluster, settings: OffsetStorageSettings, *, connector: str, source_alias: str
    ) -> None:
        self._log = CompactedTopic(cluster, settings, key=TOPIC_KEY)
        self._known = KnownPositions(connector=connector, source_alias=source_alias)
        self._writing = asyncio.Lock()

    @property
    def positions(self) -> Mapping[TopicPartition, Position]:
        """The newest known position of each source partition, as last read or written."""
        return self._known.positions

    @property
    def foreign(self) -> AbstractSet[TopicPartition]:
        """Partitions whose newest record, or removal, is not an earlier release's."""
        return self._known.foreign

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about records that could not be read, newest last."""
        return tuple(self._known.warnings)

    async def open(self) -> None:
        """Create the topic if it is missing, and read it to its end.

        Raises InvalidSettingError if the topic is not compacted, because retention would remove positions.
        """
        if warning := await self._log.open():
            self._known.warnings.append(warning)
        await self.read_new()

    async def read_new(self) -> frozenset[TopicPartition]:
        """Read new records; return the partitions whose position was written or reset."""
        changed = set()

        def take(record: Record) -> None:
            if about := self._known.take(record.key, record.value):
                changed.add(about)

        # Not concurrently with a write: an older record must not replace the newer position just written.
        async with self._writing:
            await self._log.read_new(take)
        return frozenset(changed)

    async def write(self, positions: Iterable[Position], *, now_ms: int) -> None:
        """Append *positions*; return when all are replicated.

        Raises ClusterError if the target does not accept them; some may have been written then.
        """
        async with self._writing:
            new = self._known.written(positions, now_ms)
            await self._append({p: encode_value(position) for p, position in new.items()}, now_ms)
            self._known.positions.update(new)

    async def _append(self, values: Mapping[TopicPartition, bytes | None], now_ms: int) -> None:
        by_key = [(self._known.key(partition), value) for partition, value in values.items()]
        await self._log.append(by_key, now_ms=now_ms)


_SETTING = "offset.storage.file.filename"


class OffsetsFile:
    """A `stores.position_store.PositionStore` in the file at *path*."""

    def __init__(self, path: Path, *, connector: str, source_alias: str) -> None:
        self._path = path
        self._known = KnownPositions(connector=connector, source_alias=source_alias)
        self._writing = asyncio.Lock()

    @property
    def positions(self) -> Mapping[TopicPartition, Position]:
        """The newest known position of each source partition, as last read or written."""
        return self._known.positions

    @property
    def foreign(self) -> AbstractSet[TopicPartition]:
        """Partitions whose position is not an earlier release's; a file does not show removals."""
        return self._known.foreign

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about records that could not be read, newest last."""
        return tuple(self._known.warnings)

    async def open(self) -> None:
        """Read the file, if there is one. Raises InvalidSettingError if it cannot be read or written."""
        await asyncio.to_thread(self._store, {})
        await self.read_new()

    async def read_new(self) -> frozenset[TopicPartition]:
        """Read the file; return the partitions whose position has changed."""
        before = dict(self._known.positions)
        stored = await asyncio.to_thread(self._load)
        self._known.positions.clear()
        for key, value in stored.items():
            self._known.take(key.encode(), _dumped(value))
        after = self._known.positions
        return frozenset(
            partition for partition in before.keys() | after if before.get(partition) != after.get(partition)
        )

    async def write(self, positions: Iterable[Position], *, now_ms: int) -> None:
        """Store *positions*. Raises InvalidSettingError if the file cannot be written."""
        async with self._writing:
            new = self._known.written(positions, now_ms)
            changes = {self._key(p): json.loads(encode_value(position)) for p, position in new.items()}
            await asyncio.to_thread(self._store, changes)
            self._known.positions.update(new)

    def _key(self, partition: TopicPartition) -> str:
        return self._known.key(partition).decode()

    def _load(self) -> dict[str, Any]:
        try:
            stored = json.loads(self._path.read_bytes() or b"{}")
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._refusal(f"it cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise self._refusal("it is not JSON") from error
        if not isinstance(stored, dict):
            raise self._refusal("it is not a JSON object")
        return stored

    def _store(self, changes: Mapping[str, Any]) -> None:
        """Merge *changes* into the file's current content; None removes a key."""
        try:
            with self._locked():
                merged = {**self._load(), **changes}
                kept = {key: value for key, value in merged.items() if value is not None}
                if changes:
                    self._replace(json.dumps(kept, indent=0).encode())
        except OSError as error:
            raise self._refusal(f"it cannot be written ({error.strerror})") from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # A separate lock file, because each write replaces the file with the positions.
        with self._path.with_name(self._path.name + ".lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _replace(self, data: bytes) -> None:
        """Replace the file with *data* atomically, also in case of a power loss."""
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

    def _refusal(self, problem: str) -> InvalidSettingError:
        return InvalidSettingError(
            key=_SETTING,
            problem=f"{self._path}: {problem}",
            action="name a file in a folder that this user may write",
        )


def _dumped(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def position_store(settings: SourceSettings, target: Cluster) -> PositionStore:
    """Return the configured store, not yet opened."""
    if settings.offsets.store is OffsetStore.FILE:
        return OffsetsFile(
            Path(settings.offsets.file), connector=settings.name, source_alias=settings.source_alias
        )
    return OffsetsLog(target, settings.offsets, connector=settings.name, source_alias=settings.source_alias)
