"""Writes and reads JSON as Kafka Connect does: Jackson's escapes when writing, typed fields when reading.

Errors are ValueErrors that name the field and never show a value.
"""

import json
import re
from typing import Any

from mirrorflow_core.partitions import UNKNOWN

INT64_MAX = 2**63 - 1
# What json.dumps has escaped, and the characters that Jackson's UTF8JsonGenerator escapes in addition.
_ESCAPES = re.compile(r"\\(?:u(?P<code>....)|.)|(?P<pair>[\ud800-\udfff\U00010000-\U0010ffff])")


def parsed(data: bytes) -> Any:
    """Returns the JSON value in *data*. Raises ValueError."""
    try:
        return json.loads(data.decode())
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except ValueError as error:
        raise ValueError("it is not JSON") from error


def parsed_object(value: bytes) -> dict[str, Any]:
    """Returns the fields of the JSON object in *value*. Raises ValueError."""
    fields = parsed(value)
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - one class of error for whatever is wrong with the bytes
    return fields


def is_integer(value: Any) -> bool:
    """Returns whether *value* is an integer; in Python, unlike JSON, a boolean is one too."""
    return isinstance(value, int) and not isinstance(value, bool)


def integer_field(fields: dict[str, Any], name: str, most: int = INT64_MAX) -> int:
    """Returns the integer of field *name*, from -1 to *most*. Raises ValueError."""
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not UNKNOWN <= value <= most:
        raise ValueError(f"{name} is not a whole number")
    return value


def text_field(fields: dict[str, Any], name: str) -> str:
    """Returns the string of field *name*, "" where it is absent. Raises ValueError."""
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise ValueError(f"{name} is not a string")  # noqa: TRY004 - one class of error for whatever is wrong with the bytes
    return value


def dumped(value: Any) -> str:
    """Returns *value* as Jackson writes it: no spaces, raw UTF-8, fields in their given order."""
    return _ESCAPES.sub(_as_jackson, json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _as_jackson(match: re.Match[str]) -> str:
    if match["pair"]:
        units = match["pair"].encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[index] << 8 | units[index + 1]:04X}" for index in range(0, len(units), 2))
    return f"\\u{match['code'].upper()}" if match["code"] else match[0]
