"""Checks the documents that connectors return, so that views meet only values of the types that they expect.

A connector that is broken, or whose address another server has, may return anything. Unknown fields are dropped, and rows with
a field of a wrong type are dropped and counted. Strings and lists are bounded, because they become part of a page.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, repeat, zip_longest
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, Self

from mirrorflow_cli.run_progress import Progress, progress_of
from mirrorflow_replicator.http.progress_text import UNREACHABLE, counted

# 20,000 partitions of 800 bytes. A longer response is not read to its end: the console keeps within 128 MiB.
BODY_MAX_BYTES: Final = 16 * 1024 * 1024
PARTITIONS_MAX: Final = 20_000
OFFSETS_MAX: Final = 5_000  # lines of consumer groups: a page shows the worst of them
NAME_MAX: Final = 512  # Kafka's names have 249 characters, names in Kubernetes 253
TEXT_MAX: Final = 2_000  # of a sentence
LIST_MAX: Final = 100
# As the alerts MirrorFlowLagging and MirrorFlowFallingBehind, which wait longer before they wake a person.
LAGGING_S: Final = 60.0
_NUMBER_MAX: Final = 1 << 63  # Kafka's offsets are signed 64-bit numbers
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_TEXT: Final = (str,)
_NUMBER: Final = (int, float)
_MAYBE_TEXT: Final = (str, type(None))
_MAYBE_NUMBER: Final = (int, float, type(None))
_INT: Final = (int,)
_MAYBE_INT: Final = (int, type(None))
_FLAG: Final = (bool,)
_MAYBE_FLAG: Final = (bool, type(None))
_SIDES: Final = ("source", "target")
Kinds = Mapping[str, tuple[type, ...]]
_PARTITION: Final[Kinds] = {
    "topic": _TEXT,
    "targetTopic": _TEXT,
    "partition": _INT,
    "phase": _TEXT,
    "sourceOffset": _MAYBE_INT,
    "sourceEndOffset": _MAYBE_INT,
    "targetOffset": _MAYBE_INT,
    "lagRecords": _MAYBE_INT,
    "lagSeconds": _MAYBE_NUMBER,
    "recordsPerSecond": _NUMBER,
    "bytesPerSecond": _NUMBER,
    "records": _INT,
    "bytes": _INT,
    "reachedStartEnd": _FLAG,
    "guarantee": _TEXT,
    "guaranteeReason": _TEXT,
    "writeMode": _MAYBE_TEXT,
    "sourceLeaderEpoch": _MAYBE_INT,
    "targetLeaderEpoch": _MAYBE_INT,
    "reason": _TEXT,
    "message": _TEXT,
    "stalledSeconds": _MAYBE_NUMBER,
}
# The columns of each kind, which are checked together: most tables have many columns and few rows.
_COLUMNS: Final = {
    kinds: tuple(name for name, others in _PARTITION.items() if others == kinds)
    for kinds in _PARTITION.values()
}
_INDEX: Final = {name: index for index, name in enumerate((*_PARTITION, "connector", "batches"))}
_OFFSET: Final[Kinds] = {
    "group": _TEXT,
    "topic": _TEXT,
    "partition": _INT,
    "targetTopic": _TEXT,
    "sourceOffset": _MAYBE_INT,
    "targetOffset": _MAYBE_INT,
    "targetOffsetAtMost": _MAYBE_INT,
    "translation": _TEXT,
    "checkpointOffset": _MAYBE_INT,
    "checkpointAgeSeconds": _MAYBE_NUMBER,
    "groupOffset": _MAYBE_INT,
    "written": _FLAG,
    "why": _MAYBE_TEXT,
    "readAgainAtLeast": _MAYBE_INT,
    "readAgainAtMost": _MAYBE_INT,
    "hasMembersOnSource": _MAYBE_FLAG,
    "hasMembersOnTarget": _MAYBE_FLAG,
}


class PartitionRow(Mapping[str, Any]):
    """One partition of a connector's response. It takes a quarter of a dictionary's memory: a console holds 20,000 twice."""

    __slots__ = ("_values",)

    def __init__(self, values: tuple[Any, ...]) -> None:
        """Keeps *values*, one for each field in its order."""
        self._values = values

    @classmethod
    def of(cls, row: Mapping[str, Any], strings: dict[str, str]) -> Self:
        """Returns the known fields of *row*; equal *strings* are kept once."""
        return cls(
            tuple(
                strings.setdefault(value, value) if type(value := row.get(name)) is str else value
                for name in _INDEX
            )
        )

    def __getitem__(self, name: str) -> Any:
        """Returns the field *name*."""
        return self._values[_INDEX[name]]

    def __iter__(self) -> Iterator[str]:
        """Yields the names of all fields."""
        return iter(_INDEX)

    def __len__(self) -> int:
        """Returns the number of fields."""
        return len(_INDEX)


def field_values(rows: Sequence[Mapping[str, Any]], *names: str) -> Iterator[Any]:
    """Yields the fields *names* of each of *rows* as a tuple; of one name the values alone.

    For loops over all partitions: each field that a row returns by its name costs a call in Python.
    """
    if rows and isinstance(rows[0], PartitionRow):
        return map(itemgetter(*map(_INDEX.__getitem__, names)), map(attrgetter("_values"), rows))
    return map(itemgetter(*names), rows)


class Figures(NamedTuple):
    """What changes while a connector's state does not, summed over its partitions."""

    uptime_s: float = 0.0
    lag_records: int = 0
    lag_s: float | None = None
    records_per_s: float = 0.0
    bytes_per_s: float = 0.0
    records: int = 0
    bytes: int = 0

    @property
    def is_lagging(self) -> bool:
        """Whether the lag is trouble by itself, or of unknown age."""
        return bool(self.lag_records) and (self.lag_s is None or self.lag_s >= LAGGING_S)

    @classmethod
    def of(cls, value: Any) -> Self:
        """Returns the figures in *value*, a summary or a part of it, checked."""
        read = (value if isinstance(value, dict) else {}).get
        return cls(
            _maybe_number(read("uptimeSeconds")) or 0.0,
            _count(read("lagRecords")),
            _maybe_number(read("lagSeconds")),
            _maybe_number(read("recordsPerSecond")) or 0.0,
            _maybe_number(read("bytesPerSecond")) or 0.0,
            _count(read("records")),
            _count(read("bytes")),
        )


