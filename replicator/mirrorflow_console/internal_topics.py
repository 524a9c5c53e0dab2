"""Shows the records of a flow's internal topics, decoded: newest first, page by page. Pure; the command reads them.

Kafka is read for this page only, with the credentials of the files that were given to `mirrorflow ui`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

PAGE_RECORDS: Final = 50
# The newest records of a topic that a page looks at; `mirrorflow dump` prints all.
RECORDS_MAX: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalRecord:
    """One record, decoded."""

    partition: int
    offset: int
    timestamp_ms: int
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalTopic:
    """The newest records of a topic, oldest first, and what could not be read of it."""

    name: str = ""
    cluster: str = ""
    records: Sequence[InternalRecord] = ()
    total: int = 0
    problem: str = ""


class InternalTopics(Protocol):
    """Reads internal topics of the flows of files."""

    @property
    def flows(self) -> Sequence[str]:
        """The names of the flows."""

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds of topics, such as checkpoints."""

    async def read(self, flow: str, kind: str) -> InternalTopic:
        """Returns the newest records; errors become the topic's problem."""


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
