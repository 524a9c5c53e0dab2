r"""Translates Java's regular expressions to those of the package `regex`, version 1.

Source: `java.util.regex.Pattern` of Java 17. Parses the whole syntax, so that every construct keeps Java's meaning: flags,
ASCII `\d \w \s \b`, line terminators, nested classes. Patterns that Java refuses are refused. Not supported: the flag c, `\b{g}`.

Classes become sets: text in brackets, `[a-z]`; sets nest: `[[a-z][0-9]]` is a union, `[[a-z]&&[^b]]` an intersection. The message
of an error is a clause without the pattern; the caller adds the setting or the field.
"""

import unicodedata
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

NAME_SHOWN_MAX = 60  # the beginning identifies a name; a topic's has up to 249 characters, a group's 32767
LINE_ENDS = r"\n\r\x85\u2028\u2029"
_POSIX = {
    "Lower": "[a-z]",
    "Upper": "[A-Z]",
    "ASCII": r"[\x00-\x7f]",
    "Alpha": "[A-Za-z]",
    "Digit": "[0-9]",
    "Alnum": "[A-Za-z0-9]",
    "Punct": r"[\x21-\x2f\x3a-\x40\x5b-\x60\x7b-\x7e]",
    "Graph": r"[\x21-\x7e]",
    "Print": r"[\x20-\x7e]",
    "Blank": r"[\x20\t]",
    "Cntrl": r"[\x00-\x1f\x7f]",
    "XDigit": "[0-9A-Fa-f]",
    "Space": r"[\x20\t-\r]",
}
# Unicode properties that Java names `\p{IsName}`, in capitals and without underscores.
_PROPERTIES = {
    "ALPHABETIC": r"[\p{Alphabetic}]",
    "LETTER": r"[\p{L}]",
    "IDEOGRAPHIC": r"[\p{Ideographic}]",
    "LOWERCASE": r"[\p{Lowercase}]",
    "UPPERCASE": r"[\p{Uppercase}]",
    "TITLECASE": r"[\p{Lt}]",
    "WHITESPACE": r"[\p{White_Space}]",
    "CONTROL": r"[\p{Cc}]",
    "PUNCTUATION": r"[\p{P}]",
    "HEXDIGIT": r"[\p{Nd}0-9A-Fa-f\uff21-\uff26\uff41-\uff46]",
    "ASSIGNED": r"[^\p{Cn}]",
    "NONCHARACTERCODEPOINT": r"[\p{Noncharacter_Code_Point}]",
    "DIGIT": r"[\p{Nd}]",
    "ALNUM": r"[\p{Alphabetic}\p{Nd}]",
    "BLANK": r"[\p{Zs}\t]",
    "GRAPH": r"[^\p{White_Space}\p{Cc}\p{Cs}\p{Cn}]",
    "PRINT": r"[[^\p{White_Space}\p{Cc}\p{Cs}\p{Cn}]\p{Zs}]",
    "WORD": r"[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\u200c\u200d]",
    "JOINCONTROL": r"[\u200c\u200d]",
}
# The meaning of the POSIX names with the flag U.
_UNICODE_POSIX = {
    "Lower": "LOWERCASE",
    "Upper": "UPPERCASE",
    "Alpha": "ALPHABETIC",
    "Digit": "DIGIT",
    "Alnum": "ALNUM",
    "Punct": "PUNCTUATION",
    "Graph": "GRAPH",
    "Print": "PRINT",
    "Blank": "BLANK",
    "Cntrl": "CONTROL",
    "XDigit": "HEXDIGIT",
    "Space": "WHITESPACE",
}
_JAVA_METHODS = {
    "javaLowerCase": r"[\p{Lowercase}]",
    "javaUpperCase": r"[\p{Uppercase}]",
    "javaAlphabetic": r"[\p{Alphabetic}]",
    "javaIdeographic": r"[\p{Ideographic}]",
    "javaTitleCase": r"[\p{Lt}]",
    "javaDigit": r"[\p{Nd}]",
    "javaDefined": r"[^\p{Cn}]",
    "javaLetter": r"[\p{L}]",
    "javaLetterOrDigit": r"[\p{L}\p{Nd}]",
    "javaSpaceChar": r"[\p{Z}]",
    "javaWhitespace": r"[[\p{Z}\t-\r\x1c-\x1f]&&[^\xa0\u2007\u202f]]",
    "javaISOControl": r"[\x00-\x1f\x7f-\x9f]",
}
_CATEGORIES = frozenset(
    f"{major}{minor}"
    for major, minors in (
        ("C", "cfnos"),
        ("L", "lmotu"),
        ("M", "cen"),
        ("N", "dlo"),
        ("P", "cdefios"),
        ("S", "ckmo"),
        ("Z", "lps"),
    )
    for minor in ("", *minors)
)
_MORE_CATEGORIES = {
    "LC": r"[\p{Lu}\p{Ll}\p{Lt}]",
    "LD": r"[\p{L}\p{Nd}]",
    "L1": r"[\x00-\xff]",
    "all": r"[\x00-\U0010ffff]",
}
# With the flag i, a class of one case matches the letters of all cases.
_CASES = (
    (frozenset({"Lower", "Upper"}), "[A-Za-z]"),
    (frozenset({"Lu", "Ll", "Lt"}), _MORE_CATEGORIES["LC"]),
    (frozenset({"javaLowerCase", "javaUpperCase", "javaTitleCase"}), r"[\p{Lowercase}\p{Uppercase}\p{Lt}]"),
)
_CASED_PROPERTIES = frozenset({"LOWERCASE", "UPPERCASE", "TITLECASE"})
_ESCAPES = {
    "d": ("[0-9]", r"[\p{Nd}]"),
    "s": (_POSIX["Space"], _PROPERTIES["WHITESPACE"]),
    "w": ("[A-Za-z0-9_]", _PROPERTIES["WORD"]),
    "h": (r"[\x20\t\xa0\u1680\u180e\u2000-\u200a\u202f\u205f\u3000]",) * 2,
    "v": (r"[\n\x0b\f\r\x85\u2028\u2029]",) * 2,
}
# Letters with cases that Java finds with the flags i and u, beyond `str.lower` and `str.upper`.
_FOREIGN_CASES = {"s": "\u017f", "k": "\u212a", "i": "\u0130\u0131"}
CASED_RANGE_MAX = 5000  # characters of a range whose other cases are added; covers every alphabet
REPEAT_MAX = 2**31 - 1  # maximum of Java's int
# The engine compiles what a repetition requires as often as that: 60 s and 3 GiB for a{2147483647}, 0.1 s and 30 MiB for this
# many. The longest name, a group's, has 32767 characters.
REQUIRED_MAX = 100_000
_SIMPLE_ESCAPES = {"a": 7, "e": 27, "f": 12, "n": 10, "r": 13, "t": 9}
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