class DocumentError(ValueError):
    """A document that is not what a connector of this version returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorDocument:
    """What one process returned about its flow. `source` and `target` are aliases; "" if it did not name them."""

    progress: Progress
    figures: Figures  # of the response from which it was made
    source: str = ""
    target: str = ""
    partitions_total: int = 0  # may be more than `progress.partitions` has
    dropped: int = 0  # rows that were not readable
    # Whether a partition with a lag does not know its age, so that the flow's lag in time is more than is known.
    has_unknown_ages: bool = False
    has_trouble: bool = False  # the summary names trouble, of which only the partitions have all
    digest: str = ""  # of all but figures and partitions; "" where the connector has none

    @property
    def notes(self) -> tuple[str, ...]:
        """What the page must say about the document itself."""
        if not self.dropped:
            return ()
        return (
            f"{counted(self.dropped, 'partition')} of the connector's response could not be read; is it of another version?",
        )


class RunningSwitchover(NamedTuple):
    """What a flow shows of the switchover of its pair that has not ended; *key* as `SwitchoverReading.key`."""

    key: str
    state: str
    text: str
    is_abandoned: bool  # no process carries it out


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowReading:
    """What was read about one flow at one moment; `key` is unique among all flows of this console.

    Without a `document`, `problem` says why. `status` is that of the flow's MirrorFlow, on Kubernetes only.
    """

    key: str
    name: str
    namespace: str = ""
    source: str = ""
    target: str = ""
    document: ConnectorDocument | None = None
    problem: str = ""
    began_ms: int | None = None
    status: Mapping[str, Any] | None = None
    verification: Mapping[str, Any] | None = None  # the newest result in a folder, on a laptop only
    offsets: tuple[Mapping[str, Any], ...] = field(default=())
    offsets_truncated: bool = False
    # What the schema connector reports, where it has a pod of its own; on a laptop it is among the document's companions.
    schemas: Mapping[str, Any] | None = None
    switchover: RunningSwitchover | None = None


def parse_json(body: bytes) -> Any:
    """Parses *body*; half of a surrogate pair, which no page and no file can hold, becomes "?". Raises DocumentError."""
    if len(body) > BODY_MAX_BYTES:
        raise DocumentError(f"the response has more than {BODY_MAX_BYTES // 1024 // 1024} MiB")
    try:
        text = body.decode()
        value = _parsed(text)
        if _SURROGATE.search(text):
            value = _parsed(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode())
    except (ValueError, RecursionError):
        raise DocumentError("the response is not JSON") from None
    return value


def _parsed(text: str) -> Any:
    if text.startswith("{"):
        # What `decode` does besides costs half as much as parsing the figures of a connector.
        value, end = _DECODER.raw_decode(text)
        if end == len(text):
            return value
    return _DECODER.decode(text)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number of JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)


def connector_document(value: Any, summary: Any = None) -> ConnectorDocument:
    """Returns the response to `/progress/partitions`, checked. *summary*: that to `/progress`, where it has none.

    Raises DocumentError.
    """
    if not isinstance(value, dict):
        raise DocumentError("the response is not a JSON object")
    given_summary = value.get("summary") if summary is None else summary
    if not isinstance(given_summary, dict) or not (
        isinstance(value.get("partitions"), list) or isinstance(value.get("columns"), dict)
    ):
        raise DocumentError(
            "the response has no summary or no partitions; is the connector of an earlier version?"
        )
    rows, dropped = _rows(value)
    connectors = [_connector(connector) for connector in _objects(value.get("connectors"))]
    checked = _summary(given_summary)
    own = next((connector for connector in connectors if connector["connector"] == checked["connector"]), {})
    table = {
        "partitions": rows,
        "uncopied": _texts(value.get("uncopied")),
        "uncopiedTotal": _count(value.get("uncopiedTotal")),
        "nothingSelected": _text(value.get("nothingSelected"), TEXT_MAX),
        "connectors": connectors,
    }
    return ConnectorDocument(
        progress=progress_of(checked, table),
        figures=Figures.of(checked),
        source=own.get("sourceAlias", ""),
        target=own.get("targetAlias", ""),
        partitions_total=max(_count(value.get("total")), len(rows)),
        dropped=dropped,
        has_unknown_ages=_have_unknown_ages(rows),
        has_trouble=_names_trouble(checked),
        digest=_text(value.get("digest"), NAME_MAX),
    )


def _names_trouble(summary: Mapping[str, Any]) -> bool:
    counts = summary["partitions"]
    is_away = any(summary[side]["reach"] == UNREACHABLE for side in _SIDES)
    return is_away or bool(summary["reasons"] or counts.get("stopped") or counts.get("stalled"))


def _rows(value: Mapping[str, Any]) -> tuple[tuple[PartitionRow, ...], int]:
    """Returns the partitions of a response, checked, and how many of them were not readable."""
    columns = value.get("columns")
    if isinstance(columns, dict):
        if not columns:
            return (), 0
        if (rows := _rows_of_columns(columns)) is not None:
            return rows, 0
        received = _rows_one_by_one(columns)
    else:
        partitions = value.get("partitions")
        received = partitions[:PARTITIONS_MAX] if isinstance(partitions, list) else []
    strings: dict[str, str] = {}
    checked = tuple(PartitionRow.of(row, strings) for row in received if _is_row(row, _PARTITION))
    return checked, len(received) - len(checked)


def _rows_of_columns(columns: Mapping[str, Any]) -> tuple[PartitionRow, ...] | None:
    """Returns the partitions in *columns* if all are readable; columns are checked as a whole, five times as fast as rows."""
    lists = {name: column for name in _INDEX if isinstance(column := columns.get(name), list)}
    counts = {*map(len, lists.values())}
    if len(counts) != 1 or not _INDEX.keys() <= columns.keys():
        return None
    for kinds, names in _COLUMNS.items():
        # A column that is no list is the value of all rows, and is checked once.
        values = chain.from_iterable(lists.get(name, (columns[name],)) for name in names)
        if not _are_valid([*values], kinds):
            return None
    strings: dict[Any, Any] = {}
    shared = [
        repeat(columns[name], *counts)
        if (column := lists.get(name)) is None
        else map(strings.setdefault, column, column)
        if str in _PARTITION.get(name, ())
        else column
        for name in _INDEX
    ]
    return tuple(map(PartitionRow, islice(zip(*shared, strict=True), PARTITIONS_MAX)))


def _are_valid(values: Sequence[Any], kinds: tuple[type, ...]) -> bool:
    """Whether all of *values* are of *kinds* and within the bounds."""
    types = set(map(type, values))
    if not types.issubset(kinds):
        return False
    if str in types:
        return max(map(len, filter(None, set(values))), default=0) <= TEXT_MAX
    numbers = [number for number in values if number is not None] if type(None) in types else values
    return not numbers or (min(numbers) >= -_NUMBER_MAX and max(numbers) < _NUMBER_MAX)


def _rows_one_by_one(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns *columns*, of which something is not readable, as rows. Unknown columns would take memory in each row."""
    known = {name: columns[name] for name in _INDEX if name in columns}
    lists = {name: column for name, column in known.items() if isinstance(column, list)}
    fixed = {name: value for name, value in known.items() if name not in lists}
    return [
        {**fixed, **dict(zip(lists, row, strict=True))}
        for row in islice(zip_longest(*lists.values()), PARTITIONS_MAX)
    ]


