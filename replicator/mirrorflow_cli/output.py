"""Prints the results of commands: `--json` as one JSON object on stdout, or one a line, also for errors; text as a table.

`check` prints facts and notes at once as text, and its problems at the end; as JSON everything at the end.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, TextIO

GAP = 2  # spaces between columns
SHOWN_MAX = 20  # names of one kind; the others are counted


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(report=_report)


def _problems_object(sentences: str) -> dict[str, Any]:
    return {"problems": sentences.splitlines()}


def add_json_lines_argument(
    parser: argparse.ArgumentParser, error_object: Callable[[str], dict[str, Any]] = _problems_object
) -> None:
    """Adds `--json` to a command that prints one object per line; *error_object* returns the last one, for an error's text."""
    parser.add_argument("--json", action="store_true", help="print JSON, one object per line")
    parser.set_defaults(report=partial(_report_line, error_object))


def _report_line(
    error_object: Callable[[str], dict[str, Any]], arguments: argparse.Namespace, sentences: str
) -> None:
    """Prints why the command has failed: as the last object, or as text on stderr."""
    if arguments.json:
        print(json.dumps(error_object(sentences), ensure_ascii=False))
    else:
        print(sentences, file=sys.stderr)


def _report(arguments: argparse.Namespace, sentences: str) -> None:
    """Prints why there is no result: as `problems` of the JSON object, or as text on stderr."""
    if arguments.json:
        print_json(_problems_object(sentences))
    else:
        print(sentences, file=sys.stderr)


def rfc3339(time_ms: float) -> str:
    """Returns a time as RFC 3339 in UTC. Raises ValueError, OverflowError or OSError for one that no calendar has."""
    return (
        datetime.fromtimestamp(time_ms / 1000, tz=UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def print_json(value: Any) -> None:
    """Prints *value*, made of dicts, lists, strings, numbers and booleans, as JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, dispensable: Sequence[str] = ()
) -> None:
    """Prints *rows* below the column names, each column as wide as its widest cell.

    Columns of *dispensable* are left out, in that order, where a terminal is too narrow for them.
    """
    shown, widths = list(range(len(columns))), _widths(columns, rows)
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns + GAP
        shown = fitting(columns, rows, width=width, gap=GAP, dispensable=dispensable)
    for row in (columns, *rows):
        print((" " * GAP).join(row[index].ljust(widths[index]) for index in shown).rstrip())


def is_live_terminal(stream: TextIO) -> bool:
    """Whether *stream* is a terminal on which lines can be redrawn (TERM=dumb cannot)."""
    return stream.isatty() and os.environ.get("TERM", "dumb").lower() not in {"dumb", "unknown", ""}


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(row[index]) for row in (columns, *rows)) for index in range(len(columns))]


def fitting(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    width: int,
    gap: int,
    dispensable: Sequence[str],
) -> list[int]:
    """Returns the indices of the columns to show in *width* characters, of which each column takes *gap* besides its text.

    Columns of *dispensable* are left out in that order, until the others fit.
    """
    widths = _widths(columns, rows)
    shown = list(range(len(columns)))
    for name in dispensable:
        if sum(widths[index] + gap for index in shown) <= width:
            break
        shown.remove(columns.index(name))
    return shown


def shortened(name: str, length_max: int) -> str:
    """Returns *name* with its middle left out if it is longer: names of one kind differ at both ends."""
    if len(name) <= length_max:
        return name
    tail = (length_max - 1) // 2
    return f"{name[: length_max - 1 - tail]}…{name[len(name) - tail :]}"


class Findings:
    """Problems, facts and notes of a check; only problems affect the exit status.

    *prints*: print facts and notes as they are found.
    """

    def __init__(self, *, prints: bool = True) -> None:
        self.problems: list[str] = []
        self._facts: list[str] = []
        self._notes: list[str] = []
        self._changes: dict[str, list[str]] = {}
        self._capabilities: list[dict[str, Any]] = []
        self._guarantee: dict[str, str] = {}
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

    def capability(self, name: str, *, reason: str | None, follows: str) -> None:
        """Records whether the target offers *name*: *reason* says why not, or is None, and *follows* what a flow lacks then."""
        missing = {} if reason is None else {"reason": reason, "follows": follows}
        self._capabilities.append({"name": name, "offered": reason is None, **missing})

    def guarantee(self, name: str, reason: str | None) -> None:
        """Records the guarantee that the flow will have, and why it is not exactly-once; None: it is."""
        self._guarantee = {"guarantee": name, "guaranteeReason": reason or ""}

    def as_json(self) -> dict[str, Any]:
        return {
            "canRun": not self.problems,
            "problems": self.problems,
            "facts": self._facts,
            "notes": self._notes,
            **self._guarantee,
            "capabilities": self._capabilities,
            **{f"would{what.capitalize()}": names for what, names in self._changes.items()},
        }

    def _print(self, line: str) -> None:
        if self._prints:
            print(line, flush=True)
