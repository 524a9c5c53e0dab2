"""Checks the documents that connectors return, so that views meet only values of the types that they expect.

A connector that is broken, or that someone else answers for, may return anything. Unknown fields are dropped, and rows with
a field of a wrong type are dropped and counted. Strings and lists are bounded, because they become part of a page.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mirrorflow_cli.run_progress import Progress, progress_of
from mirrorflow_replicator.http.progress_text import counted

# 20,000 partitions of 800 bytes. A longer answer is not read to its end: the console keeps within 128 MiB.
BODY_MAX_BYTES: Final = 16 * 1024 * 1024
PARTITIONS_MAX: Final = 20_000
OFFSETS_MAX: Final = 5_000  # lines of consumer groups: a page shows the worst of them
NAME_MAX: Final = 512  # Kafka's names have 249 characters, names in Kubernetes 253
TEXT_MAX: Final = 2_000  # of a sentence
LIST_MAX: Final = 100
_NUMBER_MAX: Final = 1 << 63  # Kafka's offsets are signed 64-bit numbers
_TEXT: Final = (str,)
_NUMBER: Final = (int, float)
_MAYBE_TEXT: Final = (str, type(None))
_MAYBE_NUMBER: Final = (int, float, type(None))
_INT: Final = (int,)
_MAYBE_INT: Final = (int, type(None))
_FLAG: Final = (bool,)
_MAYBE_FLAG: Final = (bool, type(None))
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
    """One partition of a connector's answer. It takes a quarter of a dictionary's memory: a console holds 20,000 twice."""

    __slots__ = ("_values",)

    def __init__(self, row: Mapping[str, Any], strings: dict[str, str]) -> None:
        """Keeps the known fields of *row*; equal *strings* are kept once."""
        self._values = tuple(
            strings.setdefault(value, value) if type(value := row.get(name)) is str else value
            for name in _INDEX
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


class DocumentError(ValueError):
    """A document that is not what a connector of this version returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorDocument:
    """What one process returned about its flow. `source` and `target` are aliases; "" if it did not name them."""

    progress: Progress
    source: str = ""
    target: str = ""
    partitions_total: int = 0  # may be more than `progress.partitions` has
    dropped: int = 0  # rows that were not readable

    @property
    def notes(self) -> tuple[str, ...]:
        """What the page must say about the document itself."""
        if not self.dropped:
            return ()
        return (
            f"{counted(self.dropped, 'partition')} of the connector's answer could not be read; is it of another version?",
        )


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
    offsets: tuple[Mapping[str, Any], ...] = field(default=())
    offsets_truncated: bool = False


def parse_json(body: bytes) -> Any:
    """Parses *body*. Raises DocumentError."""
    if len(body) > BODY_MAX_BYTES:
        raise DocumentError(f"the answer has more than {BODY_MAX_BYTES // 1024 // 1024} MiB")
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise DocumentError("the answer is not JSON") from None


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number of JSON")


def connector_document(value: Any, summary: Any = None) -> ConnectorDocument:
    """Returns the answer of `/progress/partitions`, checked. *summary*: that of `/progress`, where the answer has none.

    Raises DocumentError.
    """
    if not isinstance(value, dict):
        raise DocumentError("the answer is not a JSON object")
    found = value.get("summary") if summary is None else summary
    if not isinstance(found, dict) or not isinstance(value.get("partitions"), list):
        raise DocumentError(
            "the answer has no summary or no partitions; is the connector of an earlier version?"
        )
    received = value["partitions"][:PARTITIONS_MAX]
    strings: dict[str, str] = {}
    rows = [PartitionRow(row, strings) for row in received if _is_row(row, _PARTITION)]
    connectors = [_connector(one) for one in _objects(value.get("connectors"))]
    checked = _summary(found)
    own = next((one for one in connectors if one["connector"] == checked["connector"]), {})
    table = {
        "partitions": rows,
        "uncopied": _texts(value.get("uncopied")),
        "uncopiedTotal": _count(value.get("uncopiedTotal")),
        "nothingSelected": _text(value.get("nothingSelected"), TEXT_MAX),
        "connectors": connectors,
    }
    return ConnectorDocument(
        progress=progress_of(checked, table),
        source=own.get("sourceAlias", ""),
        target=own.get("targetAlias", ""),
        partitions_total=max(_count(value.get("total")), len(rows)),
        dropped=len(received) - len(rows),
    )


def group_offsets(value: Any) -> tuple[tuple[Mapping[str, Any], ...], bool]:
    """Returns the lines of an answer to `/offsets`, checked, and whether there are more. Raises DocumentError."""
    if not isinstance(value, dict) or not isinstance(value.get("offsets"), list):
        raise DocumentError("the answer has no offsets")
    received = value["offsets"][:OFFSETS_MAX]
    truncated = value.get("truncated") is True or len(value["offsets"]) > OFFSETS_MAX
    return tuple(row for row in received if _is_row(row, _OFFSET)), truncated


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


def _summary(found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{name: _text(found.get(name), NAME_MAX) for name in ("connector", "flow", "state", "replicating")},
        **{
            name: _count(found.get(name))
            for name in (
                "lagRecords",
                "records",
                "bytes",
                "skippedRecords",
                "lostRecords",
                "losses",
                "warnings",
            )
        },
        **{
            name: _number(found.get(name)) for name in ("uptimeSeconds", "recordsPerSecond", "bytesPerSecond")
        },
        "lagSeconds": _maybe_number(found.get("lagSeconds")),
        "caughtUp": found.get("caughtUp") is True,
        **{name: _counts(found.get(name)) for name in ("tasks", "partitions", "guarantee", "batches")},
        "reasons": [
            {
                "reason": _text(one.get("reason"), NAME_MAX),
                "count": _count(one.get("count")),
                "example": _text(one.get("example"), TEXT_MAX),
            }
            for one in _objects(found.get("reasons"))
        ],
        **{side: _side(found.get(side)) for side in ("source", "target")},
        "checkpoints": _numbers(found.get("checkpoints")),
    }


def _connector(one: Mapping[str, Any]) -> dict[str, Any]:
    groups = one.get("groups")
    return {
        **{
            name: _text(one.get(name), NAME_MAX)
            for name in ("connector", "state", "reason", "sourceAlias", "targetAlias")
        },
        "class": _text(one.get("class"), NAME_MAX),
        "message": _text(one.get("message"), TEXT_MAX),
        "standby": one.get("standby") is True,
        **{side: _side(one.get(side)) for side in ("source", "target")},
        "failedTasks": [
            {"reason": _text(task.get("reason"), NAME_MAX), "message": _text(task.get("message"), TEXT_MAX)}
            for task in _objects(one.get("failedTasks"))
        ],
        "warnings": _texts(one.get("warnings")),
        "warningsTotal": _count(one.get("warningsTotal")),
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
            for beat in _objects(one.get("heartbeats"))
        ],
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
    is_number = type(value) in _NUMBER and math.isfinite(value) and 0 <= value < _NUMBER_MAX
    return float(value) if is_number else None


def _number(value: Any) -> float:
    return _maybe_number(value) or 0.0


def _counts(value: Any) -> dict[str, int]:
    rows = value if isinstance(value, dict) else {}
    return {str(name)[:NAME_MAX]: _count(one) for name, one in list(rows.items())[:LIST_MAX]}


def _numbers(value: Any) -> dict[str, float | None]:
    rows = value if isinstance(value, dict) else {}
    return {str(name)[:NAME_MAX]: _maybe_number(one) for name, one in list(rows.items())[:LIST_MAX]}