def _have_unknown_ages(rows: Sequence[PartitionRow]) -> bool:
    return any(lag and age_s is None for lag, age_s in field_values(rows, "lagRecords", "lagSeconds"))


class DocumentUpdate(NamedTuple):
    """What a response says: the document, which stays the same object while no more than figures changes, and the newest figures."""

    document: ConnectorDocument
    figures: Figures
    partitions: Sequence[Mapping[str, Any]]


def updated_document(value: Any, known: ConnectorDocument | None) -> DocumentUpdate:
    """Returns the response *value*, checked; its document is *known* where only figures have changed. Raises DocumentError."""
    if known is None or not is_unchanged(value, known):
        document = connector_document(value)
        if known is not None and known.has_unknown_ages and not document.progress.partitions:
            document = replace(document, has_unknown_ages=bool(document.figures.lag_records))
        return DocumentUpdate(document, document.figures, document.progress.partitions)
    figures, (rows, _) = Figures.of(value["figures"]), _rows(value)
    has_unknown_ages = (
        _have_unknown_ages(rows) if rows else known.has_unknown_ages and bool(figures.lag_records)
    )
    if has_unknown_ages != known.has_unknown_ages:
        known = replace(known, has_unknown_ages=has_unknown_ages)
    if known.progress.partitions:
        # They are those of an earlier response: a page that opens must not show them.
        known = replace(known, progress=replace(known.progress, partitions=()))
    return DocumentUpdate(known, figures, rows)


