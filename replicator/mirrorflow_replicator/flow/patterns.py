"""A list of MM2's as one expression for the names of topics, groups or settings.

Its items are joined by `|`, and it must match a whole name, exactly as `MirrorUtils.compilePatternList` does. What Java's
syntax means is `java_regex`'s.
Like Java's, this engine backtracks: an expression such as `(a+)+b` can take a time exponential in a name's length (249
characters at most), and cannot be bounded here. Only who writes the settings can do that to the process.
"""

import re

from mirrorflow_replicator.errors import InvalidSettingError
from mirrorflow_replicator.flow.java_regex import translated


def compile_patterns(key: str, patterns: tuple[str, ...]) -> re.Pattern[str] | None:
    """One expression for the list of setting *key*, for `fullmatch`; None for an empty list, which matches nothing.

    Raises InvalidSettingError that names the item which is no expression, or cannot be translated.
    """
    if not patterns:
        return None
    try:
        return _compile("|".join(patterns))
    except (ValueError, re.error, OverflowError) as error:
        raise InvalidSettingError(
            key=key,
            problem=_problem(patterns, error),
            action="write Java regular expressions, separated by commas",
        ) from error


def compile_pattern(key: str, pattern: str) -> re.Pattern[str]:
    """The one expression of setting *key*. Raises InvalidSettingError."""
    try:
        return _compile(pattern)
    except (ValueError, re.error, OverflowError) as error:
        raise InvalidSettingError(
            key=key,
            problem=f"{pattern!r} cannot be used: {error}",
            action="write a Java regular expression",
        ) from error


def _problem(patterns: tuple[str, ...], error: Exception) -> str:
    for pattern in patterns:
        try:
            _compile(pattern)
        except (ValueError, re.error, OverflowError) as own:
            return f"{pattern!r} cannot be used: {own}"
    return f"{'|'.join(patterns)!r} cannot be used: {error}"


def _compile(pattern: str) -> re.Pattern[str]:
    # ASCII: Java's \d, \w and (?i) know nothing else by default.
    return re.compile(translated(pattern), re.ASCII)
