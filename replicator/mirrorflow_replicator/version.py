"""The version of this program, and the version of Kafka Connect that its REST API reports."""

import argparse
from functools import cache
from typing import Any

KAFKA_VERSION = "4.3.1"  # whose REST API, records and setting definitions we follow


def connect_version(own: str | None = None) -> str:
    """Returns Kafka's version with *own* (default `version()`) appended.

    Kafka's comes first because clients compare the first two numbers before they offer a call.
    """
    return f"{KAFKA_VERSION}-mirrorflow-{version() if own is None else own}"


@cache
def version() -> str:
    """Returns the installed version; "0" in a tree that was never installed."""
    from importlib.metadata import PackageNotFoundError  # noqa: PLC0415 it imports much, and no start needs it
    from importlib.metadata import version as of_package  # noqa: PLC0415

    try:
        return of_package("mirrorflow")
    except PackageNotFoundError:
        return "0"


class VersionAction(argparse.Action):
    """Prints the program's name and version, which is looked up only then."""

    def __init__(self, option_strings: list[str], dest: str, **options: Any) -> None:
        super().__init__(
            option_strings, dest, nargs=0, help="show program's version number and exit", **options
        )

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Ends the process."""
        print(f"{parser.prog} {version()}")  # noqa: T201 what the user sees
        parser.exit()
