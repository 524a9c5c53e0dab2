"""The version of this program, and the version of Kafka Connect that its REST API reports."""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as of_package

KAFKA_VERSION = "4.3.1"  # whose REST API, records and setting definitions we follow


def connect_version(own: str | None = None) -> str:
    """Returns Kafka's version with *own* (default `version()`) appended.

    Kafka's comes first because clients compare the first two numbers before they offer a call.
    """
    return f"{KAFKA_VERSION}-mirrorflow-{version() if own is None else own}"


def version() -> str:
    """Returns the installed version; "0" in a tree that was never installed."""
    try:
        return of_package("mirrorflow")
    except PackageNotFoundError:
        return "0"
