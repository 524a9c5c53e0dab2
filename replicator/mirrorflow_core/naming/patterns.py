"""Compiles the regular expressions of a setting, which match names of topics, groups or settings.

Also has the lists that MM2 excludes by default. Syntax and time limits are those of `mirrorflow_core.java`; every
error names the setting and the item.
"""

import re

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.pattern_syntax import PatternSyntaxError, SlowPatternError
from mirrorflow_core.java.patterns import Found, JavaPattern, PatternList, syntax_problem

TOPICS_EXCLUDE = ("mm2.*\\.internal", ".*\\.replica", "__.*")
GROUPS_EXCLUDE = ("console-consumer-.*", "connect-.*", "__.*")
# Topic settings that describe the source's brokers or are better chosen on the target: MM2's list until 4.2
# and what 4.3 added. Those two are names of broker settings, so message.timestamp.{before,after}.max.ms are
# copied, as by MM2.
CONFIG_EXCLUDE = (
    "follower\\.replication\\.throttled\\.replicas",
    "leader\\.replication\\.throttled\\.replicas",
    "message\\.timestamp\\.difference\\.max\\.ms",
    "log\\.message\\.timestamp\\.before\\.max\\.ms",
    "log\\.message\\.timestamp\\.after\\.max\\.ms",
    "message\\.timestamp\\.type",
    "unclean\\.leader\\.election\\.enable",
    "min\\.insync\\.replicas",
)


_NAME = re.compile(r"(?:[a-zA-Z0-9_-]|\\?\.)+")


class SettingPattern:
    """The expressions of setting *key*, joined into one. Raises PatternSyntaxError."""

    def __init__(self, key: str, patterns: tuple[str, ...]) -> None:
        self._key = key
        self._list = PatternList(patterns)

    @property
    def pattern(self) -> JavaPattern:
        """The joined expression."""
        return self._list.joined

    def matches(self, name: str) -> bool:
        """Return whether all of *name* matches. Raises InvalidSettingError if that takes too long."""
        try:
            return self._list.matches(name)
        except SlowPatternError as error:
            raise InvalidSettingError(key=self._key, problem=str(error), action=error.action) from error

    def find(self, name: str) -> Found | None:
        """Return the first match in *name*, or None. Raises InvalidSettingError if that takes too long."""
        try:
            return self._list.find(name)
        except SlowPatternError as error:
            raise InvalidSettingError(key=self._key, problem=str(error), action=error.action) from error


def literal_name(pattern: str) -> str | None:
    """Return the name of a topic or group that *pattern* is, not an expression; None otherwise.

    An unescaped dot counts as a dot, as users write it in names.
    """
    return pattern.replace("\\", "") if _NAME.fullmatch(pattern) else None


def compile_patterns(key: str, patterns: tuple[str, ...]) -> SettingPattern | None:
    """Return one expression for the list in setting *key*; None for an empty list, which matches nothing.

    Raises InvalidSettingError with the item that is not a valid expression.
    """
    if not patterns:
        return None
    try:
        return SettingPattern(key, patterns)
    except PatternSyntaxError as error:
        pattern, why = syntax_problem(patterns) or ("|".join(patterns), error)
        raise InvalidSettingError(
            key=key,
            problem=f"{pattern!r} cannot be used: {why}",
            action="write Java regular expressions, separated by commas; one that holds a comma, as in {1,3}, is split there",
        ) from error


def compile_pattern(key: str, pattern: str) -> SettingPattern:
    """Return the compiled expression of setting *key*. Raises InvalidSettingError if it is invalid."""
    try:
        return SettingPattern(key, (pattern,))
    except PatternSyntaxError as error:
        raise InvalidSettingError(
            key=key,
            problem=f"{pattern!r} cannot be used: {error}",
            action="write a Java regular expression",
        ) from error
