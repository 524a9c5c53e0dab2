"""An archive in an S3 object store. A killed export continues, and each file is written once under its final name."""

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mirrorflow_seed.archive import export_driver, restore_driver
from mirrorflow_seed.settings import job_of
from mirrorflow_seed.storage_folder import StorageFolder
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load, records
from tests.harness.object_store.store import CREDENTIALS, ObjectStore, object_store
from tests.integration.kafka.flows import Flow
from tests.integration.kafka.seeding import CORES, SeedProcess, files_of, session
from tests.integration.kafka.verifying import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")

Names = Callable[[], str]
RECORDS = 40_000
FILE_BYTES = 200_000
FILES_BEFORE_KILL = 8
# Besides the files, an export writes a plan, results and a commit, of about 2 kB each.
WRITTEN_MAX = 1.02


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with (
        pytest.MonkeyPatch.context() as environment,
        object_store(tmp_path_factory.mktemp("store")) as running,
    ):
        for name, value in CREDENTIALS.items():
            environment.setenv(name, value)
        yield running


@pytest.fixture(scope="module")
def spark(store: ObjectStore) -> "Iterator[SparkSession]":  # noqa: ARG001 its processes inherit the credentials
    assert "AWS_ACCESS_KEY_ID" in os.environ
    with session() as running:
        yield running


def test_a_killed_export_writes_each_file_once_and_copies_none(
    flow: Flow, spark: "SparkSession", store: ObjectStore, unique_topic: Names, tmp_path: Path
) -> None:
    """The driver is killed with kill -9, and the next export continues. Restore and verification read the store."""
    topic = flow.source.create_topic(unique_topic(), partitions=2)
    load(flow.source, topic, RECORDS, size_bytes=500)
    files, bucket = files_of(flow, topic), store.create_bucket("backup")
    address = store.address(bucket, "orders")
    folder = StorageFolder(address)
    given = {"archive": address, "archive.file.bytes": str(FILE_BYTES), "master": f"local[{CORES}]"}
    process = SeedProcess(
        files=files, folder=tmp_path, job={**given, "bytes.per.second": "2000000"}, command="export"
    ).start()
    try:
        wait_until("some files are written, or the process ends", partial(_has_begun, folder, process))
        assert process.running.running, process.running.tail()
    finally:
        process.close()
    kept = {result["path"]: result["size_bytes"] for result in results_in(folder)}
    # Each task may have written a file without its result.
    repeated = {path: size for path, size in folder.data().items() if path not in kept}
    assert len(repeated) <= CORES
    assert not folder.entries("_commits")

    assert export_driver.run(files, job_of(given), spark=spark) == 0

    present = folder.data()
    assert kept.items() <= present.items()
    assert sorted(offsets_in(folder)) == sorted(
        (topic, record.partition, record.offset) for record in records(flow.source, topic)
    )
    requests = [request for request in store.requests() if request.path.startswith(f"/{bucket}/")]
    assert not [request for request in requests if request.copied]
    written = sum(request.size_bytes for request in requests if request.method in {"PUT", "POST"})
    print(
        f"{written:,} bytes were written for {sum(present.values()):,} in {len(present)} files, {len(repeated)} again"
    )
    assert written - sum(repeated.values()) <= WRITTEN_MAX * sum(present.values())
    assert not folder.entries("_pending")
    assert restore_driver.run(files, job_of(given), spark=spark) == 0
    flow.assert_exact(topic)
    assert verify(files, spark, tmp_path / "out", archive=address).status == 0


def _has_begun(folder: StorageFolder, process: SeedProcess) -> bool:
    return len(results_in(folder)) > FILES_BEFORE_KILL or not process.running.running


def results_in(folder: StorageFolder) -> list[dict[str, Any]]:
    """Returns what tasks have exported for a commit that does not exist yet."""
    paths = [path for path in folder.files("_pending") if not path.endswith("/plan.json")]
    return [json.loads(content) for _, content in folder.read_each(paths)]


def offsets_in(folder: StorageFolder) -> list[tuple[str, int, int]]:
    """Returns (topic, partition, offset) of each record in the files of the store."""
    from pyarrow import parquet

    listed = []
    for path in folder.data():
        topic, partition = (part.partition("=")[2] for part in path.split("/")[:2])
        with folder.reading(path) as stream:
            offsets = parquet.read_table(stream, columns=["offset"])["offset"].to_pylist()
        listed += [(topic, int(partition), offset) for offset in offsets]
    return listed
