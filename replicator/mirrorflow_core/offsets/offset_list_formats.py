"""Reads lists of application offsets as CSV or JSON, and writes their translations in the same form.

    CSV             topic,partition,offset on each line; with a header, columns in any order, others are ignored
    JSON lines      {"topic": "orders", "partition": 0, "offset": 42} on each line
    JSON array      a list of such objects

A translation has the same three fields, of the other cluster, and `translation` (exact, bound or unknown), `readAgainAtMost`
(records) and `why`. An unknown offset is empty, or null. Lines keep their order, so the output can be joined with the input, and can
be read again. A list is read as a whole or not at all: errors name each invalid line.
"""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from mirrorflow_core.errors import InvalidOffsetsError
from mirrorflow_core.offsets.application_offsets import ApplicationOffset, ApplicationTranslation

FIELDS: Final = ("topic", "partition", "offset")
TRANSLATION_FIELDS: Final = (*FIELDS, "translation", "readAgainAtMost", "why")
# The partitions of a very large cluster; a list of them takes some 50 MB of memory.
OFFSETS_MAX: Final = 200_000
PROBLEMS_MAX: Final = 20  # invalid lines that an error names
SHOWN_MAX: Final = 64  # characters of an invalid value that an error repeats
_LIMITS: Final[Mapping[str, int]] = {"partition": 2**31 - 1, "offset": 2**63 - 1}
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")  # Kafka's Topic.validate
_NUMBER: Final = re.compile(r"[0-9]{1,19}")


class OffsetListFormat(Enum):
    """The form of a list of offsets."""

    CSV = "csv"
    CSV_WITH_HEADER = "csv-with-header"
    JSON_LINES = "json-lines"
    JSON_ARRAY = "json-array"


class _Reading:
    """The offsets and the invalid lines of one list."""

    def __init__(self, offsets_max: int) -> None:
        self.offsets: list[ApplicationOffset] = []
        self._offsets_max = offsets_max
        self._problems: list[str] = []
        self._more = 0  # invalid lines that are not named

    def add(self, place: str, values: Mapping[str, Any]) -> None:
        """Adds the offset with *values*, which stands at *place* ("line 3")."""
        problem = next(filter(None, (_problem(field, values.get(field)) for field in FIELDS)), None)
        if problem:
            self.refuse(place, problem)
            return
        if len(self.offsets) == self._offsets_max:
            raise InvalidOffsetsError(
                (f"{place}: there are more than {self._offsets_max} offsets; divide the list.",)
            )
        self.offsets.append(
            ApplicationOffset(
                topic=values["topic"], partition=int(values["partition"]), offset=int(values["offset"])
            )
        )

    def refuse(self, place: str, problem: str) -> None:
        """Notes that the line at *place* is invalid."""
        if len(self._problems) < PROBLEMS_MAX:
            self._problems.append(f"{place}: {problem}.")
        else:
            self._more += 1

    def finish(self) -> tuple[ApplicationOffset, ...]:
        """Returns the offsets. Raises InvalidOffsetsError if a line was invalid, or there was none."""
        if self._problems:
            more = (f"{self._more} more lines are invalid.",) if self._more else ()
            raise InvalidOffsetsError((*self._problems, *more))
        if not self.offsets:
            raise InvalidOffsetsError(
                ("line 1: there are no offsets; write topic,partition,offset on each line.",)
            )
        return tuple(self.offsets)


