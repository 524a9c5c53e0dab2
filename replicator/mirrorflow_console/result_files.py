"""Finds the results of verifications in a folder, as `mirrorflow verify --out` writes them."""

from pathlib import Path
from typing import Final

from mirrorflow_console.documents import DocumentError, parse_json
from mirrorflow_console.job_views import JobView, verification_of_file

FILE: Final = "verification.json"
RESULTS_MAX: Final = 20  # the newest


class ResultFiles:
    """The verifications below *folder*; a file that cannot be read, or is of another kind, is left out."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> list[JobView]:
        """Returns the newest results, newest first."""
        try:
            paths = sorted(self._folder.rglob(FILE), key=lambda path: -path.stat().st_mtime)[:RESULTS_MAX]
        except OSError:
            return []
        return [found for path in paths if (found := _result(path)) is not None]


def _result(path: Path) -> JobView | None:
    try:
        return verification_of_file(parse_json(path.read_bytes()))
    except (OSError, DocumentError):
        return None
