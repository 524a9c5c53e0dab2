"""What `run` shows: the live table, drawn on a terminal that is only remembered, and the plain lines."""

import io
from typing import Any

import pytest
from rich.console import Console

from mirrorflow_cli.output import is_live_terminal
from mirrorflow_cli.run_display import PlainDisplay
from mirrorflow_cli.run_progress import Companion, Progress
from mirrorflow_cli.run_table import TableDisplay

SUMMARY: dict[str, Any] = {
    "replicating": "Advancing",
    "partitions": {"total": 3},
    "lagRecords": 1_234,
    "lagSeconds": 1.5,
    "recordsPerSecond": 1.0,  # of its last thirty seconds
    "bytesPerSecond": 1.0,
    "records": 99,
    "uptimeSeconds": 4.0,
}
REFUSED = "Target topic east.t cannot be created: no."


def _row(topic: str, partition: int = 0, **more: object) -> dict[str, object]:
    plain = {"targetTopic": f"east.{topic}", "phase": "copying", "guarantee": "exactly-once", "reason": ""}
    figures = {"lagRecords": 600, "records": 20_000, "bytes": 4_000_000}
    return {"topic": topic, "partition": partition, **plain, **figures, **more}


def _drawn(seen: Progress | None) -> str:
    """What stands on the terminal after *seen* was shown, colours left out."""
    out = io.StringIO()
    display = TableDisplay("east → west", Console(file=out, width=160))
    if seen is None:
        display.started(4711, 1)
    else:
        display.progress(seen)
    display.close()
    return out.getvalue()


def test_table_has_a_line_for_each_topic_and_names_what_is_wrong() -> None:
    """Lag and rates are summed over partitions; the worst phase is shown; the sentence of an error stands below."""
    out = io.StringIO()
    display = TableDisplay("east → west", Console(file=out, force_terminal=True, width=160))
    stopped = _row(
        "big",
        phase="stopped",
        reason="RecordTooLarge",
        message="big-0: too large [x].",
        lagRecords=None,
        records=0,
    )

    display.progress(
        Progress(connector="C", summary=SUMMARY, partitions=(_row("orders"), _row("orders", 1), stopped))
    )
    display.close()

    lines = [line for line in out.getvalue().splitlines() if "orders" in line or "big" in line]
    assert [word for word in lines[0].replace("│", " ").split() if word != "\x1b[2K"] == [
        "orders", "east.orders", "2", "1,200", "10,000", "2.0", "copying", "exactly-once",
    ]  # fmt: skip
    assert all(word in lines[1] for word in ("?", "stopped", "RecordTooLarge"))
    assert "big-0: too large [x]." in lines[2]
    assert "lag 1,234 (1.5 s), 10,000 records/s, 2.0 MB/s, 99 copied" in out.getvalue()


NOTHING_YET = Progress(connector="C", summary={"replicating": "Waiting", "partitions": {"total": 0}})


@pytest.mark.parametrize("seen", [None, NOTHING_YET], ids=["no answer", "no topic was found yet"])
def test_table_says_starting_until_there_is_something_to_say(seen: Progress | None) -> None:
    """No empty frame, and nothing that could be taken for the state of a flow that runs."""
    drawn = _drawn(seen)

    assert "east → west" in drawn
    assert "starting" in drawn
    assert not any(word in drawn for word in ("topic", "Idle", "Waiting", "lag"))


def test_topics_that_are_not_copied_are_named_with_their_sentences() -> None:
    """Though no line of the table is theirs; the rest is a number."""
    reasons = [{"reason": "TopicNotCopied", "count": 200}]
    summary = {**SUMMARY, "replicating": "Stuck", "partitions": {"total": 0}, "reasons": reasons}
    drawn = _drawn(Progress(connector="C", summary=summary, uncopied=(REFUSED,) * 9, uncopied_total=200))

    assert 5 == drawn.count(REFUSED)
    assert "Not copied either: 195 more." in drawn
    assert "C: Stuck" in drawn
    assert "TopicNotCopied x200" in drawn


