"""Writes the result of a verification to a folder: the table of its windows, the JSON summary and the page.

    OUTPUT/run-<run id>/windows/  verification.json  report.html

OUTPUT is a path on the driver or an address of a file system that Spark supports. Only the driver writes. In
a cluster, a path is a volume of the driver's pod that executors do not have; so the table is written after
they are gone, by a context of one core in the same JVM. An unwritable folder is detected before the
comparison, not after it.
"""

import json
import re
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from mirrorflow_seed.location import Location
from mirrorflow_seed.session import KUBERNETES_PREFIX, spark_context
from mirrorflow_seed.settings import JobSettings
from mirrorflow_seed.verify.html_report import page
from mirrorflow_seed.verify.summary import Verification
from mirrorflow_seed.verify.windows import WindowResult

if TYPE_CHECKING:
    from pyspark import SparkContext

TABLE: Final = "windows"
SUMMARY: Final = "verification.json"
PAGE: Final = "report.html"
DRIVER_MASTER: Final = "local[1]"
# The table `windows`, one row per window; docs/verification.md describes the columns.
SCHEMA: Final = """
    run_id STRING NOT NULL,
    flow STRING NOT NULL,
    topic STRING NOT NULL,
    partition INT NOT NULL,
    target_topic STRING NOT NULL,
    from_offset BIGINT NOT NULL,
    to_offset BIGINT NOT NULL,
    target_from_offset BIGINT,
    target_to_offset BIGINT,
    source_count BIGINT NOT NULL,
    target_count BIGINT NOT NULL,
    source_sum STRING NOT NULL,
    target_sum STRING NOT NULL,
    source_chain STRING,
    target_chain STRING,
    digested_count BIGINT NOT NULL,
    ordered_equal BOOLEAN,
    outcome STRING NOT NULL,
    differing_count BIGINT NOT NULL,
    key_class INT,
    reason STRING,
    differences ARRAY<STRUCT<kind: STRING, source_offset: BIGINT, target_offset: BIGINT,
        source_digest: STRING, target_digest: STRING>> NOT NULL
"""


def output_folder(output: str, run_id: str) -> str:
    """Returns the folder of a run's result below *output*.

    A run id is free text: other characters than letters, digits, `_`, `.`, `-` are replaced and a digest is
    added.
    """
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", run_id)
    if name != run_id:
        name = f"{name}-{blake2b(run_id.encode(), digest_size=4).hexdigest()}"
    return f"{output.rstrip('/')}/run-{name}"


class ResultFolder:
    """Writes the result of *job*'s run to its folder; does nothing without an output setting."""

    def __init__(self, job: JobSettings) -> None:
        self._job = job
        self._has_executors = job.master.startswith(KUBERNETES_PREFIX)
        self._is_written = not job.output

    def prepare(self, context: "SparkContext") -> None:
        """Checks that the folder can be written. Raises LocationError."""
        if not self._is_written:
            self._location(context).prepare()

    def write(self, context: "SparkContext", found: Verification) -> None:
        """Writes the result with *context*, unless its executors lack the folder. Raises LocationError."""
        if not self._is_written and not self._has_executors:
            self._write(context, found)

    def write_without_executors(self, found: Verification) -> None:
        """Writes the result if `write` has not, once Spark's first context has stopped.

        Raises LocationError, JobFailedError.
        """
        if not self._is_written:
            with spark_context(
                replace(self._job, master=DRIVER_MASTER), "mirrorflow-verify-result"
            ) as context:
                self._write(context, found)

    def _write(self, context: "SparkContext", found: Verification) -> None:
        location = self._location(context)
        write_windows(context, location.uri_of(TABLE), found)
        location.write(SUMMARY, (json.dumps(found.as_json(), indent=2) + "\n").encode())
        location.write(PAGE, page(found).encode())
        self._is_written = True

    def _location(self, context: "SparkContext") -> Location:
        return Location(context, output_folder(self._job.output, self._job.run_id))


def write_windows(context: "SparkContext", path: str, verification: Verification) -> None:
    """Replaces the table at *path*."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 the extra `seed`

    session = SparkSession(context)
    rows = [row(verification.run_id, verification.flow, one) for one in verification.windows]
    # One file: a billion records are 10,000 rows.
    session.createDataFrame(rows, SCHEMA).coalesce(1).write.mode("overwrite").parquet(path)


def row(run_id: str, flow: str, one: WindowResult) -> tuple[Any, ...]:
    """Returns the row of a window, in the order of SCHEMA."""
    return (
        run_id,
        flow,
        one.topic,
        one.partition,
        one.target_topic,
        one.from_offset,
        one.to_offset,
        _known(one.target_from_offset),
        _known(one.target_to_offset),
        one.source_count,
        one.target_count,
        one.source_sum,
        one.target_sum,
        one.source_chain or None,
        one.target_chain or None,
        one.digested,
        one.ordered_equal,
        one.outcome.value,
        one.differing,
        _known(one.key_class),
        one.reason or None,
        [
            (
                each.kind.value,
                _known(each.source_offset),
                _known(each.target_offset),
                each.source_digest or None,
                each.target_digest or None,
            )
            for each in one.differences
        ],
    )


def _known(number: int) -> int | None:
    return None if number < 0 else number