class PatternSyntaxError(ValueError):
    """The text is not a Java regular expression, or uses an unsupported construct; *action* is the remedy, if not obvious."""

    def __init__(self, problem: str, action: str | None = None) -> None:
        self.action = action
        super().__init__(problem)


class SlowPatternError(Exception):
    """Matching *pattern* against *name* was aborted after its time limit."""

    action = "write it without a repetition inside a repetition: a+ instead of (a+)+, [ab]* instead of (a|b)*"

    def __init__(self, *, pattern: str, name: str, why: str) -> None:
        self.pattern, self.name = pattern, name
        shown = name if len(name) <= NAME_SHOWN_MAX else f"{name[:NAME_SHOWN_MAX]}..."
        super().__init__(f"{pattern!r} cannot be matched against {shown!r}: {why}")


def unquoted(pattern: str) -> str:
    r"""Returns *pattern* without `\Q` and `\E`."""
    out: list[str] = []
    index, quoted, begins = 0, False, False
    while index < len(pattern):
        pair = pattern[index : index + 2]
        if quoted:
            if pair == "\\E":
                index, quoted = index + 2, False
                continue
            out.append(_as_character(pattern[index], after_escape=begins))
            index, begins = index + 1, False
        elif pair == "\\Q":
            index, quoted, begins = index + 2, True, True
        else:
            # Keep a backslash and the character it escapes together: `\\Q` is no quotation.
            step = 2 if pair[0] == "\\" else 1
            out.append(pair[:step])
            index += step
    return "".join(out)


def _as_character(letter: str, *, after_escape: bool) -> str:
    if letter.isascii() and letter.isdigit() and after_escape:
        return f"\\x3{letter}"  # a plain digit would extend an escape before the quotation
    if letter.isascii() and not letter.isalnum():
        return "\\" + letter
    return letter


def escape_set(letter: str, flags: Collection[str]) -> str | None:
    r"""Returns the set of `\d`, `\D`, `\w` and the like; None for another letter."""
    sets = _ESCAPES.get(letter.lower())
    if sets is None:
        return None
    members = sets["U" in flags]
    return members if letter.islower() else f"[^{members}]"


def property_set(name: str, flags: Collection[str], *, negated: bool) -> str:
    r"""Returns the set of `\p{name}` or `\P{name}`. Raises PatternSyntaxError."""
    members = _property(name, flags)
    return f"[^{members}]" if negated else members


