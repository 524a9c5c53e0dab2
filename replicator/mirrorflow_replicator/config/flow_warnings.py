"""Warns of a valid mm2.properties that is probably not intended: it copies nothing, or copies in a circle.

Pure.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.naming.patterns import SettingPattern, compile_patterns
from mirrorflow_core.naming.replication_policy import alias_split_problem, is_alias_split

_LITERAL = re.compile(r"[\w.-]+")  # a dot may match any character; in practice it separates parts of a name


@dataclass(frozen=True, slots=True, kw_only=True)
class EnabledFlow:
    """A flow that copies *topics*; *keeps_names* if it uses IdentityReplicationPolicy.

    *separator* is that of the names of copies; "" if a policy of the user's own gives them.
    """

    source: str
    target: str
    topics: tuple[str, ...]
    keeps_names: bool
    separator: str = "."

    @property
    def name(self) -> str:
        return f"{self.source}->{self.target}"

    @property
    def has_names_only(self) -> bool:
        """Whether its topics are all names, none of them an expression."""
        return all(map(_LITERAL.fullmatch, self.topics))


def flow_warnings(flows: Sequence[EnabledFlow]) -> Iterator[str]:
    """Yields a warning for each problem of *flows*, the enabled ones of a file."""
    if not flows:
        yield "No flow is enabled, so only heartbeats are written; set A->B.enabled=true to copy topics of A to B."
    for flow in flows:
        if not flow.topics:
            yield f"{flow.name}.topics is empty, so the flow copies no topic; leave it out to copy all."
    keeping = [flow for flow in flows if flow.keeps_names]
    circles = (circle for sharing in _sharing_a_topic(keeping) for circle in _circles(sharing))
    for circle in dict.fromkeys(circles):
        names = [flow.name for flow in circle]
        who = "both" if len(names) == 2 else "all of them"
        yield (
            f"{', '.join(names[:-1])} and {names[-1]} keep the names of topics (IdentityReplicationPolicy), so records of a topic "
            f"that {who} select are copied in a circle without end; let them select different topics, or use DefaultReplicationPolicy."
        )


def check_aliases(flows: Sequence[EnabledFlow]) -> None:
    """Raises InvalidSettingError if copies would be copied again and again, because of a separator in an alias."""
    growing: dict[str, list[EnabledFlow]] = {}
    for flow in flows:
        # A flow that selects names only does not select ever longer ones.
        if not flow.keeps_names and not flow.has_names_only:
            growing.setdefault(flow.source, []).append(flow)
    for flow in (flow for of_source in growing.values() for flow in of_source):
        if is_alias_split(flow.source, flow.separator) and (circle := _way_back(flow, growing)):
            raise InvalidSettingError(
                key="clusters",
                problem=f"the alias {flow.source} {alias_split_problem(flow.separator)}, so "
                f"{' and '.join(one.name for one in circle)} would copy their copies again, without end",
                action="choose another alias, or another replication.policy.separator",
            )


def _sharing_a_topic(flows: Sequence[EnabledFlow]) -> Iterable[tuple[EnabledFlow, ...]]:
    """Groups flows that may select the same topic: one group per name, and one of flows with expressions.

    It does not decide whether two expressions have a topic in common: they may.
    """
    expressions = {flow: compile_patterns("topics", flow.topics) for flow in flows}
    groups = {tuple(flow for flow in flows if not flow.has_names_only): None}
    for name in dict.fromkeys(name for flow in flows if flow.has_names_only for name in flow.topics):
        selecting = (
            flow for flow, expression in expressions.items() if expression and _may_match(expression, name)
        )
        groups[tuple(selecting)] = None
    return groups


def _may_match(expression: SettingPattern, name: str) -> bool:
    try:
        return expression.matches(name)
    except InvalidSettingError:
        return True  # the match takes too long; the connector reports that, here it only means "may match"


def _circles(flows: Sequence[EnabledFlow]) -> Iterator[tuple[EnabledFlow, ...]]:
    """Yields for each of *flows* its shortest circle, beginning with the first flow in the file's order."""
    by_source: dict[str, list[EnabledFlow]] = {}
    for flow in flows:
        by_source.setdefault(flow.source, []).append(flow)
    for flow in flows:
        circle = _way_back(flow, by_source)
        if circle:
            first = circle.index(min(circle, key=flows.index))
            yield circle[first:] + circle[:first]


def _way_back(flow: EnabledFlow, by_source: dict[str, list[EnabledFlow]]) -> tuple[EnabledFlow, ...]:
    """Returns *flow* and the fewest flows that lead from its target back to its source; empty if none do."""
    waiting: deque[tuple[EnabledFlow, ...]] = deque([(flow,)])
    seen = {flow.target}
    while waiting:
        way = waiting.popleft()
        if way[-1].target == flow.source:
            return way
        for onward in by_source.get(way[-1].target, ()):
            if onward.target not in seen:
                seen.add(onward.target)
                waiting.append((*way, onward))
    return ()
