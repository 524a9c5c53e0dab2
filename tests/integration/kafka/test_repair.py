"""Repairs on real Spark between real brokers.

Each record that differs is in a quarantine topic once, even after a kill. A Java consumer of committed records decides.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mirrorflow_seed.errors import EXIT_DIFFERENT, EXIT_DONE, EXIT_PLANNED, JobFailedError
from mirrorflow_seed.job_report import RepairReport
from mirrorflow_seed.repair import repair_driver
from mirrorflow_seed.settings import FlowFiles, job_of
from mirrorflow_seed.verify.result_folder import REPAIR, name_of_run, output_folder
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import Record, records
from tests.integration.kafka.flows import Flow
from tests.integration.kafka.seeding import SeedProcess, files_of
from tests.integration.kafka.verifying import ProducedRecord, plain, verify, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")

Names = Callable[[], str]
RUN = "a run/1"
SMALL = {"window.offsets": "1000", "split.windows": "2"}  # so that a partition has several ranges
Quarantined = tuple[int, int, str, ProducedRecord]


def repair(files: FlowFiles, spark: "SparkSession", folder: Path, **job: str) -> tuple[int, RepairReport]:
    """Runs a repair in this process until it ends, and returns the exit status and the last report."""
    reports: list[object] = []
    properties = {"run.id": RUN, "output": str(folder), "repair": "true", **SMALL}
    properties |= {key.replace("_", "."): value for key, value in job.items()}
    status = repair_driver.run(files, job_of(properties), display=reports.append, spark=spark)
    assert isinstance(reports[-1], RepairReport)
    return status, reports[-1]


def quarantined(cluster: KafkaCluster, copy: str) -> list[Quarantined]:
    """Returns partition, source offset, kind and content of each committed record, as a Java consumer reads it."""
    quarantined_records = []
    for record in records(cluster, quarantine_of(copy), isolation="read_committed"):
        *own, (offset_name, offset), (kind_name, kind) = record.headers
        assert ("mirrorflow.repair.offset", "mirrorflow.repair.kind") == (offset_name, kind_name)
        assert offset is not None
        assert kind is not None
        quarantined_records.append((record.partition, int(offset), kind.decode(), produced(record, own)))
    return sorted(quarantined_records, key=lambda entry: entry[:2])


def produced(record: Record, headers: list[tuple[str, bytes | None]]) -> ProducedRecord:
    return record.partition, record.timestamp, record.key, record.value, headers


def quarantine_of(copy: str) -> str:
    return f"{copy}.repair.{name_of_run(RUN)}"


def plan_of(folder: Path, run: str = RUN) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(output_folder(str(folder), run)) / REPAIR).read_text())
    return content


def test_each_kind_of_difference_is_quarantined_once_even_if_the_repair_is_killed(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
):
    """The first command only prints the plan. A kill -9 during the repair and two more runs repeat no record."""
    topic = flow.source.create_topic(unique_topic(), partitions=5)
    copy = flow.target.create_topic(flow.remote(topic), partitions=5, config={"retention.ms": "864000000"})
    expected: list[Quarantined] = []

    def expect(partition: int, offsets: range, kind: str) -> None:
        expected.extend((partition, offset, kind, plain(2_500, partition)[offset]) for offset in offsets)

    for partition in range(5):
        write(flow.source, topic, plain(2_500, partition))
        copied = plain(2_500, partition)
        number, timestamp, key, _, headers = copied[1_234]
        match partition:
            case 0:
                del copied[600:1_700]  # across a boundary of windows
                expect(0, range(600, 1_700), "missing")
            case 1:
                copied[1_234] = (number, timestamp, key, b"other", headers)
                expect(1, range(1_234, 1_235), "changed")
            case 2:
                copied.insert(1_235, copied[1_234])  # there is nothing to copy
            case 3:
                copied[1_234], copied[1_235] = copied[1_235], copied[1_234]
                expect(3, range(1_234, 1_236), "moved")
        write(flow.target, copy, copied)
    files = files_of(flow, topic)
    assert 1 == verify(files, spark, tmp_path / "out", **SMALL).status

    status, report = repair(files, spark, tmp_path / "out")

    assert EXIT_PLANNED == status, report
    assert (1_103, 0) == (report.differing, report.copied)
    assert not flow.target.has_topic(quarantine_of(copy)), "a plan writes nothing"
    [*_, extra] = sorted(plan_of(tmp_path / "out")["windows"], key=lambda window: window["extra"])
    assert (2, 1_000, 2_000, 1) == tuple(
        extra[name] for name in ("partition", "fromOffset", "toOffset", "extra")
    )

    job = {
        "run.id": RUN,
        "output": str(tmp_path / "out"),
        "repair": "true",
        "repair.confirmed": "true",
        **SMALL,
    }
    killed = SeedProcess(
        files=files, folder=tmp_path, command="verify", job={**job, "bytes.per.second": "20000"}
    ).start()
    try:
        wait_until(
            "a part of the records is committed",
            lambda: (
                flow.target.has_topic(quarantine_of(copy))
                and sum(flow.target.end_offsets(quarantine_of(copy), isolation="read_committed").values())
                > 100
            ),
        )
    finally:
        killed.close()
    assert 0 < len(quarantined(flow.target, copy)) < len(expected)

    again, finished = repair(files, spark, tmp_path / "out", repair_confirmed="true")

    assert EXIT_DIFFERENT == again, "the extra record is left"
    assert (1_103, 1_103) == (finished.differing, finished.copied)
    assert sorted(expected, key=lambda entry: entry[:2]) == quarantined(flow.target, copy)
    assert 5 == flow.target.partition_count(quarantine_of(copy))
    config = flow.target.topic_config(quarantine_of(copy))
    assert ("delete", "-1") == (config["cleanup.policy"], config["retention.ms"])

    repair(files, spark, tmp_path / "out", repair_confirmed="true")
    assert len(expected) == len(quarantined(flow.target, copy)), "a repeated repair writes nothing"


def test_newest_records_of_compacted_topics_are_quarantined_and_windows_that_became_equal_are_not(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
):
    """Without a result in the folder, the repair verifies first. Windows that are equal by then are not copied."""
    compacted = {"cleanup.policy": "compact"}
    topic = flow.source.create_topic(unique_topic(), partitions=2, config=compacted)
    copy = flow.target.create_topic(flow.remote(topic), partitions=2, config=compacted)
    for partition in range(2):
        write(flow.source, topic, plain(300, partition))
        copied = plain(300, partition)
        number, timestamp, key, _, headers = copied[100]
        copied[100] = (number, timestamp, key, b"other", headers)
        del copied[50]
        write(flow.target, copy, copied)
    files = files_of(flow, topic)

    assert EXIT_PLANNED == repair(files, spark, tmp_path / "out")[0]
    assert ["repair.json", "report.html", "verification.json", "windows"] == sorted(
        path.name for path in Path(output_folder(str(tmp_path / "out"), RUN)).iterdir()
    )
    mended = [plain(300, 1)[50], plain(300, 1)[100]]
    write(flow.target, copy, mended)
    status, report = repair(files, spark, tmp_path / "out", repair_confirmed="true")

    assert EXIT_DONE == status, report
    assert [(0, 50, "missing", plain(300)[50]), (0, 100, "changed", plain(300)[100])] == quarantined(
        flow.target, copy
    )
    assert "delete" == flow.target.topic_config(quarantine_of(copy))["cleanup.policy"]


def test_a_quarantine_topic_with_foreign_records_is_not_used(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
):
    """If a different producer has written to the quarantine topic, the repair fails and writes nothing."""
    topic = flow.source.create_topic(unique_topic())
    copy = flow.target.create_topic(flow.remote(topic))
    write(flow.source, topic, plain(20))
    write(flow.target, copy, [*plain(10), *plain(9, first=11)])
    kept = {"retention.ms": "-1", "retention.bytes": "-1"}
    other = flow.target.create_topic(quarantine_of(copy), config=kept)
    write(flow.target, other, plain(1))

    with pytest.raises(JobFailedError, match="no repair has written"):
        repair(files_of(flow, topic), spark, tmp_path / "out", repair_confirmed="true")

    assert 1 == len(records(flow.target, other, isolation="read_committed"))


def test_windows_deleted_on_the_source_are_listed_unless_an_earlier_run_has_covered_them(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
):
    """Without the earlier start, the different records there are lost.

    The repair copies the others and exits with 1.
    """
    topic, out = flow.source.create_topic(unique_topic()), tmp_path / "out"
    copy = flow.target.create_topic(flow.remote(topic))
    write(flow.source, topic, plain(2_500))
    write(flow.target, copy, [record for record in plain(2_500) if record[2] not in (b"k100", b"k2200")])
    files = files_of(flow, topic)
    for run in (RUN, "late"):
        assert 1 == verify(files, spark, out, run_id=run, **SMALL).status
    assert EXIT_DONE == repair(files, spark, out, repair_confirmed="true")[0]
    flow.source.delete_records(topic, {0: 1_500})

    status, again = repair(files, spark, out, repair_confirmed="true")
    late_status, late = repair(files, spark, out, repair_confirmed="true", run_id="late")

    assert EXIT_DONE == status, again
    assert [(0, offset, "missing", plain(2_500)[offset]) for offset in (100, 2_200)] == quarantined(
        flow.target, copy
    )
    assert (EXIT_DIFFERENT, 1) == (late_status, late.copied), late
    assert "1 windows cannot be repaired any more" in late.message
    assert [
        {"topic": topic, "partition": 0, "fromOffset": 0, "toOffset": 1_000, "sourceFromOffset": 1_500}
    ] == (plan_of(out, "late")["deletedWindows"])