def parse_offsets(
    content: bytes, *, offsets_max: int = OFFSETS_MAX
) -> tuple[OffsetListFormat, tuple[ApplicationOffset, ...]]:
    """Returns the form and the offsets of *content*. Raises InvalidOffsetsError, which names each invalid line."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidOffsetsError((f"line {line}: it is not UTF-8.",)) from error
    reading = _Reading(offsets_max)
    match text.lstrip()[:1]:
        case "[":
            form = _read_array(text, reading)
        case "{":
            form = _read_json_lines(text, reading)
        case _:
            form = _read_csv(text, reading)
    return form, reading.finish()


def _read_array(text: str, reading: _Reading) -> OffsetListFormat:
    try:
        items = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidOffsetsError((f"line {error.lineno}: it is not JSON ({error.msg}).",)) from error
    except (ValueError, RecursionError) as error:  # a number or a nesting that Python refuses
        raise InvalidOffsetsError(("line 1: it is not a JSON array of offsets.",)) from error
    for number, item in enumerate(items, 1):
        _add_item(f"item {number}", item, reading)
    return OffsetListFormat.JSON_ARRAY


def _read_json_lines(text: str, reading: _Reading) -> OffsetListFormat:
    for number, line in enumerate(text.split("\n"), 1):  # a string of JSON may hold other ends of lines
        if line.strip():
            try:
                item = json.loads(line)
            except (ValueError, RecursionError):
                reading.refuse(
                    f"line {number}", "it is not a JSON object; write one on each line, or one array"
                )
                continue
            _add_item(f"line {number}", item, reading)
    return OffsetListFormat.JSON_LINES


def _add_item(place: str, item: object, reading: _Reading) -> None:
    if isinstance(item, dict):
        reading.add(place, item)
    else:
        reading.refuse(place, "it is not an object with topic, partition and offset")


def _read_csv(text: str, reading: _Reading) -> OffsetListFormat:
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: Sequence[str] | None = None
    is_first = True
    try:
        for row in rows:
            cells, place = [cell.strip() for cell in row], f"line {rows.line_num}"
            if not any(cells):
                continue
            if is_first and set(FIELDS) <= set(cells):
                header = cells
            elif header is None and len(cells) != len(FIELDS):
                reading.refuse(
                    place,
                    f"it has {len(cells)} columns; write topic,partition,offset, or a header with these names",
                )
            elif header is not None and len(cells) != len(header):
                reading.refuse(place, f"it has {len(cells)} columns, and the header has {len(header)}")
            else:
                reading.add(place, dict(zip(header or FIELDS, cells, strict=True)))
            is_first = False
    except csv.Error as error:
        reading.refuse(f"line {rows.line_num}", f"it is not CSV ({error})")
    return OffsetListFormat.CSV if header is None else OffsetListFormat.CSV_WITH_HEADER


def _problem(field: str, value: object) -> str | None:
    """Returns why *value* is invalid for *field*; None if it is valid."""
    if value is None:
        return f"{field} is missing"
    if field == "topic":
        if isinstance(value, str) and _TOPIC.fullmatch(value) and value not in {".", ".."}:
            return None
        return f"topic {_shown(value)} is not the name of a topic"
    is_number = isinstance(value, int) and not isinstance(value, bool)
    is_digits = isinstance(value, str) and _NUMBER.fullmatch(value) is not None
    if (is_number or is_digits) and 0 <= int(value) <= _LIMITS[field]:  # type: ignore[call-overload]
        return None
    return f"{field} {_shown(value)} is not a number from 0 to {_LIMITS[field]}"


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return repr(text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…")


def format_translations(
    form: OffsetListFormat, translations: Iterable[ApplicationTranslation]
) -> Iterator[str]:
    """Yields the lines of *translations* in the form of the input, without line ends."""
    match form:
        case OffsetListFormat.JSON_ARRAY:
            objects = [json.dumps(translation_json(item), ensure_ascii=False) for item in translations]
            yield "[" + ",\n ".join(objects) + "]"
        case OffsetListFormat.JSON_LINES:
            for item in translations:
                yield json.dumps(translation_json(item), ensure_ascii=False)
        case _:
            if form is OffsetListFormat.CSV_WITH_HEADER:
                yield ",".join(TRANSLATION_FIELDS)
            for item in translations:
                yield _csv_line(translation_json(item).values())


def translation_json(translation: ApplicationTranslation) -> dict[str, str | int | None]:
    """Returns *translation* as a JSON object with the fields of TRANSLATION_FIELDS; unknown texts are empty there."""
    values = (
        translation.topic or "",
        translation.partition,
        translation.offset,
        translation.translation,
        translation.reread_max_records,
        translation.why or "",
    )
    return dict(zip(TRANSLATION_FIELDS, values, strict=True))


def _csv_line(values: Iterable[object]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    return line.getvalue()
