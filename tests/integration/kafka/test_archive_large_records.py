"""Large records are archived with Spark's default heap, because no record passes through the JVM."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.kafka.tools import digest, load
from tests.integration.kafka.flows import Flow
from tests.integration.kafka.seeding import files_of
from tests.integration.kafka.test_archive import archive, restore
from tests.integration.kafka.verifying import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")

MIB = 1 << 20
LIMITS = {"max.message.bytes": str(9 * MIB)}
PRODUCER = {"max.request.size": str(9 * MIB)}


@pytest.mark.more
@pytest.mark.parametrize("partitions", [1, 8])
@pytest.mark.parametrize(("count", "size_bytes"), [(300, MIB), (130, 8 * MIB)])
def test_large_records_are_archived_and_restored(
    flow: Flow,
    spark: "SparkSession",
    unique_topic: Callable[[], str],
    tmp_path: Path,
    count: int,
    size_bytes: int,
    partitions: int,
) -> None:
    topic = flow.source.create_topic(unique_topic(), partitions=partitions, config=LIMITS)
    load(flow.source, topic, count, size_bytes=size_bytes, single_record_batches=True, producer=PRODUCER)
    files, folder = files_of(flow, topic), tmp_path / "archive"

    assert archive(files, spark, folder, archive_file_bytes=str(128 * MIB)).records == count
    assert restore(files, spark, folder, archive_compare="false").records == count

    assert digest(flow.source, topic) == digest(flow.target, flow.remote(topic))
    assert verify(files, spark, tmp_path / "out", archive=folder.as_uri()).status == 0
