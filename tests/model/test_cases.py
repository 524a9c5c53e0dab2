"""Each cell of "What holds when" in docs/exactly-once.md says what scenarios of the model, or tests on real brokers, show."""

import re
from pathlib import Path

import pytest

from tests.model.cases import COLUMNS, DEVIATIONS, FIRST_SEEDS, ROWS, WITNESSES, Row, undeclared
from tests.model.catalogue import SCENARIOS
from tests.model.judge import ABORTED_BY_COORDINATOR, NOT_PROTECTED, RESTARTED
from tests.model.running import run

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "exactly-once.md"
TESTS = ROOT / "tests" / "integration" / "kafka"


def table(page: str) -> list[list[str]]:
    """The cells of each row, without the head."""
    section = page.partition("<!-- CASES:")[2].partition("<!-- END OF CASES -->")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[1:]]


def differences(page: str) -> list[str]:
    """The cells that say something else than is shown."""
    return [
        f"{row.begins!r}, {column}: {cell!r} is claimed, {row.shown(column)!r} is shown"
        for row, (_, *cells) in zip(ROWS, table(page), strict=True)
        for column, cell in zip(COLUMNS, cells, strict=True)
        if cell != row.shown(column)
    ]


def test_each_row_of_the_table_is_shown_by_something():
    rows = [situation for situation, *_ in table(PAGE.read_text())]

    assert [row.begins for row in ROWS] == [
        situation[: len(row.begins)] for situation, row in zip(rows, ROWS, strict=True)
    ]
    nothing_promised = dict.fromkeys(COLUMNS[:2], NOT_PROTECTED)
    assert [
        row.begins
        for row in ROWS
        if not (row.scenarios or row.tests) and not nothing_promised.items() <= row.cells.items()
    ] == []


def test_each_cell_says_what_is_shown():
    assert differences(PAGE.read_text()) == []


@pytest.mark.parametrize("row", range(len(ROWS)))
@pytest.mark.parametrize("column", range(len(COLUMNS)))
def test_a_cell_that_says_something_else_is_found(row: int, column: int):
    """Whichever is changed, and whether it claims more or less."""
    page = PAGE.read_text()
    situation, *cells = table(page)[row]
    line = next(one for one in page.splitlines() if one.startswith(f"| {situation} |"))
    flipped = list(cells)
    flipped[column] = NOT_PROTECTED if cells[column] == "yes" else "yes"
    changed = page.replace(line, f"| {' | '.join((situation, *flipped))} |")

    assert len(differences(changed)) == 1


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.begins)
def test_a_cell_of_several_words_does_not_claim_more_than_the_model_shows(row: Row):
    claimed = {column: cell for column, cell in row.cells.items() if row.scenarios}

    assert {
        column: cell
        for column, cell in claimed.items()
        if not cell.startswith(row.modelled(column)) and cell != NOT_PROTECTED
    } == {}


def test_what_shows_a_row_is_there():
    functions = {
        name
        for path in TESTS.glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }

    assert {name for row in ROWS for name in row.scenarios} | DEVIATIONS.keys() <= SCENARIOS.keys()
    assert {name for row in ROWS for name in row.tests} <= functions


@pytest.mark.parametrize("row", [row for row in ROWS if row.deviations], ids=lambda row: row.begins)
def test_each_deviation_of_a_row_is_seen(row: Row):
    """So that no cell claims less than holds. `make model SEEDS=200` prints which scenarios deviate."""
    wanted = {(one.column, one.cell) for one in row.deviations}
    for name in row.scenarios:
        for seed in WITNESSES.get(name, FIRST_SEEDS):
            if not wanted:
                return
            wanted -= {(one.column, one.cell) for one in run(SCENARIOS[name], seed=seed).judgement.allowed}

    assert not wanted


def test_a_deviation_that_no_table_names_is_noticed():
    assert undeclared("one_copier_and_any_fault", [ABORTED_BY_COORDINATOR]) == {ABORTED_BY_COORDINATOR.name}
    assert undeclared("small_and_forgotten", [ABORTED_BY_COORDINATOR, RESTARTED]) == set()
