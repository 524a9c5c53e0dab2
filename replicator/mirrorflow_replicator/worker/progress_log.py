"""Logs the progress of a worker's source connectors, and writes it for `mirrorflow status`.

For processes that people start themselves, `mm2` above all; those of `mirrorflow run` are shown by it. A connector has a line when its
state or a reason changes, and every now and then while its figures do.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from mirrorflow_core.reports import ConnectorReport
from mirrorflow_replicator.http import progress
from mirrorflow_replicator.http.progress_text import reasons, state_of, summary_line
from mirrorflow_replicator.http.worker_view import Response, WorkerView
from mirrorflow_replicator.worker.running_processes import write_progress

CHECK_S: Final = 5.0
CHECK_SHARE: Final = (
    200  # a check may take 1/200 of the time: with ten thousand partitions it takes some 50 ms
)
TERMINAL_LINE_S: Final = 10.0  # as `mirrorflow run`
LOG_LINE_S: Final = 300.0  # a log keeps every line
ROWS_MAX: Final = 20  # partitions that are written: those with the greatest lag explain why a flow stands

log = logging.getLogger("mirrorflow.progress")


class ProgressLog:
    """Checks the connectors of *view* every CHECK_S. *file*: where to write for `mirrorflow status`; None: nowhere."""

    def __init__(
        self,
        view: Callable[[], WorkerView],
        *,
        file: Path | None,
        is_terminal: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._view = view
        self._file = file
        self._line_s = TERMINAL_LINE_S if is_terminal else LOG_LINE_S
        self._clock = clock
        self._logged: dict[
            str, tuple[float, str, tuple[str, ...]]
        ] = {}  # connector -> when, line, fingerprint

    async def run(self) -> None:
        """Logs and writes until cancelled."""
        while True:
            began_s = self._clock()
            self.check()
            await asyncio.sleep(max(CHECK_S, CHECK_SHARE * (self._clock() - began_s)))

    def check(self) -> None:
        """Logs what has changed, and writes the present progress."""
        view = self._view()
        connectors = []
        for report in view.connectors:
            if _copies(report):
                summary = progress.summary(report, view)
                self._log(report, summary)
                query = {"connector": report.name, "limit": str(ROWS_MAX)}
                table = _content(progress.partitions(query, view))
                connectors.append({"summary": summary, "table": table})
        if self._file is None:
            return
        content = {"writtenMs": round(view.now_s * 1000), "connectors": connectors, "warnings": view.warnings}
        try:
            write_progress(self._file, content)
        except OSError as error:  # a full disk must not stop copying
            log.debug("The progress for `mirrorflow status` is not written: %s", error)

    def _log(self, report: ConnectorReport, summary: dict[str, Any]) -> None:
        line = summary_line(summary)
        if report.is_standby:
            line = f"{report.name}: standing by; a warning names the reason"
        fingerprint = (state_of(summary), str(report.is_standby), *reasons(summary))
        logged_s, logged_line, logged_fingerprint = self._logged.get(report.name, (0.0, "", ()))
        is_due = line != logged_line and self._clock() - logged_s >= self._line_s
        if fingerprint != logged_fingerprint or is_due:
            self._logged[report.name] = (self._clock(), line, fingerprint)
            log.info("%s", line)


def _copies(report: ConnectorReport) -> bool:
    """Whether *report* is of an enabled source connector; MM2 has one for each direction, enabled or not."""
    is_enabled = report.properties.get("enabled", "true").strip().lower() != "false"
    return is_enabled and report.connector_class.endswith("MirrorSourceConnector")


def _content(response: Response) -> dict[str, Any]:
    body = response.body if isinstance(response.body, bytes) else b"".join(response.body)
    content: dict[str, Any] = json.loads(body)
    return content
