"""Tests the result of a verification as status, JSON, table rows and HTML page."""

import io
import json
import logging
import re
import stat
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_seed.errors import EXIT_DIFFERENT
from mirrorflow_seed.job_report import JobPhase, Report, encode
from mirrorflow_seed.settings import job_of
from mirrorflow_seed.verify import verify_driver
from mirrorflow_seed.verify.offset_windows import Difference, DifferenceKind, WindowOutcome, WindowResult
from mirrorflow_seed.verify.result_folder import CELLS_MAX, ResultFolder, cells_of, output_folder, page
from mirrorflow_seed.verify.verification_result import (
    NOT_EQUAL_MAX,
    WORST_LAST,
    VerificationResult,
    WindowSummary,
    not_equal_max,
    segments_of,
)
from mirrorflow_seed.verify.window_table import WindowTable, write_windows

SCRIPT_TAG = "<script>alert('&\"')</script>"


def window(
    number: int, outcome: WindowOutcome = WindowOutcome.EQUAL, topic: str = "orders", **more: object
) -> WindowResult:
    return WindowResult(
        topic=topic,
        partition=0,
        target_topic=f"east.{topic}",
        from_offset=number * 100,
        to_offset=number * 100 + 100,
        outcome=outcome,
        source_count=100,
        target_count=100,
        **more,  # type: ignore[arg-type]  # fields of a result
    )


def verification(*windows: WindowResult, **more: object) -> VerificationResult:
    return VerificationResult(
        run_id="1",
        flow="east-to-west",
        source_alias="east",
        target_alias="west",
        sample=1.0,
        summaries=[WindowSummary.of(windows[index : index + 3]) for index in range(0, len(windows), 3)],
        partitions=1,
        behind=0,
        **more,  # type: ignore[arg-type]  # fields of a verification
    )


def test_undecided_windows_are_not_equal() -> None:
    assert verification(window(0)).is_equal
    for outcome in (WindowOutcome.REORDERED, WindowOutcome.DIFFERENT, WindowOutcome.UNDECIDED):
        assert not verification(window(0), window(1, outcome)).is_equal


def test_status_names_no_topic() -> None:
    result = verification(
        window(0, WindowOutcome.DIFFERENT, topic="salaries", differing=1),
        notes=("salaries-0: is not compared",),
    )
    status = json.loads(encode(result.report))
    assert "salaries" not in json.dumps(status)
    assert {"total": 1, "equal": 0, "reordered": 0, "different": 1, "undecided": 0} == status["windows"]


def test_table_has_a_row_for_each_window() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    different = window(
        0, differences=(Difference(kind=DifferenceKind.MISSING, source_offset=7, source_digest="ab"),)
    )
    sink = io.BytesIO()
    write_windows(sink, (different, window(1)), run_id="1", flow="east-to-west")

    values, _ = parquet.read_table(io.BytesIO(sink.getvalue())).to_pylist()
    assert ("1", "orders", 0, 100) == tuple(
        values[name] for name in ("run_id", "topic", "from_offset", "to_offset")
    )
    [difference] = values["differences"]
    assert ["missing", 7, None, "ab", None, [], None] == list(difference.values())


def test_names_are_escaped_in_the_html_page() -> None:
    html = page(
        verification(
            window(
                0,
                WindowOutcome.DIFFERENT,
                topic=SCRIPT_TAG,
                reason=SCRIPT_TAG,
                differences=(Difference(kind=DifferenceKind.MISSING, source_offset=7, key=SCRIPT_TAG),),
            ),
            window(1, topic=SCRIPT_TAG),
            notes=(SCRIPT_TAG,),
        )
    )
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "http" not in html


def test_a_cell_shows_the_worst_of_its_windows() -> None:
    windows = [window(number) for number in range(10 * CELLS_MAX)]
    windows[77] = window(77, WindowOutcome.DIFFERENT)
    cells = re.findall(r'<span class="(\w+)" title', page(verification(*windows)))
    assert (CELLS_MAX, 1) == (len(cells), cells.count("different"))


def test_each_of_few_windows_has_its_own_cell() -> None:
    """The cells are in order, no matter which task compared their windows. Windows of key classes have cells too."""
    windows = [window(2), window(0), window(1, WindowOutcome.DIFFERENT)]
    classes = [window(0, topic="compacted", key_class=number) for number in range(4)]
    cells = re.findall(r'<span class="(\w+)" title', page(verification(*windows, *classes)))
    assert cells == ["equal", "different", "equal", *["equal"] * 4]


def test_the_first_windows_that_are_not_equal_are_listed_in_order() -> None:
    """More are counted. Those of a later task may come first."""
    windows = [window(number, WindowOutcome.DIFFERENT) for number in range(NOT_EQUAL_MAX + 5)]
    result = verification(*reversed(windows), window(1_000))
    listed = result.as_json()["notEqual"]
    assert [number * 100 for number in range(NOT_EQUAL_MAX)] == [entry["fromOffset"] for entry in listed]
    assert NOT_EQUAL_MAX + 5 == result.counts.different
    assert "5 further windows are in the table only" in page(result)


def test_many_equal_windows_of_a_task_take_no_memory_of_the_driver() -> None:
    """A driver holds the summaries of millions of windows."""
    windows = [
        window(number, target_from_offset=number * 107, target_to_offset=number * 107 + 100)
        for number in range(10_000)
    ]
    summary = WindowSummary.of(windows)
    assert (10_000, 1_000_000) == (summary.counts.equal, summary.source_records)
    assert len(summary.segments) + len(summary.not_equal) < 500


