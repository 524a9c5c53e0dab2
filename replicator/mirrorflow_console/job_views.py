"""Turns the seeds, verifications, exports and restores of MirrorFlows, and results in files, into what a page shows. Pure."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import ceil
from typing import Any, Final, NamedTuple

from mirrorflow_console.documents import FlowReading
from mirrorflow_console.field_kinds import NAME_MAX, TEXT_MAX
from mirrorflow_console.flow_views import DIFFERENCES_FOUND, Level
from mirrorflow_console.runbook import Advice, advice_for

_LEVELS: Final[Mapping[str, Level]] = {
    "Pending": Level.WAITING,
    "Preparing": Level.WAITING,
    "Running": Level.WAITING,
    "Paused": Level.WAITING,
    "Succeeded": Level.FINE,
    "Failed": Level.BROKEN,
    "Lost": Level.BROKEN,
}
VERIFICATION_KIND: Final = "verification"
NUMBER_MAX: Final = 1 << 63  # Kafka's offsets are signed 64-bit numbers
WINDOWS_MAX: Final = 100  # as many as the summary has
DIFFERENCES_MAX: Final = 20  # of one window
FIELDS_MAX: Final = 10  # a record has key, value, timestamp and headers
# A mark is 24 pixels wide, the least that a finger hits (WCAG 2.5.8): 48 are a line of a wide page, and five of a phone.
MARKS_MAX: Final = 48
KEY_MAX: Final = 201  # as the result writes a key, with an ellipsis
_OUTCOME_LEVELS: Final[Mapping[str, Level]] = {
    "different": Level.BROKEN,
    "reordered": Level.BROKEN,
    "undecided": Level.UNKNOWN,
    "equal": Level.FINE,
}
_NOT_EQUAL: Final = ("different", "reordered", "undecided")
_OUTCOMES: Final = (*_NOT_EQUAL, "equal")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A seed, verification, archive or restore of a flow. `parts` are shares of one: (word, number, level)."""

    flow: str
    key: str
    kind: str
    level: Level
    word: str
    run_id: str
    message: str
    start: str
    end: str
    done: int
    total: int
    parts: tuple[tuple[str, int, Level], ...]
    figures: tuple[tuple[str, float | None, str], ...]  # name, value, filter
    times: tuple[tuple[str, str], ...] = ()  # name, and the time as the status has it
    left_s: float | None = None
    advice: Advice | None = None
    windows: tuple["WindowRow", ...] = ()
    namespace: str = ""  # of the flow, on Kubernetes

    @property
    def anchor(self) -> str:
        """The id of the job's windows on a page; a window's ends with its index. Names may have spaces, which an id may not."""
        run = repr((self.namespace, self.flow, self.run_id)).encode()
        return f"windows-{hashlib.sha256(run).hexdigest()[:12]}"

    @property
    def strip(self) -> list["WindowMark"]:
        """The marks of `windows`, at most MARKS_MAX, in their order."""
        return window_marks(self.windows)

    @property
    def unlisted(self) -> int:
        """How many windows that are not equal are counted, and are not among `windows`."""
        counted = sum(number for word, number, _ in self.parts if word in _NOT_EQUAL)
        return max(0, counted - len(self.windows))

    def without_keys(self) -> "JobView":
        """Returns the job without the keys of records."""
        windows = (
            replace(window, differences=tuple(row._replace(key=None) for row in window.differences))
            for window in self.windows
        )
        return replace(self, windows=tuple(windows))


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRow:
    """A window of source offsets that is not equal, with the first records that differ in it."""

    topic: str
    partition: int
    begin: int
    end: int
    outcome: str
    level: Level
    records: str
    reason: str
    differences: tuple["DifferenceRow", ...]

    @property
    def place(self) -> str:
        """Topic and partition."""
        return f"{self.topic}-{self.partition}"

    @property
    def offsets(self) -> str:
        """The source offsets, as a page shows them."""
        return f"{self.begin:,} to {self.end:,}"


class WindowMark(NamedTuple):
    """A mark of the strip: a window, or neighbouring ones with the worst outcome among them.

    `row` is the index of the window that it opens. `continues`: its first window begins where the mark before it ends.
    """

    level: Level
    text: str
    row: int
    continues: bool


