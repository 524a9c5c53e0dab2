r"""Java's regular expressions in Python's syntax, which is nearly the same.

The rest is translated (`\Q..\E`, `\p{Alpha}`, `(?<name>..)`, `\z`) or refused by name (nested classes, `&&`, `\G`, flags in
the middle), as a ValueError. Named classes are `java_classes`'.
"""

import re

from mirrorflow_replicator.flow.java_classes import CLASSES

_SAME_ESCAPES = frozenset("dDwWsSbBAtnrfa")
_OTHER_ESCAPES = {"z": "\\Z", "Z": "\\Z", "e": "\\x1b", "h": "[ \\t]", "v": "[\\n\\x0b\\f\\r]"}
_CLASS_ESCAPES = {"e": "\\x1b", "h": " \\t", "v": "\\n\\x0b\\f\\r"}
_TOKEN = re.compile(
    r"""\\Q(?P<quoted>.*?)(?:\\E|\Z)
      | \\(?P<negated>[pP])(?:\{(?P<category>[^}]*)\}|(?P<letter>[A-Z]))
      | \\k<(?P<reference>[A-Za-z][A-Za-z0-9]*)>
      | \\x\{(?P<point>[0-9A-Fa-f]+)\}
      | (?P<hexadecimal>\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4})
      | \\(?P<escape>.)
      | \(\?(?:<(?P<name>[A-Za-z][A-Za-z0-9]*)>|(?P<flags>[a-zA-Z-]+)(?P<scope>[:)])|(?P<group>.))
      | (?P<plain>.)""",
    re.VERBOSE | re.DOTALL,
)


def translated(pattern: str) -> str:
    """*pattern* in Python's syntax. Raises ValueError for what has none."""
    out: list[str] = []
    inside = False  # a character class
    opened = 0  # where the class began in `out`
    for token in _TOKEN.finditer(pattern):
        plain = token["plain"]
        if plain == "[" and not inside:
            inside, opened = True, len(out)
            out.append(plain)
        elif plain == "[" or (plain == "&" and inside and pattern[token.end() : token.end() + 1] == "&"):
            raise ValueError("classes inside classes and && are not supported")
        elif plain == "]" and inside and "".join(out[opened:]) not in {"[", "[^"}:
            inside = False
            out.append(plain)
        elif plain is not None:
            # These mean nothing in Java's classes, and may come to mean something in Python's.
            out.append("\\" + plain if inside and plain in "~|]" else plain)
        elif inside:
            out.append(_in_class(token))
        else:
            out.append(_outside(token))
    if inside:
        raise ValueError("a character class is not closed")
    return "".join(out)


def _outside(token: re.Match[str]) -> str:
    if token["name"]:
        return f"(?P<{token['name']}>"
    if token["reference"]:
        return f"(?P={token['reference']})"
    if token["flags"]:
        return _flags(token)
    if token["group"]:
        if token["group"] not in ":=!<>":
            raise ValueError(f"the group (?{token['group']} is unknown to Java")
        return token.group()
    if token["negated"]:
        return f"[{'^' if token['negated'] == 'P' else ''}{_category(token)}]"
    return _character(token, _OTHER_ESCAPES)


def _in_class(token: re.Match[str]) -> str:
    if token["negated"] == "P":
        raise ValueError(f"{token.group()} inside a class is not supported")
    if token["negated"]:
        return _category(token)
    if token["reference"]:
        raise ValueError(f"{token.group()} has no meaning inside a class")
    if token.group().startswith("("):
        # "(?" has no meaning here: two plain characters and what follows.
        return "".join("\\" + character if character in "~|" else character for character in token.group())
    return _character(token, _CLASS_ESCAPES)


def _character(token: re.Match[str], escapes: dict[str, str]) -> str:
    if token["quoted"] is not None:
        return re.escape(token["quoted"])
    if token["point"]:
        return re.escape(chr(int(token["point"], 16)))
    if token["hexadecimal"]:
        return token.group()
    escape = token["escape"]
    if escape in _SAME_ESCAPES or escape in "123456789" or not (escape.isascii() and escape.isalnum()):
        return token.group()
    if escape in escapes:
        return escapes[escape]
    raise ValueError(f"\\{escape} is not supported")


def _category(token: re.Match[str]) -> str:
    name = token["category"] or token["letter"]
    found = CLASSES.get(name)
    if found is None:
        raise ValueError(f"{token.group()} is not supported")
    return found


def _flags(token: re.Match[str]) -> str:
    on, _, off = token["flags"].partition("-")
    if "x" in on + off or set(on + off) - set("dimsuU"):
        raise ValueError(f"the flags (?{token['flags']} are not supported")
    # d, u and U change how Unicode is read, of which names have none.
    on, off = ("".join(flag for flag in flags if flag in "ims") for flags in (on, off))
    if token["scope"] == ":":
        return f"(?{on}{'-' + off if off else ''}:"
    if token.start() != 0 or off:
        raise ValueError(f"{token.group()} is supported only at the beginning; write (?{token['flags']}:...)")
    return f"(?{on})" if on else ""
