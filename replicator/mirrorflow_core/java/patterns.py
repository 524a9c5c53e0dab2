"""Matches Java's regular expressions that users write, within a bounded time.

Java's engine and this one backtrack: an expression such as `(a|a)*$` can take time exponential in a name's
length. A match is aborted after MATCH_LIMIT_S. The slow matches of one expression within WINDOW_S get
WINDOW_LIMIT_S together, so a listing of many topics is bounded too. After either limit, the expression raises
at once until the window has passed. Limits count processor time, so that a busy machine makes no expression
slow.

The package `regex` has time limits but costs 2 MiB of memory, so it is imported for the first expression that
needs it. Names and prefixes, which most flows select by, cannot be slow: Python's `re` matches them.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from mirrorflow_core.java.errors import PatternSyntaxError, SlowPatternError
from mirrorflow_core.java.regular_expressions import translated

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A match: its range in `text` and the text of its groups; None for a group that did not take part."""

    text: str
    start: int
    end: int
    groups: tuple[str | None, ...]  # the whole match first


class JavaPattern:
    """One compiled Java expression. Raises PatternSyntaxError."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._is_plain = _is_plain(text)
        self._compiled: Any = re.compile(translated(text)) if self._is_plain else _compiled(text)
        self.group_count: int = self._compiled.groups
        self.group_numbers: dict[str, int] = dict(self._compiled.groupindex)
        self._window_ends_s = 0.0
        self._left_s = WINDOW_LIMIT_S
        self._given_up: tuple[str, str] | None = None  # the name, and the reason

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JavaPattern) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def matches(self, name: str) -> bool:
        """Return whether the whole of *name* matches. Raises SlowPatternError."""
        return self._bounded(self._compiled.fullmatch, name) is not None

    def find(self, name: str) -> Found | None:
        """Return the first match in *name*; None if there is none. Raises SlowPatternError."""
        found = self._bounded(self._compiled.search, name)
        if found is None:
            return None
        return Found(text=name, start=found.start(), end=found.end(), groups=(found[0], *found.groups()))

    def _bounded(self, match: Callable[..., Any], name: str) -> Any:
        if self._is_plain:
            return match(name)
        now_s = time.monotonic()
        if now_s >= self._window_ends_s:
            self._window_ends_s, self._left_s, self._given_up = now_s + WINDOW_S, WINDOW_LIMIT_S, None
        if self._given_up is None:
            began_s = time.thread_time()
            try:
                found = match(name, timeout=MATCH_LIMIT_S)
            except (TimeoutError, MemoryError):
                self._given_up = (name, f"that takes longer than {MATCH_LIMIT_S:g} s")
            else:
                took_s = time.thread_time() - began_s
                self._left_s -= took_s if took_s > SLOW_MATCH_S else 0.0
                if self._left_s >= 0:
                    return found
                self._given_up = (
                    name,
                    f"with the names before it that takes longer than {WINDOW_LIMIT_S:g} s",
                )
        name, why = self._given_up
        raise SlowPatternError(pattern=self.text, name=name, why=why)


def _is_plain(text: str) -> bool:
    """Return whether no name can match slowly: few repetitions, none inside another."""
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
