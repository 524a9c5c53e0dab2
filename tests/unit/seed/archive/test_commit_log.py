"""Tests that the commits of an archive follow each other, and that a missing or foreign commit is detected."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mirrorflow_seed.archive.commit_log import (
    SNAPSHOT_EVERY,
    ArchiveCommit,
    ArchiveState,
    CommitLog,
    decode,
    encode,
    path_of,
    read_archive,
)
from mirrorflow_seed.archive.manifest import Manifest
from mirrorflow_seed.errors import ArchiveConflictError, ArchiveDamagedError, ArchiveIncompleteError
from mirrorflow_seed.storage_folder import StorageFolder
from tests.unit.seed.archive.test_archive_manifest import increment, manifest

pytest.importorskip("pyarrow")


def filled(folder: StorageFolder, commits: int) -> ArchiveState:
    """Commits as many increments, and returns the last state."""
    log, state = CommitLog(folder), None
    for number in range(commits):
        state = log.append(state, increment(number * 10, number * 10 + 10))
    assert state is not None
    return state


def write_files(folder: StorageFolder, content: Manifest) -> None:
    for file in content.files:
        folder.write(file.path, b"x" * file.size_bytes)


@pytest.mark.parametrize("commits", [1, 2, SNAPSHOT_EVERY - 1, SNAPSHOT_EVERY, 2 * SNAPSHOT_EVERY + 3])
def test_increments_are_read_as_one_archive(tmp_path: Path, commits: int) -> None:
    folder = StorageFolder(str(tmp_path))
    state = filled(folder, commits)
    write_files(folder, state.manifest)

    assert CommitLog(folder).read() == state
    content = read_archive(folder)
    [partition] = content.partitions.values()
    assert (partition.start, partition.end) == (0, 10 * commits)
    assert len(partition.files) == commits


def test_commits_before_the_last_snapshot_are_not_read(tmp_path: Path) -> None:
    folder = StorageFolder(str(tmp_path))
    state = filled(folder, SNAPSHOT_EVERY + 2)
    for number in range(1, SNAPSHOT_EVERY):
        folder.delete(path_of(number))

    assert CommitLog(folder).read() == state


def test_the_second_of_two_exports_that_continue_a_commit_fails(tmp_path: Path) -> None:
    folder = StorageFolder(str(tmp_path))
    state = filled(folder, 3)
    first = CommitLog(folder).append(state, increment(30, 40))

    with pytest.raises(ArchiveConflictError, match="committed to it meanwhile"):
        CommitLog(folder).append(state, increment(30, 50))
    with pytest.raises(ArchiveConflictError):
        CommitLog(folder).replace(state, state.manifest)
    assert CommitLog(folder).read() == first
    assert not [name for name in folder.entries("_commits") if not name.endswith(".json")]


def test_a_compaction_replaces_the_content(tmp_path: Path) -> None:
    folder = StorageFolder(str(tmp_path))
    state = filled(folder, 3)
    content = replace(state.manifest, topics=increment(0, 30).topics)

    CommitLog(folder).replace(state, content)

    read = CommitLog(folder).read()
    assert read is not None
    assert (read.number, read.manifest) == (4, content)


def test_a_missing_or_foreign_commit_is_reported_as_damage(tmp_path: Path) -> None:
    folder = StorageFolder(str(tmp_path))
    filled(folder, 4)
    kept = folder.read(path_of(3)) or b""
    folder.write(path_of(3), kept.replace(json.loads(kept)["parent"].encode(), b"0" * 16))
    with pytest.raises(ArchiveDamagedError, match="commit 3 does not continue commit 2"):
        CommitLog(folder).read()
    folder.delete(path_of(3))
    with pytest.raises(ArchiveDamagedError, match="missing"):
        CommitLog(folder).read()


def test_a_commit_with_a_gap_is_reported_as_damage(tmp_path: Path) -> None:
    folder = StorageFolder(str(tmp_path))
    state = filled(folder, 1)
    commit = ArchiveCommit(
        number=2, commit_id="x", parent=state.commit_id, is_snapshot=False, manifest=increment(11, 20)
    )
    folder.write(path_of(2), encode(commit))

    with pytest.raises(ArchiveDamagedError, match="commit 2: orders-0 ends at 10 and continues at 11"):
        CommitLog(folder).read()


def test_a_folder_without_a_commit_is_no_archive_and_the_error_names_missing_files(tmp_path: Path) -> None:
    folder = StorageFolder(str(tmp_path))
    with pytest.raises(ArchiveIncompleteError, match="it has no commit"):
        read_archive(folder)
    folder.write("_pending/00000001/plan.json", b"")
    with pytest.raises(ArchiveIncompleteError, match="not finished"):
        read_archive(folder)
    filled(folder, 2)
    with pytest.raises(ArchiveDamagedError, match="part-0 is missing; "):
        read_archive(folder)


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"[]", b'{"format": 3}', b'{"format": 5}'],
    ids=["empty", "object", "list", "earlier format", "later format"],
)
def test_an_invalid_commit_is_refused(text: bytes) -> None:
    with pytest.raises(ArchiveDamagedError):
        decode(text, location="here")


def test_a_commit_is_unchanged_by_a_round_trip_and_a_truncated_commit_is_refused() -> None:
    commit = ArchiveCommit(number=1, commit_id="a", parent="", is_snapshot=True, manifest=manifest())

    assert decode(encode(commit), location="here") == commit
    for text in (encode(commit)[:-20], encode(commit).replace(b'"files"', b'"f"')):
        with pytest.raises(ArchiveDamagedError):
            decode(text, location="here")
