"""Shows the records of a flow's internal topics, decoded: newest first, page by page. Pure; the command reads them.

Kafka is read for this page only, with the credentials of the files that were given to `mirrorflow ui`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final, NamedTuple, Protocol

from mirrorflow_core.wire.records import Record

PAGE_RECORDS: Final = 50
# The records of a topic that are read for a page, and among which its filter searches. Those before them are read for the next one.
RECORDS_MAX: Final = 20_000

_CURSOR: Final = re.compile(r"\b([0-9]{1,9}):([0-9]{1,18})\b", re.ASCII)

# By partition: the offset before which a page begins.
Cursor = Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalRecord:
    """One record, decoded."""

    partition: int
    offset: int
    timestamp_ms: int
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalTopic:
    """Some successive records of a topic, and what could not be read of it.

    *before*: where they begin, so that further pages of them do not move; *older*: where those before them begin, {} if there are none.
    """

    name: str = ""
    cluster: str = ""
    records: Sequence[InternalRecord] = ()
    before: Cursor | None = None
    older: Cursor | None = None
    problem: str = ""


class InternalTopics(Protocol):
    """Reads internal topics of the flows of files."""

    @property
    def flows(self) -> Sequence[str]:
        """The names of the flows."""

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds of topics, such as checkpoints."""

    async def read(self, flow: str, kind: str, before: Cursor) -> InternalTopic:
        """Returns the newest records *before* a cursor, {}: of all; errors become the topic's problem."""


class PartitionRecords(NamedTuple):
    """The newest *records* of a partition from *start* until before *end*, oldest first. *has_older*: it has some before *start*, too."""

    records: Sequence[Record]
    start: int
    end: int
    has_older: bool


def newest_of_all(read: Mapping[int, PartitionRecords]) -> tuple[dict[int, Sequence[Record]], Cursor]:
    """Returns the records, by partition, that are newer than all that were not *read*, and the cursor of those before them.

    So pages list the newest first, however differently partitions are written.
    """
    oldest_ms = max(
        (newest.records[0].timestamp for newest in read.values() if newest.has_older and newest.records),
        default=0,
    )
    kept: dict[int, Sequence[Record]] = {}
    older: dict[int, int] = {}
    for partition, newest in read.items():
        older_records = sum(1 for _ in _leading(newest.records, oldest_ms))
        kept[partition] = newest.records[older_records:]
        after = kept[partition][0].offset if kept[partition] else newest.end
        older[partition] = after if older_records else newest.start
    has_older = any(
        newest.has_older or len(kept[number]) < len(newest.records) for number, newest in read.items()
    )
    return kept, older if has_older else {}


def _leading(records: Iterable[Record], oldest_ms: int) -> Iterable[Record]:
    """Yields the records until one is as new as *oldest_ms*."""
    return takewhile(lambda record: record.timestamp < oldest_ms, records)


def cursor_text(cursor: Cursor | None) -> str:
    """Returns *cursor* as part of an address: "0:123,1:40"."""
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted((cursor or {}).items()))


def parsed_cursor(text: str) -> Cursor:
    """Returns the cursor in *text*; {} if it has none."""
    return {int(partition): int(offset) for partition, offset in _CURSOR.findall(text)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsPage:
    """One page of records; `columns` are the fields that any of them has."""

    columns: tuple[str, ...]
    rows: tuple[tuple[InternalRecord, tuple[str, ...]], ...]
    found: int
    number: int
    has_more: bool


def records_page(topic: InternalTopic, wanted: str, number: int) -> RecordsPage:
    """Returns page *number*, from 0, of the records that contain all words of *wanted*, newest first."""
    parts = wanted.lower().split()
    matching = [record for record in topic.records if all(part in _text(record) for part in parts)]
    matching.sort(key=lambda record: (-record.timestamp_ms, -record.offset))
    shown = matching[number * PAGE_RECORDS : (number + 1) * PAGE_RECORDS]
    columns = tuple(dict.fromkeys(name for record in shown for name in record.fields))
    return RecordsPage(
        columns=columns,
        rows=tuple((record, tuple(_value(record.fields.get(name)) for name in columns)) for record in shown),
        found=len(matching),
        number=number,
        has_more=len(matching) > (number + 1) * PAGE_RECORDS,
    )


def _text(record: InternalRecord) -> str:
    return " ".join(f"{name}={_value(value)}" for name, value in record.fields.items()).lower()


def _value(value: Any) -> str:
    return "" if value is None else str(value)
