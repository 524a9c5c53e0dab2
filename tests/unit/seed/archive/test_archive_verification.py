"""A verification against an archive compares the archive's files with their digests, not only with the target."""

import asyncio
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.records import Record
from mirrorflow_seed.archive import archive_verification
from mirrorflow_seed.archive.archive_verification import _open, _task
from mirrorflow_seed.archive.manifest import ArchivedFile, Manifest
from mirrorflow_seed.archive.parquet_files import FileWriter
from mirrorflow_seed.errors import ArchiveDamagedError
from mirrorflow_seed.record_columns import CREATE_TIME, columns_of
from mirrorflow_seed.storage_folder import StorageFolder
from mirrorflow_seed.verify.offset_windows import VerifyRange
from tests.unit.connectors.flow_settings import settings
from tests.unit.seed.archive.test_restore_point import archived

ORDERS = TopicPartition("orders", 0)
TIMES = [1, 2, 3, 4]  # of the records of a file, at offsets 0, 2, 4, 6 of it


def opened(folder: StorageFolder, content: Manifest, start: int, end: int) -> int:
    """Opens a range for a comparison; returns the bytes of a read from its start."""
    verify_range = VerifyRange(
        topic=ORDERS.topic,
        partition=ORDERS.partition,
        target_topic="east.orders",
        source_from=start,
        source_to=end,
        target_from=0,
        target_to=9,
    )

    async def run() -> int:
        async with _open(_task(content, verify_range), settings(), folder) as sides:
            return len(cast("Any", sides["source"]).read_batches(ORDERS, start, 1 << 20))

    return asyncio.run(run())


def rewrite(folder: StorageFolder, file: ArchivedFile) -> None:
    """Writes other values into *file*, at the same offsets."""
    log = [
        Record(file.start + 2 * index, time_ms, None, b"x" if index == 3 else b"v")
        for index, time_ms in enumerate(TIMES)
    ]
    with folder.writing(file.path) as stream, FileWriter(stream) as writer:
        writer.add(columns_of(log, CREATE_TIME))
        writer.finish()


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_verification, "_target", AsyncMock())


@pytest.mark.usefixtures("target")
@pytest.mark.parametrize(("start", "end"), [(0, 16), (4, 12), (0, 8), (5, 9)])
def test_a_range_of_an_intact_archive_is_opened(tmp_path: Path, start: int, end: int) -> None:
    folder = StorageFolder(str(tmp_path))

    assert opened(folder, archived(folder, TIMES, TIMES), start, end) > 0


@pytest.mark.usefixtures("target")
@pytest.mark.parametrize(("start", "end"), [(0, 16), (4, 12), (5, 9)])
def test_the_error_contains_the_path_of_a_changed_file(tmp_path: Path, start: int, end: int) -> None:
    """A record after the range has changed: the file is compared as a whole where it begins."""
    folder = StorageFolder(str(tmp_path))
    content = archived(folder, TIMES, TIMES)
    rewrite(folder, content.partitions[ORDERS].files[1])

    with pytest.raises(ArchiveDamagedError, match="the records of topic=orders/1 differ from its commit"):
        opened(folder, content, start, end)


@pytest.mark.usefixtures("target")
def test_the_error_contains_the_path_of_a_file_that_is_not_parquet(tmp_path: Path) -> None:
    folder = StorageFolder(str(tmp_path))
    content = archived(folder, TIMES, TIMES)
    (tmp_path / content.partitions[ORDERS].files[0].path).write_bytes(b"no Parquet")

    with pytest.raises(ArchiveDamagedError, match="topic=orders/0"):
        opened(folder, content, 4, 8)
