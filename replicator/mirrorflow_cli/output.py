"""Prints the results of commands: `--json` as one JSON object on stdout, also for errors; text as a table."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """Adds `--json`."""
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(report=_report)


def _report(arguments: argparse.Namespace, sentences: str) -> None:
    """Prints why there is no result: as `problems` of the JSON object, or as text on stderr."""
    if arguments.json:
        print_json({"problems": sentences.splitlines()})
    else:
        print(sentences, file=sys.stderr)


def print_json(value: Any) -> None:
    """Prints *value*, made of dicts, lists, strings, numbers and booleans, as JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints *rows* below the column names, each column as wide as its widest cell."""
    widths = [max(len(row[at]) for row in (columns, *rows)) for at in range(len(columns))]
    for row in (columns, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