def _property(name: str, flags: Collection[str]) -> str:
    key, equals, value = name.partition("=")
    if equals:
        match key.lower():
            case "sc" | "script":
                return rf"[\p{{Script={value}}}]"
            case "blk" | "block":
                return rf"[\p{{Block={value}}}]"
            case "gc" | "general_category":
                return _category(value, flags) or _unknown(name)
            case _:
                _unknown(name)
    if name.startswith("In"):
        return rf"[\p{{Block={name[2:]}}}]"
    if name.startswith("Is"):
        return (
            _unicode_property(name[2:], flags) or _category(name[2:], flags) or rf"[\p{{Script={name[2:]}}}]"
        )
    if "U" in flags and name in _UNICODE_POSIX:
        return _unicode_property(_UNICODE_POSIX[name], flags) or _unknown(name)
    return _category(name, flags) or _unknown(name)


def _unicode_property(name: str, flags: Collection[str]) -> str | None:
    plain = name.upper().replace("_", "")
    if "i" in flags and plain in _CASED_PROPERTIES:
        return r"[\p{Lowercase}\p{Uppercase}\p{Lt}]"
    return _PROPERTIES.get(plain)


def _category(name: str, flags: Collection[str]) -> str | None:
    if "i" in flags:
        for names, members in _CASES:
            if name in names:
                return members
    if name in _CATEGORIES:
        return rf"[\p{{{name}}}]"
    return _MORE_CATEGORIES.get(name) or _POSIX.get(name) or _JAVA_METHODS.get(name)


def _unknown(name: str) -> str:
    raise PatternSyntaxError(rf"\p{{{name}}} is not a character class")


def character(point: int) -> str:
    """Returns a code point for use inside and outside of brackets, escaped unless it is plain ASCII."""
    letter = chr(point)
    if letter == "_" or (letter.isascii() and letter.isalnum()):
        return letter
    if point <= 0xFF:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point <= 0xFFFF else f"\\U{point:08x}"


def range_set(first: int, last: int, flags: Collection[str]) -> str:
    """Returns the set of *first* to *last*, with their other cases where *flags* require them."""
    members = character(first) if first == last else f"{character(first)}-{character(last)}"
    return f"[{members}{''.join(character(point) for point in _other_cases(first, last, flags))}]"


def _other_cases(first: int, last: int, flags: Collection[str]) -> Iterable[int]:
    if "i" not in flags:
        return ()
    if "u" not in flags and "U" not in flags:
        last = min(last, 0x7F)
    last = min(last, first + CASED_RANGE_MAX)
    others: set[int] = set()
    for point in range(first, last + 1):
        letter = chr(point)
        cases = [letter.lower(), letter.upper(), letter.upper().lower()]
        if "u" in flags or "U" in flags:
            cases.extend(_FOREIGN_CASES.get(letter.lower(), ""))
        others.update(ord(case) for case in cases if len(case) == 1)
    return sorted(point for point in others if not first <= point <= last)


def _from_hexadecimal(digits: str) -> int:
    if not digits or not set(digits) <= set("0123456789abcdefABCDEF") or int(digits, 16) > 0x10FFFF:
        raise PatternSyntaxError(f"{digits!r} is not a hexadecimal number of a character")
    return int(digits, 16)


def translated(pattern: str) -> str:
    """Returns *pattern* for `regex.compile(..., regex.VERSION1)`. Raises PatternSyntaxError."""
    return _Parser(unquoted(pattern)).whole()


