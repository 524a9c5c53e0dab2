"""Runs verifications of a flow in this process with a Spark session that the tests of a file share, and writes copies
with changes.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirrorflow_seed.archive import archive_verification
from mirrorflow_seed.job_report import VerifyReport
from mirrorflow_seed.settings import FlowFiles, job_of
from mirrorflow_seed.verify.result_folder import SUMMARY, output_folder
from mirrorflow_seed.verify.verify_driver import run
from tests.harness.kafka.cluster import KafkaCluster
from tests.integration.kafka.comparing import produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ProducedRecord = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
T0 = time.time_ns() // 1_000_000 - 3_600_000  # an hour ago, because brokers delete records older than a week


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyOutcome:
    """The outcome of a run, which consists of exit status, last report and JSON summary."""

    status: int
    report: VerifyReport
    summary: Mapping[str, Any]
    folder: Path

    @property
    def not_equal(self) -> list[dict[str, Any]]:
        """Returns the windows that are not equal."""
        windows: list[dict[str, Any]] = self.summary["notEqual"]
        return windows

    def differences(self, partition: int = 0) -> list[tuple[str, int, int]]:
        """Returns kind, source offset and target offset of each record that differs."""
        return [
            (difference["kind"], difference["sourceOffset"], difference["targetOffset"])
            for window in self.not_equal
            if window["partition"] == partition
            for difference in window["first"]
        ]

    def changed_fields(self, partition: int = 0) -> list[list[str]]:
        """Returns the fields that differ of each record that differs."""
        return [
            difference["fields"]
            for window in self.not_equal
            if window["partition"] == partition
            for difference in window["first"]
        ]

    def keys(self, partition: int = 0) -> list[str | None]:
        """Returns the key of each record that differs, if the result keeps keys."""
        return [
            difference["key"]
            for window in self.not_equal
            if window["partition"] == partition
            for difference in window["first"]
        ]


def verify(files: FlowFiles, spark: "SparkSession", folder: Path, **job: str) -> VerifyOutcome:
    """Runs a verification in this process until it ends."""
    reports: list[VerifyReport] = []

    def display(report: object) -> None:
        assert isinstance(report, VerifyReport)
        reports.append(report)

    properties = {"run.id": "a run/1", "output": str(folder)}
    properties |= {key.replace("_", "."): value for key, value in job.items()}
    start = archive_verification.run if "archive" in properties else run
    status = start(files, job_of(properties), display=display, spark=spark)
    out = Path(output_folder(properties["output"], properties["run.id"]))
    return VerifyOutcome(
        status=status, report=reports[-1], summary=json.loads((out / SUMMARY).read_text()), folder=out
    )


def plain(count: int, partition: int = 0, *, first: int = 0) -> list[ProducedRecord]:
    """Returns records that all differ from each other."""
    return [
        (partition, T0 + number, b"k%d" % number, b"v%d-%d" % (partition, number), [("h", b"x"), ("n", None)])
        for number in range(first, first + count)
    ]


def write(cluster: KafkaCluster, topic: str, records: Sequence[ProducedRecord]) -> None:
    """Writes batches of a few records, so that a change affects few batches."""
    produce(cluster, topic, records, {"batch.num.messages": "7", "linger.ms": "5"})
