"""Tables that commands print fit the width of the terminal."""

import io
import os

import pytest

from mirrorflow_cli.output import print_table, shortened


class NarrowTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("width", "columns"), [(20, ["flow", "lag", "address"]), (15, ["flow", "lag"]), (5, ["flow", "lag"])]
)
def test_dispensable_columns_are_left_out_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, width: int, columns: list[str]
) -> None:
    """The other columns stay at any width."""
    terminal = NarrowTerminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((width, 24)))
    print_table(("flow", "lag", "address"), [("a-to-b", "1", "http:x")], dispensable=("address",))

    assert columns == terminal.getvalue().splitlines()[0].split()


def test_output_to_a_pipe_has_all_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("flow", "address"), [("a", "x" * 300)], dispensable=("address",))

    assert "x" * 300 in capsys.readouterr().out


@pytest.mark.parametrize(("length", "expected"), [(9, "orders-eu"), (8, "orde…-eu"), (3, "o…u")])
def test_long_names_are_shortened_in_the_middle(length: int, expected: str) -> None:
    assert expected == shortened("orders-eu", length)
