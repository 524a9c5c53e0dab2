"""Finds the results of verifications in a folder, as `mirrorflow verify --out` writes them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from mirrorflow_console.documents import DocumentError, parse_json
from mirrorflow_console.job_views import JobView, verification_of_file

FILE: Final = "verification.json"
RESULTS_MAX: Final = 20  # the newest


class ResultFiles:
    """The verifications below *folder*; a file that cannot be read, or is of another kind, is left out.

    A file is parsed once: each poll and each page needs the results.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parsed: dict[tuple[Path, int], dict[str, Any]] = {}  # by path and time of the change

    def read(self) -> list[JobView]:
        """Returns the newest results, newest first."""
        return [found for one in self._documents() if (found := verification_of_file(one)) is not None]

    def newest(self) -> Mapping[str, Mapping[str, Any]]:
        """Returns the newest result of each flow, by its name: the same object until the file changes."""
        found: dict[str, Mapping[str, Any]] = {}
        for one in self._documents():
            if verification_of_file(one) is not None:
                found.setdefault(str(one.get("flow")), one)
        return found

    def _documents(self) -> list[dict[str, Any]]:
        known, self._parsed = self._parsed, {}
        for path, changed_ns in self._newest_files():
            document = known.get((path, changed_ns))
            if document is None:
                document = _parsed(path)
            self._parsed[path, changed_ns] = document
        return [*self._parsed.values()]

    def _newest_files(self) -> list[tuple[Path, int]]:
        """Returns the newest files with the times of their changes, newest first."""
        try:
            found = [*_with_times(self._folder)]
        except OSError:
            return []
        return sorted(found, key=lambda one: (-one[1], one[0]))[:RESULTS_MAX]


def _with_times(folder: Path) -> Iterator[tuple[Path, int]]:
    for path in folder.rglob(FILE):
        yield path, path.stat().st_mtime_ns


def _parsed(path: Path) -> dict[str, Any]:
    """Returns what *path* holds; nothing if it cannot be read, as while it is written."""
    try:
        document = parse_json(path.read_bytes())
    except (OSError, DocumentError):
        return {}
    return document if isinstance(document, dict) else {}
