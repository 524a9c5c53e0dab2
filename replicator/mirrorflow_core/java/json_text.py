"""Writes and reads JSON as Kafka Connect does: Jackson's escapes when writing, typed fields when reading.

Errors are ValueErrors that name the field and never show a value.
"""

import json
from typing import Any

from mirrorflow_core.partitions import UNKNOWN

_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
INT64_MAX = 2**63 - 1


def parsed(data: bytes) -> Any:
    """Return the JSON value in *data*. Raises ValueError."""
    try:
        return json.loads(data.decode())
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except ValueError as error:
        raise ValueError("it is not JSON") from error


def parsed_object(value: bytes) -> dict[str, Any]:
    """Return the fields of the JSON object in *value*. Raises ValueError."""
    fields = parsed(value)
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - one class of error for whatever is wrong with the bytes
    return fields


def is_integer(value: Any) -> bool:
    """Return whether *value* is an integer; in Python, unlike JSON, a boolean is one too."""
    return isinstance(value, int) and not isinstance(value, bool)


def integer_field(fields: dict[str, Any], name: str, most: int = INT64_MAX) -> int:
    """Return the integer of field *name*, from -1 to *most*. Raises ValueError."""
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not UNKNOWN <= value <= most:
        raise ValueError(f"{name} is not a whole number")
    return value


def text_field(fields: dict[str, Any], name: str) -> str:
    """Return the string of field *name*, "" where it is absent. Raises ValueError."""
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise ValueError(f"{name} is not a string")  # noqa: TRY004 - one class of error for whatever is wrong with the bytes
    return value


def dumped(value: Any) -> str:
    """Return *value* as Jackson writes it: no spaces, Jackson's escapes, fields in their given order."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{quoted(name)}:{dumped(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(dumped, value)) + "]"
    return json.dumps(value)


def quoted(text: str) -> str:
    """Return a JSON string as Jackson's UTF8JsonGenerator writes it.

    Raw UTF-8, with escapes for characters outside the BMP.
    """
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    code = ord(character)
    if code < 0x20 or 0xD800 <= code <= 0xDFFF:
        return f"\\u{code:04X}"
    if code > 0xFFFF:
        high, low = divmod(code - 0x10000, 0x400)
        return f"\\u{0xD800 + high:04X}\\u{0xDC00 + low:04X}"
    return character
