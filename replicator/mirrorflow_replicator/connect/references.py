"""`${provider:path:key}` in a value: the syntax only.

As Kafka's `ConfigTransformer` (facts: its regex is not greedy): several per value, no nesting, the path optional, and
what cannot be looked up stays as it is written. `connect.providers` looks up.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

_REFERENCE = re.compile(r"\$\{([^}]*?):(([^}]*?):)?([^}]*?)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One reference; `text` is how it is written, `${...}` included."""

    provider: str
    path: str
    key: str
    text: str


def references(value: str) -> tuple[Reference, ...]:
    """All references in *value*, in order."""
    return tuple(_reference(match) for match in _REFERENCE.finditer(value))


def has_reference(value: str) -> bool:
    """Whether *value* holds a reference."""
    return _REFERENCE.search(value) is not None


def substitute(value: str, lookup: Callable[[Reference], str | None]) -> str:
    """*value* with each reference replaced by what *lookup* gives; None leaves it as written."""

    def replacement(match: re.Match[str]) -> str:
        found = lookup(_reference(match))
        return match.group(0) if found is None else found

    return _REFERENCE.sub(replacement, value)


def _reference(match: re.Match[str]) -> Reference:
    return Reference(
        provider=match.group(1), path=match.group(3) or "", key=match.group(4), text=match.group(0)
    )
