"""Properties as Java's `Properties.load` reads them (java.util.Properties), ASCII only.

The connector reads them with a parser of its own; a test holds both to each other.
"""

import re
from collections.abc import Mapping
from typing import Final

_SPECIAL: Final = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
_OF_KEYS: Final = " =:#!"
# Nearly every key and most values; letter by letter they were a tenth of what a thousand flows cost.
_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9._-]*")
_PLAIN_VALUE: Final = re.compile(r"(?! )[ -\[\]-~]*")


def format_properties(properties: Mapping[str, str]) -> str:
    """One line for each, in their order."""
    return "".join(f"{_key(key)}={_value(value)}\n" for key, value in properties.items())


def _key(key: str) -> str:
    if _PLAIN_KEY.fullmatch(key):
        return key
    return "".join(f"\\{letter}" if letter in _OF_KEYS else _letter(letter) for letter in key)


def _value(value: str) -> str:
    """Only a value's first blank would be taken for a part of the separator."""
    if _PLAIN_VALUE.fullmatch(value):
        return value
    text = "".join(_letter(letter) for letter in value)
    return f"\\{text}" if text.startswith(" ") else text


def _letter(letter: str) -> str:
    if letter in _SPECIAL:
        return _SPECIAL[letter]
    if " " <= letter <= "~":
        return letter
    units = letter.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
