"""The rules of the selection, the names and the start of topics, and of the selection of groups."""

import re
from collections.abc import Iterator
from typing import Final

from mirrorflow_core.java.pattern_syntax import PatternSyntaxError
from mirrorflow_core.java.patterns import JavaPattern, PatternList
from mirrorflow_core.replication_policy import alias_split_problem, is_alias_split
from mirrorflow_operator.api.rules.rule import PythonRule, Rule, never_changes
from mirrorflow_operator.api.spec import InitialPosition, NamingPolicy
from mirrorflow_operator.api.status import seconds

_OF_EXCEPTIONS: Final = (
    "spec.topics.configs.exceptions[].topics",
    "spec.topics.configs.exceptions[].exclude",
)
_PATTERNS: Final = (
    "spec.topics.include",
    "spec.topics.exclude",
    "spec.topics.configs.exclude",
    *_OF_EXCEPTIONS,
    "spec.groups.include",
    "spec.groups.exclude",
)
_NOT_A_REGEX: Final = "is not a Java regular expression"
_REGEX_CURE: Final = "correct it; a lone * is written .*"
_LONE_QUANTIFIER: Final = "^[*+?]"
# The server checks the shape, Python also the date.
_TIMESTAMP: Final = "^[0-9-]{8,10}T[0-9:.]+(Z|[+-][0-9:]+)$"


def _not_regexes(patterns: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    """Finds patterns that Java would refuse, alone or joined by `|`, which is how MM2 reads a list."""
    is_valid = True
    for at, pattern in enumerate(patterns):
        try:
            JavaPattern(pattern)
        except PatternSyntaxError as error:
            is_valid = False
            if not re.search(_LONE_QUANTIFIER, pattern):
                yield f"[{at}]", f"'{pattern}' {_NOT_A_REGEX}: {error}", _REGEX_CURE
    if is_valid and patterns:
        try:
            PatternList(patterns)
        except PatternSyntaxError as error:
            yield "", f"its entries cannot be joined by |, as MM2 does: {error}", "change one"


def _separated(side: str) -> Rule:
    return Rule(
        paths=("spec",),
        field=f"{side}.alias",
        wrong="self.topics.naming.policy == 'Prefix'"
        f" && self.{side}.alias.contains(self.topics.naming.separator)",
        is_wrong=lambda self: (
            self.topics.naming.policy is NamingPolicy.PREFIX
            and is_alias_split(getattr(self, side).alias, self.topics.naming.separator)
        ),
        problem=f"it {alias_split_problem('<<self.topics.naming.separator>>')}",
        cure="choose another alias, or another spec.topics.naming.separator",
    )


RULES: Final = (
    _separated("source"),
    _separated("target"),
    never_changes("spec.topics.naming", "policy <<oldSelf.policy>> and separator '<<oldSelf.separator>>'"),
    never_changes("spec.offsetSyncs.location"),
    Rule(
        paths=("spec.topics.include",),
        wrong="self.size() == 0",
        is_wrong=lambda self: not self,
        problem="it is empty, so no topic would be copied",
        cure='write [".*"] for all topics',
    ),
    Rule(
        paths=_PATTERNS,
        member="entry",
        wrong="entry.contains(',')",
        is_wrong=lambda entry, _: "," in entry,
        problem="'<<entry>>' contains a comma, at which MM2 splits its lists",
        cure="write two entries",
    ),
    Rule(
        paths=_PATTERNS,
        member="entry",
        wrong="entry != entry.trim()",
        is_wrong=lambda entry, _: entry != entry.strip(),
        problem="'<<entry>>' starts or ends with a blank, which no name does",
        cure="remove the blanks",
    ),
    Rule(
        paths=_PATTERNS,
        member="entry",
        wrong=f"entry.matches('{_LONE_QUANTIFIER}')",
        is_wrong=lambda entry, _: re.search(_LONE_QUANTIFIER, entry),
        problem=f"'<<entry>>' {_NOT_A_REGEX}",
        cure=_REGEX_CURE,
    ),
    PythonRule(paths=_PATTERNS, find=_not_regexes),
    # They become `topics:settings`, which is split at the colon.
    Rule(
        paths=_OF_EXCEPTIONS,
        member="entry",
        wrong="entry.replace('(?:', '').contains(':')",
        is_wrong=lambda entry, _: ":" in entry.replace("(?:", ""),
        problem="'<<entry>>' contains a colon, which no topic and no setting has in its name",
        cure="remove it",
    ),
    Rule(
        paths=("spec.topics.startFrom",),
        field="timestamp",
        wrong="self.position == 'Timestamp' && !has(self.timestamp)",
        is_wrong=lambda self: self.position is InitialPosition.TIMESTAMP and self.timestamp is None,
        problem="it is missing",
        cure="write a time such as 2026-01-31T00:00:00Z",
    ),
    Rule(
        paths=("spec.topics.startFrom",),
        field="timestamp",
        wrong="has(self.timestamp) && self.position != 'Timestamp'",
        is_wrong=lambda self: self.timestamp is not None and self.position is not InitialPosition.TIMESTAMP,
        problem="it contradicts position <<self.position>>",
        cure="set position to Timestamp, or remove it",
    ),
    Rule(
        paths=("spec.topics.startFrom",),
        field="timestamp",
        wrong=f"has(self.timestamp) && self.position == 'Timestamp' && !self.timestamp.matches('{_TIMESTAMP}')",
        is_wrong=lambda self: (
            self.timestamp is not None
            and self.position is InitialPosition.TIMESTAMP
            and seconds(self.timestamp) is None
        ),
        problem="'<<self.timestamp>>' is not a time with a time zone",
        cure="write it as 2026-01-31T00:00:00Z",
    ),
    Rule(
        paths=("spec.topics.replicationFactor",),
        wrong="self == 0",
        is_wrong=lambda self: self == 0,
        problem="it is 0",
        cure="write -1 for the target's default, or at least 1",
    ),
)
