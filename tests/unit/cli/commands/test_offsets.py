"""The lines that `mirrorflow offsets` prints; integration tests check that it finds the groups."""

import json

import pytest

from mirrorflow_cli.__main__ import main
from mirrorflow_cli.commands import offsets
from mirrorflow_cli.commands.offsets import GroupOffsetReport, _age, _print_lines, failover
from mirrorflow_core.offsets.checkpoints import GroupOffset


def group_offset(**changes) -> GroupOffset:
    values = {
        "group": "g", "topic": "orders", "partition": 0, "target_topic": "A.orders", "source_offset": 100,
        "target_offset": 90, "at_most": 90, "checkpoint_offset": 90, "checkpoint_written_ms": None, "group_offset": 90,
        "written": True, "why": None,
    }  # fmt: skip
    return GroupOffset(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("as_json", [True, False])
def test_offsets_that_were_read_are_printed_before_what_failed(monkeypatch, capsys, as_json):
    problem = "Reading group h failed: west does not respond."

    async def read(*_: object) -> GroupOffsetReport:
        return GroupOffsetReport((group_offset(),), ("Group i is not synchronised.",), (problem,))

    monkeypatch.setattr(offsets, "read_group_offsets", read)
    status = main(["offsets", "--from", "a:1", "--to", "b:1", *(["--json"] if as_json else [])])
    printed = capsys.readouterr()

    assert 1 == status
    if as_json:
        line, last = (json.loads(line) for line in printed.out.splitlines())
        assert ("g", {"problems": [problem]}) == (line["group"], last)
    assert as_json is (problem not in printed.err)
    assert printed.err.startswith("Group i")


def test_the_table_shows_offsets_translation_and_reason(capsys):
    _print_lines(
        [
            group_offset(),
            group_offset(partition=1, at_most=97, written=False, why="it has members"),
            group_offset(target_offset=None),
        ]
    )

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        "group",
        "partition",
        "source",
        "target",
        "translation",
        "age",
        "written",
        "why",
    ]
    assert lines[1].split() == ["g", "orders-0", "100", "90", "exact", "-", "yes"]
    assert "bound, 7 or fewer again" in lines[2]
    assert lines[2].endswith("no       it has members")
    assert lines[3].split()[3:5] == ["-", "unknown"]


def test_a_failover_is_summarized_per_group():
    rows = list(
        failover(
            [
                group_offset(group_offset=60),
                group_offset(partition=1, group_offset=None, checkpoint_offset=80, at_most=95),
                group_offset(group="h", group_offset=None, checkpoint_offset=None),
                group_offset(group="i", group_offset=60, at_most=None),
            ]
        )
    )

    assert rows == [
        ("g", "2", "45", "5", "its checkpoint, its offset"),
        ("h", "1", "at least 0", "unknown", "auto.offset.reset in 1"),
        ("i", "1", "at least 30", "unknown", "its offset"),
    ]


def test_ages_are_shown_in_the_largest_unit_with_at_least_two():
    assert ["-", "0s", "119s", "2m", "119m", "2h"] == [
        _age(written, 10_000_000)
        for written in (None, 10_000_500, 9_881_000, 9_880_000, 2_860_000, 2_800_000)
    ]
