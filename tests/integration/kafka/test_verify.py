"""Verification on real Spark between real brokers.

Equal copies are reported as equal, and differences at their offsets.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mirrorflow_core.errors import AuthenticationFailedError
from mirrorflow_kafka.admin import admin
from mirrorflow_seed.archive import archive_verification, export_driver, restore_driver
from mirrorflow_seed.errors import EXIT_NOTHING_SELECTED, NothingSelectedError
from mirrorflow_seed.seed import seed_driver
from mirrorflow_seed.settings import FlowFiles, job_of
from mirrorflow_seed.verify import planning_tasks, verify_driver, verify_plan
from mirrorflow_seed.verify.key_lookup import REWRITTEN
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.compaction import COMPACTED, force_compaction
from tests.harness.kafka.installation import write_properties
from tests.harness.kafka.mm2 import MirrorMaker
from tests.harness.kafka.processes import free_port, wait_until
from tests.harness.kafka.tools import load
from tests.integration.kafka.flows import Flow, call_cluster
from tests.integration.kafka.seeding import SeedProcess, files_of
from tests.integration.kafka.verifying import plain, verify, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")

COMMAND_WAIT_S = 200.0  # a JVM start and a few seconds on a busy machine
Names = Callable[[], str]
SMALLER = {"window_offsets": "500", "split_windows": "2"}
SMALL = {"window_offsets": "1000", "split_windows": "2"}  # so that partitions are split


def test_a_copy_of_the_connector_is_equal(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Splits inside partitions match, and identical batches are not decoded.

    Records that are not yet copied are no difference.
    """
    topic = flow.source.create_topic(unique_topic(), partitions=3)
    load(flow.source, topic, 6_000, size_bytes=200, keys=100, headers=2, codec="lz4")
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up(partitions=3)
        replicator.stop()  # stopped gracefully, so that positions are stored
    files = files_of(flow, topic)

    outcome = verify(files, spark, tmp_path / "whole", **SMALLER)

    assert [] == outcome.not_equal
    assert 0 == outcome.status, outcome.report
    assert (6_000, 6_000) == (outcome.report.source_records, outcome.report.target_records)
    assert outcome.report.windows.total == outcome.report.windows.equal >= 12
    rows = spark_rows(spark, outcome.folder)
    assert sum(row.source_count for row in rows) == 6_000
    files_of_table = [path.name for path in (outcome.folder / "windows").glob("*.parquet")]
    assert files_of_table
    assert not [name for name in files_of_table if "driver" in name], "tasks write the table"
    assert sum(row.digested_count for row in rows) < 3_000
    assert {"a run/1"} == {row.run_id for row in rows}

    monkeypatch.setattr(verify_plan, "READS_OF_TASK", 1)  # each partition is planned in a task of its own
    planned_in_tasks = verify(files, spark, tmp_path / "tasks", **SMALLER)
    assert (0, outcome.report.windows) == (planned_in_tasks.status, planned_in_tasks.report.windows)
    assert outcome.report.source_records == planned_in_tasks.report.source_records

    sampled = verify(files, spark, tmp_path / "sample", sample="0.3", run_id="2", **SMALLER)
    assert 0 == sampled.status
    assert 0 < sampled.report.windows.equal < outcome.report.windows.equal

    load(flow.source, topic, 200)
    lagging = verify(files, spark, tmp_path / "behind", **SMALLER)
    assert [] == lagging.not_equal
    assert (0, 200) == (lagging.status, lagging.summary["behindRecords"])


def spark_rows(spark: "SparkSession", folder: Path) -> list[Any]:
    rows: list[Any] = spark.read.parquet(str(folder / "windows")).collect()
    return rows


