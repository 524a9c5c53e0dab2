"""What `transforms` make of a topic's name: RegexRouter renames it, Filter drops it, each perhaps for some names alone.

The results of the replicator's `flow.transforms`, which the operator does not import; a test holds both to each other. What
cannot be read here changes no name: the connector itself refuses it, in a sentence.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

_PACKAGE: Final = "org.apache.kafka.connect.transforms."
_TOKEN: Final = re.compile(r"\\(.)|\$\{([^}]*)\}|\$([0-9]+)|(.)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """One transformation; *regex* None drops what it applies to."""

    predicate: re.Pattern[str] | None
    negate: bool
    regex: re.Pattern[str] | None
    replacement: str

    def applies(self, name: str) -> bool:
        return self.predicate is None or (self.predicate.fullmatch(name) is not None) != self.negate

    def renamed(self, name: str) -> str:
        if self.regex is None or self.regex.fullmatch(name) is None:
            return name
        found = self.regex.search(name)
        if found is None:
            return name
        return name[: found.start()] + _expanded(self.replacement, found) + name[found.end() :]


@dataclass(frozen=True, slots=True)
class Renaming:
    """The transformations of a connector, in their order."""

    stages: tuple[_Stage, ...] = ()

    def name(self, topic: str, *, renames: bool = True) -> str | None:
        """What becomes of *topic*, which has the policy's name; None: its records are dropped."""
        for stage in self.stages:
            if not stage.applies(topic):
                continue
            if stage.regex is None:
                return None
            topic = stage.renamed(topic) if renames else topic
        return topic


def renaming_of(config: Mapping[str, str]) -> Renaming:
    """As the properties of a source connector say."""
    return Renaming(tuple(_stages(config)))


def _stages(config: Mapping[str, str]) -> Iterator[_Stage]:
    for name in (part.strip() for part in config.get("transforms", "").split(",")):
        key = f"transforms.{name}"
        kind = config.get(f"{key}.type", "").strip().removeprefix(_PACKAGE)
        predicate = config.get(f"{key}.predicate", "").strip()
        try:
            stage = _Stage(
                predicate=_pattern(config.get(f"predicates.{predicate}.pattern", "")) if predicate else None,
                negate=config.get(f"{key}.negate", "").strip().lower() == "true",
                regex=_pattern(config.get(f"{key}.regex", "")) if kind == "RegexRouter" else None,
                replacement=config.get(f"{key}.replacement", "").strip(),
            )
        except re.error:
            continue
        if kind == "RegexRouter" or (kind == "Filter" and predicate):
            yield stage


def _pattern(text: str) -> re.Pattern[str]:
    # Java writes (?<name>...) for a group.
    return re.compile(re.sub(r"\(\?<(?=[A-Za-z])", "(?P<", text.strip()), re.ASCII)


def _expanded(replacement: str, found: re.Match[str]) -> str:
    """Java's `$1`, `${name}` and backslashes; `$12` is group 12 only where there are so many."""
    parts = []
    for escaped, name, digits, plain in _TOKEN.findall(replacement):
        if name and name in found.re.groupindex:
            parts.append(found[name] or "")
        elif digits:
            length = 1
            while length < len(digits) and int(digits[: length + 1]) <= found.re.groups:
                length += 1
            group = int(digits[:length])
            parts.append((found[group] or "") + digits[length:] if group <= found.re.groups else "")
        else:
            parts.append(escaped or plain)
    return "".join(parts)
