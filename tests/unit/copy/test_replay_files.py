"""Replay files replace older ones, and their number is bounded."""

import json
import tempfile
from pathlib import Path

import pytest

from mirrorflow_core.errors import PartitionError
from mirrorflow_replicator.copy.replay_files import FILES_MAX, ReplayFiles
from tests.unit.core.copying.stubs import begun_copier, new_session

NOW_MS = 1_700_000_000_000


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The temporary folder of the process."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("mirrorflow-replays-*/*.json"))


def test_only_the_newest_files_of_a_process_are_kept(folder: Path) -> None:
    files = ReplayFiles()
    session = new_session(partitions=FILES_MAX + 5)

    for partition in range(FILES_MAX + 5):
        files.write(begun_copier(NOW_MS, session, partition))

    partitions = {json.loads(file.read_text())["source"]["items"][1] for file in files_in(folder)}
    assert partitions == set(range(5, FILES_MAX + 5))


def test_a_partition_has_one_file(folder: Path) -> None:
    files = ReplayFiles()
    copier = begun_copier(NOW_MS)

    files.write(copier)
    files.write(copier)

    assert len(files_in(folder)) == 1


def test_partitions_that_do_not_copy_are_written_first(folder: Path) -> None:
    session = new_session(partitions=FILES_MAX + 1)
    copiers = [begun_copier(NOW_MS, session, partition) for partition in range(FILES_MAX + 1)]
    copiers[-1].stop(PartitionError("it is broken", topic="orders", partition=FILES_MAX))

    ReplayFiles().write_some(copiers)

    names = {file.name for file in files_in(folder)}
    assert len(names) == FILES_MAX
    assert f"orders-{FILES_MAX}.json" in names
