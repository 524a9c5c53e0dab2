"""Finds verifications and archives in a folder, as `mirrorflow verify --out` and `mirrorflow archive` write them."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from mirrorflow_console.documents import DocumentError, parse_json
from mirrorflow_console.job_views import (
    JobView,
    archive_of_manifest,
    unfinished_archive,
    verification_of_file,
)

VERIFICATION: Final = "verification.json"
MANIFEST: Final = "_manifest.json"
UNFINISHED: Final = "_unfinished.json"  # names the run that writes an archive, until there is a manifest
RESULTS_MAX: Final = 20  # the newest
# Results are in FOLDER, or in a folder of each run or archive there. An archive has a folder for each topic and partition.
DEPTH_MAX: Final = 3
ENTRIES_MAX: Final = 5_000
_FILES: Final = frozenset({VERIFICATION, MANIFEST, UNFINISHED})


class ResultFiles:
    """The verifications and archives below *folder*; a file that cannot be read, or is of another kind, is left out.

    A file is parsed once: each poll and each page needs the results.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parsed: dict[tuple[Path, int], dict[str, Any]] = {}  # by path and time of the change

    def read(self) -> list[JobView]:
        """Returns the newest results, newest first."""
        views = (_view(path, document) for path, document in self._documents())
        return [view for view in views if view is not None]

    def newest(self) -> Mapping[str, Mapping[str, Any]]:
        """Returns the newest verification of each flow, by its name: the same object until the file changes."""
        newest: dict[str, Mapping[str, Any]] = {}
        for path, document in self._documents():
            if path.name == VERIFICATION and verification_of_file(document) is not None:
                newest.setdefault(str(document.get("flow")), document)
        return newest

    def _documents(self) -> list[tuple[Path, dict[str, Any]]]:
        known, self._parsed = self._parsed, {}
        for path, changed_ns in self._newest_files():
            document = known.get((path, changed_ns))
            self._parsed[path, changed_ns] = _parsed(path) if document is None else document
        return [(path, document) for (path, _), document in self._parsed.items()]

    def _newest_files(self) -> list[tuple[Path, int]]:
        """Returns the newest files with the times of their changes, newest first."""
        files = sorted(_with_times(self._folder), key=lambda file: (-file[1], file[0]))
        finished = {path.parent for path, _ in files if path.name == MANIFEST}
        shown = [file for file in files if file[0].name != UNFINISHED or file[0].parent not in finished]
        return shown[:RESULTS_MAX]


def _with_times(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yields the files of results with the times of their changes, without the folders of topics and partitions."""
    entries, waiting = 0, [(folder, 0)]
    while waiting:
        current, depth = waiting.pop()
        try:
            listed = list(os.scandir(current))
        except OSError:
            continue
        for entry in listed[: ENTRIES_MAX - entries]:
            try:
                if entry.name in _FILES:
                    yield Path(entry.path), entry.stat().st_mtime_ns
                elif depth < DEPTH_MAX and "=" not in entry.name and entry.is_dir(follow_symlinks=False):
                    waiting.append((Path(entry.path), depth + 1))
            except OSError:
                continue  # it was removed meanwhile
        entries += len(listed)


def _parsed(path: Path) -> dict[str, Any]:
    """Returns what *path* holds; nothing if it cannot be read, as while it is written."""
    try:
        document = parse_json(path.read_bytes())
    except (OSError, DocumentError):
        return {}
    return document if isinstance(document, dict) else {}


def _view(path: Path, document: Mapping[str, Any]) -> JobView | None:
    if path.name == UNFINISHED:
        return unfinished_archive(path.parent.name)
    return (verification_of_file if path.name == VERIFICATION else archive_of_manifest)(document)
