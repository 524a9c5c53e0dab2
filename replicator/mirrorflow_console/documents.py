"""Checks the documents that connectors return, so that views meet only values of the types that they expect.

A connector that is broken, or whose address another server has, may return anything. Unknown fields are dropped, and partitions
with a field of a wrong type are dropped and counted. Strings and lists are bounded, because they become part of a page.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Self

from mirrorflow_cli.run_progress import Progress, progress_of
from mirrorflow_console.field_kinds import (
    FLAG,
    INT,
    MAYBE_FLAG,
    MAYBE_INT,
    MAYBE_NUMBER,
    MAYBE_TEXT,
    NAME_MAX,
    NUMBER,
    NUMBER_MAX,
    TEXT,
    TEXT_MAX,
    Kinds,
    is_valid,
)
from mirrorflow_console.partition_table import NO_PARTITIONS, PartitionTable, checked_partitions
from mirrorflow_replicator.http.progress_text import UNREACHABLE, counted

# 20,000 partitions of 800 bytes. A longer response is not read to its end: the console keeps within 128 MiB.
BODY_MAX_BYTES: Final = 16 * 1024 * 1024
OFFSETS_MAX: Final = 5_000  # lines of consumer groups: a page shows the worst of them
LIST_MAX: Final = 100
# As the alerts MirrorFlowLagging and MirrorFlowFallingBehind, which wait longer before they wake a person.
LAGGING_S: Final = 60.0
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_SIDES: Final = ("source", "target")
_OFFSET: Final[Mapping[str, Kinds]] = {
    "group": TEXT,
    "topic": TEXT,
    "partition": INT,
    "targetTopic": TEXT,
    "sourceOffset": MAYBE_INT,
    "targetOffset": MAYBE_INT,
    "targetOffsetAtMost": MAYBE_INT,
    "translation": TEXT,
    "checkpointOffset": MAYBE_INT,
    "checkpointAgeSeconds": MAYBE_NUMBER,
    "groupOffset": MAYBE_INT,
    "written": FLAG,
    "why": MAYBE_TEXT,
    "readAgainAtLeast": MAYBE_INT,
    "readAgainAtMost": MAYBE_INT,
    "hasMembersOnSource": MAYBE_FLAG,
    "hasMembersOnTarget": MAYBE_FLAG,
}


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
    """What one process returned about its flow. `source` and `target` are aliases; "" if it did not name them.

    `progress` is without its partitions, which `partitions` has.
    """

    progress: Progress
    partitions: PartitionTable = NO_PARTITIONS
    figures: Figures  # of the response from which it was made
    source: str = ""
    target: str = ""
    partitions_total: int = 0  # may be more than `partitions` has
    dropped: int = 0  # partitions that were not readable
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

    @property
    def partitions(self) -> PartitionTable:
        """Those of the document."""
        return NO_PARTITIONS if self.document is None else self.document.partitions


def parse_json(body: bytes) -> Any:
    """Parses *body*; half of a surrogate pair, which no page and no file can hold, becomes "?". Raises DocumentError."""
    if len(body) > BODY_MAX_BYTES:
        raise DocumentError(f"the response has more than {BODY_MAX_BYTES // 1024 // 1024} MiB")
    try:
        text = body.decode()
        value = _parsed(text)
        if "\\u" in text and _SURROGATE.search(text):
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


def connector_document(value: Any) -> ConnectorDocument:
    """Returns the response to `/progress/partitions` with columns, checked. Raises DocumentError."""
    if not isinstance(value, dict):
        raise DocumentError("the response is not a JSON object")
    if not isinstance(value.get("summary"), dict) or not isinstance(value.get("columns"), dict):
        raise DocumentError(
            "the response has no summary or no partitions; is the connector of an earlier version?"
        )
    partitions, dropped = checked_partitions(value["columns"])
    connectors = [_connector(connector) for connector in _objects(value.get("connectors"))]
    checked = _summary(value["summary"])
    own = next((connector for connector in connectors if connector["connector"] == checked["connector"]), {})
    table = {
        "uncopied": _texts(value.get("uncopied")),
        "uncopiedTotal": _count(value.get("uncopiedTotal")),
        "nothingSelected": _text(value.get("nothingSelected"), TEXT_MAX),
        "connectors": connectors,
    }
    return ConnectorDocument(
        progress=progress_of(checked, table),
        partitions=partitions,
        figures=Figures.of(checked),
        source=own.get("sourceAlias", ""),
        target=own.get("targetAlias", ""),
        partitions_total=max(_count(value.get("total")), len(partitions)),
        dropped=dropped,
        has_unknown_ages=_have_unknown_ages(partitions),
        has_trouble=_names_trouble(checked),
        digest=_text(value.get("digest"), NAME_MAX),
    )


def _names_trouble(summary: Mapping[str, Any]) -> bool:
    counts = summary["partitions"]
    is_away = any(summary[side]["reach"] == UNREACHABLE for side in _SIDES)
    return is_away or bool(summary["reasons"] or counts.get("stopped") or counts.get("stalled"))


def _have_unknown_ages(partitions: PartitionTable) -> bool:
    return any(partitions.each(lambda lag, age_s: bool(lag) and age_s is None, "lagRecords", "lagSeconds"))


class DocumentUpdate(NamedTuple):
    """What a response says: the document, which stays the same object while no more than figures changes, and the newest figures."""

    document: ConnectorDocument
    figures: Figures
    partitions: PartitionTable


def updated_document(value: Any, known: ConnectorDocument | None) -> DocumentUpdate:
    """Returns the response *value*, checked; its document is *known* where only figures have changed. Raises DocumentError."""
    if known is None or not is_unchanged(value, known):
        document = connector_document(value)
        if known is not None and known.has_unknown_ages and not document.partitions:
            document = replace(document, has_unknown_ages=bool(document.figures.lag_records))
        return DocumentUpdate(document, document.figures, document.partitions)
    figures, (partitions, _) = Figures.of(value["figures"]), checked_partitions(value.get("columns"))
    has_unknown_ages = (
        _have_unknown_ages(partitions) if partitions else known.has_unknown_ages and bool(figures.lag_records)
    )
    if known.partitions or has_unknown_ages != known.has_unknown_ages:
        # The known partitions are those of an earlier response: a page that opens must not show them.
        known = replace(known, partitions=NO_PARTITIONS, has_unknown_ages=has_unknown_ages)
    return DocumentUpdate(known, figures, partitions)


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


def _is_row(row: Any, fields: Mapping[str, Kinds]) -> bool:
    return isinstance(row, dict) and all(is_valid(row.get(name), kinds) for name, kinds in fields.items())


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
    return value if type(value) is int and 0 <= value < NUMBER_MAX else 0


def _maybe_number(value: Any) -> float | None:
    # No comparison holds for NaN. `math.isfinite` raises for an integer of 400 digits.
    return float(value) if type(value) in NUMBER and 0 <= value < NUMBER_MAX else None


def _number(value: Any) -> float:
    return _maybe_number(value) or 0.0


def _counts(value: Any) -> dict[str, int]:
    rows = value if isinstance(value, dict) else {}
    return {str(name)[:NAME_MAX]: _count(count) for name, count in list(rows.items())[:LIST_MAX]}


def _numbers(value: Any) -> dict[str, float | None]:
    rows = value if isinstance(value, dict) else {}
    return {str(name)[:NAME_MAX]: _maybe_number(number) for name, number in list(rows.items())[:LIST_MAX]}
