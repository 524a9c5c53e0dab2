r"""Reads and writes Java's `.properties` text, its `${provider:path:key}` references, and its values as types.

Guarantees Java's reading of every text, mistakes included: a `# comment` after a value belongs to the value.
`trailing_comment` finds such mistakes; a caller that knows the expected value decides how to handle them.
Source: the class documentation of `java.util.Properties.load(Reader)` and `store`. Text arrives decoded:
Kafka's own tools read files as UTF-8, `Properties.load(InputStream)` as ISO-8859-1, and both agree on \u
escapes.

References follow Kafka's `ConfigTransformer`, whose regex is not greedy: several references per value, no nesting,
an optional path. `config.providers` resolves them; those that cannot be resolved stay as written.

`PropertyReader` reads types as Kafka's `ConfigDef` does. It raises InvalidSettingError, with the key and what to write, where
Java would refuse. Durations are `java.time.Duration`'s, `PT1H30M`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Protocol

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.light_dataclasses import dataclass

_REFERENCE = re.compile(r"\$\{([^}]*?):(([^}]*?):)?([^}]*?)\}")
_BLANK = " \t\f"
_NATURAL_LINE = re.compile(r"\r\n|\r|\n")
_ENDS_IN_BACKSLASH = re.compile(r"\\[\r\n]?\Z")
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f", "\\": "\\\\"}
_ESCAPED_IN_KEYS = " =:#!"  # `store` escapes all but the blank in values, too, where `load` needs none of it
# Nearly all keys and most values: escaping each character took a tenth of the operator's CPU time.
_PLAIN_KEY = re.compile(r"[A-Za-z0-9._-]*")
_PLAIN_VALUE = re.compile(r"(?! )[ -\[\]-~]*")
_COMMENT_BEHIND = re.compile(r"(?:^|[ \t\f]+)(?:#|//).*\Z", re.DOTALL)
_DURATION = re.compile(
    r"([-+]?)P(?:([-+]?\d+)D)?(?:T(?=[-+\d])(?:([-+]?\d+)H)?(?:([-+]?\d+)M)?(?:([-+]?\d+)(?:[.,](\d{0,9}))?S)?)?",
    re.IGNORECASE,
)
_SECONDS = (86_400, 3_600, 60, 1)
_SIZE = re.compile(r"(\d+)\s*(|k|M|G|Ki|Mi|Gi)B?")
DIGITS_MAX = 100  # of a number; Python refuses more than 4300 with an error of its own
_SIZE_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_NO_DEFAULTS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One reference; `text` is its text as written, including `${` and `}`."""

    provider: str
    path: str
    key: str
    text: str


def references(value: str) -> tuple[Reference, ...]:
    """Returns all references in *value*, in order."""
    return tuple(_reference(match) for match in _REFERENCE.finditer(value))


def has_reference(value: str) -> bool:
    """Returns whether *value* holds a reference."""
    return _REFERENCE.search(value) is not None


def reference_at(value: str, index: int) -> Reference | None:
    """Returns the reference that begins at index *index* of *value*; None if none does."""
    match = _REFERENCE.match(value, index)
    return None if match is None else _reference(match)


def substitute(value: str, lookup: Callable[[Reference], str | None]) -> str:
    """Returns *value* with each reference replaced by the result of *lookup*; None leaves it as written."""

    def replacement(match: re.Match[str]) -> str:
        value = lookup(_reference(match))
        return match.group(0) if value is None else value

    return _REFERENCE.sub(replacement, value)


def _reference(match: re.Match[str]) -> Reference:
    return Reference(
        provider=match.group(1), path=match.group(3) or "", key=match.group(4), text=match.group(0)
    )


def parse_properties(text: str) -> dict[str, str]:
    r"""Returns the pairs of *text*; the last one counts where a key is repeated.

    Raises InvalidSettingError for a malformed \u escape, the only mistake that Java refuses.
    """
    return dict(property_pairs(text))


def property_pairs(text: str) -> Iterator[tuple[str, str]]:
    """Yields each pair of *text*, including duplicate keys. Raises as `parse_properties`."""
    for line in _logical_lines(text.removeprefix("\ufeff")):
        key, value = _split(line)
        yield _unescape(key, key), _unescape(value, key)


def format_properties(properties: Mapping[str, str]) -> str:
    """Returns the text that Java reads as *properties*: one line each, in their order, ASCII only."""
    return "".join(f"{_escape_key(key)}={_escape_value(value)}\n" for key, value in properties.items())


def trailing_comment(value: str) -> str | None:
    """Returns *value* without the `# ...` or `// ...` after it; None where there is none."""
    comment = _COMMENT_BEHIND.search(value)
    return None if comment is None else value[: comment.start()]


def _logical_lines(text: str) -> Iterator[str]:
    """Yields logical lines, without comments and blank lines.

    A line that ends in an odd number of backslashes is joined with the next one.
    """
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
        # After a lone backslash the logical line is still empty, so Java skips blanks and comments as at its
        # beginning.
        continued = continued and bool(pending)
        if not continued:
            if pending:
                yield pending
            pending = ""
    # Java reads a lone backslash at the end of the text, with at most one line terminator after it, as an
    # empty line.
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
    index = 0
    while index < len(text):
        if text[index] != "\\":
            out.append(text[index])
            index += 1
            continue
        mark = text[index + 1 : index + 2]
        if mark == "u":
            digits = text[index + 2 : index + 6]
            if not re.fullmatch(r"[0-9a-fA-F]{4}", digits):
                raise InvalidSettingError(
                    key=key,
                    problem="it holds \\u without four hexadecimal digits",
                    action="write \\\\u for a plain \\u",
                )
            out.append(chr(int(digits, 16)))
            index += 6
        else:
            out.append(_ESCAPED.get(mark, mark))
            index += 2
    # Two \u escapes of a surrogate pair are one character.
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escape_key(key: str) -> str:
    if _PLAIN_KEY.fullmatch(key):
        return key
    return "".join(
        f"\\{character}" if character in _ESCAPED_IN_KEYS else _escape_character(character)
        for character in key
    )


