"""Handles comments after values, which MM2's own README has and Java takes as part of the value.

Where the value would make no sense with it (a flag, a number, an address, a path), the comment is cut off.
Elsewhere (expressions, secrets, names) Java's reading stands. Both are warned of, by key and never by value.
"""

import re
from collections import Counter
from collections.abc import Mapping

from mirrorflow_core.java.properties import property_pairs, trailing_comment

# Lists of expressions, secrets, PEM text, and names that the user chooses.
_FREE_TEXT = re.compile(
    r"(.*\.)?(topics|groups|topics\.exclude|groups\.exclude|config\.properties\.exclude"
    r"|jaas\.config|password|secret|certificates|certificate\.chain|keystore\.key|scope|client\.id|client\.rack|name)"
)


def read_properties(text: str, warnings: list[str]) -> dict[str, str]:
    """Returns the pairs of *text*, `without_comments`; warns of duplicate keys.

    Raises InvalidSettingError.
    """
    pairs = list(property_pairs(text))
    counts = Counter(key for key, _ in pairs)
    warnings += [
        f"{key} is there twice; the last line counts, as in Java."
        for key, count in counts.items()
        if count > 1
    ]
    return without_comments(dict(pairs), warnings)


def without_comments(properties: Mapping[str, str], warnings: list[str]) -> dict[str, str]:
    """Returns *properties* without comments after values, where they can only be comments; warns of each."""
    return {key: _value(key, value, warnings) for key, value in properties.items()}


def _value(key: str, value: str, warnings: list[str]) -> str:
    shorter = trailing_comment(value)
    if shorter is None:
        return value
    if _FREE_TEXT.fullmatch(key):
        warnings.append(
            f"{key}: what looks like a comment behind the value is part of it, as in Java; "
            "write comments on lines of their own."
        )
        return value
    warnings.append(
        f"{key}: the comment behind the value was left out; Java would take it as part of the value. "
        "Write comments on lines of their own."
    )
    return shorter