def test_a_flow_that_matches_nothing_says_so() -> None:
    """Idle alone would look as if all were well."""
    nothing = "No topic of east is selected. Of 3 topics 3 are not."
    summary = {**SUMMARY, "replicating": "Idle", "partitions": {"total": 1}}
    drawn = _drawn(Progress(connector="C", summary=summary, nothing_selected=nothing))

    assert "C: Idle, 1 partition," in drawn
    assert nothing in drawn


def _table_of(width: int, height: int, seen: Progress) -> list[str]:
    out = io.StringIO()
    display = TableDisplay("east → west", Console(file=out, width=width, height=height))
    display.progress(seen)
    display.close()
    return out.getvalue().splitlines()


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (120, ["topic", "target", "partitions", "lag", "records/s", "MB/s", "phase", "guarantee", "reason"]),
        (100, ["topic", "target", "partitions", "lag", "records/s", "MB/s", "phase", "reason"]),
        (80, ["topic", "partitions", "lag", "records/s", "MB/s", "phase", "reason"]),
        (60, ["topic", "lag", "records/s", "phase", "reason"]),
        (50, ["topic", "lag", "records/s", "phase"]),
    ],
)
def test_columns_that_do_not_change_give_way_to_those_that_do(width: int, columns: list[str]) -> None:
    """Each topic takes one line, whatever the width."""
    seen = Progress(connector="C", summary=SUMMARY, partitions=(_row("orders-of-today", records=0),))
    drawn = _table_of(width, 25, seen)

    (head,) = (line for line in drawn if line.startswith("┃"))
    assert columns == head.replace("┃", " ").split()
    assert 1 == sum(line.startswith("│") for line in drawn)
    assert max(map(len, drawn)) <= width


def test_topic_with_nothing_to_copy_has_no_reason_to_wait() -> None:
    """Only the one that has records to copy."""
    waits = _row("waits", reason="Unreachable", message="Cluster west cannot be reached.")
    rows = (waits, {**waits, "topic": "idle", "lagRecords": 0})
    drawn = _table_of(120, 25, Progress(connector="C", summary=SUMMARY, partitions=rows))

    assert [True, False] == ["Unreachable" in line for line in drawn if line.startswith("│")]


def test_long_topic_names_lose_their_middle() -> None:
    seen = Progress(connector="C", summary=SUMMARY, partitions=(_row("a-very-long-name." * 6 + "end"),))

    (line,) = (line for line in _table_of(60, 25, seen) if line.startswith("│"))
    assert line.split()[1].startswith("a-very")
    assert "…" in line
    assert line.split()[1].endswith("end")


def test_errors_stay_visible_below_a_table_of_many_topics() -> None:
    """The table loses rows, not the sentences below it."""
    rows = tuple(_row(f"orders-{number}") for number in range(50))
    seen = Progress(connector="C", summary=SUMMARY, partitions=rows, problem="It failed.", reason="Failed")
    drawn = _table_of(80, 24, seen)

    assert len(drawn) < 24
    assert "It failed." in drawn
    assert any("more" in line for line in drawn if line.startswith("│"))


def test_reason_that_ends_a_run_is_shown_once_in_the_last_line() -> None:
    out = io.StringIO()
    display = TableDisplay("east → west", Console(file=out, width=160))
    display.progress(Progress(connector="C", summary=SUMMARY, problem="It is away.", reason="Unreachable"))
    display.stopping(is_interrupted=False)
    display.failed("Not caught up within 8 s: It is away.")
    display.close()

    drawn = out.getvalue().splitlines()
    assert ["Not caught up within 8 s: It is away."] == [line for line in drawn if "It is away" in line]
    assert drawn[-1].startswith("Not caught up")


def test_plain_lines_leave_a_cause_to_the_end_of_a_run_that_may_fail_with_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """So it is said once; but one that lasts is not kept back."""
    now_s = 0.0
    display = PlainDisplay(hold_s=15.0, clock=lambda: now_s)
    seen = Progress(connector="C", summary=SUMMARY, problem="It is away.", reason="Unreachable")
    display.progress(seen)
    now_s = 14.0
    display.progress(seen)
    assert "" == capsys.readouterr().err

    now_s = 15.0
    display.progress(seen)
    assert "It is away (for 15 s).\n" == capsys.readouterr().err


