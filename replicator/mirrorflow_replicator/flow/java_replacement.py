"""The replacement strings of Java's `Matcher.replaceFirst`: `$1`, `${name}`, and a backslash before what is meant as it is.

`$12` is group 12 only where the expression has so many groups, else group 1 and a "2". What Java refuses while it runs is a
ValueError when the replacement is read, before anything is copied.
"""

import re
from collections.abc import Iterator

_TOKEN = re.compile(r"\\(?P<escaped>.)|\$\{(?P<name>[^}]*)\}|\$(?P<digits>[0-9]+)|(?P<plain>.)", re.DOTALL)


class Replacement:
    """*text* for matches of *pattern*. Raises ValueError where Java's Matcher would."""

    def __init__(self, text: str, pattern: re.Pattern[str]) -> None:
        self._parts = tuple(_parts(text, pattern))

    def first(self, match: re.Match[str]) -> str:
        """The text in which *match* was found, with it replaced. A group that took no part stands for nothing."""
        new = "".join(part if isinstance(part, str) else match[part] or "" for part in self._parts)
        return match.string[: match.start()] + new + match.string[match.end() :]


def _parts(text: str, pattern: re.Pattern[str]) -> Iterator[str | int]:
    for token in _TOKEN.finditer(text):
        if token["name"] is not None:
            if token["name"] not in pattern.groupindex:
                raise ValueError(f"there is no group {token['name']!r}")
            yield pattern.groupindex[token["name"]]
        elif token["digits"]:
            yield from _numbered(token["digits"], pattern.groups)
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
