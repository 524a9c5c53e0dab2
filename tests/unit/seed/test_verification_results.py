"""Tests the result of a verification as status, JSON, table rows and HTML page."""

import io
import json
import re

import pytest

from mirrorflow_seed.job_report import encode
from mirrorflow_seed.verify.offset_windows import Difference, DifferenceKind, WindowOutcome, WindowResult
from mirrorflow_seed.verify.result_folder import CELLS_MAX, output_folder, page, write_windows
from mirrorflow_seed.verify.verification_result import NOT_EQUAL_MAX, PackedWindows, VerificationResult

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
        windows=[PackedWindows.of(windows[index : index + 3]) for index in range(0, len(windows), 3)],
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


def test_few_windows_have_a_cell_each_also_those_of_key_classes() -> None:
    """The cells are in order, whichever task had their windows."""
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


def test_packed_windows_take_a_small_part_of_their_memory() -> None:
    """A driver holds those of millions."""
    windows = [
        window(number, target_from_offset=number * 107, target_to_offset=number * 107 + 100)
        for number in range(1_000)
    ]
    packed = PackedWindows.of(windows)
    assert windows == packed.unpack()
    assert len(packed.content) < 60 * len(windows)


def test_run_id_cannot_escape_the_folder() -> None:
    names = {
        output_folder("out/", run_id).removeprefix("out/")
        for run_id in ("1", "..", "a/../../b", "a b", "a-b", "/")
    }
    assert 6 == len(names)
    assert all("/" not in name and name.startswith("run-") for name in names)
