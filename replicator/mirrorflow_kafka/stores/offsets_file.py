"""Stores source offsets in a JSON file, for use on a laptop (`offset.storage.store=file`).

Keys and values are those of the offsets topic. The file is complete at any time (a temporary file is written,
synced and renamed), and processes that share it, such as the tasks of one connector, do not overwrite each
other's changes. Not for a pod: if the offsets are lost with its disk, everything is copied again.
"""

import asyncio
import fcntl
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mirrorflow_core.connect.position_records import encode_value
from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.position import Position
from mirrorflow_kafka.stores.position_store import KnownPositions

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
