"""Converts the `value.literal` of `InsertHeader` to bytes.

Java reads the text as a number, a date, a list or a map where it can (`Values.parseString`), and
`SimpleHeaderConverter` writes what it has read. For most texts the result is the same text, and those are
accepted. Where it differs, or depends on the time zone of the process, the literal is refused, because the
header would differ from the file.
"""

import re
import struct
from decimal import Decimal, InvalidOperation

NULL = "null"
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_LOOKS_DATED = re.compile(r"[0-9]+-[-+0-9]")
_DATE_LENGTH = len("2026-01-31")  # Java accepts no other length for a date
_DELIMITERS = frozenset(':,{}[]"\\')
_FLOAT_DIGITS_MAX = 9  # enough to distinguish any two floats
_LONG = 2**63


def literal_bytes(text: str) -> bytes | None:
    """Return the header's value; None for `null`.

    Raises ValueError with the reason for a text that Java would rewrite.
    """
    if text == NULL:
        return None
    if text[:1] in {"[", "{"}:
        raise ValueError("Java reads a list or a map in it, and writes that in its own way")
    if text[:1].isdigit() or text[:1] in {"+", "-"}:
        if any(character in _DELIMITERS for character in text) or not text.isascii():
            raise ValueError("Java may read a number or a time in its beginning, and leave out the rest")
        if len(text) == _DATE_LENGTH and _LOOKS_DATED.match(text):
            raise ValueError("Java may read a date in it, and write that by its own time zone")
        written = _as_number(text)
        if written != text:
            raise ValueError(f"Java reads a number in it, and writes {written}")
    return text.encode()


def _as_number(text: str) -> str:
    """Return what Java writes for a number; *text* itself if it is none."""
    if not _NUMBER.fullmatch(text):
        return text
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text
    if number == number.to_integral_value():
        return str(int(number)) if abs(number) < _LONG else "it in another way"
    return _as_float(float(number))


def _as_float(number: float) -> str:
    """Return `Float.toString` where its result has only digits and a point."""
    try:
        single = struct.pack(">f", number)
    except OverflowError:
        return "it in another way"
    if not 1e-3 <= abs(number) < 1e7:
        return "it in another way"
    for digits in range(1, _FLOAT_DIGITS_MAX + 1):
        text = f"{number:.{digits}g}"
        if struct.pack(">f", float(text)) == single:
            plain = f"{Decimal(text):f}"
            return plain if "." in plain else f"{plain}.0"
    return "it in another way"
