"""Names of topics that a list of patterns stands for, where no cluster can be asked which topics there are.

A sample is a name that its pattern matches; two patterns that meet are found if a sample of one, or one sample behind another,
matches both. That is not all that expressions can say, so what is found is true and what is not found is no proof.
"""

import itertools
import re
from collections.abc import Iterable

ANY = "any-topic"  # what .* stands for
# Combinations grow with the square of the patterns; so many names are looked at in well under a second.
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
    """Names for *patterns*, the plainest first; at most SAMPLES_MAX."""
    single = list(dict.fromkeys(name for pattern in patterns for name in _of(pattern)))
    pairs = (f"{one}{other}" for one, other in itertools.permutations(single, 2))
    return tuple(itertools.islice(dict.fromkeys((*single, *pairs, ANY)), SAMPLES_MAX))


def _of(pattern: str) -> list[str]:
    expression = re.compile(pattern)
    names = []
    for alternative in pattern.strip("()").split("|"):
        name = alternative
        for part, plain in _PARTS:
            name = part.sub(plain, name)
        name = name or ANY
        if expression.fullmatch(name):
            names.append(name)
    return names
