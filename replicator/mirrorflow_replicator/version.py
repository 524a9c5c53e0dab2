"""The version of this program."""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as of_package


def version() -> str:
    """As installed; "0" in a tree that was never installed."""
    try:
        return of_package("mirrorflow")
    except PackageNotFoundError:
        return "0"
