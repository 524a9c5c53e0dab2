"""Seeds and verifications: progress, and the windows that differ down to their records."""

import json
from pathlib import Path

import pytest
from hypothesis import given

from mirrorflow_console.documents import FlowReading
from mirrorflow_console.flow_views import Level
from mirrorflow_console.job_views import job_views, verification_of_file
from mirrorflow_console.result_files import ResultFiles
from tests.unit.console.serving import served
from tests.unit.console.test_documents import JSON
from tests.unit.console.test_server import SCRIPT, flows, get

RESULT = {
    "flow": "east-to-west",
    "runId": "nightly",
    "phase": "Succeeded",
    "windows": {"total": 3, "equal": 2, "different": 1, "reordered": 0, "undecided": 0},
    "notEqual": [
        {
            "topic": "orders", "partition": 3, "fromOffset": 1000, "toOffset": 2000, "outcome": "different",
            "sourceRecords": 1000, "targetRecords": 999, "reason": "",
            "first": [{"kind": "missing", "sourceOffset": 1234, "targetOffset": -1, "sourceDigest": "abc", "targetDigest": ""}],
        }
    ],
}  # fmt: skip


def test_running_seed_shows_its_progress_and_time_left():
    seed = {"phase": "Running", "partitions": {"total": 10, "done": 4, "lost": 0}, "estimatedSeconds": 90}
    (found,) = job_views([FlowReading(key="f", name="f", status={"seed": seed})])

    assert (found.level, found.done, found.total, found.left_s) == (Level.WAITING, 4, 10, 90)
    assert found.parts == (("done", 4, Level.FINE), ("lost", 0, Level.BROKEN), ("to do", 6, Level.WAITING))


def test_differing_window_is_opened_down_to_the_record():
    found = verification_of_file(RESULT)

    assert found is not None
    assert (found.level, found.word) == (Level.BROKEN, "differs")
    (window,) = found.windows
    assert (window.partition, window.offsets) == ("orders-3", "1,000 to 2,000")
    assert window.differences == (("missing", "1,234", "-", "abc / -"),)


@given(document=JSON)
def test_no_file_breaks_the_page(document):
    verification_of_file(document)
    verification_of_file({**RESULT, "windows": document, "notEqual": document})
    verification_of_file({**RESULT, "notEqual": [document, {"first": document}]})


def test_files_of_a_folder_are_shown_as_text(tmp_path: Path):
    for name, text in (("good", json.dumps({**RESULT, "flow": SCRIPT})), ("bad", "<html>")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "verification.json").write_text(text)

    with served(flows(), results=ResultFiles(tmp_path)) as console:
        status, _, body = get(console, "/jobs")

    assert status == 200
    assert "orders-3" in body
    assert SCRIPT not in body


@pytest.mark.parametrize("folder", ["missing", "empty"])
def test_folder_without_results_has_none(tmp_path: Path, folder: str):
    (tmp_path / "empty").mkdir()

    assert ResultFiles(tmp_path / folder).read() == []
