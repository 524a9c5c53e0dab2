"""Collects what `mirrorflow check` finds.

As text, facts and notes are printed at once and problems at the end; as JSON everything is printed at the
end.
"""

from collections.abc import Sequence
from typing import Any

SHOWN_MAX = 20  # names of one kind; the others are counted


class Findings:
    """Problems, facts and notes of a check; only problems affect the exit status.

    *prints*: print facts and notes as they are found.
    """

    def __init__(self, *, prints: bool = True) -> None:
        self.problems: list[str] = []
        self._facts: list[str] = []
        self._notes: list[str] = []
        self._changes: dict[str, list[str]] = {}
        self._prints = prints

    def problem(self, sentence: str) -> None:
        """Adds a condition that would make `run` fail."""
        self.problems.append(sentence)

    def fact(self, sentence: str) -> None:
        """Adds a fact. It is printed at once, because the next check may take seconds."""
        self._facts.append(sentence)
        self._print(f"ok    {sentence}")

    def note(self, sentence: str) -> None:
        """Adds a note: worth knowing, but no reason not to run."""
        self._notes.append(sentence)
        self._print(f"note  {sentence}")

    def would(self, what: str, names: Sequence[str]) -> None:
        """Records that a run would do *what* ("create", "grow") to *names*; prints the first of them."""
        self._changes.setdefault(what, []).extend(names)
        for name in names[:SHOWN_MAX]:
            self._print(f"      would {what}: {name}")
        if len(names) > SHOWN_MAX:
            self._print(f"      would {what}: {len(names) - SHOWN_MAX} more")

    def as_json(self) -> dict[str, Any]:
        """Returns the findings as a JSON object."""
        return {
            "canRun": not self.problems,
            "problems": self.problems,
            "facts": self._facts,
            "notes": self._notes,
            **{f"would{what.capitalize()}": names for what, names in self._changes.items()},
        }

    def _print(self, line: str) -> None:
        if self._prints:
            print(line, flush=True)