def test_each_kind_of_difference_is_reported_at_its_offsets(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
):
    """Each partition has one kind of difference, except the last one, which is equal but has different batches.

    The result keeps keys.
    """
    topic = flow.source.create_topic(unique_topic(), partitions=9)
    copy = flow.target.create_topic(flow.remote(topic), partitions=9)
    for partition in range(9):
        batch_records = plain(2_500, partition)
        write(flow.source, topic, batch_records)
        number, timestamp, key, value, headers = batch_records[1_234]
        match partition:
            case 0:
                batch_records[1_234] = (number, timestamp, key, b"other", headers)
            case 1:
                del batch_records[1_234]
            case 2:
                batch_records.insert(1_235, batch_records[1_234])
            case 3:
                batch_records[1_234], batch_records[1_235] = batch_records[1_235], batch_records[1_234]
            case 4:
                batch_records[1_234] = (number, timestamp, key, value, headers[::-1])
            case 5:
                batch_records[1_234] = (number, timestamp + 1, key, value, headers)
            case 6:
                batch_records[1_234] = (number, timestamp, None, value, headers)
            case 7:
                del batch_records[0]
        write(flow.target, copy, batch_records)

    outcome = verify(files_of(flow, topic), spark, tmp_path / "out", output_keys="true", **SMALL)

    assert 1 == outcome.status
    [window] = [window for window in outcome.not_equal if window["partition"] == 0]
    [changed] = window["first"]
    assert len(changed["sourceDigest"]) == len(changed["targetDigest"]) == 32
    assert changed["sourceDigest"] != changed["targetDigest"]
    for partition, name in {0: "value", 4: "headers", 5: "timestamp", 6: "key"}.items():
        assert [("changed", 1_234, 1_234)] == outcome.differences(partition), outcome.not_equal
        assert [[name]] == outcome.changed_fields(partition)
    assert [("missing", 1_234, -1)] == outcome.differences(1)
    assert [("extra", -1, 1_235)] == outcome.differences(2)
    assert [("moved", 1_234, 1_235), ("moved", 1_235, 1_234)] == outcome.differences(3)
    assert [("missing", 0, -1)] == outcome.differences(7)
    assert [] == outcome.differences(8)
    for partition in (0, 1, 2, 4, 5, 6):  # the key of partition 6 differs, and is that of the source
        assert ["k1234"] == outcome.keys(partition)
    assert ["k1234", "k1235"] == outcome.keys(3)
    assert ["k0"] == outcome.keys(7)
    assert (7, 1) == (outcome.report.windows.different, outcome.report.windows.reordered)
    assert {(1_000, 2_000)} == {
        (window["fromOffset"], window["toOffset"]) for window in outcome.not_equal if window["partition"] != 7
    }
    assert b"other" not in (outcome.folder / "report.html").read_bytes()


def test_compacted_topics_are_compared_by_the_latest_record_of_each_key(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
):
    """Only the target was compacted. In partition 1, an older value of a key is the last one.

    Each log is read once, regardless of the number of classes of its keys.
    """
    compacted = {"cleanup.policy": "compact"}
    topic = flow.source.create_topic(unique_topic(), partitions=2, config=compacted)
    copy = flow.target.create_topic(flow.remote(topic), partitions=2, config=compacted)
    for partition in range(2):
        older, newer = plain(2_000, partition), plain(2_000, partition, first=10_000)
        newer = [(*old[:3], new[3], new[4]) for old, new in zip(older, newer, strict=True)]
        write(flow.source, topic, older + newer)
        write(flow.target, copy, newer if partition == 0 else [*newer, older[7]])

    outcome = verify(files_of(flow, topic), spark, tmp_path / "out", keys_max="200", output_keys="true")

    assert 1 == outcome.status
    assert ["k7"] == outcome.keys(1)
    assert [("changed", 2_007, 2_000)] == outcome.differences(1)
    assert [] == outcome.differences(0)
    [window] = outcome.not_equal
    assert ["value"] == window["first"][0]["fields"]
    assert 1 == outcome.report.windows.different
    assert outcome.report.windows.total > 30
    assert (4_000, 4_000) == (outcome.report.source_records, outcome.report.target_records)
    logs = log_bytes(flow.source, topic) + log_bytes(flow.target, copy)
    assert 0.9 * logs <= outcome.report.cost.bytes_read <= 1.1 * logs


