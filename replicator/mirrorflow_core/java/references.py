"""Finds and replaces `${provider:path:key}` references in a value; handles the syntax only.

Follows Kafka's `ConfigTransformer`, whose regex is not greedy: several references per value, no nesting, an
optional path. References that cannot be resolved stay as written. `config.providers` resolves them.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

_REFERENCE = re.compile(r"\$\{([^}]*?):(([^}]*?):)?([^}]*?)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One reference; `text` is its text as written, including `${` and `}`."""

    provider: str
    path: str
    key: str
    text: str


def references(value: str) -> tuple[Reference, ...]:
    """Return all references in *value*, in order."""
    return tuple(_reference(match) for match in _REFERENCE.finditer(value))


def has_reference(value: str) -> bool:
    """Return whether *value* holds a reference."""
    return _REFERENCE.search(value) is not None


def reference_at(value: str, at: int) -> Reference | None:
    """Return the reference that begins at index *at* of *value*; None if none does."""
    match = _REFERENCE.match(value, at)
    return None if match is None else _reference(match)


def substitute(value: str, lookup: Callable[[Reference], str | None]) -> str:
    """Return *value* with each reference replaced by the result of *lookup*; None leaves it as written."""

    def replacement(match: re.Match[str]) -> str:
        found = lookup(_reference(match))
        return match.group(0) if found is None else found

    return _REFERENCE.sub(replacement, value)


def _reference(match: re.Match[str]) -> Reference:
    return Reference(
        provider=match.group(1), path=match.group(3) or "", key=match.group(4), text=match.group(0)
    )
