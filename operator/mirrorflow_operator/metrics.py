"""Collects the operator's metrics and renders them in Prometheus' text format.

Label values come from a bounded set; they are never names of a user's objects.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

PREFIX: Final = "mirrorflow_operator_"
SECONDS_BUCKETS: Final = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)
Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True, kw_only=True)
class _Family:
    kind: str
    about: str
    values: dict[Labels, float] = field(default_factory=dict)


@dataclass(slots=True)
class Metrics:
    """The operator's metrics: stored counters and histograms, and gauges evaluated at each scrape."""

    _families: dict[str, _Family] = field(default_factory=dict)
    _gauges: dict[str, tuple[str, Callable[[], float]]] = field(default_factory=dict)

    def count(self, name: str, about: str, amount: float = 1.0, **labels: str) -> None:
        """Adds to the counter *name*, which ends in `_total`."""
        self._add(name, "counter", about, amount, tuple(sorted(labels.items())))

    def took(self, name: str, about: str, seconds: float) -> None:
        """Adds one duration to the histogram *name*, which ends in `_seconds`."""
        for bound in SECONDS_BUCKETS:
            self._add(name, "histogram", about, float(seconds <= bound), (("le", f"{bound:g}"),))
        self._add(name, "histogram", about, 1.0, (("le", "+Inf"),))
        self._add(name, "histogram", about, seconds, (("", "sum"),))
        self._add(name, "histogram", about, 1.0, (("", "count"),))

    def gauge(self, name: str, about: str, value: Callable[[], float]) -> None:
        """Registers the gauge *name*; *value* is called at each scrape."""
        self._gauges[name] = (about, value)

    def text(self) -> str:
        """Returns the page for Prometheus."""
        return "\n".join(self._lines()) + "\n"

    def value(self, name: str, **labels: str) -> float:
        """Returns the counter's value; 0 where nothing was counted."""
        family = self._families.get(name)
        return 0.0 if family is None else family.values.get(tuple(sorted(labels.items())), 0.0)

    def _add(self, name: str, kind: str, about: str, amount: float, labels: Labels) -> None:
        family = self._families.setdefault(name, _Family(kind=kind, about=about))
        family.values[labels] = family.values.get(labels, 0.0) + amount

    def _lines(self) -> Iterator[str]:
        for name, (about, value) in sorted(self._gauges.items()):
            # A value that only grows is a counter, also where it is read from a callable.
            yield from _head(name, "counter" if name.endswith("_total") else "gauge", about)
            yield f"{PREFIX}{name} {value():g}"
        for name, family in sorted(self._families.items()):
            yield from _head(name, family.kind, family.about)
            for labels, amount in sorted(family.values.items()):
                yield _sample(name, family.kind, labels, amount)


def _head(name: str, kind: str, about: str) -> Iterator[str]:
    yield f"# HELP {PREFIX}{name} {about}"
    yield f"# TYPE {PREFIX}{name} {kind}"


def _sample(name: str, kind: str, labels: Labels, amount: float) -> str:
    if kind == "histogram" and labels[0][0] == "":
        return f"{PREFIX}{name}_{labels[0][1]} {amount:.10g}"
    suffix = "_bucket" if kind == "histogram" else ""
    inside = ",".join(f'{label}="{value}"' for label, value in labels)
    return f"{PREFIX}{name}{suffix}{'{' + inside + '}' if inside else ''} {amount:.10g}"
