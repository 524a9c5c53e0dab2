"""Parses a PromQL expression into the metrics that it selects and the labels that it needs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import promql_parser


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """A selector, with the metric, the labels that the expression needs, and the values that the labels must be able to
    have.
    """

    metric: str
    labels: frozenset[str]
    values: frozenset[tuple[str, str]]


def selections(expression: str) -> list[Selection]:
    """Returns the selectors of *expression*. Raises ValueError if it is not PromQL."""
    return list(_below(promql_parser.parse(expression), frozenset()))


def _below(node: Any, needed: frozenset[str]) -> Iterator[Selection]:
    if isinstance(node, promql_parser.VectorSelector):
        matchers = node.matchers.matchers
        values = {
            (matcher.name, matcher.value) for matcher in matchers if matcher.op == promql_parser.MatchOp.Equal
        }
        values |= {
            (matcher.name, value)
            for matcher in matchers
            if matcher.op == promql_parser.MatchOp.Re and "$" not in matcher.value
            for value in matcher.value.split("|")
        }
        yield Selection(
            metric=node.name or "",
            labels=needed | {matcher.name for matcher in matchers},
            values=frozenset(values),
        )
        return
    if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
        assert node.modifier.type == promql_parser.AggModifierType.By, (
            "The expression must use `by`, not `without`."
        )
        # The labels of an outer sum must be among them.
        needed = frozenset(node.modifier.labels)
    for name in ("lhs", "rhs", "expr"):
        below = getattr(node, name, None)
        if below is not None:
            yield from _below(below, _matched(node) if name == "rhs" else needed)
    for argument in getattr(node, "args", ()):
        yield from _below(argument, needed)
    if isinstance(node, promql_parser.MatrixSelector):
        yield from _below(node.vector_selector, needed)


def _matched(node: Any) -> frozenset[str]:
    """Returns the labels by which the right side of an operator is matched. The others are dropped."""
    matching = node.modifier.matching if node.modifier is not None else None
    return frozenset(matching.labels) if matching is not None else frozenset()
