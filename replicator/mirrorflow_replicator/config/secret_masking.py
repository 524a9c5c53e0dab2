"""Hides secrets in properties before they are shown: those in plain text, but not references to secrets.

Java's placeholder is `[hidden]` (Password.toString). Connect uses it in validation only and shows everything
elsewhere. Ours hides everywhere, except where a distributed worker accepts configurations: clients write back
what they read there.
"""

import re
from collections.abc import Mapping

from mirrorflow_core.java.properties import substitute

HIDDEN = "[hidden]"
_JAAS = re.compile(r"(?:^|\.)sasl\.jaas\.config$")
# By their last part, after any prefix: ssl.key.password, source.cluster.ssl.keystore.key, ....client.secret,
# a basic.auth.user.info.
_SECRET = re.compile(
    r"(?:^|\.)(?:password|passphrase|secret|token|credentials?|user\.info|ssl\.keystore\.key)$",
    re.IGNORECASE,
)
_TEXT = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;"']+)"""
_WELL_FORMED = re.compile(rf"\s*[\w.$]+\s+\w+(?:\s+[\w.]+\s*=\s*{_TEXT})*\s*;\s*", re.DOTALL)
# A secret option of a login module: password="...", clientSecret='...', or without quotes.
_OPTION = re.compile(
    rf"(\b\w*(?:password|secret|token|privatekey)\w*\s*=\s*)({_TEXT})", re.IGNORECASE | re.DOTALL
)


def shown(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns *properties* with HIDDEN for each secret in plain text."""
    return {key: shown_value(key, value) for key, value in properties.items()}


def shown_value(key: str, value: str) -> str:
    """Returns the value to show for one property, as in `shown`."""
    if _JAAS.search(key):
        # In a malformed value any part may be the password.
        is_clear = _WELL_FORMED.fullmatch(value) or _is_reference(value)
        return _OPTION.sub(_option, value) if is_clear else HIDDEN
    if _SECRET.search(key) and value and not _is_reference(value):
        return HIDDEN
    return value


def _is_reference(value: str) -> bool:
    """Whether the value consists of references only."""
    return bool(value.strip()) and not substitute(value, lambda _: "").strip()


def _option(match: re.Match[str]) -> str:
    name, written = match.groups()
    return match.group(0) if _is_reference(written.strip("\"'")) else f'{name}"{HIDDEN}"'
