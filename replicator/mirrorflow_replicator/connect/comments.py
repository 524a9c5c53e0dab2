"""Comments behind values, which MM2's own README writes and Java takes as part of the value.

Where the value could mean nothing with it (a flag, a number, an address, a path), it is cut off; where it could
(expressions, secrets, names), Java's reading stands. Both are said, by key and never by value.
"""

import re
from collections.abc import Mapping

from mirrorflow_replicator.connect.properties import trailing_comment

# Lists of expressions, secrets, PEM text, and names of the user's own choice.
_FREE_TEXT = re.compile(
    r"(.*\.)?(topics|groups|topics\.exclude|groups\.exclude|config\.properties\.exclude"
    r"|jaas\.config|password|secret|certificates|certificate\.chain|keystore\.key|scope|client\.id|client\.rack|name)"
)


def without_comments(properties: Mapping[str, str], warnings: list[str]) -> dict[str, str]:
    """*properties* with comments behind values cut off where they can only be comments; each is warned of."""
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
