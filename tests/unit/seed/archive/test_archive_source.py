"""Tests that an archive responds to the requests that a copier sends to a source cluster."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.records import Record, decode
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import batches_between
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_seed.archive.archive_source import ArchiveCluster, Spool
from mirrorflow_seed.archive.manifest import ArchivedConfig, ArchivedPartition, ArchivedTopic, Manifest
from mirrorflow_seed.record_columns import CREATE_TIME, columns_of

pytest.importorskip("pyarrow")

ORDERS = TopicPartition("orders", 1)
NOW_MS = 1_700_000_000_000


def manifest() -> Manifest:
    return Manifest(
        archive_id="abc",
        flow="f",
        source_alias="east",
        source_cluster_id="its-id",
        isolation="read_uncommitted",
        started="",
        finished="",
        topics=(
            ArchivedTopic(
                name="orders",
                topic_id="11111111-2222-3333-4444-555555555555",
                configs=(ArchivedConfig(name="cleanup.policy", value="compact", source=1),),
                partitions=(ArchivedPartition(number=1, start=10, end=100, files=()),),
            ),
        ),
    )


def spooled(records: Sequence[Record], *, start: int, end: int) -> Spool:
    spool = Spool(start=start, end=end, codec=0)
    if records:
        spool.add(columns_of(records, CREATE_TIME))
    spool.finish()
    return spool


def test_archive_reports_cluster_topics_and_settings() -> None:
    async def read() -> None:
        archive = ArchiveCluster("east", manifest())
        ends = {
            when: (await admin.list_offsets(archive, [ORDERS], when))[ORDERS]
            for when in (EARLIEST, LATEST, 5)
        }
        configs = await admin.describe_topic_configs(archive, ["orders", "unknown"])

        assert archive.cluster_id == "its-id"
        assert archive.metadata.topic_id("orders") == "11111111-2222-3333-4444-555555555555"
        assert [end.offset for end in ends.values()] == [10, 100, -1]
        assert [(entry.name, entry.value) for entry in configs["orders"]] == [("cleanup.policy", "compact")]
        assert "unknown" not in configs

    asyncio.run(read())


def test_archive_has_no_leader_epochs() -> None:
    async def read() -> None:
        ends = await admin.end_offset_for_leader_epoch(ArchiveCluster("east", manifest()), {ORDERS: 7})

        assert (ends[ORDERS].error, ends[ORDERS].end_offset) == (0, -1)

    asyncio.run(read())


def test_records_of_a_file_are_fetched_from_any_offset() -> None:
    records = [Record(20 + 3 * n, NOW_MS + n, b"k", b"v%d" % n, ((b"h", None),)) for n in range(9)]

    async def read(start: int) -> list[Record]:
        with spooled(records, start=20, end=60) as spool:
            archive = ArchiveCluster("east", manifest(), of=ORDERS, spool=spool)
            records_read = [
                record
                async for batch, response in batches_between(archive, ORDERS, start, 60)
                for record in decode(batch)
                if response.log_start_offset == 10 and response.high_watermark == 100
            ]
            assert archive.wanted_earlier is None
            return [record for record in records_read if record.offset >= start]

    assert asyncio.run(read(20)) == records
    assert asyncio.run(read(30)) == records[4:]
    assert asyncio.run(read(59)) == []


def test_gap_before_the_first_record_is_skipped() -> None:
    """Ranges without records have no file: the next file starts at the end of the previous one."""

    async def read() -> list[int]:
        with spooled([Record(50, NOW_MS, None, None)], start=10, end=60) as spool:
            archive = ArchiveCluster("east", manifest(), of=ORDERS, spool=spool)
            offsets = [batch.base_offset async for batch, _ in batches_between(archive, ORDERS, 10, 60)]
            assert archive.wanted_earlier is None
            return offsets

    assert asyncio.run(read()) == [50]


def test_offset_of_an_earlier_file_is_requested() -> None:
    async def read() -> None:
        with spooled([Record(50, NOW_MS, None, None)], start=50, end=60) as spool:
            archive = ArchiveCluster("east", manifest(), of=ORDERS, spool=spool)
            assert [batch async for batch in batches_between(archive, ORDERS, 45, 60)] == []
            assert archive.wanted_earlier == 45

    asyncio.run(read())


def test_a_fetch_of_a_partition_without_a_spool_returns_nothing() -> None:
    async def read() -> None:
        part = replace(manifest().topics[0].partitions[0], number=0)
        both = replace(
            manifest(),
            topics=(replace(manifest().topics[0], partitions=(part, *manifest().topics[0].partitions)),),
        )
        with spooled([Record(10, NOW_MS, None, None)], start=10, end=60) as spool:
            archive = ArchiveCluster("east", both, of=ORDERS, spool=spool)
            assert [
                batch async for batch in batches_between(archive, TopicPartition("orders", 0), 10, 60)
            ] == []

    asyncio.run(read())