class _Parser:
    """A pattern's text and a read index; with the flag x, blanks and comments are skipped."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._flags: frozenset[str] = frozenset()
        self._groups = 0
        self._names: dict[str, int] = {}
        self._behind = 0  # number of open lookbehinds
        self._depth = 0
        self._required = 0  # characters and sets read so far, each as often as repetitions require it
        self._repeated = 0  # those of them that only repetitions add

    def whole(self) -> str:
        out = self._alternatives()
        if self._at < len(self._text):
            raise PatternSyntaxError("a ) closes no group")
        return out

    @contextmanager
    def _nested(self) -> Iterator[None]:
        """Enters a group or a class: flags that are set inside it end with it."""
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
            before = self._required
            item = self._item(letter)
            self._required += 1
            if item is not None:
                out.append(item + self._quantifier(item, before))
        return "".join(out)

    def _item(self, letter: str) -> str | None:
        """Translates what one quantifier applies to; None for flags alone."""
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

    def _quantifier(self, item: str, before: int) -> str:
        """Translates what repeats *item*, which began when *before* characters were required."""
        letter = self._peek()
        if letter not in {"*", "+", "?", "{"}:
            return ""
        self._at += 1
        unbounded = letter in "*+"
        out = letter
        if letter == "{":
            out, unbounded = self._counted(before)
        if unbounded and self._behind and item.startswith("("):  # Java 17 accepts single characters
            raise PatternSyntaxError("a lookbehind cannot hold a group that is repeated without a limit")
        if (more := self._peek()) and more in "?+":
            self._at += 1
            return out + more
        return out

    def _counted(self, before: int) -> tuple[str, bool]:
        least = self._number()
        added = (self._required - before) * max(least - 1, 0)
        self._required, self._repeated = self._required + added, self._repeated + added
        if self._repeated > REQUIRED_MAX:
            raise PatternSyntaxError(
                f"its repetitions require more than {REQUIRED_MAX} characters, which no name has"
            )
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
        """Returns the flags from here on, and whether they open a group: `(?i)` or `(?i:`."""
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
        """Returns a code point, or a set."""
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
        members = self._set(letter)
        if members is not None:
            return members
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
        r"""Translates a back reference. `\12` is group 12 only if that many groups came before, else group 1 and a 2."""
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

    def _peek(self) -> str:
        """Returns the next character, "" at the end; with the flag x, skip blanks and comments before it."""
        while "x" in self._flags and self._at < len(self._text):
            letter = self._text[self._at]
            if letter == "#":
                while self._at < len(self._text) and self._text[self._at] not in "\n\r\x85\u2028\u2029":
                    self._at += 1
            elif letter in " \t\n\x0b\f\r":
                self._at += 1
            else:
                break
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        """Returns the next character, whatever it is, and advance. Raises PatternSyntaxError at the end."""
        if self._at >= len(self._text):
            raise PatternSyntaxError("it ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _skip(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _number(self) -> int:
        begin = self._at
        while self._at < len(self._text) and self._text[self._at] in "0123456789":
            self._at += 1
        digits = self._text[begin : self._at]
        if not 0 < len(digits) <= len(str(REPEAT_MAX)):
            if self._text.startswith("${", max(begin - 2, 0)):
                placeholder = self._text[begin - 2 : begin] + self._text[begin:].partition("}")[0] + "}"
                raise PatternSyntaxError(
                    f"nothing has replaced {placeholder}", "write the value that it stands for"
                )
            raise PatternSyntaxError("a { is no repetition {n,m}; write \\{ for the character")
        return int(digits)

    def _point(self, letter: str) -> int:
        """Returns the code point of an escape. Raises PatternSyntaxError."""
        match letter:
            case "0":
                return self._octal()
            case "x":
                return self._hexadecimal()
            case "u":
                return self._unicode()
            case "c":
                return ord(self._take()) ^ 64
            case "N":
                return self._unicode_name()
        if letter in _SIMPLE_ESCAPES:
            return _SIMPLE_ESCAPES[letter]
        if letter.isascii() and letter.isalpha():
            raise PatternSyntaxError(f"\\{letter} has no meaning")
        return ord(letter)

    def _octal(self) -> int:
        digits = ""
        while len(digits) < 3 and self._text[self._at : self._at + 1] in set("01234567"):
            if len(digits) == 2 and digits[0] > "3":
                break
            digits += self._take()
        if not digits:
            raise PatternSyntaxError("\\0 is not followed by an octal number")
        return int(digits, 8)

    def _hexadecimal(self) -> int:
        digits = self._until("}") if self._skip("{") else self._take() + self._take()
        return _from_hexadecimal(digits)

    def _unicode(self) -> int:
        high = _from_hexadecimal("".join(self._take() for _ in range(4)))
        if 0xD800 <= high < 0xDC00 and self._text.startswith("\\u", self._at):
            low = _from_hexadecimal(self._text[self._at + 2 : self._at + 6])
            if 0xDC00 <= low < 0xE000:
                self._at += 6
                return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)
        return high

    def _unicode_name(self) -> int:
        if not self._skip("{"):
            raise PatternSyntaxError("\\N is not followed by the name of a character in { }")
        name = self._until("}")
        try:
            return ord(unicodedata.lookup(name))
        except (KeyError, TypeError):
            raise PatternSyntaxError(f"no character is named {name!r}") from None

    def _until(self, end: str) -> str:
        end_at = self._text.find(end, self._at)
        if end_at <= self._at:
            raise PatternSyntaxError(f"a {{ after a backslash is empty or not closed by {end}")
        text, self._at = self._text[self._at : end_at], end_at + 1
        return text