def _escape_value(value: str) -> str:
    """Returns the escaped value; only a leading blank would be read as part of the separator."""
    if _PLAIN_VALUE.fullmatch(value):
        return value
    text = "".join(map(_escape_character, value))
    return f"\\{text}" if text.startswith(" ") else text


def _escape_character(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if " " <= character <= "~":
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[index] << 8 | units[index + 1]:04X}" for index in range(0, len(units), 2))


def parse_duration_ms(text: str) -> int:
    """Returns the milliseconds of `PnDTnHnMn.nS`. Raises ValueError for anything else."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or all(match.group(index) is None for index in range(2, 6)):
        raise ValueError(f"{text!r} is not a duration such as PT1H30M or P2D")
    total_ms = sum(
        int(match.group(index + 2) or 0) * seconds * 1000 for index, seconds in enumerate(_SECONDS)
    )
    fraction_ms = int((match.group(6) or "").ljust(3, "0")[:3])
    total_ms += -fraction_ms if (match.group(5) or "").startswith("-") else fraction_ms
    return -total_ms if match.group(1) == "-" else total_ms


def parse_instant_ms(text: str) -> int:
    """Returns the epoch milliseconds of an ISO-8601 instant (UTC where no zone is given) or of a plain number.

    Raises ValueError for anything else.
    """
    stripped = text.strip()
    if re.fullmatch(r"\d+", stripped):
        return int(stripped)
    moment = datetime.fromisoformat(stripped)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def read_size_bytes(text: str) -> int | None:
    """Returns the bytes of *text*, a number with k, M, G, Ki, Mi or Gi; None if it is not one, or 0."""
    match = _SIZE.fullmatch(text)
    if match is None or len(text) > DIGITS_MAX:
        return None
    return int(match.group(1)) * _SIZE_UNITS[match.group(2)] or None


def read_list(text: str) -> list[str]:
    """Returns the items of *text*, separated by commas, trimmed, without empty ones."""
    return [part.strip() for part in text.split(",") if part.strip()]


class ReferenceResolver(Protocol):
    """Replaces references such as `${env:NAME}`."""

    def resolve_value(self, value: str) -> str:
        """Returns *value* with its references replaced."""


class PropertyReader:
    """Typed access to *properties*; without *resolver*, references are read as they are written.

    *defaults* are the values of absent keys. The default that a call names is for keys that are not in them.
    """

    def __init__(
        self,
        properties: Mapping[str, str],
        resolver: ReferenceResolver | None = None,
        defaults: Mapping[str, str] = _NO_DEFAULTS,
    ) -> None:
        self._given = properties
        self._properties = {**defaults, **properties}
        self._resolver = resolver

    def __contains__(self, key: str) -> bool:
        return key in self._given

    def text(self, key: str, default: str = "") -> str:
        """Returns the trimmed, resolved value."""
        value = self._properties.get(key)
        if value is None:
            return default
        return (value if self._resolver is None else self._resolver.resolve_value(value)).strip()

    def required(self, key: str, *, action: str) -> str:
        """Returns the value as `text` does; an absent or empty one is an error that names *action* as the remedy."""
        value = self.text(key)
        if not value:
            raise InvalidSettingError(key=key, problem="it is missing", action=action)
        return value

    def names(self, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Returns a list, split at commas. An empty value is an empty list, which matches nothing."""
        if key not in self._properties:
            return default
        return tuple(read_list(self.text(key)))

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Returns the boolean of `true` or `false`, in any case."""
        return self.choice(key, ("true", "false"), str(default).lower()) == "true"

    def choice(self, key: str, choices: tuple[str, ...], default: str = "") -> str:
        """Returns one of *choices*, as written there; the value may be in any case."""
        if key not in self._properties:
            return default
        known = {choice.lower(): choice for choice in choices}
        written = self.text(key)
        if written.lower() not in known:
            raise InvalidSettingError(
                key=key, problem=f"{written!r} is not known", action="write " + " or ".join(choices)
            )
        return known[written.lower()]

    def whole(self, key: str, default: int = 0, *, minimum: int, maximum: int = 2**63 - 1) -> int:
        """Returns a whole number within the given bounds."""
        if key not in self._properties:
            return default
        written = self.text(key)
        if not re.fullmatch(r"[-+]?\d+", written) or len(written) > DIGITS_MAX:
            raise InvalidSettingError(
                key=key, problem=f"{written!r} is not a whole number", action="write digits only"
            )
        value = int(written)
        if not minimum <= value <= maximum:
            upper = "" if maximum == 2**63 - 1 else f" and at most {maximum}"
            raise InvalidSettingError(
                key=key, problem=f"{value} is out of bounds", action=f"write at least {minimum}{upper}"
            )
        return value

    def size_bytes(self, key: str) -> int | None:
        """Returns a number of bytes, with k, M, G, Ki, Mi or Gi; None if absent or empty."""
        written = self.text(key)
        if not written:
            return None
        size = read_size_bytes(written)
        if size is None:
            raise InvalidSettingError(
                key=key,
                problem=f"{written!r} is not a number of bytes",
                action="write for example 50Mi, or leave it out",
            )
        return size
