"""Writes the result of a verification to a folder: the table of its windows, the JSON summary and the HTML page.

    OUTPUT/run-<run id>/windows/  verification.json  report.html

OUTPUT is a path on the driver or the URI of a file system that Spark supports. Only the driver writes. In a
cluster, a path is a volume of the driver's pod that executors do not have; so the table is written after they
have stopped, by a context of one core in the same JVM. `prepare` detects a folder that cannot be written before
the comparison starts.

The page is one file without scripts and without external fonts or images; all names are escaped.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from mirrorflow_core.reports import known_number
from mirrorflow_seed.hadoop_folder import HadoopFolder
from mirrorflow_seed.settings import KUBERNETES_PREFIX, JobSettings
from mirrorflow_seed.spark_session import spark_session
from mirrorflow_seed.verify.offset_windows import WindowOutcome, WindowResult
from mirrorflow_seed.verify.verification_result import VerificationResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    """The folder for the result of *job*'s run; does nothing if the job has no output setting."""

    def __init__(self, job: JobSettings) -> None:
        self._job = job
        self._has_executors = job.master.startswith(KUBERNETES_PREFIX)
        self._is_written = not job.output

    def prepare(self, session: "SparkSession") -> None:
        """Checks that the folder can be written. Raises FileSystemError."""
        if not self._is_written:
            self._folder(session).prepare()

    def write(self, session: "SparkSession", found: VerificationResult) -> None:
        """Writes the result with *session*, unless its executors lack the folder. Raises FileSystemError."""
        if not self._is_written and not self._has_executors:
            self._write(session, found)

    def write_without_executors(self, found: VerificationResult) -> None:
        """Writes the result if `write` has not, once Spark's first context has stopped.

        Raises FileSystemError, JobFailedError.
        """
        if not self._is_written:
            with spark_session(
                replace(self._job, master=DRIVER_MASTER), "mirrorflow-verify-result"
            ) as session:
                self._write(session, found)

    def _write(self, session: "SparkSession", found: VerificationResult) -> None:
        folder = self._folder(session)
        write_windows(session, folder.uri_of(TABLE), found)
        folder.write(SUMMARY, (json.dumps(found.as_json(), indent=2) + "\n").encode())
        folder.write(PAGE, page(found).encode())
        self._is_written = True

    def _folder(self, session: "SparkSession") -> HadoopFolder:
        return HadoopFolder(session, output_folder(self._job.output, self._job.run_id))


def write_windows(session: "SparkSession", path: str, verification: VerificationResult) -> None:
    """Replaces the table at *path*."""
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
        known_number(one.target_from_offset),
        known_number(one.target_to_offset),
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
        known_number(one.key_class),
        one.reason or None,
        [
            (
                each.kind.value,
                known_number(each.source_offset),
                known_number(each.target_offset),
                each.source_digest or None,
                each.target_digest or None,
            )
            for each in one.differences
        ],
    )


# More cells cannot be distinguished on a screen: several windows then share a cell, with the worst outcome.
CELLS_MAX: Final = 200
# Limits of what a browser renders well; partitions that are not equal come first.
PARTITIONS_MAX: Final = 1_000
WINDOWS_MAX: Final = 200
NOTES_MAX: Final = 200

