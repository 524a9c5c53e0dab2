r"""Java's `.properties` text: reading and writing it as `java.util.Properties` does.

Promises that every text has the reading that Java gives it, slips included: a `# comment` behind a value belongs to
the value. `trailing_comment` finds such slips; who knows what the value should be decides what to do about them.
Source: the class documentation of `java.util.Properties.load(Reader)` and `store`. Text arrives decoded: Kafka's own
tools read files as UTF-8, `Properties.load(InputStream)` as ISO-8859-1, and both agree on \u escapes.
"""

import re
from collections.abc import Iterator, Mapping

from mirrorflow_replicator.errors import InvalidSettingError

_BLANK = " \t\f"
_NATURAL_LINE = re.compile(r"\r\n|\r|\n")
_ENDS_IN_BACKSLASH = re.compile(r"\\[\r\n]?\Z")
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f", "\\": "\\\\"}
_ALWAYS_ESCAPED = "=:#!"
_COMMENT_BEHIND = re.compile(r"(?:^|[ \t\f]+)(?:#|//).*\Z", re.DOTALL)


def parse_properties(text: str) -> dict[str, str]:
    r"""The pairs of *text*; of a key written twice the last one counts.

    Raises InvalidSettingError for a malformed \u escape, the only thing that Java refuses.
    """
    pairs: dict[str, str] = {}
    for line in _logical_lines(text.removeprefix("\ufeff")):
        key, value = _split(line)
        pairs[_unescape(key, key)] = _unescape(value, key)
    return pairs


def format_properties(properties: Mapping[str, str]) -> str:
    """The text that Java reads as *properties*, one line each, in their order, ASCII only."""
    return "".join(
        f"{_escape(key, blanks=True)}={_escape(value, blanks=False)}\n" for key, value in properties.items()
    )


def trailing_comment(value: str) -> str | None:
    """*value* without the `# ...` or `// ...` behind it; None where there is none."""
    found = _COMMENT_BEHIND.search(value)
    return None if found is None else value[: found.start()]


def _logical_lines(text: str) -> Iterator[str]:
    """Lines joined where a line ends in an odd number of backslashes; comments and blank lines are left out."""
    pending = ""
    continued = dangling = False
    for natural in _NATURAL_LINE.split(text):
        line = natural.lstrip(_BLANK)
        if not continued and (not line or line[0] in "#!"):
            dangling = dangling and not natural
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        continued = backslashes % 2 == 1
        pending += line[:-1] if continued else line
        dangling = continued
        # A lone backslash holds nothing yet: Java skips what follows as if at a line's beginning.
        continued = continued and bool(pending)
        if not continued:
            if pending:
                yield pending
            pending = ""
    # A lone backslash that ends the text, with at most one line end behind it, is a line to Java, though it is empty.
    if pending or (dangling and _ENDS_IN_BACKSLASH.search(text)):
        yield pending


def _split(line: str) -> tuple[str, str]:
    end = 0
    while end < len(line) and line[end] not in _BLANK + "=:":
        end += 2 if line[end] == "\\" else 1
    end = min(end, len(line))
    rest = line[end:].lstrip(_BLANK)
    if rest[:1] in {"=", ":"}:
        rest = rest[1:].lstrip(_BLANK)
    return line[:end], rest


def _unescape(text: str, key: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    at = 0
    while at < len(text):
        if text[at] != "\\":
            out.append(text[at])
            at += 1
            continue
        mark = text[at + 1 : at + 2]
        if mark == "u":
            digits = text[at + 2 : at + 6]
            if not re.fullmatch(r"[0-9a-fA-F]{4}", digits):
                raise InvalidSettingError(
                    key=key,
                    problem="it holds \\u without four hexadecimal digits",
                    action="write \\\\u for a plain \\u",
                )
            out.append(chr(int(digits, 16)))
            at += 6
        else:
            out.append(_ESCAPED.get(mark, mark))
            at += 2
    # Two \u escapes of a surrogate pair are one character.
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escape(text: str, *, blanks: bool) -> str:
    return "".join(
        "\\ " if character == " " and (blanks or at == 0) else _escape_character(character)
        for at, character in enumerate(text)
    )


def _escape_character(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character in _ALWAYS_ESCAPED:
        return "\\" + character
    if " " <= character <= "~":
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04X}" for at in range(0, len(units), 2))
