"""A PromQL expression by a parser of its own: which series it asks for, and by which labels it sums."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import promql_parser


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """One selector: the metric, every label that the expression needs of it, and the values that it must be able to have."""

    metric: str
    labels: frozenset[str]
    values: frozenset[tuple[str, str]]


def asked_for(expression: str) -> list[Asked]:
    """Raises ValueError where *expression* is no PromQL."""
    return list(_below(promql_parser.parse(expression), frozenset()))


def _below(node: Any, needed: frozenset[str]) -> Iterator[Asked]:
    if isinstance(node, promql_parser.VectorSelector):
        matchers = node.matchers.matchers
        wanted = {(one.name, one.value) for one in matchers if one.op == promql_parser.MatchOp.Equal}
        wanted |= {
            (one.name, word)
            for one in matchers
            if one.op == promql_parser.MatchOp.Re and "$" not in one.value
            for word in one.value.split("|")
        }
        yield Asked(
            metric=node.name or "",
            labels=needed | {one.name for one in matchers},
            values=frozenset(wanted),
        )
        return
    if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
        assert node.modifier.type == promql_parser.AggModifierType.By, "name what is kept"
        needed = frozenset(
            node.modifier.labels
        )  # those of an outer sum are among them, or Prometheus drops them
    for name in ("lhs", "rhs", "expr"):
        below = getattr(node, name, None)
        if below is not None:
            yield from _below(below, _matched(node) if name == "rhs" else needed)
    for argument in getattr(node, "args", ()):
        yield from _below(argument, needed)
    if isinstance(node, promql_parser.MatrixSelector):
        yield from _below(node.vector_selector, needed)


def _matched(node: Any) -> frozenset[str]:
    """What the right side of an operator is found by; its other labels go."""
    matching = node.modifier.matching if node.modifier is not None else None
    return frozenset(matching.labels) if matching is not None else frozenset()
