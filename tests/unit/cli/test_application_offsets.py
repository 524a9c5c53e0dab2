"""`mirrorflow offsets translate` reads its whole list before it connects. Integration tests check translations."""

import io
import sys

import pytest

from mirrorflow_cli import application_offsets
from mirrorflow_cli.__main__ import main

FLOW = ["--from", "127.0.0.1:1", "--to", "127.0.0.1:1"]


@pytest.mark.parametrize(
    "arguments",
    [["translate", *FLOW], [*FLOW, "translate"], ["translate", "-", *FLOW], ["translate", *FLOW, "-"], [*FLOW, "translate", "-"]],
)  # fmt: skip
def test_offsets_are_read_from_stdin_for_any_order_of_arguments(arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"orders,0,1\norders,0,-1\n")))

    assert 2 == main(["offsets", *arguments])
    printed = capsys.readouterr()
    assert ("", "stdin, line 2: offset '-1' is not a number from 0 to 9223372036854775807.\n") == (
        printed.out,
        printed.err,
    )


def test_errors_name_the_file_of_offsets(tmp_path, capsys):
    offsets = tmp_path / "offsets.csv"
    offsets.write_text("orders;0;1\n")

    assert 2 == main(["offsets", "translate", str(offsets), *FLOW])
    assert capsys.readouterr().err.startswith(f"{offsets}, line 1: it has 1 columns")
    assert 2 == main(["offsets", "translate", str(tmp_path / "none"), *FLOW])
    assert "cannot be read: No such file or directory." in capsys.readouterr().err


def test_a_list_above_the_limit_is_not_read_into_memory(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(application_offsets, "LIST_MAX_BYTES", 1 << 20)
    offsets = tmp_path / "offsets.csv"
    offsets.write_bytes(b"orders,0,1\n" * 100_000)

    assert 2 == main(["offsets", "translate", str(offsets), *FLOW])
    assert f"{offsets} is larger than 1 MiB; divide the list.\n" == capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--reverse", *FLOW], "--reverse is for `mirrorflow offsets translate`."),
        (["translate", "--group", "g", *FLOW], "translate cannot be combined with --group and --dry-run-failover."),
        (["--json", "--dry-run-failover", *FLOW], "--dry-run-failover cannot be combined with --json"),
        (["translate", "a", "b", *FLOW], "unrecognized arguments: b"),
        (["flow.yaml", "other.yaml"], "unrecognized arguments: flow.yaml other.yaml"),
        (["translate", "-f", "-"], "Only one of -f and the offsets can be read from stdin; name a file for the other."),
    ],
)  # fmt: skip
def test_contradictory_arguments_are_refused(arguments, message, capsys):
    assert 2 == main(["offsets", *arguments])
    printed = capsys.readouterr()
    assert message in (printed.out if "--json" in arguments else printed.err)


def test_a_flow_file_may_still_be_given_without_its_option(capsys):
    assert 2 == main(["offsets", "no-such-flow.yaml"])
    assert capsys.readouterr().err.startswith("no-such-flow.yaml cannot be read")
