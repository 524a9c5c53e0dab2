"""Finds verifications and archives in a folder, as `mirrorflow verify --out` and `mirrorflow archive` write them.

Others may be able to write to the folder: a link, a pipe, or a file that is too long is left out.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from mirrorflow_console.documents import BODY_MAX_BYTES, DocumentError, parse_json
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
FILES: Final = frozenset({VERIFICATION, MANIFEST, UNFINISHED})


class _ResultFile(NamedTuple):
    """A file, as it is until it changes."""

    path: Path
    changed_ns: int
    size_bytes: int


class _Result(NamedTuple):
    """What a file holds. `document` is None if it is of another kind, or not kept."""

    view: JobView | None
    document: Mapping[str, Any] | None


class ResultFiles:
    """The verifications and archives below *folder*; a file that cannot be read, or is of another kind, is left out.

    A file is parsed once: each poll and each page needs the results. *names*: files that are read; *bytes_max*: of all of them
    together, the newest first. Without *keeps_documents* `newest` has none, and memory no more than `read` returns.
    """

    def __init__(
        self,
        folder: Path,
        *,
        names: AbstractSet[str] = FILES,
        bytes_max: int = RESULTS_MAX * BODY_MAX_BYTES,
        keeps_documents: bool = True,
    ) -> None:
        self._folder = folder
        self._names = names
        self._bytes_max = bytes_max
        self._keeps_documents = keeps_documents
        self._known: dict[_ResultFile, _Result] = {}

    def read(self) -> list[JobView]:
        """Returns the newest results, newest first."""
        return [result.view for _, result in self._results() if result.view is not None]

    def newest(self) -> Mapping[str, Mapping[str, Any]]:
        """Returns the newest verification of each flow, by its name: the same object until the file changes."""
        newest: dict[str, Mapping[str, Any]] = {}
        for file, result in self._results():
            if file.path.name == VERIFICATION and result.view is not None and result.document is not None:
                newest.setdefault(str(result.document.get("flow")), result.document)
        return newest

    def _results(self) -> list[tuple[_ResultFile, _Result]]:
        self._known = {file: self._known.get(file) or self._parsed(file) for file in self._newest_files()}
        return [*self._known.items()]

    def _parsed(self, file: _ResultFile) -> _Result:
        """Returns what *file* holds; nothing if it cannot be read, as while it is written."""
        try:
            with open_below(self._folder, file.path) as stream:
                document = parse_json(stream.read(file.size_bytes))
        except (OSError, DocumentError):
            return _Result(None, None)
        if not isinstance(document, dict):
            return _Result(None, None)
        return _Result(_view(file.path, document), document if self._keeps_documents else None)

    def _newest_files(self) -> Iterator[_ResultFile]:
        """Yields the newest files, newest first."""
        files = sorted(_files(self._folder, self._names), key=lambda file: (-file.changed_ns, file.path))
        finished = {file.path.parent for file in files if file.path.name == MANIFEST}
        left = self._bytes_max
        shown = [file for file in files if file.path.name != UNFINISHED or file.path.parent not in finished]
        for file in shown[:RESULTS_MAX]:
            if file.size_bytes <= min(left, BODY_MAX_BYTES):
                left -= file.size_bytes
                yield file


def open_below(folder: Path, path: Path) -> BinaryIO:
    """Opens the file *path* below *folder* to read it, without following a link below *folder*.

    Raises OSError, also if it is not a regular file.
    """
    with ExitStack() as stack:
        parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, parent)
        *folders, name = path.relative_to(folder).parts
        for part in folders:
            parent = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
            stack.callback(os.close, parent)
        file = os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"{path} is not a regular file.")
    return file


def _files(folder: Path, names: AbstractSet[str]) -> Iterator[_ResultFile]:
    """Yields the files of *names*, without the folders of topics and partitions."""
    entries, waiting = 0, [(folder, 0)]
    while waiting:
        current, depth = waiting.pop()
        try:
            with os.scandir(current) as entries_of:
                listed = list(islice(entries_of, ENTRIES_MAX - entries))
        except OSError:
            continue
        for entry in listed:
            try:
                if entry.name in names:
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        yield _ResultFile(Path(entry.path), status.st_mtime_ns, status.st_size)
                elif depth < DEPTH_MAX and "=" not in entry.name and entry.is_dir(follow_symlinks=False):
                    waiting.append((Path(entry.path), depth + 1))
            except OSError:
                continue  # it was removed meanwhile
        entries += len(listed)


def _view(path: Path, document: Mapping[str, Any]) -> JobView | None:
    if path.name == UNFINISHED:
        return unfinished_archive(path.parent.name)
    return (verification_of_file if path.name == VERIFICATION else archive_of_manifest)(document)