@pytest.mark.parametrize(("term", "expected"), [("xterm-256color", True), ("dumb", False), ("", False)])
def test_only_a_terminal_that_can_redraw_gets_a_table(
    monkeypatch: pytest.MonkeyPatch, term: str, *, expected: bool
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", term)

    assert is_live_terminal(Terminal()) is expected
    assert not is_live_terminal(io.StringIO())


def test_plain_lines_say_each_trouble_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A line each ten seconds is enough; and the rate is the recent one here too."""
    now_s = 0.0
    display = PlainDisplay(clock=lambda: now_s)
    stopped = _row("big", phase="stopped", reason="RecordTooLarge", message="big-0: too large.")
    seen = Progress(
        connector="C", summary=SUMMARY, partitions=(stopped,), uncopied=(REFUSED,), uncopied_total=1
    )

    display.progress(seen)
    now_s = 9.0
    display.progress(seen)
    now_s = 10.0
    display.progress(seen)

    captured = capsys.readouterr()
    assert 2 == captured.out.count("C: Advancing")
    assert "5,000 records/s" in captured.out.splitlines()[0]
    assert [REFUSED, "big-0: too large."] == captured.err.splitlines()


def test_a_plain_line_comes_at_once_where_it_has_another_word(capsys: pytest.CaptureFixture[str]) -> None:
    """And the newest figures come at the end."""
    display = PlainDisplay(clock=lambda: 0.0)
    for word, records in (("Advancing", 1), ("Advancing", 2), ("Idle", 3), ("Idle", 4)):
        display.progress(
            Progress(connector="C", summary={**SUMMARY, "replicating": word, "records": records})
        )
    display.caught_up()

    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("C: ")]
    assert ["Advancing, 1", "Idle, 3", "Idle, 4"] == [
        f"{line[3:].partition(',')[0]}, {line.rpartition(' copied')[0].split()[-1]}" for line in lines
    ]


def test_plain_line_says_starting_until_topics_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    """As the table."""
    PlainDisplay().progress(NOTHING_YET)

    assert "C: starting\n" == capsys.readouterr().out


def _companion(**said: object) -> Companion:
    plain = {
        "connector": "H",
        "state": "RUNNING",
        "message": "",
        "warnings": [],
        "warningsTotal": 0,
        "groups": None,
    }
    return Companion(received={**plain, "heartbeats": [{"cluster": "west", "ageSeconds": 0.4}], **said})


DENIED = "No heartbeats to east: Cluster east does not authorize Write on topic heartbeats."
CHECKPOINTS = _companion(
    connector="K",
    heartbeats=[],
    groups={"selected": 3, "failing": 1, "active": 0, "checkpoints": 12, "moved": 4},
)


def test_other_connectors_have_a_line_each_and_their_troubles_are_quoted() -> None:
    """Whatever they meet: it stands beside the records, not in their way."""
    beats = _companion(warnings=[DENIED] * 7, warningsTotal=200)

    drawn = _drawn(
        Progress(connector="C", summary=SUMMARY, partitions=(_row("t"),), companions=(CHECKPOINTS, beats))
    )

    assert "K: 3 groups, 12 checkpoints, 4 offsets committed to groups, 1 groups fail" in drawn
    assert "H: heartbeats to west" in drawn
    assert 5 == drawn.count(f"H: {DENIED}")
    assert "H: 195 more." in drawn


def test_plain_lines_of_other_connectors_come_when_they_change(capsys: pytest.CaptureFixture[str]) -> None:
    """Not each second; trouble goes to stderr, once."""
    display = PlainDisplay()
    failed = _companion(
        state="FAILED", reason="Unreachable", message="Cluster west cannot be reached.", heartbeats=[]
    )
    for companion in (
        _companion(state="UNASSIGNED", heartbeats=[]),
        _companion(),
        _companion(),
        failed,
        failed,
    ):
        display.progress(Progress(connector="C", summary=SUMMARY, companions=(companion,)))

    captured = capsys.readouterr()
    assert ["H: starting", "H: heartbeats to west", "H: Unreachable"] == [
        line for line in captured.out.splitlines() if line.startswith("H")
    ]
    assert ["H: Cluster west cannot be reached."] == captured.err.splitlines()
