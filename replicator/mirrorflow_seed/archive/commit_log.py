"""Reads and appends the commits of an archive: `_commits/00000001.json` and so on, one for each increment.

    commit 1: a snapshot ──> commit 2: what it adds ──> ... ──> commit 50: a snapshot of all ──> ...

Guarantees: a commit is there completely or not at all. Each number is given once, so of two exports that continue the
same commit one fails. Where a store cannot create a file exclusively (object stores), the later of two that commit at
the same moment replaces the other; a commit that continued the replaced one is detected by its `parent`.

Spark and DuckDB ignore names that begin with `_`.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mirrorflow_seed.archive.manifest import Manifest, appended, as_json, differences, from_json
from mirrorflow_seed.errors import ArchiveConflictError, ArchiveDamagedError, ArchiveIncompleteError
from mirrorflow_seed.storage_folder import StorageFolder

FORMAT: Final = 4
COMMITS_FOLDER: Final = "_commits"
PENDING_FOLDER: Final = "_pending"  # what a running or killed export has done
# A reader reads at most so many commits, and a commit is rarely as large as the whole content.
SNAPSHOT_EVERY: Final = 50
FILES_NAMED_MAX: Final = 5  # files in an error
# A reader lists the commits again if an export has deleted old ones meanwhile.
READ_TRIES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveCommit:
    """One commit: its number, from 1 on, and what it adds; a snapshot has the archive's whole content."""

    number: int
    commit_id: str  # random
    parent: str  # the id of the commit before it; "" for the first
    is_snapshot: bool
    manifest: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveState:
    """The content of an archive after its last commit."""

    number: int
    commit_id: str
    manifest: Manifest


def encode(commit: ArchiveCommit) -> bytes:
    """Returns the commit as JSON."""
    head = {
        "format": FORMAT,
        "number": commit.number,
        "commit_id": commit.commit_id,
        "parent": commit.parent,
        "is_snapshot": commit.is_snapshot,
    }
    return json.dumps({**head, "manifest": as_json(commit.manifest)}, ensure_ascii=False).encode()


def decode(text: bytes, *, location: str) -> ArchiveCommit:
    """Returns the commit in the JSON *text*. Raises ArchiveDamagedError."""
    try:
        raw = json.loads(text)
        if raw["format"] != FORMAT:
            raise ArchiveDamagedError(
                location=location,
                problem=f"its format is {raw['format']}, and this version reads format {FORMAT}",
            )
        fields = {key: value for key, value in raw.items() if key != "format"}
        return ArchiveCommit(**{**fields, "manifest": from_json(raw["manifest"])})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ArchiveDamagedError(
            location=location, problem=f"a commit cannot be parsed ({type(error).__name__})"
        ) from error


def combine(commits: Mapping[int, ArchiveCommit], *, location: str) -> ArchiveState:
    """Returns the state after *commits*, by number, from a snapshot on. Raises ArchiveDamagedError."""
    first, last = min(commits), max(commits)
    state: ArchiveState | None = None
    for number in range(first, last + 1):
        commit = commits.get(number)
        if commit is None or (state is not None and commit.parent != state.commit_id):
            raise ArchiveDamagedError(
                location=location,
                problem=f"commit {number} is missing"
                if commit is None
                else f"commit {number} does not continue commit {number - 1}",
                action="restore an intact copy of it",
            )
        try:
            content = (
                commit.manifest
                if commit.is_snapshot or state is None
                else appended(state.manifest, commit.manifest)
            )
        except ValueError as error:
            raise ArchiveDamagedError(location=location, problem=f"commit {number}: {error}") from error
        state = ArchiveState(number=number, commit_id=commit.commit_id, manifest=content)
    assert state is not None
    return state


def path_of(number: int) -> str:
    """Returns the path of a commit in the archive's folder."""
    return f"{COMMITS_FOLDER}/{number:08d}.json"