class DifferenceRow(NamedTuple):
    """A record that differs. `key` is None where the result holds none; it is a user's data, and only text."""

    kind: str
    source_offset: str
    target_offset: str
    digests: str
    fields: str  # names of those that differ
    key: str | None


def verification_of_file(document: Any) -> JobView | None:
    """Returns the verification in the summary that `mirrorflow verify --out` wrote; None if it is none."""
    if not isinstance(document, dict) or not isinstance(document.get("windows"), dict):
        return None
    view = _verification(FlowReading(key="", name=_word(document.get("flow"))), document)
    windows = [_window(window) for window in _rows(document.get("notEqual"))[:WINDOWS_MAX]]
    windows.sort(key=lambda window: (window.topic, window.partition, window.begin))
    return replace(view, windows=tuple(windows))


def window_marks(windows: Sequence[WindowRow]) -> list[WindowMark]:
    """Returns at most MARKS_MAX marks of *windows*, each of as many neighbouring ones."""
    size = ceil(len(windows) / MARKS_MAX)
    return [
        _mark(windows, start, min(start + size, len(windows))) for start in range(0, len(windows), size or 1)
    ]


def _mark(windows: Sequence[WindowRow], start: int, stop: int) -> WindowMark:
    first, last = windows[start], windows[stop - 1]
    # Of one level, "different" is before "reordered", also in the alphabet.
    row = min(range(start, stop), key=lambda index: (windows[index].level, windows[index].outcome))
    before = windows[start - 1] if start else None
    if stop - start == 1:
        where = f"{first.place}, source offsets {first.offsets}"
    else:
        where = (
            f"{stop - start} windows, from {first.place} at {first.begin:,} to {last.place} at {last.end:,}"
        )
    return WindowMark(
        level=windows[row].level,
        text=f"{windows[row].outcome}: {where}",
        row=row,
        continues=before is not None and (before.place, before.end) == (first.place, first.begin),
    )


def archive_of_manifest(document: Any) -> JobView | None:
    """Returns the archive in the manifest that `mirrorflow archive` wrote; None if it is none."""
    if not isinstance(document, dict) or not isinstance(document.get("topics"), list):
        return None
    topics = [topic for topic in document["topics"] if isinstance(topic, dict)]
    partitions = [partition for topic in topics for partition in _rows(topic.get("partitions"))]
    files = [file for partition in partitions for file in _rows(partition.get("files"))]
    gaps = [gap for partition in partitions for gap in _rows(partition.get("gaps"))]
    return _archive(
        document,
        level=Level.WARNING if gaps else Level.FINE,
        word="finished, with gaps" if gaps else "finished",
        figures=(
            ("topics", len(topics), "count"),
            ("partitions", len(partitions), "count"),
            ("records", sum(_int(_counts(file.get("tally")).get("records")) for file in files), "count"),
            ("bytes", sum(_int(file.get("size_bytes")) for file in files), "byte_count"),
            (
                "deleted during the export",
                sum(max(0, _int(gap.get("end")) - _int(gap.get("start"))) for gap in gaps),
                "count",
            ),
        ),
    )


def unfinished_archive(name: str) -> JobView:
    """Returns an archive that has no manifest yet, in the folder *name*."""
    return _archive({"flow": name}, level=Level.WAITING, word="not finished", figures=())


def _archive(
    document: Mapping[str, Any],
    *,
    level: Level,
    word: str,
    figures: tuple[tuple[str, float | None, str], ...],
) -> JobView:
    return JobView(
        flow=_word(document.get("flow")),
        key="",
        kind="archive",
        level=level,
        word=word,
        run_id="",
        message="",
        start=_word(document.get("started")),
        end=_word(document.get("finished")),
        done=0,
        total=0,
        parts=(),
        figures=figures,
    )


