"""Writes the result of a verification to a folder: the table of its windows, the JSON summary and the HTML page.

    OUTPUT/run-<run id>/windows/  verification.json  report.html

OUTPUT is a path or the address of a store. Tasks write the table (`window_table`), the driver the rest. `prepare` detects
a folder that cannot be written before the comparison starts.

The page is one file without scripts and without external fonts or images; all names are escaped.
"""

import itertools
import json
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from html import escape
from typing import Any, Final

from mirrorflow_seed.settings import JobSettings, flag_of
from mirrorflow_seed.storage_folder import StorageFolder, address_below, uri_of_address
from mirrorflow_seed.verify.offset_windows import WindowOutcome, WindowResult
from mirrorflow_seed.verify.verification_result import (
    WORST_LAST,
    PartitionOverview,
    VerificationResult,
    VerifyTaskResult,
    WindowSegment,
    unpack,
)
from mirrorflow_seed.verify.window_table import UnequalRow, WindowTable, read_unequal_rows

_LOG: Final = logging.getLogger(__name__)
SUMMARY: Final = "verification.json"
PAGE: Final = "report.html"
REPAIR: Final = "repair.json"
# More cells cannot be distinguished on a screen: several windows then share a cell, with the worst outcome.
CELLS_MAX: Final = 200
# Limits of what a browser renders well; partitions that are not equal come first.
PARTITIONS_MAX: Final = 1_000
NOTES_MAX: Final = 200
# The look of the console (mirrorflow_console/static/console.css), in one file that needs no other.
_STYLE = """
:root{--ground:#f6f7f9;--surface:#fff;--ink:#171b22;--muted:#5a6474;--line:#e2e6ec;--red:#c02b1d;--red-soft:#fdecea;
--amber:#d28b00;--amber-soft:#fdf3dc;--gray:#b9c0cb;--fine:#7fa6a0;--fine-soft:#e3ece9;color-scheme:light dark}
@media(prefers-color-scheme:dark){:root{--ground:#0e1116;--surface:#151a21;--ink:#e8ebf0;--muted:#98a3b3;--line:#252d38;
--red:#f0594b;--red-soft:#35191a;--amber:#eab94d;--amber-soft:#2e2512;--gray:#4b5564;--fine:#4f807a;--fine-soft:#1d2b2b}}
body{font:14px/1.45 Inter,system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;font-variant-numeric:tabular-nums;
margin:0 auto;max-width:90rem;padding:1.5rem;color:var(--ink);background:var(--ground)}
h1{font-size:22px;font-weight:650;letter-spacing:-.01em}h2{font-size:13px;font-weight:650;margin:1.6rem 0 .6rem}
code{font:12.5px ui-monospace,Menlo,Consolas,monospace;overflow-wrap:anywhere}
.message{padding:10px 14px;border-radius:8px;border:1px solid;border-left-width:4px;background:var(--surface)}
.message.equal{border-color:var(--fine);background:var(--fine-soft)}
.message.different{border-color:var(--red);background:var(--red-soft)}
.message.reordered{border-color:var(--amber);background:var(--amber-soft)}.message.undecided{border-color:var(--gray)}
table{border-collapse:separate;border-spacing:0;width:100%;background:var(--surface);border:1px solid var(--line);
border-radius:10px}td,th{padding:7px 12px;text-align:left;border-top:1px solid var(--line);vertical-align:top;font-weight:400}
tr:first-child>*{border-top:0}th{color:var(--muted)}.cells{display:flex;flex-wrap:wrap;gap:2px}
.cells span{width:12px;height:16px;border-radius:3px}.key span{display:inline-block;width:12px;height:12px;border-radius:3px;
margin:0 .4rem 0 1rem}.cells .equal,.key .equal{background:var(--fine)}.cells .reordered,.key .reordered{background:var(--amber)}
.cells .different,.key .different{background:var(--red);outline:2px solid var(--red);outline-offset:-1px}
.cells .undecided,.key .undecided{background:repeating-linear-gradient(45deg,var(--gray) 0 3px,transparent 3px 6px)}
"""


def output_folder(output: str, run_id: str) -> str:
    """Returns the folder of a run's result below *output*.

    A run id is free text: other characters than letters, digits, `_`, `.`, `-` are replaced and a digest is
    added.
    """
    return address_below(output, f"run-{name_of_run(run_id)}")


