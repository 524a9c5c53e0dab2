"""`sasl.jaas.config` as Java reads it.

One login module, a control flag, options, a semicolon. The tokens are those of java.io.StreamTokenizer as Kafka's
JaasConfig sets it up, surprises included: a bare value that begins with a digit is a number and so no value, and a bare
slash begins a comment. No error shows a word of the text: where quotes are missing, any word may be part of a password.
Which module and options are of use is decided in `kafka.security`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mirrorflow_replicator.errors import InvalidSettingError

KEY = "sasl.jaas.config"
FLAGS = frozenset({"required", "requisite", "sufficient", "optional"})
# Longer ones have no use, and each option is kept in memory for as long as the process runs.
OPTIONS_MAX = 100

_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
# Alternatives in StreamTokenizer.nextToken's order; 0 to space are blanks, 0xA0 and above are letters.
_TOKEN = re.compile(
    r"""(?P<blank>[\x00-\x20]+ | //[^\r\n]* | /\*.*?(?:\*/|\Z) | /(?![/*])[^\r\n]*)
      | (?P<number>-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]*))
      | (?P<word>[A-Za-z_$\u00a0-\U0010ffff][A-Za-z0-9_$.\u00a0-\U0010ffff-]*)
      | (?P<quote>["'])
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_OCTAL = re.compile(r"[0-3][0-7]{0,2}|[4-7][0-7]?")
# What may be named in an error: Kafka's own option names, never a word that could be a piece of a value.
_NAMES = frozenset({"username", "password", "tokenauth", "clientId", "clientSecret", "scope"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginModule:
    """One entry: the class's full name, and its options, which hold secrets."""

    class_name: str
    options: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # "text": a word or a quoted string; "number"; "mark"
    text: str = field(repr=False)


def parse_jaas(text: str) -> LoginModule:
    """The one login module of *text*; InvalidSettingError when Java would not read it either."""
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


def _options(tokens: list[_Token], at: int) -> tuple[dict[str, str], int]:
    options: dict[str, str] = {}
    while at < len(tokens) and tokens[at] != _Token("mark", ";"):
        name = tokens[at]
        known = name.kind == "text" and name.text in _NAMES
        label = f"option {name.text}" if known else f"option {len(options) + 1}"
        value = tokens[at + 2] if at + 2 < len(tokens) else _Token("mark", "")
        if name.kind != "text" or tokens[at + 1 : at + 2] != [_Token("mark", "=")] or value.kind != "text":
            raise InvalidSettingError(
                key=KEY,
                problem=f"{label} has no value that can be read",
                action='write name="value", with \\" for a quote and \\\\ for a backslash in it',
            )
        options[name.text] = value.text
        if len(options) > OPTIONS_MAX:
            raise InvalidSettingError(key=KEY, problem=f"it has more than {OPTIONS_MAX} options")
        at += 3
    if at >= len(tokens):
        raise InvalidSettingError(
            key=KEY, problem="it does not end with a semicolon", action="add ; at its end"
        )
    return options, at + 1


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None  # `other` takes any character
        at = match.end()
        if match.lastgroup == "quote":
            value, at = _quoted(text, at, match.group())
            yield _Token("text", value)
        elif match.lastgroup == "word":
            yield _Token("text", match.group())
        elif match.lastgroup == "number":
            yield _Token("number", match.group())
        elif match.lastgroup == "other":
            yield _Token("mark", match.group())


def _quoted(text: str, at: int, quote: str) -> tuple[str, int]:
    """The string that begins at *at*, behind its quote, and where the text goes on; a line's end closes it as in Java."""
    value = []
    while at < len(text) and text[at] != quote and text[at] not in "\r\n":
        if text[at] != "\\" or at + 1 == len(text):
            value.append(text[at])
            at += 1
        elif octal := _OCTAL.match(text, at + 1):
            value.append(chr(int(octal.group(), 8)))
            at = octal.end()
        else:
            value.append(_ESCAPES.get(text[at + 1], text[at + 1]))
            at += 2
    return "".join(value), at + 1 if text[at : at + 1] == quote else at