@given(st.lists(st.sampled_from(WindowOutcome), min_size=1, max_size=500), st.integers(1, 60))
def test_cells_cover_each_window_once_for_any_division_into_tasks(
    outcomes: list[WindowOutcome], per_task: int
) -> None:
    """A cell shows the worst outcome of its windows; all cells together have all records and offsets."""
    windows = [window(number, outcome) for number, outcome in enumerate(outcomes)]
    tasks = [windows[index : index + per_task] for index in range(0, len(windows), per_task)]
    cells = cells_of([segment for task in reversed(tasks) for segment in segments_of(task)])

    count = min(len(windows), CELLS_MAX)
    expected: dict[int, list[int]] = {}
    for number in range(len(windows)):
        expected.setdefault(number * count // len(windows), []).append(number)
    assert {
        position: (
            numbers[0] * 100,
            numbers[-1] * 100 + 100,
            len(numbers),
            len(numbers) * 100,
            max((outcomes[number] for number in numbers), key=WORST_LAST.index),
        )
        for position, numbers in expected.items()
    } == {
        position: (cell.begin, cell.end, cell.windows, cell.records, cell.worst)
        for position, cell in cells.items()
    }


def test_each_task_returns_fewer_windows_where_tasks_are_many() -> None:
    assert [NOT_EQUAL_MAX, NOT_EQUAL_MAX, 20, 10] == [
        not_equal_max(tasks) for tasks in (0, 2_000, 10_000, 90_000)
    ]


def test_tasks_that_reach_the_folder_write_their_windows_and_the_driver_writes_the_others(
    tmp_path: Path,
) -> None:
    """Files of lost attempts, of earlier runs and the markers are deleted."""
    parquet = pytest.importorskip("pyarrow.parquet")
    earlier, table = (WindowTable(address=str(tmp_path), run_id="1", flow="east-to-west") for _ in range(2))
    earlier.mark()
    earlier.write_in_task([window(9)], "00000")
    table.mark()
    elsewhere = replace(table, address=str(tmp_path / "volume-of-the-driver"))

    lost, part = (table.write_in_task([window(0)], "00000") for _ in range(2))
    assert elsewhere.write_in_task([window(1)], "00001") is None
    assert part is not None
    table.complete([part], iter([window(1)]))

    assert lost != part
    assert ["windows"] == [path.name for path in tmp_path.iterdir()]
    rows = parquet.read_table(str(tmp_path / "windows")).to_pylist()
    assert [0, 100] == sorted(row["from_offset"] for row in rows)


def test_a_table_without_windows_has_its_columns(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = WindowTable(address=str(tmp_path), run_id="1", flow="east-to-west")
    table.mark()
    table.complete([], iter([]))
    assert "outcome" in parquet.read_table(str(tmp_path / "windows")).column_names


def test_run_id_cannot_escape_the_folder() -> None:
    names = {
        output_folder("out/", run_id).removeprefix("out/")
        for run_id in ("1", "..", "a/../../b", "a b", "a-b", "/")
    }
    assert 6 == len(names)
    assert all("/" not in name and name.startswith("run-") for name in names)


@pytest.mark.parametrize(("keys", "mode"), [("true", 0o700), ("false", 0o755)])
def test_a_result_with_keys_is_its_owners_alone(tmp_path: Path, keys: str, mode: int) -> None:
    pytest.importorskip("pyarrow")
    run = tmp_path / "run-1"
    run.mkdir()
    run.chmod(0o755)

    ResultFolder(job_of({"output": str(tmp_path), "output.keys": keys})).prepare()

    assert stat.S_IMODE(run.stat().st_mode) == mode


def test_a_warning_names_a_result_with_keys_that_others_may_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Some mounted file systems have no modes."""
    pytest.importorskip("pyarrow")

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "chmod", refuse)

    ResultFolder(job_of({"output": str(tmp_path), "output.keys": "true"})).prepare()

    assert f"restrict who may read {tmp_path}/run-1 yourself" in caplog.text


@pytest.mark.parametrize(
    ("error", "phase", "message"),
    [
        (KeyboardInterrupt(), JobPhase.PAUSED, "Stopped by a signal; the next run starts over."),
        (ZeroDivisionError("orders-7"), JobPhase.FAILED, "ZeroDivisionError; the log has the details."),
    ],
)
def test_a_verification_that_ends_with_any_error_reports_its_end(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, phase: JobPhase, message: str
) -> None:
    """Ctrl-C, or a defect: who reads the report must not take the job for running."""

    def verify(*_: object) -> VerificationResult:
        raise error

    monkeypatch.setattr(verify_driver, "spark_session", lambda *_: nullcontext())
    monkeypatch.setattr(verify_driver, "driver_address", lambda _: ("127.0.0.1", "127.0.0.1"))
    files: Any = None
    reports: list[Report] = []

    with pytest.raises(type(error)):
        verify_driver.run(files, job_of({}), display=reports.append, verify=verify)

    assert (reports[-1].phase, reports[-1].message) == (phase, message)


def test_a_log_has_no_keys(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The result has them, in a folder that not everybody may read; logs are read by others."""
    difference = Difference(kind=DifferenceKind.MISSING, source_offset=7, key="iban-17")
    result = verification(window(0, WindowOutcome.DIFFERENT, differences=(difference,), differing=1))
    monkeypatch.setattr(verify_driver, "spark_session", lambda *_: nullcontext())
    monkeypatch.setattr(verify_driver, "driver_address", lambda _: ("127.0.0.1", "127.0.0.1"))
    files: Any = None

    with caplog.at_level(logging.INFO):
        status = verify_driver.run(files, job_of({}), verify=lambda *_: result)

    assert status == EXIT_DIFFERENT
    assert '"sourceOffset": 7' in caplog.text
    assert "iban-17" not in caplog.text
    assert "iban-17" in json.dumps(result.as_json())
