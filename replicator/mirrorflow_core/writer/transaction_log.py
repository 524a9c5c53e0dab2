"""Finds which records of a log are committed, up to the high watermark.

A consumer with `read_committed` stops at the first open transaction of any producer. The protocol must see what
lies after it: a frozen task can hold such a transaction open while a rival commits.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import field
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from mirrorflow_core.light_dataclasses import dataclass

SEQUENCES = 1 << 31  # sequence numbers wrap after 2^31 - 1
R = TypeVar("R")


class Marker(Enum):
    """The kinds of control records that end a transaction."""

    ABORT = 0
    COMMIT = 1


class LogBatch(NamedTuple):
    """A record batch as a reader sees it below the high watermark.

    Compaction can leave a batch without records: offsets and sequences still say what it had.
    """

    base_offset: int
    last_offset: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool
    marker: Marker | None = None
    records: tuple[tuple[int, object], ...] = ()  # with offsets; decoded only for claims and positions

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record that it had when it was written."""
        return (self.base_sequence + self.last_offset - self.base_offset) % SEQUENCES


@dataclass(frozen=True, slots=True)
class DecidedRecords(Generic[R]):
    """The records of committed transactions, in the order of the log, and those whose transaction is still open.

    `open_records` has an entry for each producer id with an open transaction: those of its undecided records that no
    committed record with the same key follows.
    """

    committed: tuple[R, ...]
    undecided: tuple[R, ...]
    open_records: Mapping[int, tuple[R, ...]] = field(default_factory=dict)

    @property
    def pending(self) -> tuple[R, ...]:
        """All records in `open_records`."""
        return tuple(record for records in self.open_records.values() for record in records)


def decided_records(
    batches: Iterable[LogBatch], kind: type[R], *, key: Callable[[R], Hashable] = lambda _: None
) -> DecidedRecords[R]:
    """Returns the records of *kind* in *batches*, which are one log from its beginning to its high watermark.

    *key* returns the key of a record; by default all records have one key.
    """
    open_records: dict[int, list[tuple[int, object]]] = {}
    committed: list[tuple[int, object]] = []
    for batch in batches:
        if batch.marker is not None:
            ended = open_records.pop(batch.producer_id, [])
            if batch.marker is Marker.COMMIT:
                committed += ended
        elif batch.is_transactional:
            open_records.setdefault(batch.producer_id, []).extend(batch.records)
        else:
            committed += batch.records
    committed.sort(key=_offset)
    undecided = sorted((row for rows in open_records.values() for row in rows), key=_offset)
    last = {key(record): offset for offset, record in committed if isinstance(record, kind)}
    return DecidedRecords(
        _of_kind(committed, kind),
        _of_kind(undecided, kind),
        {
            producer_id: tuple(
                record
                for offset, record in rows
                if isinstance(record, kind) and offset > last.get(key(record), -1)
            )
            for producer_id, rows in open_records.items()
            if rows
        },
    )


def _offset(row: tuple[int, object]) -> int:
    return row[0]


def _of_kind(rows: Iterable[tuple[int, object]], kind: type[R]) -> tuple[R, ...]:
    return tuple(record for _, record in rows if isinstance(record, kind))
