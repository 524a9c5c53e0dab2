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
from typing import TYPE_CHECKING, Final

from mirrorflow_seed.location import Location
from mirrorflow_seed.session import KUBERNETES_PREFIX, spark_context
from mirrorflow_seed.settings import JobSettings
from mirrorflow_seed.verify.page import page
from mirrorflow_seed.verify.summary import Verification
from mirrorflow_seed.verify.tables import write_windows

if TYPE_CHECKING:
    from pyspark import SparkContext

TABLE: Final = "windows"
SUMMARY: Final = "verification.json"
PAGE: Final = "report.html"
DRIVER_MASTER: Final = "local[1]"


def output_folder(output: str, run_id: str) -> str:
    """Returns the folder of a run's result below *output*.

    A run id is free text: other characters than letters, digits, `_`, `.`, `-` are replaced and a digest is
    added.
    """
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", run_id)
    if name != run_id:
        name = f"{name}-{blake2b(run_id.encode(), digest_size=4).hexdigest()}"
    return f"{output.rstrip('/')}/run-{name}"


class Result:
    """Writes the result of *job*'s run to its folder; does nothing without an output setting."""

    def __init__(self, job: JobSettings) -> None:
        self._job = job
        self._has_executors = job.master.startswith(KUBERNETES_PREFIX)
        self._is_written = not job.output

    def prepare(self, context: "SparkContext") -> None:
        """Checks that the folder can be written. Raises LocationError."""
        if not self._is_written:
            self._location(context).prepare()

    def leave(self, context: "SparkContext", found: Verification) -> None:
        """Writes the result with *context*, unless its executors lack the folder. Raises LocationError."""
        if not self._is_written and not self._has_executors:
            self._write(context, found)

    def leave_alone(self, found: Verification) -> None:
        """Writes the result if `leave` has not, once Spark's first context has stopped.

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
