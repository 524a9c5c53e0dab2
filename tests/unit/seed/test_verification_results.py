"""Tests the result of a verification as status, JSON, table rows and HTML page."""

import io
import json
import re

import pytest

from mirrorflow_seed.job_report import encode
from mirrorflow_seed.verify.offset_windows import Difference, DifferenceKind, WindowOutcome, WindowResult
from mirrorflow_seed.verify.result_folder import CELLS_MAX, output_folder, page, write_windows
from mirrorflow_seed.verify.verification_result import VerificationResult

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
        windows=windows,
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
    write_windows(sink, verification(different, window(1)))

    values, _ = parquet.read_table(io.BytesIO(sink.getvalue())).to_pylist()
    assert ("1", "orders", 0, 100) == tuple(
        values[name] for name in ("run_id", "topic", "from_offset", "to_offset")
    )
    [difference] = values["differences"]
    assert ["missing", 7, None, "ab", None, []] == list(difference.values())


def test_names_are_escaped_in_the_html_page() -> None:
    html = page(
        verification(
            window(0, WindowOutcome.DIFFERENT, topic=SCRIPT_TAG, reason=SCRIPT_TAG),
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


def test_run_id_cannot_escape_the_folder() -> None:
    names = {
        output_folder("out/", run_id).removeprefix("out/")
        for run_id in ("1", "..", "a/../../b", "a b", "a-b", "/")
    }
    assert 6 == len(names)
    assert all("/" not in name and name.startswith("run-") for name in names)
