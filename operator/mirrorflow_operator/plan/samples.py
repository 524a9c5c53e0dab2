"""Makes sample topic names for a list of patterns, where the topics of a cluster are not known.

A sample is a name that its pattern matches. Two patterns overlap if a sample of one, or two samples joined,
matches both. An overlap that is found is real, but overlaps can be missed: samples do not cover all a pattern
can match.
"""

import itertools
import re
from collections.abc import Iterable

from mirrorflow_core.java.errors import SlowPatternError
from mirrorflow_core.java.patterns import JavaPattern

ANY = "any-topic"  # the sample for .*
# Pairs grow with the square of the patterns; this many names are checked in well under a second.
SAMPLES_MAX = 400
_PARTS = (
    (re.compile(r"\\([.\-_])"), r"\1"),
    (re.compile(r"\\d"), "1"),
    (re.compile(r"\\w"), "a"),
    (re.compile(r"\[([A-Za-z0-9])[^\]]*\]"), r"\1"),
    (re.compile(r"\(\?[:a-z!=<]*|[()^$]"), ""),
    (re.compile(r"\.\*"), ""),
    (re.compile(r"(?<!\\)\.\+"), "x"),
    (re.compile(r"[+*?]|\{[\d,]*\}"), ""),
)


def samples(patterns: Iterable[str]) -> tuple[str, ...]:
    """Returns at most SAMPLES_MAX sample names for *patterns*, the simplest first."""
    single = list(dict.fromkeys(name for pattern in patterns for name in _of(pattern)))
    pairs = (f"{one}{other}" for one, other in itertools.permutations(single, 2))
    return tuple(itertools.islice(dict.fromkeys((*single, *pairs, ANY)), SAMPLES_MAX))


def _of(pattern: str) -> list[str]:
    expression = JavaPattern(pattern)
    names = []
    for alternative in pattern.strip("()").split("|"):
        name = alternative
        for part, plain in _PARTS:
            name = part.sub(plain, name)
        name = name or ANY
        try:
            if expression.matches(name):
                names.append(name)
        except SlowPatternError:
            continue  # a name that cannot be matched in time is no sample
    return names
