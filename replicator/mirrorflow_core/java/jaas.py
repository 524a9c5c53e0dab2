"""Parses and writes `sasl.jaas.config` as Java does: one login module, a control flag, options, a semicolon.

The tokens are those of java.io.StreamTokenizer as Kafka's JaasConfig configures it, including its surprises:
an unquoted value that begins with a digit is a number and therefore invalid, and an unquoted slash begins a
comment. Errors show no word of the text except Kafka's own option names: where quotes are missing, any word
may be part of a password. `security.client_security` decides which modules and options are supported.

A reference that is an option's value or stands in quotes is replaced by its text, whatever characters that
has: the text is quoted when it is resolved. Java instead replaces references first and parses the result, so
there a quote in a password ends the value.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from functools import cache

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.properties import Reference, reference_at
from mirrorflow_core.light_dataclasses import dataclass

KEY = "sasl.jaas.config"
FLAGS = frozenset({"required", "requisite", "sufficient", "optional"})
# More options have no use, and each one is kept in memory for the lifetime of the process.
OPTIONS_MAX = 100

_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPED = {"\\": "\\\\", '"': '\\"', "'": "\\'", "\n": "\\n", "\r": "\\r"}
_OCTAL = re.compile(r"[0-3][0-7]{0,2}|[4-7][0-7]?")
# Option names that errors may show: Kafka's own, never a word that could be part of a value.
_NAMES = frozenset({"username", "password", "tokenauth", "clientId", "clientSecret", "scope"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginModule:
    """One login module: its full class name, and its options, which hold secrets."""

    class_name: str
    options: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # "text": a word or a quoted string; "number"; "mark"
    text: str = field(repr=False)


@cache
def _token() -> re.Pattern[str]:
    """Returns the pattern of a token. It is compiled when it is used: that takes 5 ms, and many flows have no login."""
    # Alternatives in the order of StreamTokenizer.nextToken; 0 to space are blanks, 0xA0 and above are letters.
    return re.compile(
        r"""(?P<blank>[\x00-\x20]+ | //[^\r\n]* | /\*.*?(?:\*/|\Z) | /(?![/*])[^\r\n]*)
          | (?P<number>-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]*))
          | (?P<word>[A-Za-z_$\u00a0-\U0010ffff][A-Za-z0-9_$.\u00a0-\U0010ffff-]*)
          | (?P<quote>["'])
          | (?P<other>.)""",
        re.VERBOSE | re.DOTALL,
    )


def parse_jaas(text: str) -> LoginModule:
    """Returns the one login module of *text*. Raises InvalidSettingError where Java would not read it either."""
    tokens = list(_tokens(text))
    if not tokens:
        raise InvalidSettingError(key=KEY, problem="no login module is named in it")
    if len(tokens) < 2:
        raise InvalidSettingError(
            key=KEY, problem="the login module is not followed by a control flag such as required"
        )
    if tokens[0].kind != "text" or tokens[1].kind != "text" or tokens[1].text.lower() not in FLAGS:
        raise InvalidSettingError(
            key=KEY,
            problem="it does not begin with a login module and a control flag",
            action="write <module> required option=value ...; with one of " + ", ".join(sorted(FLAGS)),
        )
    options, end = _options(tokens, 2)
    if end < len(tokens):
        raise InvalidSettingError(
            key=KEY, problem="more follows the semicolon; it must hold one login module"
        )
    return LoginModule(class_name=tokens[0].text, options=options)


def format_jaas(class_name: str, options: Mapping[str, str]) -> str:
    """Returns the text of a required login module; each option is a reference, or from `escape_option`."""
    return " ".join([class_name, "required", *(f'{name}="{value}"' for name, value in options.items())]) + ";"


def escape_option(text: str) -> str:
    """Returns *text* escaped for quotes of either kind."""
    return "".join(_ESCAPED.get(character, character) for character in text)


def resolve_jaas(text: str, lookup: Callable[[Reference], str]) -> str:
    """Returns *text* with each reference replaced by the result of *lookup*.

    The result is quoted where the reference is an option's value or stands in quotes. A reference that is the
    whole text, or stands elsewhere, is replaced unquoted: it may name the module or hold everything.
    """
    parts: list[str] = []
    index, quote, is_value = 0, "", False
    while index < len(text):
        if reference := reference_at(text, index):
            secret, index = lookup(reference), index + len(reference.text)
            parts.append(
                escape_option(secret) if quote else f'"{escape_option(secret)}"' if is_value else secret
            )
            is_value = False
        elif quote:
            end = index + 2 if text[index] == "\\" else index + 1
            quote = "" if text[index] == quote or text[index] in "\r\n" else quote
            parts.append(text[index:end])
            index = end
        elif match := _token().match(text, index):  # always: `other` takes any character
            end = match.end()
            if match.lastgroup == "quote":
                quote = match.group()
            elif match.lastgroup == "word" and (dollar := text.find("${", index + 1, end + 1)) > 0:
                end = dollar  # a dollar may be part of a word, but here begins a reference
            if match.lastgroup != "blank":
                is_value = match.group() == "="
            parts.append(text[index:end])
            index = end
    return "".join(parts)


def _options(tokens: list[_Token], index: int) -> tuple[dict[str, str], int]:
    options: dict[str, str] = {}
    while index < len(tokens) and tokens[index] != _Token("mark", ";"):
        name = tokens[index]
        known = name.kind == "text" and name.text in _NAMES
        label = f"option {name.text}" if known else f"option {len(options) + 1}"
        value = tokens[index + 2] if index + 2 < len(tokens) else _Token("mark", "")
        if (
            name.kind != "text"
            or tokens[index + 1 : index + 2] != [_Token("mark", "=")]
            or value.kind != "text"
        ):
            raise InvalidSettingError(
                key=KEY,
                problem=f"{label} has no value that can be read",
                action='write name="value", with \\" for a quote and \\\\ for a backslash in it',
            )
        options[name.text] = value.text
        if len(options) > OPTIONS_MAX:
            raise InvalidSettingError(key=KEY, problem=f"it has more than {OPTIONS_MAX} options")
        index += 3
    if index >= len(tokens):
        raise InvalidSettingError(
            key=KEY, problem="it does not end with a semicolon", action="add ; at its end"
        )
    return options, index + 1


def _tokens(text: str) -> Iterator[_Token]:
    index = 0
    while match := _token().match(text, index):  # until the end: `other` takes any character
        index = match.end()
        if match.lastgroup == "quote":
            value, index = _quoted(text, index, match.group())
            yield _Token("text", value)
        elif match.lastgroup == "word":
            yield _Token("text", match.group())
        elif match.lastgroup == "number":
            yield _Token("number", match.group())
        elif match.lastgroup == "other":
            yield _Token("mark", match.group())


def _quoted(text: str, index: int, quote: str) -> tuple[str, int]:
    """Returns the string after the opening quote and the index after it; as in Java, a line end closes it."""
    value = []
    while index < len(text) and text[index] != quote and text[index] not in "\r\n":
        if text[index] != "\\" or index + 1 == len(text):
            value.append(text[index])
            index += 1
        elif octal := _OCTAL.match(text, index + 1):
            value.append(chr(int(octal.group(), 8)))
            index = octal.end()
        else:
            value.append(_ESCAPES.get(text[index + 1], text[index + 1]))
            index += 2
    return "".join(value), index + 1 if text[index : index + 1] == quote else index