def _rows(value: Any) -> list[Mapping[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _window(window: Mapping[str, Any]) -> WindowRow:
    outcome = _word(window.get("outcome"))
    first = window.get("first")
    shown = [row for row in first if isinstance(row, dict)] if isinstance(first, list) else []
    return WindowRow(
        topic=_word(window.get("topic")),
        partition=_int(window.get("partition")),
        begin=_int(window.get("fromOffset")),
        end=_int(window.get("toOffset")),
        outcome=outcome,
        level=_OUTCOME_LEVELS.get(outcome, Level.UNKNOWN),
        records=f"{_int(window.get('sourceRecords')):,} / {_int(window.get('targetRecords')):,}",
        reason=_word(window.get("reason")),
        differences=tuple(
            DifferenceRow(
                _word(row.get("kind")),
                _offset(row.get("sourceOffset")),
                _offset(row.get("targetOffset")),
                f"{_word(row.get('sourceDigest'))[:12] or '-'} / {_word(row.get('targetDigest'))[:12] or '-'}",
                ", ".join(_names(row.get("fields"))),
                key[:KEY_MAX] if isinstance(key := row.get("key"), str) else None,
            )
            for row in shown[:DIFFERENCES_MAX]
        ),
    )


def _word(value: Any) -> str:
    return value[:TEXT_MAX] if isinstance(value, str) else ""


def _names(value: Any) -> list[str]:
    return [_word(name) for name in value[:FIELDS_MAX] if _word(name)] if isinstance(value, list) else []


def _offset(value: Any) -> str:
    return f"{value:,}" if type(value) is int and 0 <= value < NUMBER_MAX else "-"


def job_views(readings: Iterable[FlowReading]) -> list[JobView]:
    """Returns the last seed, verification, export and restore of each flow, as `worst_jobs_first` sorts them."""
    return worst_jobs_first(job for reading in readings for job in _jobs(reading))


def worst_jobs_first(jobs: Iterable[JobView]) -> list[JobView]:
    """Sorts jobs: those that need a person first, then those that have not ended."""
    return sorted(jobs, key=lambda job: (min(job.level, Level.WAITING), job.end != "", job.key, job.kind))


def with_results(jobs: Iterable[JobView], results: Iterable[JobView]) -> list[JobView]:
    """Returns *jobs* and *results*, as `worst_jobs_first` sorts them.

    The result of a verification that is among *jobs* is not listed a second time: the job gets its windows.
    """
    given = [*results]
    by_run = {
        (result.namespace, result.flow, result.run_id): result
        for result in reversed(given)
        if result.namespace and result.run_id and result.kind == VERIFICATION_KIND
    }
    shown: list[JobView] = []
    used: list[JobView] = []
    for job in jobs:
        run = (job.namespace, job.flow, job.run_id)
        if job.kind == VERIFICATION_KIND and run in by_run:
            used.append(by_run[run])
            shown.append(replace(job, windows=by_run[run].windows))
        else:
            shown.append(job)
    others = (result for result in given if not any(result is shown_result for shown_result in used))
    return worst_jobs_first([*shown, *others])


def _jobs(reading: FlowReading) -> Iterator[JobView]:
    status = reading.status or {}
    if isinstance(seed := status.get("seed"), dict) and seed.get("phase"):
        yield _seed(reading, seed)
    if isinstance(verify := status.get("verify"), dict) and verify.get("phase"):
        yield _verification(reading, verify)
    if isinstance(archive := status.get("archive"), dict) and archive.get("phase"):
        yield _export(reading, archive)
    if isinstance(restore := status.get("restore"), dict) and restore.get("phase"):
        yield _restore(reading, restore)


def running_job_view(flow: str, began_s: float, report: Mapping[str, Any]) -> JobView:
    """Returns a job that runs on this machine; *report*: its newest one, whose fields are those of a status, or empty."""
    began = datetime.fromtimestamp(began_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    run = {"phase": "Preparing", **report, "startTime": began}
    reading = FlowReading(key="", name=flow[:NAME_MAX])
    match report.get("job"):
        case "seed":
            return _seed(reading, run)
        case "export":
            return _export(reading, {**run, "records": report.get("archivedRecords")})
        case "restore":
            return _restore(reading, run)
        case "verify":
            return _verification(reading, run)
    return JobView(
        **_run_fields(reading, run, "repair" if report.get("job") == "repair" else "job"),
        level=Level.WAITING,
        word=_word(run["phase"]).lower(),
        done=0,
        total=0,
        parts=(),
        figures=(),
    )


def _export(reading: FlowReading, archive: Mapping[str, Any]) -> JobView:
    """Returns the last export into the archive of a flow; one that follows the source has no end."""
    phase = str(archive.get("phase"))
    times = {"last complete": "successTime", "next": "nextTime"}
    return JobView(
        **_run_fields(reading, archive, "archive"),
        level=_LEVELS.get(phase, Level.UNKNOWN),
        word=phase.lower(),
        done=0,
        total=0,
        parts=(),
        figures=(
            ("commit", _int(archive.get("commit")), "count"),
            ("records", _int(archive.get("records")), "count"),
        ),
        times=tuple((name, time) for name, key in times.items() if (time := _word(archive.get(key)))),
        advice=advice_for("ArchiveFailed") if phase in {"Failed", "Lost"} else None,
    )


def _restore(reading: FlowReading, restore: Mapping[str, Any]) -> JobView:
    phase = str(restore.get("phase"))
    return JobView(
        **_run_fields(reading, restore, "restore"),
        **_partition_fields(restore, phase),
        figures=(
            ("records", _int(restore.get("records")), "count"),
            ("bytes", _int(restore.get("bytes")), "byte_count"),
        ),
        advice=advice_for("RestoreFailed") if phase in {"Failed", "Lost"} else None,
    )


def _partition_fields(run: Mapping[str, Any], phase: str) -> dict[str, Any]:
    """Returns the fields of a run whose progress is that of its partitions."""
    partitions = _counts(run.get("partitions"))
    total, done, lost = (_int(partitions.get(name)) for name in ("total", "done", "lost"))
    return {
        "level": Level.BROKEN if lost else _LEVELS.get(phase, Level.UNKNOWN),
        "word": f"{phase.lower()}, with losses" if lost else phase.lower(),
        "done": done,
        "total": total,
        "parts": (
            ("done", done, Level.FINE),
            ("lost", lost, Level.BROKEN),
            ("to do", max(0, total - done - lost), Level.WAITING),
        ),
    }


def _seed(reading: FlowReading, seed: Mapping[str, Any]) -> JobView:
    phase = str(seed.get("phase"))
    has_lost = bool(_int(_counts(seed.get("partitions")).get("lost")))
    return JobView(
        **_run_fields(reading, seed, "seed"),
        **_partition_fields(seed, phase),
        figures=(
            *([("wave", wave, "count")] if (wave := _int(seed.get("wave"))) else ()),
            ("records", _int(seed.get("records")), "count"),
            ("remaining records", _int(seed.get("remainingRecords")), "count"),
            ("records/s", _number(seed.get("recordsPerSecond")), "short"),
            ("bytes/s", _number(seed.get("bytesPerSecond")), "byte_rate"),
        ),
        left_s=_int(seed.get("estimatedSeconds")) if seed.get("estimatedSeconds") is not None else None,
        advice=advice_for("SeedFailed") if has_lost or phase in {"Failed", "Lost"} else None,
    )


def _verification(reading: FlowReading, verify: Mapping[str, Any]) -> JobView:
    windows = _counts(verify.get("windows"))
    counts = {name: _int(windows.get(name)) for name in ("total", *_OUTCOMES)}
    phase = str(verify.get("phase"))
    is_different = bool(counts["different"] or counts["reordered"])
    done = sum(counts[name] for name in _OUTCOMES)
    parts = [(name, counts[name], _OUTCOME_LEVELS[name]) for name in _OUTCOMES]
    return JobView(
        **_run_fields(reading, verify, VERIFICATION_KIND),
        level=Level.BROKEN if is_different else _LEVELS.get(phase, Level.UNKNOWN),
        word="differs" if is_different else phase.lower(),
        done=done,
        total=counts["total"],
        parts=(*parts, ("to do", max(0, counts["total"] - done), Level.WAITING)),
        figures=(
            ("source records", _int(verify.get("sourceRecords")), "count"),
            ("target records", _int(verify.get("targetRecords")), "count"),
            ("differing records", _int(verify.get("differences")), "count"),
        ),
        advice=advice_for(DIFFERENCES_FOUND) if is_different else None,
    )


def _run_fields(reading: FlowReading, run: Mapping[str, Any], kind: str) -> dict[str, Any]:
    texts = {"run_id": "runId", "message": "message", "start": "startTime", "end": "completionTime"}
    return {
        "flow": reading.name,
        "key": reading.key,
        "namespace": reading.namespace,
        "kind": kind,
        **{field: str(run.get(name) or "") for field, name in texts.items()},
    }


def _counts(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float:
    return value if type(value) in {int, float} and 0 <= value < NUMBER_MAX else 0


def _int(value: Any) -> int:
    return value if type(value) is int and 0 <= value < NUMBER_MAX else 0
