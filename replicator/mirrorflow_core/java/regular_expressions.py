r"""Translates Java's regular expressions to those of the package `regex`, version 1.

Source: `java.util.regex.Pattern` of Java 17. Parses the whole syntax, so that every construct keeps Java's
meaning: flags, ASCII `\d \w \s \b`, line terminators, nested classes. Patterns that Java refuses are refused.
Not supported: the flag c, `\b{g}`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from mirrorflow_core.java.pattern_syntax import (
    LINE_ENDS,
    REPEAT_MAX,
    PatternReader,
    PatternSyntaxError,
    character,
    escape_set,
    property_set,
    range_set,
    unquoted,
)

NESTING_MAX = 100  # nested groups or classes; the translation and the engine recurse
_NEVER = "(?:(?!))"
_LINE_BREAK = r"(?:\r\n|[\n\x0b\f\r\x85\u2028\u2029])"
_WORD_EDGE = "(?:(?<={w})(?!{w})|(?<!{w})(?={w}))"
_NO_WORD_EDGE = "(?:(?<={w})(?={w})|(?<!{w})(?!{w}))"
# Anchors by (flag m, flag d). `\r\n` is one line terminator, so no anchor matches between the two.
_BEGIN = {
    (False, False): r"\A",
    (False, True): r"\A",
    (True, False): r"(?:(?!\Z)(?:\A|(?<=[\n\x85\u2028\u2029])|(?<=\r)(?!\n)))",
    (True, True): r"(?:(?!\Z)(?:\A|(?<=\n)))",
}
_END = {
    (False, False): r"(?:(?=(?:\r\n|[\r\x85\u2028\u2029])?\Z)|(?<!\r)(?=\n\Z))",
    (False, True): r"(?=\n?\Z)",
    (True, False): r"(?:(?=\Z|[\r\x85\u2028\u2029])|(?<!\r)(?=\n))",
    (True, True): r"(?=\Z|\n)",
}


def translated(pattern: str) -> str:
    """Return *pattern* for `regex.compile(..., regex.VERSION1)`. Raises PatternSyntaxError."""
    return _Parser(unquoted(pattern)).whole()


class _Parser(PatternReader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._groups = 0
        self._names: dict[str, int] = {}
        self._behind = 0  # number of open lookbehinds
        self._depth = 0

    def whole(self) -> str:
        out = self._alternatives()
        if self._at < len(self._text):
            raise PatternSyntaxError("a ) closes no group")
        return out

    @contextmanager
    def _nested(self) -> Iterator[None]:
        """Enter a group or a class: flags that are set inside it end with it."""
        flags, self._depth = self._flags, self._depth + 1
        if self._depth > NESTING_MAX:
            raise PatternSyntaxError(f"more than {NESTING_MAX} groups are inside each other")
        yield
        self._flags, self._depth = flags, self._depth - 1

    def _alternatives(self) -> str:
        alternatives = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            alternatives.append(self._sequence())
        return "|".join(alternatives)

    def _sequence(self) -> str:
        out: list[str] = []
        while (letter := self._peek()) and letter not in "|)":
            item = self._item(letter)
            if item is not None:
                out.append(item + self._quantifier(item))
        return "".join(out)

    def _item(self, letter: str) -> str | None:
        """Translate what one quantifier applies to; None for flags alone."""
        lines = ("m" in self._flags, "d" in self._flags)
        match letter:
            case "(":
                return self._group()
            case "[":
                return self._class()
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise PatternSyntaxError(f"{letter} has nothing to repeat")
            case "{":
                return "(?:)"  # in Java, a {n,m} with nothing before it repeats nothing
        self._at += 1
        match letter:
            case "^":
                return f"(?:{_BEGIN[lines]})"
            case "$":
                return f"(?:{_END[lines]})"
            case "." if "s" in self._flags:
                return "(?s:.)"
            case ".":
                return r"[^\n]" if "d" in self._flags else f"[^{LINE_ENDS}]"
        return self._literal(ord(letter))

    def _literal(self, point: int) -> str:
        if "i" not in self._flags:
            return character(point)
        return range_set(point, point, self._flags)

    def _quantifier(self, item: str) -> str:
        letter = self._peek()
        if letter not in {"*", "+", "?", "{"}:
            return ""
        self._at += 1
        unbounded = letter in "*+"
        out = letter
        if letter == "{":
            out, unbounded = self._counted()
        if unbounded and self._behind and item.startswith("("):  # Java 17 accepts single characters
            raise PatternSyntaxError("a lookbehind cannot hold a group that is repeated without a limit")
        if (more := self._peek()) and more in "?+":
            self._at += 1
            return out + more
        return out

    def _counted(self) -> tuple[str, bool]:
        least = self._number()
        most: int | None = least
        if self._skip(","):
            most = None if self._text[self._at : self._at + 1] == "}" else self._number()
        if not self._skip("}"):
            raise PatternSyntaxError("a repetition {n,m} is not closed")
        if max(least, most or 0) > REPEAT_MAX or (most is not None and most < least):
            raise PatternSyntaxError(f"{{{least},{most}}} is not a range of repetitions")
        return f"{{{least},{'' if most is None else most}}}", most is None

    def _group(self) -> str | None:
        self._at += 1
        with self._nested():
            if not self._skip("?"):
                return self._body("(", number=True)
            for opening in (":", "=", "!", ">"):
                if self._skip(opening):
                    return self._wrapped(self._body(f"(?{opening}"), assertion=opening in "=!")
            for opening in ("<=", "<!"):
                if self._skip(opening):
                    self._behind += 1
                    body = self._body(f"(?{opening}")
                    self._behind -= 1
                    return self._wrapped(body, assertion=True)
            if self._skip("<"):
                return self._body(f"(?P<{self._new_name()}>", number=True)
            flags, has_body = self._read_flags()
            self._flags = flags
            if has_body:
                return self._body("(?:")
        self._flags = flags
        return None

    def _body(self, opening: str, *, number: bool = False) -> str:
        if number:
            self._groups += 1
        body = self._alternatives()
        if not self._skip(")"):
            raise PatternSyntaxError("a group is not closed")
        return f"{opening}{body})"

    def _wrapped(self, group: str, *, assertion: bool) -> str:
        # `regex` does not accept a quantifier after a bare assertion.
        return f"(?:{group})" if assertion else group

    def _group_name(self) -> str:
        end = self._text.find(">", self._at)
        name = self._text[self._at : max(end, 0)]
        if not (name.isascii() and name.isalnum() and name[0].isalpha()):
            raise PatternSyntaxError(f"{name!r} cannot name a group: use letters and digits")
        self._at = end + 1
        return name

    def _new_name(self) -> str:
        name = self._group_name()
        if name in self._names:
            raise PatternSyntaxError(f"two groups are named {name!r}")
        self._names[name] = self._groups + 1
        return name

    def _read_flags(self) -> tuple[frozenset[str], bool]:
        """Return the flags from here on, and whether they open a group: `(?i)` or `(?i:`."""
        flags, adds = set(self._flags), True
        while (letter := self._take()) != ")":
            if letter == ":":
                return frozenset(flags), True
            if letter == "-" and adds:
                adds = False
            elif letter not in "imsduxU":
                raise PatternSyntaxError(f"(?{letter} is not a group that is supported")
            elif adds:
                flags |= {"U", "u"} if letter == "U" else {letter}
            else:
                flags -= {"U", "u"} if letter == "U" else {letter}
        return frozenset(flags), False

    def _class(self) -> str:
        self._at += 1
        operands: list[list[str]] = [[]]
        negated = self._skip("^")
        with self._nested():
            while (letter := self._peek()) != "]" or not any(operands):
                if not letter:
                    raise PatternSyntaxError("a character class is not closed")
                if letter == "[":
                    operands[-1].append(self._class())
                elif self._text.startswith("&&", self._at):
                    self._at += 2
                    operands.append([])
                else:
                    operands[-1].append(self._range())
        self._at += 1
        sets = [f"[{''.join(operand)}]" for operand in operands if operand]
        return f"[{'^' if negated else ''}{'&&'.join(sets)}]"

    def _range(self) -> str:
        first = self._class_character()
        if isinstance(first, str):
            return first
        if self._peek() != "-" or self._text[self._at + 1 : self._at + 2] in {"[", "]", ""}:
            return range_set(first, first, self._flags)
        self._at += 1
        last = self._class_character()
        if isinstance(last, str) or last < first:
            raise PatternSyntaxError("a range of characters ends before it begins")
        return range_set(first, last, self._flags)

    def _class_character(self) -> int | str:
        """Return a code point, or a set."""
        self._peek()
        if not self._skip("\\"):
            return ord(self._take())
        letter = self._take()
        if letter in "123456789":
            raise PatternSyntaxError(f"\\{letter} has no meaning inside a class")
        return self._set(letter) or self._point(letter)

    def _set(self, letter: str) -> str | None:
        if letter not in {"p", "P"}:
            return escape_set(letter, self._flags)
        name = self._take()
        if name == "{":
            name = self._until("}")
        return property_set(name, self._flags, negated=letter == "P")

    def _escape(self) -> str:
        self._at += 1
        letter = self._take()
        found = self._set(letter)
        if found is not None:
            return found
        match letter:
            case "A" | "G":
                return r"(?:\A)"
            case "z":
                return r"(?:\Z)"
            case "Z":
                return f"(?:{_END[False, 'd' in self._flags]})"
            case "b" if self._text.startswith("{", self._at):
                raise PatternSyntaxError("\\b{..} is not supported")
            case "b" | "B":
                edge = _WORD_EDGE if letter == "b" else _NO_WORD_EDGE
                return edge.format(w=escape_set("w", self._flags))
            case "R":
                return _LINE_BREAK
            case "X":
                return r"\X"
            case "k":
                return self._named_reference()
        if letter in "123456789":
            return self._reference(letter)
        return self._literal(self._point(letter))

    def _named_reference(self) -> str:
        if not self._skip("<"):
            raise PatternSyntaxError("\\k is not followed by the name of a group in < >")
        name = self._group_name()
        if name not in self._names:
            raise PatternSyntaxError(f"no group before is named {name!r}")
        return self._back(self._names[name])

    def _reference(self, digits: str) -> str:
        r"""Translate a back reference.

        `\12` is group 12 only if that many groups came before, else group 1 and a 2.
        """
        while (more := self._text[self._at : self._at + 1]) in set("0123456789"):
            if int(digits + more) > self._groups:
                break
            digits += more
            self._at += 1
        return self._back(int(digits))

    def _back(self, number: int) -> str:
        if self._behind:
            raise PatternSyntaxError("a lookbehind cannot hold a reference to a group")
        if number > self._groups:
            return _NEVER
        return f"(?i:\\g<{number}>)" if "i" in self._flags else f"(?:\\g<{number}>)"