class CommitLog:
    """The commits of the archive in *folder*."""

    def __init__(self, folder: StorageFolder) -> None:
        self._folder = folder

    def read(self) -> ArchiveState | None:
        """Returns the state after the last commit; None if there is no commit. Raises ArchiveDamagedError."""
        for _ in range(READ_TRIES):
            last = self.last_number()
            if not last:
                return None
            commits = self._since_snapshot(last)
            if commits and commits[min(commits)].is_snapshot:
                return combine(commits, location=self._folder.address)
        raise ArchiveDamagedError(
            location=self._folder.address,
            problem="commits before the last one are missing",
            action="restore an intact copy of it",
        )

    def last_number(self) -> int:
        """Returns the number of the last commit; 0 if there is none."""
        return max((number for name in self._names() if (number := number_of(name))), default=0)

    def groups_at(self, time_ms: int) -> Manifest | None:
        """Returns the last commit whose groups were read at *time_ms* or before; None if there is none. Raises ArchiveDamagedError."""
        for number in range(self.last_number(), 0, -1):
            text = self._folder.read(path_of(number))
            if text is None:
                return None
            content = decode(text, location=self._folder.address).manifest
            if content.groups_read_ms is not None and content.groups_read_ms <= time_ms:
                return content
        return None

    def append(self, before: ArchiveState | None, increment: Manifest) -> ArchiveState:
        """Commits *increment* after *before*, and returns the new state.

        Raises ArchiveConflictError if a different export has committed meanwhile.
        """
        number = before.number + 1 if before else 1
        content = appended(before.manifest, increment) if before else increment
        is_snapshot = before is None or number % SNAPSHOT_EVERY == 0
        return self._write(before, content, content if is_snapshot else increment, is_snapshot=is_snapshot)

    def replace(self, before: ArchiveState, content: Manifest) -> ArchiveState:
        """Commits *content*, with the same records in different files. Raises ArchiveConflictError."""
        return self._write(before, content, content, is_snapshot=True)

    def _write(
        self, before: ArchiveState | None, content: Manifest, written: Manifest, *, is_snapshot: bool
    ) -> ArchiveState:
        commit = ArchiveCommit(
            number=before.number + 1 if before else 1,
            commit_id=secrets.token_hex(8),
            parent=before.commit_id if before else "",
            is_snapshot=is_snapshot,
            manifest=written,
        )
        if not self._folder.create(path_of(commit.number), encode(commit)):
            raise ArchiveConflictError(
                location=self._folder.address,
                problem="a different export has committed to it meanwhile",
                action="start this export again when the other one has ended; it continues there",
            )
        return ArchiveState(number=commit.number, commit_id=commit.commit_id, manifest=content)

    def _names(self) -> frozenset[str]:
        return self._folder.entries(COMMITS_FOLDER)

    def _since_snapshot(self, last: int) -> dict[int, ArchiveCommit]:
        """Returns the commits from the last snapshot on, as far as they exist."""
        commits: dict[int, ArchiveCommit] = {}
        for number in range(last, 0, -1):
            text = self._folder.read(path_of(number))
            if text is None:
                break
            commits[number] = decode(text, location=self._folder.address)
            if commits[number].is_snapshot:
                break
        return commits


def number_of(name: str) -> int:
    """Returns the number of the commit with the file *name*; 0 for other files."""
    stem, _, ending = name.partition(".")
    return int(stem) if ending == "json" and stem.isascii() and stem.isdecimal() else 0


def read_archive(folder: StorageFolder) -> Manifest:
    """Returns the content of an archive after its last commit, whose files exist.

    Raises ArchiveIncompleteError, ArchiveDamagedError.
    """
    state = CommitLog(folder).read()
    if state is None:
        is_begun = PENDING_FOLDER in folder.entries()
        raise ArchiveIncompleteError(
            location=folder.address,
            problem="the export was not finished" if is_begun else "there is no archive: it has no commit",
            action="run the export again to its end" if is_begun else "name the folder that was exported to",
        )
    wrong = list(differences(state.manifest, folder.data()))
    if wrong:
        more = f" and {len(wrong) - FILES_NAMED_MAX} more" if len(wrong) > FILES_NAMED_MAX else ""
        raise ArchiveDamagedError(
            location=folder.address,
            problem="its files differ from its commits: " + "; ".join(wrong[:FILES_NAMED_MAX]) + more,
            action="restore an intact copy of it",
        )
    return state.manifest
