"""Matches Java's regular expressions that users write, within a bounded time: single ones, lists of a setting, replacements.

Java's engine and this one backtrack: an expression such as `(a|a)*$` can take time exponential in a name's
length. A match is aborted after MATCH_LIMIT_S. The slow matches of one expression within WINDOW_S get
WINDOW_LIMIT_S together, so a listing of many topics is bounded too. After either limit, the expression raises
at once until the window has passed. Limits count processor time, so that a busy machine makes no expression
slow.

The package `regex` has time limits but costs 2 MiB of memory, so it is imported for the first expression that
needs it. Names and prefixes, which most flows select by, cannot be slow: Python's `re` matches them, and names of a list are
looked up.
"""

import itertools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final, TypeVar

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.pattern_syntax import LINE_ENDS, PatternSyntaxError, SlowPatternError, translated
from mirrorflow_core.light_dataclasses import dataclass

# 20,000 times the time of an ordinary expression for a name of 249 characters (5 microseconds).
MATCH_LIMIT_S: Final = 0.1
# 20 times the time of an ordinary match. Only slower matches count, so ordinary matches never add up to the
# limit.
SLOW_MATCH_S: Final = 0.0001
# A listing of many names runs without interruption, so this bounds how long the process does nothing else.
WINDOW_S: Final = 10.0
WINDOW_LIMIT_S: Final = 2.0
# Literals, dots and `.*`, with `|` between them; each `.*` of an alternative multiplies its steps by a name's
# length.
_PLAIN = re.compile(r"(?:[A-Za-z0-9_-]|\\[._-]|\.[*+]?|\|)*", re.ASCII)
PLAIN_REPETITIONS_MAX: Final = 2
# Characters of an expression; names of a list do not count. Both engines compile as many in 1 to 2 s, in which the process does
# nothing else; `regex` takes minutes for 1 MiB.
EXPRESSION_MAX: Final = 64 * 1024
BLAMED_MAX = 10  # items tried alone to find the slow one, each up to the limit of a match
_Result = TypeVar("_Result")
_NAME = re.compile(r"(?:[a-zA-Z0-9_-]|\\?\.)+")
# What reaches beyond its item in a joined list: a quotation that may have no end, numbers and names of groups, flags.
_SPANNING = re.compile(r"\\[Qk1-9]|\(\?(?![a-zA-Z-]*:|[=!>]|<[=!])")
_LINE_END = re.compile(f"[{LINE_ENDS}]")
# A name with a * after one of its own characters: valid as an expression, and most often meant as a shell's pattern.
_GLOB = re.compile(r"[a-zA-Z0-9_.*-]*[a-zA-Z0-9_-]\*[a-zA-Z0-9_.*-]*")
_STAR = re.compile(r"(?<![.*])\*")
_TOKEN = re.compile(r"\\(?P<escaped>.)|\$\{(?P<name>[^}]*)\}|\$(?P<digits>[0-9]+)|(?P<plain>.)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A match: its range in `text` and the text of its groups; None for a group that did not take part."""

    text: str
    start: int
    end: int
    groups: tuple[str | None, ...]  # the whole match first


class LongPatternError(PatternSyntaxError):
    """An expression has more than EXPRESSION_MAX characters."""


class JavaPattern:
    """One compiled Java expression. Raises PatternSyntaxError."""

    def __init__(self, text: str) -> None:
        if len(text) > EXPRESSION_MAX:
            raise LongPatternError(
                f"its expressions have {len(text)} characters, and at most {EXPRESSION_MAX} are compiled",
                "write fewer expressions, names as items of their own, and flags as in (?i:orders), because (?i) applies to all later items",
            )
        self.text = text
        self._is_plain = _is_plain(text)
        self._compiled: Any = re.compile(translated(text)) if self._is_plain else _compiled(text)
        self.group_count: int = self._compiled.groups
        self.group_numbers: dict[str, int] = dict(self._compiled.groupindex)
        self._window_ends_s = 0.0
        self._left_s = WINDOW_LIMIT_S
        self._given_up: tuple[str, str] | None = None  # the name, and the reason

    def matches(self, name: str) -> bool:
        """Returns whether the whole of *name* matches. Raises SlowPatternError."""
        return self._bounded(self._compiled.fullmatch, name) is not None

    def find(self, name: str) -> Found | None:
        """Returns the first match in *name*; None if there is none. Raises SlowPatternError."""
        match = self._bounded(self._compiled.search, name)
        if match is None:
            return None
        return Found(text=name, start=match.start(), end=match.end(), groups=(match[0], *match.groups()))

    def _bounded(self, match: Callable[..., Any], name: str) -> Any:
        if self._is_plain:
            return match(name)
        now_s = time.monotonic()
        if now_s >= self._window_ends_s:
            self._window_ends_s, self._left_s, self._given_up = now_s + WINDOW_S, WINDOW_LIMIT_S, None
        if self._given_up is None:
            began_s = time.thread_time()
            try:
                result = match(name, timeout=MATCH_LIMIT_S)
            except (TimeoutError, MemoryError):
                self._given_up = (name, f"that takes longer than {MATCH_LIMIT_S:g} s")
            else:
                took_s = time.thread_time() - began_s
                self._left_s -= took_s if took_s > SLOW_MATCH_S else 0.0
                if self._left_s >= 0:
                    return result
                self._given_up = (
                    name,
                    f"with the names before it that takes longer than {WINDOW_LIMIT_S:g} s",
                )
        name, why = self._given_up
        raise SlowPatternError(pattern=self.text, name=name, why=why)


def _is_plain(text: str) -> bool:
    """Returns whether no name can match slowly: few repetitions, none inside another."""
    return _PLAIN.fullmatch(text) is not None and all(
        alternative.count("*") + alternative.count("+") <= PLAIN_REPETITIONS_MAX
        for alternative in text.split("|")
    )


def _compiled(text: str) -> Any:
    import regex  # noqa: PLC0415 - see the module's docstring

    try:
        return regex.compile(translated(text), regex.VERSION1)
    except regex.error as error:
        raise PatternSyntaxError(error.msg) from error
    except (RecursionError, OverflowError, MemoryError) as error:
        raise PatternSyntaxError("it is too large") from error


class PatternList:
    """Matches as *patterns* do when joined by `|`, as in `MirrorUtils.compilePatternList`. Raises PatternSyntaxError.

    Names are looked up, so that thousands of them cost little. Only expressions that reach beyond their item (a group that another
    item closes, flags, numbers of groups) are compiled together with all names.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        names: list[str] = []
        plain: list[str] = []
        others: list[str] = []
        for pattern in patterns:
            if not _is_plain(pattern):
                others.append(pattern)
                continue
            for alternative in pattern.split("|"):
                (names if _NAME.fullmatch(alternative) else plain).append(alternative)
        if len("|".join(others)) <= EXPRESSION_MAX and any(map(_reaches_beyond, others)):
            names, plain, others = [], [], [*patterns]
        self._names = _NameTable(names)
        self._expressions = tuple(JavaPattern("|".join(items)) for items in (plain, others) if items)

    def matches(self, name: str) -> bool:
        """Returns whether the whole of *name* matches. Raises SlowPatternError."""
        return name in self._names or any(expression.matches(name) for expression in self._expressions)


def _reaches_beyond(pattern: str) -> bool:
    """Returns whether *pattern* may mean something else in a joined list."""
    if _SPANNING.search(pattern):
        return True
    try:
        translated(pattern)
    except PatternSyntaxError:
        return True  # it may be part of a group that another item closes
    return False


class _NameTable:
    """Names in which a dot without a backslash stands for any character, as in an expression."""

    def __init__(self, patterns: Sequence[str]) -> None:
        # By length and positions of such dots.
        self._tables: dict[int, dict[tuple[int, ...], set[str]]] = {}
        for pattern in patterns:
            name = pattern.replace("\\.", "/")  # no name has a slash
            dots = tuple(index for index, letter in enumerate(name) if letter == ".")
            self._tables.setdefault(len(name), {}).setdefault(dots, set()).add(name.replace("/", "."))

    def __contains__(self, name: str) -> bool:
        for dots, names in self._tables.get(len(name), {}).items():
            letters = [*name]
            for dot in dots:
                letters[dot] = "."
            if "".join(letters) in names and not any(_LINE_END.match(name[dot]) for dot in dots):
                return True
        return False


class SettingPattern:
    """The expressions of setting *key*. Raises PatternSyntaxError.

    Without expressions, nothing matches. Matching raises InvalidSettingError, with the slow item, if it takes too long.
    """

    def __init__(self, key: str, patterns: tuple[str, ...]) -> None:
        self._key, self._patterns = key, patterns
        self._list = PatternList(patterns)
        self._blamed: SlowPatternError | None = None  # for the last name that took too long

    @cached_property
    def pattern(self) -> JavaPattern:
        """All expressions as one, which finds more than whole names."""
        return JavaPattern("|".join(self._patterns))

    def matches(self, name: str) -> bool:
        """Returns whether all of *name* matches."""
        return self._tried(self._list.matches, name)

    def find(self, name: str) -> Found | None:
        """Returns the first match in *name*, or None."""
        return self._tried(self.pattern.find, name)

    def _tried(self, match: Callable[[str], _Result], name: str) -> _Result:
        try:
            return match(name)
        except SlowPatternError as error:
            if self._blamed is None or self._blamed.name != error.name:
                self._blamed = self._tried_alone(error)
            slow = self._blamed
        raise InvalidSettingError(key=self._key, problem=str(slow), action=slow.action)

    def _tried_alone(self, error: SlowPatternError) -> SlowPatternError:
        slow = itertools.filterfalse(_is_plain, self._patterns)
        for pattern in itertools.islice(slow, BLAMED_MAX) if len(self._patterns) > 1 else ():
            try:
                JavaPattern(pattern).matches(error.name)
            except PatternSyntaxError:
                continue  # an item may be part of a group that another item closes
            except SlowPatternError as own:
                return own
        return error


def compile_patterns(key: str, patterns: tuple[str, ...]) -> SettingPattern:
    """Returns the list in setting *key*, compiled. Raises InvalidSettingError with the invalid item."""
    return _compiled_setting(
        key,
        patterns,
        "write Java regular expressions, separated by commas; one that holds a comma, as in {1,3}, is split there",
    )


def compile_pattern(key: str, pattern: str) -> SettingPattern:
    """Returns the compiled expression of setting *key*. Raises InvalidSettingError if it is invalid."""
    return _compiled_setting(key, (pattern,), "write a Java regular expression")


def _compiled_setting(key: str, patterns: tuple[str, ...], action: str) -> SettingPattern:
    try:
        return SettingPattern(key, patterns)
    except LongPatternError as error:
        raise InvalidSettingError(key=key, problem=str(error), action=error.action) from error
    except PatternSyntaxError as error:
        pattern, why = next(_invalid(patterns), ("|".join(patterns), error))
        problem = f"{pattern!r} cannot be used: {why}"
        raise InvalidSettingError(key=key, problem=problem, action=why.action or action) from error


def _invalid(patterns: tuple[str, ...]) -> Iterator[tuple[str, PatternSyntaxError]]:
    for pattern in itertools.filterfalse(_is_plain, patterns):
        try:
            JavaPattern(pattern)
        except PatternSyntaxError as error:
            yield pattern, error


def literal_name(pattern: str) -> str | None:
    """Returns the name of a topic or group that *pattern* is, not an expression; None otherwise.

    An unescaped dot counts as a dot, as users write it in names.
    """
    return pattern.replace("\\", "") if _NAME.fullmatch(pattern) else None


def meant_by_glob(pattern: str) -> str | None:
    """Returns the expression for what *pattern* means as a shell's pattern; None if it does not look like one."""
    return _STAR.sub(".*", pattern) if _GLOB.fullmatch(pattern) else None


class Replacement:
    """The replacement *text* for matches of *pattern*. Raises ValueError where Java's Matcher would."""

    def __init__(self, text: str, pattern: JavaPattern) -> None:
        self._parts = tuple(_parts(text, pattern))

    def first(self, match: Found) -> str:
        """Returns the searched text with *match* replaced. A group that did not take part is empty."""
        new = "".join(part if isinstance(part, str) else match.groups[part] or "" for part in self._parts)
        return match.text[: match.start] + new + match.text[match.end :]


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