def name_of_run(run_id: str) -> str:
    """Returns *run_id* with the characters alone that names of folders and topics have; different ids have different names."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", run_id)
    if name != run_id:
        name = f"{name}-{blake2b(run_id.encode(), digest_size=4).hexdigest()}"
    return name


class ResultFolder:
    """The folder for the result of *job*'s run; does nothing if the job has no output setting."""

    def __init__(self, job: JobSettings) -> None:
        self._run_id = job.run_id
        self._folder = StorageFolder(output_folder(job.output, job.run_id)) if job.output else None
        self._table: WindowTable | None = None
        self._keeps_keys = flag_of(job.extra, "output.keys")

    def prepare(self) -> None:
        """Checks that the folder can be written; it is its owner's alone if it will have keys. Raises FileSystemError."""
        if self._folder is None:
            return
        self._folder.prepare()
        if self._keeps_keys and not self._folder.make_private():
            _LOG.warning(
                "The result will have keys of records; restrict who may read %s yourself.",
                self._folder.address,
            )

    @property
    def is_complete(self) -> bool:
        """Whether a run with this id has ended and its result is here. Raises FileSystemError."""
        return self._folder is not None and self._folder.read(SUMMARY) is not None

    def unequal_rows(self) -> Iterator[UnequalRow]:
        """Yields the rows of the table that are not equal. Raises FileSystemError."""
        if self._folder is not None:
            yield from read_unequal_rows(self._folder)

    def write_repair(self, content: Mapping[str, object]) -> None:
        """Writes the plan of a repair, and of which verification it is. Raises FileSystemError."""
        if self._folder is not None:
            own = {**content, "verification": self._verification_digest()}
            self._folder.write(REPAIR, (json.dumps(own, indent=2) + "\n").encode())

    def read_repair(self) -> dict[str, Any]:
        """Returns what `write_repair` has written for this verification; {} if that is nothing. Raises FileSystemError."""
        text = None if self._folder is None else self._folder.read(REPAIR)
        try:
            content = json.loads(text or b"{}")
        except ValueError:
            content = {}
        is_own = isinstance(content, dict) and content.get("verification") == self._verification_digest()
        return content if is_own else {}

    def _verification_digest(self) -> str:
        """Returns a digest of the summary: a later verification with the same run id replaces it."""
        summary = None if self._folder is None else self._folder.read(SUMMARY)
        return blake2b(summary or b"", digest_size=16).hexdigest()

    def begin_table(self, flow: str) -> WindowTable | None:
        """Returns the table that tasks write; None without a folder. Raises FileSystemError."""
        if self._folder is not None:
            # A relative path has another meaning where a task runs.
            address = uri_of_address(self._folder.address)
            self._table = WindowTable(address=address, run_id=self._run_id, flow=flow)
            self._table.mark()
        return self._table

    def complete_table(self, results: Sequence[VerifyTaskResult], undecided: Sequence[WindowResult]) -> None:
        """Completes the table after the tasks; *undecided* are windows of the plan. Raises FileSystemError."""
        if self._table is None:
            return
        unwritten = (window for result in results for window in unpack(result.unwritten))
        self._table.complete(
            (result.part for result in results if result.part is not None),
            itertools.chain(undecided, unwritten),
        )

    def write(self, verification: VerificationResult) -> None:
        """Writes the summary, with the time at which the verification has ended, and the page. Raises FileSystemError."""
        if self._folder is None:
            return
        ended = datetime.now(tz=UTC).isoformat(timespec="milliseconds")
        summary = {**verification.as_json(), "ended": ended}
        self._folder.write(SUMMARY, (json.dumps(summary, indent=2) + "\n").encode())
        self._folder.write(PAGE, page(verification).encode())


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
            *_partitions(verification),
            *_not_equal(verification),
            *_notes(verification.notes),
            "</body></html>\n",
        )
    )