_WORST_LAST = (WindowOutcome.EQUAL, WindowOutcome.REORDERED, WindowOutcome.UNDECIDED, WindowOutcome.DIFFERENT)
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#1b1f24;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}code{font:13px ui-monospace,monospace}
.message{padding:.8rem 1rem;border-radius:6px;border-left:6px solid}
table{border-collapse:collapse;width:100%}td,th{padding:.3rem .6rem;text-align:left;border-bottom:1px solid #d8dee4;
vertical-align:top}.cells{display:flex;flex-wrap:wrap;gap:2px}.cells span{width:12px;height:16px;border-radius:2px}
.equal{background:#8fd19e;border-color:#2da44e}.reordered{background:#f2c94c;border-color:#bf8700}
.different{background:#e5534b;border-color:#a40e26}.undecided{background:#afb8c1;border-color:#57606a}
.cells .different{outline:2px solid #a40e26}.cells .undecided{background:repeating-linear-gradient(45deg,#afb8c1 0 3px,#eee 3px 6px)}
.key span{display:inline-block;width:12px;height:12px;border-radius:2px;margin:0 .3rem 0 1rem}
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}td,th{border-color:#30363d}.message{color:#1b1f24}}
"""


def page(verification: VerificationResult) -> str:
    """Returns the result as one HTML page."""
    title = f"{escape(verification.flow)}, run {escape(verification.run_id)}"
    return "".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>{title}</title><style>{_STYLE}</style></head><body>",
            f"<h1>Verification of {title}</h1>",
            *_head(verification),
            *_partitions(verification.windows),
            *_not_equal(verification.windows),
            *_notes(verification.notes),
            "</body></html>\n",
        )
    )


def _head(verification: VerificationResult) -> Iterator[str]:
    counts = verification.counts
    worst = next(
        (one for one in reversed(_WORST_LAST) if getattr(counts, one.value)), WindowOutcome.UNDECIDED
    )
    yield f'<p class="message {worst.value}">{escape(verification.message)}</p>'
    rows = (
        ("from", f"{verification.source_alias} to {verification.target_alias}"),
        (
            "sample",
            "every window" if verification.sample >= 1.0 else f"{verification.sample:.2%} of the windows",
        ),
        ("partitions", f"{verification.partitions:,}"),
        (
            "records",
            f"{verification.source_records:,} of the source, {verification.target_records:,} of the target",
        ),
        ("records that differ", f"{verification.differences:,}"),
        ("not yet due on the target", f"{verification.behind:,} records"),
        (
            "cost",
            (
                f"{verification.seconds:.1f} s, {verification.cost.executor_seconds:.1f} executor seconds,"
                f" {verification.cost.bytes_read:,} bytes read"
            ),
        ),
    )
    yield "<table>"
    for name, value in rows:
        yield f"<tr><th>{name}</th><td>{escape(value)}</td></tr>"
    yield "</table>"


def _partitions(windows: Sequence[WindowResult]) -> Iterator[str]:
    yield '<h2>Windows of each partition</h2><p class="key">'
    for one in _WORST_LAST:
        yield f'<span class="{one.value}"></span>{one.value}'
    yield "</p><table><tr><th>partition</th><th>source offsets</th><th>windows, oldest first</th></tr>"
    parts = [(at, list(found)) for at, found in groupby(windows, key=lambda one: (one.topic, one.partition))]
    parts.sort(key=lambda part: -max(_WORST_LAST.index(one.outcome) for one in part[1]))
    for (topic, partition), found in parts[:PARTITIONS_MAX]:
        first, last = min(one.from_offset for one in found), max(one.to_offset for one in found)
        yield f"<tr><td><code>{escape(topic)}-{partition}</code></td><td>{first:,} to {last:,}</td>"
        yield f'<td><div class="cells">{"".join(_cells(found))}</div></td></tr>'
    yield "</table>"
    if len(parts) > PARTITIONS_MAX:
        yield f"<p>{len(parts) - PARTITIONS_MAX:,} further partitions are in the table only.</p>"


def _cells(windows: Sequence[WindowResult]) -> Iterator[str]:
    per_cell = -(-len(windows) // CELLS_MAX)
    for at in range(0, len(windows), per_cell):
        some = windows[at : at + per_cell]
        worst = max(some, key=lambda one: _WORST_LAST.index(one.outcome))
        records = sum(one.source_count for one in some)
        summary = f"{worst.outcome.value}: offsets {some[0].from_offset:,} to {some[-1].to_offset:,}, {records:,} records"
        yield f'<span class="{worst.outcome.value}" title="{escape(summary)}"></span>'


def _not_equal(windows: Iterable[WindowResult]) -> Iterator[str]:
    found = [one for one in windows if one.outcome is not WindowOutcome.EQUAL]
    if not found:
        return
    yield "<h2>Windows that are not equal</h2><table><tr><th>window</th><th>outcome</th><th>records</th>"
    yield "<th>first records that differ: source offset, target offset</th></tr>"
    for one in found[:WINDOWS_MAX]:
        name = f"{one.topic}-{one.partition}"
        place = f"{one.from_offset:,} to {one.to_offset:,}" + (
            f", keys of class {one.key_class}" if one.key_class >= 0 else ""
        )
        yield f"<tr><td><code>{escape(name)}</code><br>{place}</td><td>{one.outcome.value}</td>"
        yield f"<td>{one.source_count:,} / {one.target_count:,}</td><td>{escape(one.reason)}"
        for each in one.differences:
            offsets = ", ".join(
                "-" if at < 0 else f"{at:,}" for at in (each.source_offset, each.target_offset)
            )
            digests = " / ".join(text[:12] or "-" for text in (each.source_digest, each.target_digest))
            yield f"<div>{each.kind.value} {offsets} <code>{digests}</code></div>"
        if one.differing > len(one.differences):
            yield f"<div>and {one.differing - len(one.differences):,} more</div>"
        yield "</td></tr>"
    yield "</table>"
    if len(found) > WINDOWS_MAX:
        yield f"<p>{len(found) - WINDOWS_MAX:,} further windows are in the table only.</p>"


def _notes(notes: Sequence[str]) -> Iterator[str]:
    if not notes:
        return
    yield "<h2>What was not compared</h2><ul>"
    for note in notes[:NOTES_MAX]:
        yield f"<li>{escape(note)}</li>"
    yield "</ul>"
    if len(notes) > NOTES_MAX:
        yield f"<p>And {len(notes) - NOTES_MAX:,} more.</p>"
