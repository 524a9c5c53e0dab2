"""The views of seeds and verifications: progress, and the windows and records that differ."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from mirrorflow_console.documents import FlowReading
from mirrorflow_console.flow_views import Level
from mirrorflow_console.job_views import (
    KEY_MAX,
    MARKS_MAX,
    WINDOWS_MAX,
    archive_of_manifest,
    job_views,
    running_job_view,
    verification_of_file,
    worst_jobs_first,
)
from mirrorflow_console.result_files import ResultFiles
from mirrorflow_seed.job_report import (
    ArchiveReport,
    JobPhase,
    OutcomeCounts,
    RepairReport,
    SeedReport,
    VerifyReport,
)
from tests.unit.console.served_console import served
from tests.unit.console.test_documents import JSON
from tests.unit.console.test_server import SCRIPT, flows, get

RESULT: dict[str, Any] = {
    "flow": "east-to-west",
    "runId": "nightly",
    "phase": "Succeeded",
    "windows": {"total": 3, "equal": 2, "different": 1, "reordered": 0, "undecided": 0},
    "notEqual": [
        {
            "topic": "orders", "partition": 3, "fromOffset": 1000, "toOffset": 2000, "outcome": "different",
            "sourceRecords": 1000, "targetRecords": 999, "reason": "",
            "first": [{"kind": "missing", "sourceOffset": 1234, "targetOffset": -1, "sourceDigest": "abc", "targetDigest": "", "fields": ["value", "headers"]}],
        }
    ],
}  # fmt: skip


def test_a_running_seed_shows_its_progress_and_remaining_time():
    seed = {
        "phase": "Running",
        "wave": 2,
        "partitions": {"total": 10, "done": 4, "lost": 0},
        "estimatedSeconds": 90,
    }
    (job_view,) = job_views([FlowReading(key="f", name="f", status={"seed": seed})])

    assert (job_view.level, job_view.done, job_view.total, job_view.left_s) == (Level.WAITING, 4, 10, 90)
    assert job_view.figures[0] == ("wave", 2, "count")
    assert job_view.parts == (("done", 4, Level.FINE), ("lost", 0, Level.BROKEN), ("to do", 6, Level.WAITING))


def test_a_window_with_differences_lists_the_differing_records():
    verification = verification_of_file(RESULT)

    assert verification is not None
    assert (verification.level, verification.word) == (Level.BROKEN, "differs")
    (window,) = verification.windows
    assert (window.place, window.offsets) == ("orders-3", "1,000 to 2,000")
    assert window.differences == (("missing", "1,234", "-", "abc / -", "value, headers", None),)


def of_windows(*windows: tuple[str, int, int, str], counted: int = 0) -> dict[str, Any]:
    """A result with *windows*: topic, partition, first offset and outcome, 1,000 offsets each; *counted*: how many are different."""
    rows = [
        {
            "topic": topic,
            "partition": partition,
            "fromOffset": begin,
            "toOffset": begin + 1_000,
            "outcome": outcome,
        }
        for topic, partition, begin, outcome in windows
    ]
    return {**RESULT, "windows": {"total": 5_000_000, "different": counted}, "notEqual": rows}


def test_the_strip_has_a_mark_for_each_listed_window_by_topic_partition_and_offset():
    """Marks are adjacent only where their windows are."""
    verification = verification_of_file(
        of_windows(
            ("orders", 10, 0, "undecided"),
            ("orders", 2, 3_000, "reordered"),
            ("orders", 2, 2_000, "different"),
            ("orders", 2, 9_000, "different"),
            ("billing", 3, 0, "different"),
        )
    )

    assert verification is not None
    assert verification.strip == [
        (Level.BROKEN, "different: billing-3, source offsets 0 to 1,000", 0, False),
        (Level.BROKEN, "different: orders-2, source offsets 2,000 to 3,000", 1, False),
        (Level.BROKEN, "reordered: orders-2, source offsets 3,000 to 4,000", 2, True),
        (Level.BROKEN, "different: orders-2, source offsets 9,000 to 10,000", 3, False),
        (Level.UNKNOWN, "undecided: orders-10, source offsets 0 to 1,000", 4, False),
    ]


def test_a_mark_of_several_windows_has_the_worst_outcome_and_opens_the_first_with_it():
    outcomes = {4: "reordered", 5: "different"}
    verification = verification_of_file(
        of_windows(
            *(("orders", 0, 1_000 * index, outcomes.get(index, "undecided")) for index in range(WINDOWS_MAX))
        )
    )

    assert verification is not None
    assert len(verification.strip) <= MARKS_MAX
    assert verification.strip[:2] == [
        (Level.UNKNOWN, "undecided: 3 windows, from orders-0 at 0 to orders-0 at 3,000", 0, False),
        (Level.BROKEN, "different: 3 windows, from orders-0 at 3,000 to orders-0 at 6,000", 5, True),
    ]
    assert verification.strip[-1].text == "undecided: orders-0, source offsets 99,000 to 100,000"


def test_windows_that_the_result_does_not_list_are_counted():
    verification = verification_of_file(of_windows(("orders", 0, 0, "different"), counted=2_001))

    assert verification is not None
    assert verification.unlisted == 2_000


def test_each_mark_of_the_strip_links_to_its_window(tmp_path: Path):
    windows = [(SCRIPT, 0, 0, "different"), ("orders", 1, 0, "undecided")]
    (tmp_path / "verification.json").write_text(json.dumps(of_windows(*windows, counted=3)))

    with served(flows(), results=ResultFiles(tmp_path)) as console:
        _, _, body = get(console, "/jobs")

    links = re.findall(r'href="#(windows-[^"]+)" title="([^"]+)"', body)
    rows = dict(re.findall(r'<tr class="r\d" id="(windows-[^"]+)">.*?<th scope="row"[^>]*>([^<]+)<', body))
    assert [text.split(": ")[1].split(",")[0] for _, text in links] == [rows[target] for target, _ in links]
    assert len(links) == 2
    assert "1 more window that is not equal: see the table of windows" in body
    assert SCRIPT not in body


def with_keys(*keys: Any) -> dict[str, Any]:
    """A result whose window has one record with each of *keys*."""
    (window,) = RESULT["notEqual"]
    first = [{**window["first"][0], "key": key} for key in keys]
    return {**RESULT, "notEqual": [{**window, "first": first}]}


def test_a_differing_record_shows_its_key_only_where_the_result_holds_one():
    verification = verification_of_file(with_keys("order-17", None, "", 7, "k" * 9_000))

    assert verification is not None
    keys = [record.key for record in verification.windows[0].differences]
    assert keys == ["order-17", None, "", None, "k" * KEY_MAX]


def test_a_key_with_markup_is_text(tmp_path: Path):
    (tmp_path / "verification.json").write_text(json.dumps(with_keys(SCRIPT, "order-17")))

    with served(flows(), results=ResultFiles(tmp_path)) as console:
        _, _, body = get(console, "/jobs")

    assert SCRIPT not in body
    assert '<code class="key">order-17</code> in value, headers' in body


def test_jobs_that_need_a_person_come_first_and_then_those_that_have_not_ended():
    """Also a result of a folder before a job of a resource."""
    statuses: dict[str, dict[str, Any]] = {
        "equal": {"verify": {"phase": "Succeeded", "completionTime": "2026-11-29T10:00:00Z"}},
        "seeding": {"seed": {"phase": "Running", "partitions": {"total": 9}}},
    }
    jobs = job_views([FlowReading(key=key, name=key, status=status) for key, status in statuses.items()])
    verification, archive = verification_of_file(RESULT), archive_of_manifest(ARCHIVE)
    assert verification is not None
    assert archive is not None

    ordered = worst_jobs_first([*jobs, archive, verification])

    assert [job.word for job in ordered] == ["differs", "finished, with gaps", "running", "succeeded"]


@given(document=JSON)
def test_any_result_file_can_be_shown(document):
    verification_of_file(document)
    verification_of_file({**RESULT, "windows": document, "notEqual": document})
    verification_of_file({**RESULT, "notEqual": [document, {"first": document}]})


def test_result_files_of_a_folder_are_escaped_and_invalid_ones_ignored(tmp_path: Path):
    for name, text in (("good", json.dumps({**RESULT, "flow": SCRIPT})), ("bad", "<html>")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "verification.json").write_text(text)

    with served(flows(), results=ResultFiles(tmp_path)) as console:
        status, _, body = get(console, "/jobs")

    assert status == 200
    assert "orders-3" in body
    assert SCRIPT not in body


ARCHIVE = {
    "format": 1,
    "flow": "east-to-west",
    "started": "2026-11-22T10:00:00Z",
    "finished": "2026-11-22T10:05:00Z",
    "topics": [
        {
            "name": "orders",
            "partitions": [
                {"files": [{"size_bytes": 700, "tally": {"records": 40}}, {"size_bytes": 300, "tally": {"records": 2}}]},
                {"files": [], "gaps": [{"start": 5, "end": 9}]},
            ],
        }
    ],
}  # fmt: skip


def test_an_archive_shows_its_content_and_what_was_deleted_meanwhile():
    archive = archive_of_manifest(ARCHIVE)

    assert archive is not None
    assert (archive.kind, archive.flow, archive.word) == ("archive", "east-to-west", "finished, with gaps")
    assert {name: value for name, value, _ in archive.figures} == {
        "topics": 1, "partitions": 2, "records": 42, "bytes": 1_000, "deleted during the export": 4,
    }  # fmt: skip


@given(document=JSON)
def test_any_manifest_can_be_shown(document):
    archive_of_manifest(document)
    archive_of_manifest({**ARCHIVE, "topics": document})
    archive_of_manifest({**ARCHIVE, "topics": [document, {"partitions": [document, {"files": [document]}]}]})


def test_a_folder_of_archives_lists_finished_and_unfinished_archives(tmp_path: Path):
    for name, file, text in (
        ("monday", "_unfinished.json", "{}"),
        ("monday", "_manifest.json", json.dumps(ARCHIVE)),
        ("tuesday", "_unfinished.json", "{}"),
        ("tuesday/topic=orders/partition=0", "_manifest.json", json.dumps(ARCHIVE)),
    ):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / file).write_text(text)

    views = ResultFiles(tmp_path).read()

    assert sorted((job_view.flow, job_view.word) for job_view in views) == [
        ("east-to-west", "finished, with gaps"),
        ("tuesday", "not finished"),
    ]


@pytest.mark.parametrize("folder", ["missing", "empty"])
def test_a_missing_or_empty_folder_has_no_results(tmp_path: Path, folder: str):
    (tmp_path / "empty").mkdir()

    assert ResultFiles(tmp_path / folder).read() == []


def test_exports_and_restores_of_a_resource_are_jobs():
    status = {
        "archive": {
            "runId": "", "phase": "Running", "commit": 7, "records": 4_200, "successTime": "2026-11-29T10:00:00Z",
            "startTime": "2026-11-29T09:00:00Z", "nextTime": None,
        },
        "restore": {"runId": "a", "phase": "Failed", "partitions": {"total": 4, "done": 1, "lost": 0}, "records": 9},
    }  # fmt: skip
    restore, archive = job_views([FlowReading(key="f", name="f", status=status)])

    assert (archive.kind, archive.level, archive.times) == (
        "archive",
        Level.WAITING,
        (("last complete", "2026-11-29T10:00:00Z"),),
    )
    assert archive.figures == (("commit", 7, "count"), ("records", 4_200, "count"))
    assert (restore.kind, restore.level, restore.run_id, restore.done) == ("restore", Level.BROKEN, "a", 1)
    assert restore.advice is not None


@given(document=JSON)
def test_any_status_of_a_job_can_be_shown(document):
    for field in ("seed", "verify", "archive", "restore"):
        run = {"phase": document, "partitions": document, "windows": document, "successTime": document}
        for status in (document, {**run, "phase": "Running"}, run):
            job_views([FlowReading(key="f", name="f", status={field: status})])


@pytest.mark.parametrize(
    ("report", "kind", "word", "done"),
    [
        (SeedReport(run_id="1", phase=JobPhase.RUNNING, partitions=9, done=4, wave=2, records_per_second=7.5), "seed", "running", 4),
        (VerifyReport(run_id="1", phase=JobPhase.RUNNING, windows=OutcomeCounts(total=5, equal=3)), "verification", "running", 3),
        (ArchiveReport(run_id="1", job="export", archived_records=12, commit=3), "archive", "preparing", 0),
        (ArchiveReport(run_id="1", job="restore", phase=JobPhase.RUNNING, partitions=3, done=1), "restore", "running", 1),
        (RepairReport(run_id="1", phase=JobPhase.RUNNING), "repair", "running", 0),
        (None, "job", "preparing", 0),
    ],
)  # fmt: skip
def test_a_job_that_runs_on_this_machine_shows_its_report(report: Any, kind: str, word: str, done: int):
    view = running_job_view("east-to-west", 1_800_000_000.5, {} if report is None else report.as_json())

    assert (view.kind, view.word, view.done, view.level) == (kind, word, done, Level.WAITING)
    assert (view.flow, view.start, view.end) == ("east-to-west", "2027-01-15T08:00:00Z", "")
    if kind == "seed":
        assert ("records/s", 7.5, "short") in view.figures


@given(document=JSON)
def test_any_report_of_a_job_can_be_shown(document):
    for job in ("seed", "verify", "export", "restore", document):
        report = {"job": job, "phase": document, "partitions": document, "recordsPerSecond": document}
        running_job_view("f", 0.0, report)
