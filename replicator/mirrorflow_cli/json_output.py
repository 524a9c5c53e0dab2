"""Implements `--json` for commands that print one result: a JSON object on stdout, also for errors."""

import argparse
import json
import sys
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
