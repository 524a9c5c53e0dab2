"""An export maintains an Iceberg table. A query of it with PyIceberg returns what a consumer of the source reads."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.kafka.tools import load, records
from tests.integration.kafka.flows import Flow
from tests.integration.kafka.seeding import SeedProcess, files_of

pytest.importorskip("pyspark")
pytest.importorskip("pyiceberg")


def test_each_increment_is_in_the_table(flow: Flow, unique_topic: Callable[[], str], tmp_path: Path) -> None:
    """There are two exports. The catalog comes from PyIceberg's own environment variables."""
    from pyiceberg.catalog.sql import SqlCatalog

    (tmp_path / "lake").mkdir()
    uri, warehouse = f"sqlite:///{tmp_path}/lake.db", f"file://{tmp_path}/lake"
    catalog = SqlCatalog("lake", uri=uri, warehouse=warehouse)
    catalog.create_namespace("archives")
    topic = flow.source.create_topic(unique_topic(), partitions=2)
    export = SeedProcess(
        files=files_of(flow, topic),
        folder=tmp_path,
        command="export",
        job={"archive": str(tmp_path / "archive"), "archive.iceberg.table": "lake.archives.orders"},
        environment={"PYICEBERG_CATALOG__LAKE__URI": uri, "PYICEBERG_CATALOG__LAKE__WAREHOUSE": warehouse},
    )
    try:
        for count in (2_000, 500):
            load(flow.source, topic, count, size_bytes=100, keys=50, headers=1)
            assert export.start().wait()["status"] == 0, export.running.tail()

            rows = catalog.load_table("archives.orders").scan().to_arrow().to_pylist()
            assert sorted(
                (row["topic"], row["partition"], row["offset"], row["timestamp_ms"], row["key"], row["value"])
                for row in rows
            ) == sorted(
                (topic, record.partition, record.offset, record.timestamp, record.key, record.value)
                for record in records(flow.source, topic)
            )
        assert len(catalog.load_table("archives.orders").snapshots()) == 2
    finally:
        catalog.engine.dispose()