def is_unchanged(value: Any, known: ConnectorDocument) -> bool:
    """Whether the response *value* says that the state is that of *known*."""
    return (
        isinstance(value, dict)
        and bool(known.digest)
        and value.get("digest") == known.digest
        and "figures" in value
    )


def schemas_report(value: Any) -> Mapping[str, Any] | None:
    """Returns the schema connector in the response to `/progress/partitions`, checked; None if there is none."""
    connectors = value.get("connectors") if isinstance(value, dict) else None
    return next((row for row in map(_connector, _objects(connectors)) if row["schemas"]), None)


def group_offsets(value: Any) -> tuple[tuple[Mapping[str, Any], ...], bool]:
    """Returns the lines of a response to `/offsets`, checked, and whether there are more. Raises DocumentError."""
    if not isinstance(value, dict) or not isinstance(value.get("offsets"), list):
        raise DocumentError("the response has no offsets")
    received = value["offsets"][:OFFSETS_MAX]
    truncated = value.get("truncated") is True or len(value["offsets"]) > OFFSETS_MAX
    lines = ({name: row.get(name) for name in _OFFSET} for row in received if _is_row(row, _OFFSET))
    return tuple(lines), truncated


def _is_row(row: Any, kinds: Kinds) -> bool:
    if not isinstance(row, dict):
        return False
    for name, allowed in kinds.items():
        value: Any = row.get(name)
        kind = type(value)
        if kind not in allowed:
            return False
        if kind is str:
            if len(value) > TEXT_MAX:
                return False
        elif kind in _NUMBER and not -_NUMBER_MAX <= value < _NUMBER_MAX:  # also false for NaN
            return False
    return True


