"""Writes the table of a verification's windows: one Parquet file of each task.

    OUTPUT/run-<run id>/windows/part-<token>-<task>-<attempt>.zstd.parquet

A task writes its windows itself where it reaches the folder: where it finds the driver's marker there. Otherwise, as
where only the driver mounts a volume, it returns them and the driver writes them. The driver then deletes all files
that no task has returned: of attempts that were lost, and of earlier runs.
"""

import contextlib
import itertools
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from mirrorflow_seed.errors import FileSystemError, SparkMissingError
from mirrorflow_seed.storage_folder import StorageFolder
from mirrorflow_seed.verify.offset_windows import WindowOutcome, WindowResult

TABLE: Final = "windows"
ROWS_AT_ONCE: Final = 10_000
_MARKER_PREFIX: Final = f"_{TABLE}-"


@cache
def schema() -> Any:
    """Returns the schema of the table `windows`, one row per window; docs/verification.md describes the columns."""
    import pyarrow as pa  # noqa: PLC0415 the extra `seed`

    def required(name: str, kind: Any) -> Any:
        return pa.field(name, kind, nullable=False)

    text, number = pa.string(), pa.int64()
    difference = pa.struct(
        [
            ("kind", text),
            ("source_offset", number),
            ("target_offset", number),
            ("source_digest", text),
            ("target_digest", text),
            ("fields", pa.list_(text)),
            ("key", text),
        ]
    )
    return pa.schema(
        [
            *(required("run_id", text), required("flow", text), required("topic", text)),
            *(required("partition", pa.int32()), required("target_topic", text)),
            *(required("from_offset", number), required("to_offset", number)),
            *(pa.field("target_from_offset", number), pa.field("target_to_offset", number)),
            *(required("source_count", number), required("target_count", number)),
            *(required("source_sum", text), required("target_sum", text)),
            *(pa.field("source_chain", text), pa.field("target_chain", text)),
            *(required("digested_count", number), pa.field("ordered_equal", pa.bool_())),
            *(required("outcome", text), required("differing_count", number)),
            *(pa.field("key_class", pa.int32()), pa.field("reason", text)),
            required("differences", pa.list_(difference)),
        ]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowTable:
    """The table of one run, as driver and tasks know it; *flow* is a column of its rows."""

    address: str  # of the run's folder
    run_id: str
    flow: str
    token: str = field(default_factory=lambda: secrets.token_hex(4))  # of this start of the run

    def mark(self) -> None:
        """Writes the marker by which tasks recognize the folder. Raises FileSystemError."""
        StorageFolder(self.address).write(self._marker, self.token.encode())

    def write_in_task(self, windows: Iterable[WindowResult], name: str) -> str | None:
        """Writes the windows of an attempt of a task, and returns the file's path; None if this process does not reach the folder.

        Raises FileSystemError.
        """
        folder = None
        with contextlib.suppress(FileSystemError, SparkMissingError):
            folder = StorageFolder(self.address)
            if folder.read(self._marker) != self.token.encode():
                folder = None
        if folder is None:
            return None
        # Unique, because an attempt that Spark has given up may still write.
        return self._write(folder, windows, f"{name}-{secrets.token_hex(4)}")

    def complete(self, parts: Iterable[str], unwritten: Iterable[WindowResult]) -> None:
        """Writes what tasks have not written, and leaves only that and *parts*. Raises FileSystemError."""
        folder, kept, rest = StorageFolder(self.address), set(parts), iter(unwritten)
        first = next(rest, None)
        if first is not None or not kept:
            windows = rest if first is None else itertools.chain((first,), rest)
            kept.add(self._write(folder, windows, "driver"))
        for path in folder.files(TABLE):
            if path not in kept:
                folder.delete(path)
        for name in folder.entries():
            if name.startswith(_MARKER_PREFIX):
                folder.delete(name)

    @property
    def _marker(self) -> str:
        return f"{_MARKER_PREFIX}{self.token}"

    def _write(self, folder: StorageFolder, windows: Iterable[WindowResult], name: str) -> str:
        path = f"{TABLE}/part-{self.token}-{name}.zstd.parquet"
        with folder.writing(path) as stream:
            write_windows(stream, windows, run_id=self.run_id, flow=self.flow)
        return path


def write_windows(stream: Any, windows: Iterable[WindowResult], *, run_id: str, flow: str) -> None:
    """Writes *windows* as one Parquet file, a few rows at a time: a billion records are 10,000 rows."""
    import pyarrow as pa  # noqa: PLC0415 the extra `seed`
    from pyarrow import parquet  # noqa: PLC0415

    rows: list[dict[str, Any]] = []
    with parquet.ParquetWriter(stream, schema(), compression="zstd") as writer:
        for window in windows:
            rows.append(row(run_id, flow, window))
            if len(rows) == ROWS_AT_ONCE:
                writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=schema()))
                rows.clear()
        writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=schema()))


def row(run_id: str, flow: str, window: WindowResult) -> dict[str, Any]:
    """Returns the row of a window."""
    return {
        "run_id": run_id,
        "flow": flow,
        "topic": window.topic,
        "partition": window.partition,
        "target_topic": window.target_topic,
        "from_offset": window.from_offset,
        "to_offset": window.to_offset,
        "target_from_offset": window.target_from_offset,
        "target_to_offset": window.target_to_offset,
        "source_count": window.source_count,
        "target_count": window.target_count,
        "source_sum": window.source_sum,
        "target_sum": window.target_sum,
        "source_chain": window.source_chain,
        "target_chain": window.target_chain,
        "digested_count": window.digested,
        "ordered_equal": window.ordered_equal,
        "outcome": window.outcome.value,
        "differing_count": window.differing,
        "key_class": window.key_class,
        "reason": window.reason,
        "differences": [
            {
                "kind": difference.kind.value,
                "source_offset": difference.source_offset,
                "target_offset": difference.target_offset,
                "source_digest": difference.source_digest,
                "target_digest": difference.target_digest,
                "fields": list(difference.fields),
                "key": difference.key,
            }
            for difference in window.differences
        ],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class UnequalRow:
    """A row of the table that is not equal. Offsets are source offsets; *end* is exclusive."""

    flow: str
    topic: str
    partition: int
    begin: int
    end: int
    is_of_keys: bool  # of a compacted topic, which is compared key by key


def read_unequal_rows(folder: StorageFolder) -> Iterator[UnequalRow]:
    """Yields the rows that are not equal of the table in a run's *folder*, file by file. Raises FileSystemError."""
    from pyarrow import parquet  # noqa: PLC0415 the extra `seed`

    columns = ["flow", "topic", "partition", "from_offset", "to_offset", "key_class"]
    for path in sorted(folder.files(TABLE)):
        with folder.reading(path) as stream:
            table = parquet.read_table(
                stream, columns=columns, filters=[("outcome", "!=", WindowOutcome.EQUAL.value)]
            )
        for row_of_table in table.to_pylist():
            yield UnequalRow(
                flow=row_of_table["flow"],
                topic=row_of_table["topic"],
                partition=row_of_table["partition"],
                begin=row_of_table["from_offset"],
                end=row_of_table["to_offset"],
                is_of_keys=row_of_table["key_class"] is not None,
            )
