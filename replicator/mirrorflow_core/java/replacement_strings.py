"""Replacement strings of Java's `Matcher.replaceFirst`: `$1`, `${name}`, and backslash escapes.

`$12` is group 12 only if the expression has that many groups, else group 1 and a "2". Errors that Java raises
at run time are a ValueError when the replacement is parsed, before anything is copied.
"""

import re
from collections.abc import Iterator

from mirrorflow_core.java.patterns import Found, JavaPattern

_TOKEN = re.compile(r"\\(?P<escaped>.)|\$\{(?P<name>[^}]*)\}|\$(?P<digits>[0-9]+)|(?P<plain>.)", re.DOTALL)


class Replacement:
    """The replacement *text* for matches of *pattern*. Raises ValueError where Java's Matcher would."""

    def __init__(self, text: str, pattern: JavaPattern) -> None:
        self._parts = tuple(_parts(text, pattern))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Replacement) and self._parts == other._parts

    def __hash__(self) -> int:
        return hash(self._parts)

    def first(self, found: Found) -> str:
        """Return the searched text with *found* replaced. A group that did not take part is empty."""
        new = "".join(part if isinstance(part, str) else found.groups[part] or "" for part in self._parts)
        return found.text[: found.start] + new + found.text[found.end :]


def _parts(text: str, pattern: JavaPattern) -> Iterator[str | int]:
    for token in _TOKEN.finditer(text):
        if token["name"] is not None:
            if token["name"] not in pattern.group_numbers:
                raise ValueError(f"there is no group {token['name']!r}")
            yield pattern.group_numbers[token["name"]]
        elif token["digits"]:
            yield from _numbered(token["digits"], pattern.group_count)
        elif token["plain"] == "$":
            raise ValueError("`$` names no group; write `\\$` for the character")
        elif token["plain"] == "\\":
            raise ValueError("nothing follows the last backslash")
        else:
            yield token["escaped"] or token["plain"]


def _numbered(digits: str, groups: int) -> Iterator[str | int]:
    length = 1
    while length < len(digits) and int(digits[: length + 1]) <= groups:
        length += 1
    group = int(digits[:length])
    if group > groups:
        raise ValueError(f"there is no group {group}")
    yield group
    yield digits[length:]