def _summary(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{
            name: _text(summary.get(name), NAME_MAX) for name in ("connector", "flow", "state", "replicating")
        },
        **{name: _count(summary.get(name)) for name in ("lagRecords", "records", "bytes")},
        **{
            name: _number(summary.get(name))
            for name in ("uptimeSeconds", "recordsPerSecond", "bytesPerSecond")
        },
        "lagSeconds": _maybe_number(summary.get("lagSeconds")),
        "batches": _counts(summary.get("batches")),
        **{
            name: _count(summary.get(name))
            for name in ("skippedRecords", "lostRecords", "losses", "warnings")
        },
        "caughtUp": summary.get("caughtUp") is True,
        **{name: _counts(summary.get(name)) for name in ("tasks", "partitions", "guarantee")},
        "reasons": [
            {
                "reason": _text(reason.get("reason"), NAME_MAX),
                "count": _count(reason.get("count")),
                "example": _text(reason.get("example"), TEXT_MAX),
            }
            for reason in _objects(summary.get("reasons"))
        ],
        **{side: _side(summary.get(side)) for side in _SIDES},
        "checkpoints": _numbers(summary.get("checkpoints")),
    }


def _connector(connector: Mapping[str, Any]) -> dict[str, Any]:
    groups = connector.get("groups")
    return {
        **{
            name: _text(connector.get(name), NAME_MAX)
            for name in ("connector", "state", "reason", "sourceAlias", "targetAlias")
        },
        "class": _text(connector.get("class"), NAME_MAX),
        "message": _text(connector.get("message"), TEXT_MAX),
        "standby": connector.get("standby") is True,
        **{side: _side(connector.get(side)) for side in _SIDES},
        "failedTasks": [
            {"reason": _text(task.get("reason"), NAME_MAX), "message": _text(task.get("message"), TEXT_MAX)}
            for task in _objects(connector.get("failedTasks"))
        ],
        "warnings": _texts(connector.get("warnings")),
        "warningsTotal": _count(connector.get("warningsTotal")),
        "schemas": _schemas(connector.get("schemas")),
        "groups": {
            name: _count(groups.get(name))
            for name in ("selected", "failing", "active", "checkpoints", "moved")
        }
        if isinstance(groups, dict)
        else None,
        "heartbeats": [
            {
                "cluster": _text(beat.get("cluster"), NAME_MAX),
                "topic": _text(beat.get("topic"), NAME_MAX),
                "ageSeconds": _number(beat.get("ageSeconds")),
            }
            for beat in _objects(connector.get("heartbeats"))
        ],
    }


def _schemas(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    return {
        **{name: _count(value.get(name)) for name in ("subjects", "versions", "missing", "conflicts")},
        "ageSeconds": _maybe_number(value.get("ageSeconds")),
    }


def _side(value: Any) -> dict[str, Any]:
    side = value if isinstance(value, dict) else {}
    return {
        "reach": _text(side.get("reach"), NAME_MAX),
        "reason": _text(side.get("reason"), NAME_MAX),
        "clusterId": _text(side.get("clusterId"), NAME_MAX),
        "message": _text(side.get("message"), TEXT_MAX),
        "sinceSeconds": _maybe_number(side.get("sinceSeconds")),
    }


def _objects(value: Any) -> Iterable[Mapping[str, Any]]:
    rows = value if isinstance(value, list) else []
    return [row for row in rows[:LIST_MAX] if isinstance(row, dict)]


def _texts(value: Any) -> list[str]:
    rows = value if isinstance(value, list) else []
    return [row[:TEXT_MAX] for row in rows[:LIST_MAX] if isinstance(row, str)]


def _text(value: Any, length_max: int) -> str:
    return value[:length_max] if isinstance(value, str) else ""


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < _NUMBER_MAX else 0


def _maybe_number(value: Any) -> float | None:
    # No comparison holds for NaN. `math.isfinite` raises for an integer of 400 digits.
    return float(value) if type(value) in _NUMBER and 0 <= value < _NUMBER_MAX else None


def _number(value: Any) -> float:
    return _maybe_number(value) or 0.0


def _counts(value: Any) -> dict[str, int]:
    rows = value if isinstance(value, dict) else {}
    return {str(name)[:NAME_MAX]: _count(count) for name, count in list(rows.items())[:LIST_MAX]}


def _numbers(value: Any) -> dict[str, float | None]:
    rows = value if isinstance(value, dict) else {}
    return {str(name)[:NAME_MAX]: _maybe_number(number) for name, number in list(rows.items())[:LIST_MAX]}