def test_keys_that_are_written_again_while_a_log_cleaner_runs_are_undecided(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Between plan and comparison, the source's cleaner removes their older records. The newest ones lie after the
    planned end.

    In partition 1, a record was never copied, which is still a difference.
    """
    topic = flow.source.create_topic(unique_topic(), partitions=2, config=COMPACTED)
    copy = flow.target.create_topic(flow.remote(topic), partitions=2, config={"cleanup.policy": "compact"})
    for partition in range(2):
        write(flow.source, topic, plain(300, partition))
        write(
            flow.target,
            copy,
            [*plain(100, partition), *plain(200 - partition, partition, first=100 + partition)],
        )

    def rewrite() -> None:
        for partition in range(2):
            again = [(*record[:3], b"newer", record[4]) for record in plain(10, partition)]
            write(flow.source, topic, again)
            force_compaction(flow.source, topic, partition)

    after_plan(monkeypatch, rewrite)
    outcome = verify(files_of(flow, topic), spark, tmp_path / "out")

    windows = {window["partition"]: window for window in outcome.not_equal}
    assert ("undecided", REWRITTEN, []) == tuple(windows[0][key] for key in ("outcome", "reason", "first"))
    assert ("different", [("missing", 100, -1)]) == (windows[1]["outcome"], outcome.differences(1))


def test_a_topic_that_is_deleted_after_the_plan_is_undecided_and_the_others_are_compared(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One topic is deleted on the target, and a second, compacted topic on the source."""
    topics = [flow.source.create_topic(unique_topic()) for _ in range(2)]
    topics.append(flow.source.create_topic(unique_topic(), config={"cleanup.policy": "compact"}))
    for topic in topics:
        write(flow.source, topic, plain(300))
        write(flow.target, flow.target.create_topic(flow.remote(topic)), plain(300))

    def delete() -> None:
        flow.target.delete_topic(flow.remote(topics[1]))
        flow.source.delete_topic(topics[2])

    after_plan(monkeypatch, delete)
    outcome = verify(files_of(flow, ",".join(topics)), spark, tmp_path / "out")

    assert {
        topics[1]: f"{flow.target.name} has deleted {flow.remote(topics[1])} while it was being verified.",
        topics[2]: f"{flow.alias} has deleted {topics[2]} while it was being verified.",
    } == {window["topic"]: window["reason"] for window in outcome.not_equal}
    assert (1, 1, 2) == (
        outcome.status,
        outcome.report.windows.equal,
        outcome.report.windows.undecided,
    )


def after_plan(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> None:
    """Makes verifications call *change* between their plan and their comparison."""
    plan = planning_tasks.plan_verification

    def plan_then_change(*arguments: Any, **named: Any) -> Any:
        planned = plan(*arguments, **named)
        change()
        return planned

    monkeypatch.setattr(verify_driver, "plan_verification", plan_then_change)


def log_bytes(cluster: KafkaCluster, topic: str) -> int:
    """Returns the size of all records of *topic* as fetched."""

    sizes = call_cluster(cluster, admin.log_sizes)
    return sum(size for partition, size in sizes.items() if partition.topic == topic)


def test_aborted_records_are_ignored_and_inserted_headers_are_expected(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
):
    """The source is transactional and is read with read_committed. The flow inserts a header."""
    topic = flow.source.create_topic(unique_topic())
    load(
        flow.source,
        topic,
        3_000,
        transactional_id=f"t-{flow.alias}",
        transaction_records=50,
        abort_every=3,
    )
    lines = {
        "source.consumer.isolation.level": "read_committed",
        "transforms": "site",
        "transforms.site.type": "InsertHeader",
        "transforms.site.header": "site",
        "transforms.site.value.literal": "east",
    }
    with flow.replicator(topic, lines) as replicator:
        replicator.wait_until_caught_up()
        replicator.stop()

    outcome = verify(files_of(flow, topic, lines), spark, tmp_path / "out", **SMALL)
    assert [] == outcome.not_equal
    assert 0 == outcome.status, outcome.report
    assert 0 < outcome.report.source_records == outcome.report.target_records < 3_000

    untransformed = {key: value for key, value in lines.items() if "transforms" not in key}
    outcome_without = verify(files_of(flow, topic, untransformed), spark, tmp_path / "bare", **SMALL)
    assert (1, 0) == (outcome_without.status, outcome_without.report.windows.equal)


def test_an_open_transaction_is_reported_with_its_producer(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
):
    """On the target, the records after the transaction are undecided.

    On the source of a read-committed flow, a note has its first offset.
    """
    topic = flow.source.create_topic(unique_topic())
    copy = flow.target.create_topic(flow.remote(topic))
    write(flow.source, topic, plain(600))
    write(flow.target, copy, plain(500))
    for cluster, name in ((flow.target, copy), (flow.source, topic)):
        load(cluster, name, 100, transactional_id=f"{name}-open", leave_open=True, transaction_records=100)

    committed = {"source.consumer.isolation.level": "read_committed"}
    outcome = verify(files_of(flow, topic, committed), spark, tmp_path / "out", **SMALL)

    [window] = outcome.not_equal
    assert (1, "undecided") == (outcome.status, window["outcome"])
    transaction = (
        r"has an open transaction from offset {} on, of producer \d+ \(epoch 0\), whose last record is of 20"
    )
    assert re.match(f"The target {transaction.format(500)}", window["reason"]), window["reason"]
    [note] = outcome.summary["notes"]
    assert re.match(f"{topic}-0: the source {transaction.format(600)}", note), note


def test_a_copy_of_java_is_equal_and_split_by_its_offset_syncs(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
):
    """Java's batches differ and are uncompressed, and there is no offset map."""
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 6_000, codec="lz4", keys=100, headers=1)
    quiet = {f"{flow.source.name}->{flow.target.name}.emit.heartbeats.enabled": "false"}
    java = MirrorMaker(source=flow.source, target=flow.target, topics=topic, properties=quiet)
    with java:
        java.wait_until_replicated(topic, 6_000)
        java.stop()

    alias = {"source.cluster.alias": flow.source.name}
    outcome = verify(files_of(flow, topic, alias), spark, tmp_path / "out", **SMALL)

    assert [] == outcome.not_equal
    assert 0 == outcome.status, outcome.report
    assert (6_000, 6_000) == (outcome.report.source_records, outcome.report.target_records)


def test_records_that_only_retention_can_have_deleted_are_not_missing(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
):
    """Partition 0 lost its first records on the source, and partition 1 on the target. In partition 2, the target never
    had them.

    The records are an hour old. The target's retention is a week, and later it also has a size limit.
    """
    topic = flow.source.create_topic(unique_topic(), partitions=3)
    copy = flow.target.create_topic(flow.remote(topic), partitions=3)
    for partition in range(3):
        write(flow.source, topic, plain(3_000, partition))
        write(flow.target, copy, plain(3_000, partition)[1_500 if partition == 2 else 0 :])
    flow.source.delete_records(topic, {0: 700})
    flow.target.delete_records(copy, {1: 1_200})

    outcome = verify(files_of(flow, topic), spark, tmp_path / "out", **SMALL)
    flow.target.alter_topic(copy, {"retention.bytes": "1000000000"})
    explained = verify(files_of(flow, topic), spark, tmp_path / "explained", **SMALL)

    assert {1, 2} == {window["partition"] for window in outcome.not_equal}
    assert 1_200 + 1_500 == outcome.report.differences
    assert 2_300 + 3_000 + 3_000 == outcome.report.source_records
    assert {2} == {window["partition"] for window in explained.not_equal}
    assert 1_500 == explained.report.differences
    assert 2_300 + 1_800 + 3_000 == explained.report.source_records
    assert (1, 2) == (len(outcome.summary["notes"]), len(explained.summary["notes"]))


def test_a_mistyped_topic_has_its_own_exit_status(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
):
    """The status is neither that of equal nor of different copies. Nothing is archived, restored or copied."""
    topic = flow.source.create_topic(unique_topic())
    archive = {"archive": str(tmp_path / "archive")}
    assert 0 == export_driver.run(files_of(flow, topic), job_of(archive), spark=spark)
    files = files_of(flow, topic[:-1])

    for run, properties in (
        (verify_driver.run, {"output": str(tmp_path / "out")}),
        (archive_verification.run, archive),
        (export_driver.run, {"archive": str(tmp_path / "empty")}),
        (restore_driver.run, archive),
        (seed_driver.run, {"run.id": "1"}),
    ):
        with pytest.raises(NothingSelectedError, match=f"(?i)is {topic} meant?") as refused:
            run(files, job_of(properties), spark=spark)
        assert EXIT_NOTHING_SELECTED == refused.value.status


def test_a_wrong_password_fails_without_showing_it(
    east: KafkaCluster, spark: "SparkSession", unique_topic: Names, tmp_path: Path
):
    """The password is not in the message."""
    with KafkaCluster(name="locked", listeners=("SASL_PLAINTEXT",)) as locked:
        flow = Flow.new(locked, east, tmp_path)
        files = files_of(flow, unique_topic())
        client = locked.java_client("SASL_PLAINTEXT")
        wrong = {key: value.replace("mirror-secret", "guessed") for key, value in client.items()}
        assert wrong != client, "the password is replaced"
        lines = dict(
            line.split("=", 1) for line in Path(files.source).read_text().splitlines() if "=" in line
        )
        lines |= {f"source.cluster.{key}": value for key, value in wrong.items()}
        wrong_files = FlowFiles(
            worker=files.worker, source=str(write_properties(tmp_path / "wrong.properties", lines))
        )

        with pytest.raises(AuthenticationFailedError) as refused:
            verify(wrong_files, spark, tmp_path / "out")

        assert "guessed" not in str(refused.value)


def test_a_stopped_verification_is_reported_as_paused_without_a_verdict(
    flow: Flow, unique_topic: Names, tmp_path: Path
):
    """SIGTERM is sent while it compares, as from a drained node. The exit status is 3, and the next run starts over."""
    topic = flow.source.create_topic(unique_topic())
    copy = flow.target.create_topic(flow.remote(topic))
    for cluster, name in ((flow.source, topic), (flow.target, copy)):
        write(cluster, name, plain(5_000))
    port = free_port()
    process = SeedProcess(
        files=files_of(flow, topic),
        folder=tmp_path,
        job={"master": "local[1]", "bytes.per.second": "1000"},
        environment={"HTTP_PORT": str(port)},
        command="verify",
    ).start()
    try:
        wait_until("the verification is running", lambda: _phase(port) == "Running")
        os.kill(process.running.pid, signal.SIGTERM)
        report = process.wait()
    finally:
        process.close()

    assert (report["status"], report["phase"], report["windows"]["equal"]) == (3, "Paused", 0)


def _phase(port: int) -> str:
    with (
        contextlib.suppress(OSError),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/progress") as response,
    ):
        return str(json.load(response)["phase"])
    return ""


def test_the_verify_command_exits_with_1_and_writes_a_report_for_a_difference(
    flow: Flow, unique_topic: Names, tmp_path: Path
):
    """The command is started like by a user, with its own Spark."""
    topic = flow.source.create_topic(unique_topic(), partitions=2)
    copy = flow.target.create_topic(flow.remote(topic), partitions=2)
    for partition in range(2):
        write(flow.source, topic, plain(500, partition))
        write(flow.target, copy, plain(500 if partition else 499, partition, first=0 if partition else 1))

    result = subprocess.run(
        [
            sys.executable, "-m", "mirrorflow_cli", "verify", "--cores", "2", "--out", str(tmp_path / "out"),
            "--from", flow.source.bootstrap, "--to", flow.target.bootstrap,
            "--from-alias", flow.alias, "--to-alias", "west", "--topics", topic,
        ],
        check=False, capture_output=True, text=True, timeout=COMMAND_WAIT_S,
    )  # fmt: skip

    assert 1 == result.returncode, result.stderr
    assert "Of 3 windows 1 different; 2 are equal." in result.stdout
    page = (tmp_path / "out" / "run-1" / "report.html").read_text()
    assert f"{topic}-0" in page
    assert "missing 0, -" in page
    assert "k0" not in page, "keys are kept with --keys only"
