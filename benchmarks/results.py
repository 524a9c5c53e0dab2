"""The result of a case and its text: figures, medians, and each demand with pass or miss.

Values are compared unrounded, and a demand without a measurement is a miss.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

Sense = Literal[">=", "<="]


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """One requirement: *value* must be *sense* *limit*; None means "not measured"."""

    what: str
    sense: Sense
    limit: float
    value: float | None
    unit: str = ""

    @property
    def is_met(self) -> bool:
        if self.value is None:
            return False
        return self.value >= self.limit if self.sense == ">=" else self.value <= self.limit


@dataclass(kw_only=True, slots=True)
class Result:
    """The result of one case. *figures* has for each copier and metric (with its unit) one value for each run."""

    name: str
    title: str
    setting: str
    figures: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    demands: list[Demand] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, copier: str, **values: float) -> None:
        """Adds the figures of one run; underscores in the name of a metric become spaces."""
        of_copier = self.figures.setdefault(copier, {})
        for metric, value in values.items():
            of_copier.setdefault(metric, []).append(value)

    def middle(self, copier: str, metric: str) -> float | None:
        """Returns the median over the runs; None without runs."""
        values = self.figures.get(copier, {}).get(metric)
        return median(values) if values else None

    def demand_ratio(
        self, what: str, metric: str, numerator: str, denominator: str, *, sense: Sense, limit: float
    ) -> None:
        """Demands that the median of *numerator* divided by that of *denominator* is *sense* *limit*."""
        above, below = self.middle(numerator, metric), self.middle(denominator, metric)
        value = None if above is None or not below else above / below
        self.demands.append(Demand(what=what, sense=sense, limit=limit, value=value, unit="x"))

    def demand(self, what: str, metric: str, copier: str, *, sense: Sense, limit: float, unit: str) -> None:
        """Demands that the median of one metric of one copier is *sense* *limit*."""
        value = self.middle(copier, metric)
        self.demands.append(Demand(what=what, sense=sense, limit=limit, value=value, unit=unit))


def result_from_json(value: Mapping[str, Any]) -> Result:
    """Returns the result whose fields a run has written."""
    demands = [Demand(**demand) for demand in value["demands"]]
    return Result(**{**value, "demands": demands})


def document(
    results: Sequence[Result], *, heading: Sequence[str], title: str = "Side by side with Java MirrorMaker 2"
) -> str:
    """Returns the text of RESULTS.md or OPERATOR.md; *heading* has machine, time and command."""
    met = sum(demand.is_met for result in results for demand in result.demands)
    total = sum(len(result.demands) for result in results)
    how = "Each figure is the median of its runs, with the least and the greatest in brackets; ratios are of medians."
    lines = [f"# {title}", "", *heading, ""]
    lines += [
        f"{met} of {total} demands are met. {how}",
        "",
        "| case | demand | measured | |",
        "|---|---|---|---|",
    ]
    for result in results:
        lines += [
            f"| {result.name} | {demand.what} {demand.sense} {_limit(demand)} | {_value(demand)}"
            f" | {'pass' if demand.is_met else '**miss**'} |"
            for demand in result.demands
        ]
        if not result.demands:
            lines.append(f"| {result.name} | | not measured | **miss** |")
    for result in results:
        lines += ["", *_section(result)]
    return "\n".join(lines) + "\n"


def _section(result: Result) -> list[str]:
    metrics = list(dict.fromkeys(metric for figures in result.figures.values() for metric in figures))
    lines = [f"## {result.name}: {result.title}", "", result.setting, ""]
    if metrics:
        lines += ["| | " + " | ".join(metric.replace("_", " ") for metric in metrics) + " |"]
        lines += ["|---" * (len(metrics) + 1) + "|"]
    for copier, figures in result.figures.items():
        cells = (_cell(figures.get(metric, [])) for metric in metrics)
        lines.append(f"| {copier} | " + " | ".join(cells) + " |")
    if result.notes:
        lines += ["", *(f"- {note}" for note in result.notes)]
    return lines


def _cell(values: list[float]) -> str:
    if not values:
        return ""
    if len(values) == 1:
        return number(values[0])
    return f"{number(median(values))} ({number(min(values))} to {number(max(values))})"


def number(value: float) -> str:
    """Formats *value* with three significant digits."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _limit(demand: Demand) -> str:
    if demand.unit == "x" and demand.limit < 1 and demand.sense == "<=":
        return f"1/{1 / demand.limit:.3g} x"
    return f"{demand.limit:.3g} {demand.unit}"


def _value(demand: Demand) -> str:
    if demand.value is None:
        return "not measured"
    if demand.unit == "x" and demand.limit < 1 and demand.sense == "<=" and demand.value > 0:
        return f"1/{1 / demand.value:.3g} x"
    return f"{number(demand.value)} {demand.unit}"
