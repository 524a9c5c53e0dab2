"""The result of a trial: a JSON file that users can send in, and a row of the table in docs/which-kafkas.md."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

FORMAT = 1  # the format of the file; increased when a reader of older files would misinterpret it
# Maps the name of a check to its column.
CHECKS = {
    "copy": "Copy after kill -9",
    "groups": "Group offsets",
    "checkpoints": "Checkpoints",
    "settings": "Topic settings",
    "acls": "ACLs",
}


# The checks whose figures are in the table.
MEASURED = {"copy", "groups"}


class Outcome(StrEnum):
    """The outcome of a check.

    `unavailable` means that the clusters do not offer what the check needs, for example an authorizer.
    """

    PASSED = "passed"
    FAILED = "failed"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of a check, with its figures or its reason."""

    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A pair of clusters.

    `verdicts` are by name of the check, and `guarantee` is as reported by `/progress/partitions`.
    """

    source: str
    target: str
    mirrorflow: str
    date: str
    guarantee: str
    guarantee_reason: str
    verdicts: Mapping[str, Verdict]

    @property
    def has_passed(self) -> bool:
        """Returns whether no check failed."""
        return all(verdict.outcome is not Outcome.FAILED for verdict in self.verdicts.values())


def write_result(result: Result, path: Path) -> None:
    """Writes *result* as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"format": FORMAT, **asdict(result)}, indent=2, ensure_ascii=False) + "\n")


def read_result(path: Path) -> Result:
    """Reads the file of `write_result`. Raises ValueError for another format."""
    fields: dict[str, Any] = json.loads(path.read_text())
    if (number := fields.pop("format", None)) != FORMAT:
        raise ValueError(f"{path.name} has format {number}; this program reads format {FORMAT}.")
    verdicts = {
        name: Verdict(outcome=Outcome(verdict["outcome"]), detail=verdict["detail"])
        for name, verdict in fields.pop("verdicts").items()
    }
    return Result(**fields, verdicts=verdicts)


def table(results: Iterable[Result]) -> str:
    """Returns a Markdown table with a row for each pair, by source and target."""
    columns = ("Source", "Target", "Guarantee", *CHECKS.values(), "MirrorFlow", "Date")
    rows = [columns, ("---",) * len(columns)]
    for result in sorted(results, key=lambda result: (result.source, result.target)):
        cells = [_cell(name, result.verdicts[name]) for name in CHECKS]
        rows.append((result.source, result.target, result.guarantee, *cells, result.mirrorflow, result.date))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cell(name: str, verdict: Verdict) -> str:
    word = {Outcome.PASSED: "yes", Outcome.FAILED: "**no**", Outcome.UNAVAILABLE: "not offered"}[
        verdict.outcome
    ]
    shows_detail = name in MEASURED or verdict.outcome is Outcome.FAILED
    return f"{word}: {verdict.detail}" if verdict.detail and shows_detail else word
