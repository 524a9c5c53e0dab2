"""Consumer groups, topic settings and ACLs in archives.

A restored group continues at its next record and skips none.
"""

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mirrorflow_seed.errors import ArchiveUnfitError
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load, records
from tests.integration.kafka.flows import Flow, now_ms
from tests.integration.kafka.groups import consume, group_offsets, member, put_group
from tests.integration.kafka.seeding import files_of
from tests.integration.kafka.test_acl_sync import acl, add, topic_acls
from tests.integration.kafka.test_archive import archive, manifest_of, restore
from tests.integration.kafka.test_failures_access import client
from tests.integration.kafka.verifying import T0, plain, verify, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")

Names = Callable[[], str]


@pytest.fixture(scope="module")
def guarded() -> Iterator[KafkaCluster]:
    """A source with an authorizer. Clients of the second listener are `mirror`, who has no permissions by default."""
    with KafkaCluster(name="archived", listeners=("PLAINTEXT", "SASL_PLAINTEXT"), authorizer=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def rebuilt() -> Iterator[KafkaCluster]:
    """A target with an authorizer. Clients without a password may do everything."""
    with KafkaCluster(name="rebuilt", authorizer=True) as cluster:
        yield cluster


def test_a_restored_group_continues_at_its_next_record_and_skips_none(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
) -> None:
    """The restored offsets are those of the last increment, translated across markers.

    A group with members is not moved.
    """
    stem = unique_topic()
    topic, other = flow.source.create_topic(f"{stem}-a", partitions=2), flow.source.create_topic(f"{stem}-b")
    half, done, live, excluded = (f"{stem}-{name}" for name in ("half", "done", "live", "other"))
    load(flow.source, topic, 4_000, transactional_id=topic, transaction_records=37)
    load(flow.source, other, 100)
    files, folder = files_of(flow, f"{stem}-.*"), tmp_path / "archive"
    put_group(flow.source, half, {(topic, 0): 3})
    archive(files, spark, folder)
    # Without new records, the groups alone make a new commit.
    ends = {number: flow.source.end_offsets(topic)[number] for number in (0, 1)}
    put_group(
        flow.source, half, {(topic, 0): 555, (topic, 1): 17, (other, 0): 40}, metadata={(topic, 0): "state"}
    )
    put_group(flow.source, done, {(topic, 0): ends[0], (topic, 1): ends[1]})
    put_group(flow.source, live, {(topic, 0): 10})
    put_group(flow.source, excluded, {(topic, 0): 10})
    wanted = {"archive.groups": f"{stem}-.*", "archive.groups.exclude": excluded}
    exported = archive(files, spark, folder, **wanted)
    assert exported.records == 0
    assert "The offsets of 3 groups are archived." in exported.message
    assert [group["name"] for group in manifest_of(tmp_path)["groups"]] == sorted((half, done, live))
    copy = flow.target.create_topic(flow.remote(topic), partitions=2)
    consumer = member(flow.target, live, copy, **{"auto.offset.reset": "earliest"})
    try:
        while not consumer.assignment():
            consumer.poll(0.2)
        restored = restore(files, spark, folder, **wanted)
    finally:
        consumer.close()

    assert "The offsets of 2 groups are restored: 5 exactly." in restored.message
    assert "1 groups are not restored: they have members on the target." in restored.message
    unread = [
        record.value
        for record in records(flow.source, topic)
        if record.partition == 0 and record.offset >= 555
    ]
    read = [value for partition, _, value in consume(flow.target, half, copy) if partition == 0]
    assert read == unread
    assert consume(flow.target, done, copy) == []
    assert not group_offsets(flow.target, excluded)
    # A group that has advanced in the meantime is not moved back.
    position = group_offsets(flow.target, half)[flow.remote(other), 0]
    put_group(flow.target, half, {(flow.remote(other), 0): position + 7})
    restore(files, spark, folder, **wanted)
    assert group_offsets(flow.target, half)[flow.remote(other), 0] == position + 7


def test_acls_and_settings_are_restored_and_missing_permissions_are_reported(
    guarded: KafkaCluster,
    rebuilt: KafkaCluster,
    spark: "SparkSession",
    unique_topic: Names,
    tmp_path: Path,
) -> None:
    """The result names what could not be read. The next increment with the permission contains it."""
    topic = guarded.create_topic(unique_topic(), config={"retention.ms": "864000000"})
    load(guarded, topic, 300)
    add(guarded, acl(topic, "alice"))
    for operation in ("READ", "DESCRIBE"):
        guarded.allow(operation, "TOPIC", topic)
    as_mirror = {f"source.cluster.{key}": value for key, value in client(guarded).items()}
    flow = Flow.new(guarded, rebuilt, tmp_path, connector=as_mirror)
    files, folder = files_of(flow, topic), tmp_path / "archive"

    limited = archive(files, spark, folder)
    assert limited.records == 300
    assert "Topic settings are not archived" in limited.message
    assert "Topic ACLs are not archived" in limited.message

    guarded.allow("DESCRIBE_CONFIGS", "TOPIC", topic)
    guarded.allow("DESCRIBE", "CLUSTER", "kafka-cluster")
    complete = archive(files, spark, folder)
    assert "not archived" not in complete.message
    restored = restore(files, spark, folder)

    assert restored.phase.value == "Succeeded"
    assert rebuilt.topic_config(flow.remote(topic))["retention.ms"] == "864000000"
    assert acl(flow.remote(topic), "alice") in topic_acls(rebuilt, flow.remote(topic))


def test_a_restore_to_a_point_in_time_has_the_records_and_groups_of_that_time(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
) -> None:
    """One file has records before and after that time. A copy that has later records is refused."""
    topic = flow.source.create_topic(unique_topic(), partitions=2)
    group = f"{topic}-group"
    files, folder = files_of(flow, topic), tmp_path / "archive"
    wanted = {"archive.groups": group}
    load(flow.source, topic, 3_000)
    put_group(flow.source, group, {(topic, 0): 100})
    archive(files, spark, folder, **wanted)
    load(flow.source, topic, 1_000)
    before = records(flow.source, topic)
    until_ms = max(record.timestamp for record in before)
    wait_until("the clock shows a later time", lambda: now_ms() > until_ms)
    load(flow.source, topic, 2_000)
    put_group(flow.source, group, {(topic, 0): 2_000})
    archive(files, spark, folder, **wanted)
    until = dt.datetime.fromtimestamp(until_ms / 1_000, dt.UTC).isoformat(timespec="milliseconds")

    restored = restore(files, spark, folder, archive_until=until, **wanted)

    copies = records(flow.target, flow.remote(topic))
    assert [(copy.partition, copy.timestamp, copy.value) for copy in copies] == [
        (record.partition, record.timestamp, record.value) for record in before
    ]
    assert "not" not in restored.message
    assert group_offsets(flow.target, group)[flow.remote(topic), 0] <= 100
    point = {"archive": folder.as_uri(), "archive_until": until, "window_offsets": "1000"}
    then = verify(files, spark, tmp_path / "then", **point)
    assert (0, len(before)) == (then.status, then.report.source_records), then.not_equal
    # The remaining records can be restored later. Afterwards, an earlier time is refused.
    restore(files, spark, folder, **wanted)
    flow.assert_exact(topic)
    later = verify(files, spark, tmp_path / "later", **point)
    counts = (later.report.source_records, later.report.target_records)
    assert (0, (len(before), len(before))) == (later.status, counts), later.not_equal
    whole = verify(files, spark, tmp_path / "whole", archive=folder.as_uri())
    assert (0, 6_000) == (whole.status, whole.report.source_records), whole.not_equal
    # A copy from a different program, with one record that differs.
    made = Flow.new(flow.source, flow.target, tmp_path / "made")
    contents = [
        (record.partition, record.timestamp, record.key, record.value, list(record.headers))
        for record in before
    ]
    contents[7] = (*contents[7][:3], b"other", contents[7][4])
    write(flow.target, flow.target.create_topic(made.remote(topic), partitions=2), contents)
    differing = verify(files_of(made, topic), spark, tmp_path / "differing", **point)
    assert 1 == differing.status
    assert [("changed", 7, 7)] == differing.differences(), differing.not_equal
    with pytest.raises(ArchiveUnfitError, match="up to a later time"):
        restore(files, spark, folder, archive_until=until, **wanted)


def test_ranges_of_partitions_are_restored_and_the_connector_and_groups_continue_after_them(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
) -> None:
    """Ranges may begin and end inside files.

    The connector copies partitions that are not selected; no group skips a record of the copy.
    """
    topic, other = (
        flow.source.create_topic(unique_topic(), partitions=3),
        flow.source.create_topic(unique_topic()),
    )
    for partition in range(3):
        load(flow.source, topic, 1_000, partition=partition)
    load(flow.source, other, 10)
    inside, before, beyond = (f"{topic}-{name}" for name in ("inside", "before", "beyond"))
    for group, offset in ((inside, 500), (before, 50), (beyond, 950)):
        put_group(flow.source, group, {(topic, 0): 300, (topic, 1): offset, (topic, 2): offset})
    files, folder = files_of(flow, f"{topic}|{other}"), tmp_path / "archive"
    wanted = {"archive.groups": f"{topic}-.*"}
    archive(files, spark, folder, **wanted)
    archived, copy = records(flow.source, topic), flow.remote(topic)
    ranges = {"archive_partitions": f"{topic}-1:600:900,{topic}-2"}
    # The target has the records before a range, so that a group that has yet to read them does not skip them.
    restore(files, spark, folder, archive_partitions=f"{topic}-1:100:600", **{"archive.groups": ""})

    restored = restore(files, spark, folder, **ranges, **wanted)

    assert "not" not in restored.message
    kept = [
        (record.partition, record.timestamp, record.value)
        for record in archived
        if record.partition == 2 or (record.partition == 1 and 100 <= record.offset < 900)
    ]
    assert kept == [
        (record.partition, record.timestamp, record.value) for record in records(flow.target, copy)
    ]
    assert not flow.target.has_topic(flow.remote(other))
    restore(files, spark, folder, **ranges, **wanted)
    assert 1_800 == len(records(flow.target, copy)), "a second start restores nothing again"
    with pytest.raises(ArchiveUnfitError, match="later time or offset"):
        restore(files, spark, folder, archive_partitions=f"{topic}-1:100:800", **wanted)
    with pytest.raises(ArchiveUnfitError, match="begins at offset 950"):
        restore(files, spark, folder, archive_partitions=f"{topic}-1:950:", **wanted)

    load(flow.source, topic, 100, partition=1)
    with flow.replicator(f"{topic}|{other}") as replicator:
        wait_until("everything is copied", lambda: len(records(flow.target, copy)) == 3_000)
        replicator.stop()
    source = [(record.partition, record.offset, record.value) for record in records(flow.source, topic)]
    copied = [(record.partition, record.value) for record in records(flow.target, copy)]
    assert [(number, value) for number, offset, value in source if number != 1 or offset >= 100] == copied
    for group, first in ((inside, 500), (before, 100), (beyond, 900)):
        # The checkpoint connector sets the offsets of partitions that were not restored.
        assert {1, 2} == {partition for _, partition in group_offsets(flow.target, group)}
        put_group(flow.target, group, {(copy, 0): 0})
        read = [value for partition, _, value in consume(flow.target, group, copy) if partition == 1]
        assert read == [value for number, offset, value in source if number == 1 and offset >= first], group


def test_first_records_that_the_target_has_lost_are_missing_from_an_archive_at_a_point_in_time(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
) -> None:
    """They are missing even if the target has only later records or none."""
    topic = flow.source.create_topic(unique_topic())
    copy = flow.remote(topic)
    write(flow.source, topic, plain(2_500))
    files, folder = files_of(flow, topic), tmp_path / "archive"
    archive(files, spark, folder)
    until = dt.datetime.fromtimestamp((T0 + 1_999) / 1_000, dt.UTC).isoformat(timespec="milliseconds")
    point = {"archive": folder.as_uri(), "archive_until": until, "window_offsets": "1000"}

    def is_missing(name: str, before: int) -> None:
        """Returns the records of that time that the target lacks after its offsets *before* were deleted."""
        flow.target.delete_records(copy, {0: before})
        left = {record.timestamp - T0 for record in records(flow.target, copy)}
        lost = [number for number in range(2_000) if number not in left]
        assert lost
        outcome = verify(files, spark, tmp_path / name, **point)
        first = [("missing", number, -1) for number in lost[:10]]
        assert (1, len(lost), first) == (
            outcome.status,
            outcome.report.differences,
            outcome.differences()[: len(first)],
        ), outcome.not_equal

    restore(files, spark, folder, archive_until=until)
    is_missing("cut", 300)
    # The comparison would detect the missing first records.
    restore(files, spark, folder, archive_compare="false")
    end = flow.target.end_offsets(copy)[0]
    is_missing("cut-and-ahead", 600)
    is_missing("only-later-records", end - 100)
    is_missing("nothing", end)