def _head(verification: VerificationResult) -> Iterator[str]:
    counts = verification.counts
    worst = next(
        (outcome for outcome in reversed(WORST_LAST) if getattr(counts, outcome.value)),
        WindowOutcome.UNDECIDED,
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


def _partitions(verification: VerificationResult) -> Iterator[str]:
    yield '<h2>Windows of each partition</h2><p class="key">'
    for outcome in WORST_LAST:
        yield f'<span class="{outcome.value}"></span>{outcome.value}'
    yield "</p><table><tr><th>partition</th><th>source offsets</th><th>windows, oldest first</th></tr>"
    overview = verification.overview()
    partitions = sorted(
        overview, key=lambda partition: (-WORST_LAST.index(overview[partition].worst), partition)
    )
    shown = {partition: overview[partition] for partition in partitions[:PARTITIONS_MAX]}
    cells = _cells(verification, shown)
    for (topic, partition), facts in shown.items():
        yield f"<tr><td><code>{escape(topic)}-{partition}</code></td><td>{facts.begin:,} to {facts.end:,}</td>"
        yield '<td><div class="cells">'
        for _, cell in sorted(cells[topic, partition].items()):
            worst = cell.worst.value
            title = f"{worst}: offsets {cell.begin:,} to {cell.end:,}, {cell.records:,} records"
            yield f'<span class="{worst}" title="{escape(title)}"></span>'
        yield "</div></td></tr>"
    yield "</table>"
    if len(overview) > PARTITIONS_MAX:
        yield f"<p>{len(overview) - PARTITIONS_MAX:,} further partitions are in the table only.</p>"


def _cells(
    verification: VerificationResult, shown: Collection[tuple[str, int]]
) -> Mapping[tuple[str, int], Mapping[int, PartitionOverview]]:
    """Returns the cells of each partition by their position: one for each window, or for several where there are many."""
    segments: dict[tuple[str, int], list[WindowSegment]] = {partition: [] for partition in shown}
    for segment in verification.each_segment():
        if (of_partition := segments.get((segment.topic, segment.partition))) is not None:
            of_partition.append(segment)
    return {partition: cells_of(of_partition) for partition, of_partition in segments.items()}


def cells_of(segments: list[WindowSegment]) -> Mapping[int, PartitionOverview]:
    """Returns the cells of one partition; the windows of a segment share its offsets and records evenly."""
    segments.sort(key=lambda segment: (segment.begin, segment.end, segment.key_class or 0))
    total = sum(segment.windows for segment in segments)
    count = min(total, CELLS_MAX)
    cells: dict[int, PartitionOverview] = {}
    before = 0
    for segment in segments:
        after = before + segment.windows
        for position in range(before * count // total, (after - 1) * count // total + 1):
            # The windows of a cell are those whose number times count // total is its position.
            begin = max(before, -(-position * total // count))
            end = min(after, -(-(position + 1) * total // count))
            cells.setdefault(position, PartitionOverview()).add(
                _part_of(segment, begin - before, end - before)
            )
        before = after
    return cells


def _part_of(segment: WindowSegment, first: int, end: int) -> WindowSegment:
    """Returns windows number *first* to *end* (exclusive) of *segment*."""
    windows, offsets = segment.windows, segment.end - segment.begin
    records = segment.records * end // windows - segment.records * first // windows
    return segment._replace(
        begin=segment.begin + offsets * first // windows,
        end=segment.begin + offsets * end // windows,
        windows=end - first,
        records=records,
    )


def _not_equal(verification: VerificationResult) -> Iterator[str]:
    if not verification.not_equal:
        return
    yield "<h2>Windows that are not equal</h2><table><tr><th>window</th><th>outcome</th><th>records</th>"
    yield "<th>first records that differ: source offset, target offset</th></tr>"
    for window in verification.not_equal:
        name = f"{window.topic}-{window.partition}"
        offsets = f"{window.from_offset:,} to {window.to_offset:,}" + (
            f", keys of class {window.key_class}" if window.key_class is not None else ""
        )
        yield f"<tr><td><code>{escape(name)}</code><br>{offsets}</td><td>{window.outcome.value}</td>"
        yield f"<td>{window.source_count:,} / {window.target_count:,}</td><td>{escape(window.reason or '')}"
        for difference in window.differences:
            pair = ", ".join(
                "-" if offset is None else f"{offset:,}"
                for offset in (difference.source_offset, difference.target_offset)
            )
            digests = " / ".join(
                "-" if text is None else text[:12]
                for text in (difference.source_digest, difference.target_digest)
            )
            fields = f" ({', '.join(difference.fields)})" if difference.fields else ""
            key = "" if difference.key is None else f" key <code>{escape(difference.key)}</code>"
            yield f"<div>{difference.kind.value}{fields} {pair}{key} <code>{digests}</code></div>"
        if window.differing > len(window.differences):
            yield f"<div>and {window.differing - len(window.differences):,} more</div>"
        yield "</td></tr>"
    yield "</table>"
    counts = verification.counts
    if (more := counts.total - counts.equal - len(verification.not_equal)) > 0:
        yield f"<p>{more:,} further windows are in the table only.</p>"


def _notes(notes: Sequence[str]) -> Iterator[str]:
    if not notes:
        return
    yield "<h2>What was not compared</h2><ul>"
    for note in notes[:NOTES_MAX]:
        yield f"<li>{escape(note)}</li>"
    yield "</ul>"
    if len(notes) > NOTES_MAX:
        yield f"<p>And {len(notes) - NOTES_MAX:,} more.</p>"
