"""The output of `mirrorflow run`: the live table on a terminal, and plain lines."""

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
    "recordsPerSecond": 1.0,  # over the last thirty seconds
    "bytesPerSecond": 1.0,
    "records": 99,
    "uptimeSeconds": 4.0,
}
REFUSED = "Target topic east.t cannot be created: no."


def _row(topic: str, partition: int = 0, **more: object) -> dict[str, object]:
    plain = {"targetTopic": f"east.{topic}", "phase": "copying", "guarantee": "exactly-once", "reason": ""}
    figures = {"lagRecords": 600, "records": 20_000, "bytes": 4_000_000}
    return {"topic": topic, "partition": partition, **plain, **figures, **more}


def _drawn(report: Progress | None) -> str:
    """Returns the text on the terminal after *report* was shown, without colours."""
    out = io.StringIO()
    display = TableDisplay("east → west", Console(file=out, width=160))
    if report is None:
        display.started(4711, 1)
    else:
        display.progress(report)
    display.close()
    return out.getvalue()


def test_the_table_has_one_line_per_topic_and_shows_errors() -> None:
    """Lag and rates are sums over partitions. The worst phase is shown; messages are below the table."""
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


NO_TOPICS_YET = Progress(connector="C", summary={"replicating": "Waiting", "partitions": {"total": 0}})


@pytest.mark.parametrize("report", [None, NO_TOPICS_YET], ids=["no response", "no topics yet"])
def test_the_table_shows_starting_until_topics_are_known(report: Progress | None) -> None:
    """It shows neither an empty table nor the state of a running flow."""
    drawn = _drawn(report)

    assert "east → west" in drawn
    assert "starting" in drawn
    assert not any(word in drawn for word in ("topic", "Idle", "Waiting", "lag"))


def test_topics_that_are_not_copied_are_shown_with_their_reasons() -> None:
    """They have no line in the table. Only the first reasons are shown; the rest is counted."""
    reasons = [{"reason": "TopicNotCopied", "count": 200}]
    summary = {**SUMMARY, "replicating": "Stuck", "partitions": {"total": 0}, "reasons": reasons}
    drawn = _drawn(Progress(connector="C", summary=summary, uncopied=(REFUSED,) * 9, uncopied_total=200))

    assert 5 == drawn.count(REFUSED)
    assert "Not copied either: 195 more." in drawn
    assert "C: Stuck" in drawn
    assert "TopicNotCopied x200" in drawn


def test_a_flow_that_selects_no_topic_shows_it() -> None:
    """The state `idle` alone would look healthy."""
    nothing = "No topic of east is selected. Of 3 topics 3 are not."
    summary = {**SUMMARY, "replicating": "Idle", "partitions": {"total": 1}}
    drawn = _drawn(Progress(connector="C", summary=summary, nothing_selected=nothing))

    assert "C: Idle, 1 partition," in drawn
    assert nothing in drawn


def _table_of(width: int, height: int, report: Progress) -> list[str]:
    out = io.StringIO()
    display = TableDisplay("east → west", Console(file=out, width=width, height=height))
    display.progress(report)
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
def test_a_narrow_table_leaves_out_columns_that_do_not_change(width: int, columns: list[str]) -> None:
    """Each topic takes one line at any width."""
    report = Progress(connector="C", summary=SUMMARY, partitions=(_row("orders-of-today", records=0),))
    drawn = _table_of(width, 25, report)

    (head,) = (line for line in drawn if line.startswith("┃"))
    assert columns == head.replace("┃", " ").split()
    assert 1 == sum(line.startswith("│") for line in drawn)
    assert max(map(len, drawn)) <= width


def test_a_topic_without_lag_shows_no_waiting_reason() -> None:
    waits = _row("waits", reason="Unreachable", message="Cluster west cannot be reached.")
    rows = (waits, {**waits, "topic": "idle", "lagRecords": 0})
    drawn = _table_of(120, 25, Progress(connector="C", summary=SUMMARY, partitions=rows))

    assert [True, False] == ["Unreachable" in line for line in drawn if line.startswith("│")]


def test_long_topic_names_are_shortened_in_the_middle() -> None:
    report = Progress(connector="C", summary=SUMMARY, partitions=(_row("a-very-long-name." * 6 + "end"),))

    (line,) = (line for line in _table_of(60, 25, report) if line.startswith("│"))
    assert line.split()[1].startswith("a-very")
    assert "…" in line
    assert line.split()[1].endswith("end")


def test_errors_stay_visible_below_a_table_of_many_topics() -> None:
    """Rows are left out of the table, not the messages below it."""
    rows = tuple(_row(f"orders-{number}") for number in range(50))
    report = Progress(connector="C", summary=SUMMARY, partitions=rows, problem="It failed.", reason="Failed")
    drawn = _table_of(80, 24, report)

    assert len(drawn) < 24
    assert "It failed." in drawn
    assert any("more" in line for line in drawn if line.startswith("│"))


def test_the_reason_that_ends_a_run_is_shown_only_in_the_last_line() -> None:
    out = io.StringIO()
    display = TableDisplay("east → west", Console(file=out, width=160))
    display.progress(
        Progress(connector="C", summary=SUMMARY, problem="It is unreachable.", reason="Unreachable")
    )
    display.stopping(is_interrupted=False)
    display.failed("Not caught up within 8 s: It is unreachable.")
    display.close()

    drawn = out.getvalue().splitlines()
    assert ["Not caught up within 8 s: It is unreachable."] == [
        line for line in drawn if "It is unreachable" in line
    ]
    assert drawn[-1].startswith("Not caught up")


def test_plain_output_shows_a_cause_only_after_a_delay(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """If the run fails soon, only its last line has the cause. A lasting cause is shown earlier."""
    now_s = 0.0
    display = PlainDisplay(hold_s=15.0, clock=lambda: now_s)
    report = Progress(connector="C", summary=SUMMARY, problem="It is unreachable.", reason="Unreachable")
    display.progress(report)
    now_s = 14.0
    display.progress(report)
    assert "" == capsys.readouterr().err

    now_s = 15.0
    display.progress(report)
    assert "It is unreachable (for 15 s).\n" == capsys.readouterr().err


@pytest.mark.parametrize(("term", "expected"), [("xterm-256color", True), ("dumb", False), ("", False)])
def test_only_a_terminal_that_can_redraw_shows_the_table(
    monkeypatch: pytest.MonkeyPatch, term: str, *, expected: bool
) -> None:
    class TerminalStub(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", term)

    assert is_live_terminal(TerminalStub()) is expected
    assert not is_live_terminal(io.StringIO())


def test_plain_output_shows_each_problem_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Progress has one line per ten seconds, with the recent rate."""
    now_s = 0.0
    display = PlainDisplay(clock=lambda: now_s)
    stopped = _row("big", phase="stopped", reason="RecordTooLarge", message="big-0: too large.")
    report = Progress(
        connector="C", summary=SUMMARY, partitions=(stopped,), uncopied=(REFUSED,), uncopied_total=1
    )

    display.progress(report)
    now_s = 9.0
    display.progress(report)
    now_s = 10.0
    display.progress(report)

    captured = capsys.readouterr()
    assert 2 == captured.out.count("C: Advancing")
    assert "5,000 records/s" in captured.out.splitlines()[0]
    assert [REFUSED, "big-0: too large."] == captured.err.splitlines()


def test_plain_output_shows_a_changed_state_immediately(capsys: pytest.CaptureFixture[str]) -> None:
    """The newest figures follow at the end."""
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


def test_plain_output_shows_starting_until_topics_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    PlainDisplay().progress(NO_TOPICS_YET)

    assert "C: starting\n" == capsys.readouterr().out


def _companion(**fields: object) -> Companion:
    plain = {
        "connector": "H",
        "state": "RUNNING",
        "message": "",
        "warnings": [],
        "warningsTotal": 0,
        "groups": None,
    }
    return Companion(received={**plain, "heartbeats": [{"cluster": "west", "ageSeconds": 0.4}], **fields})


DENIED = "No heartbeats to east: Cluster east does not authorize Write on topic heartbeats."
CHECKPOINTS = _companion(
    connector="K",
    heartbeats=[],
    groups={"selected": 3, "failing": 1, "active": 0, "checkpoints": 12, "moved": 4},
)


def test_other_connectors_have_one_line_each_and_their_warnings_are_shown() -> None:
    heartbeats = _companion(warnings=[DENIED] * 7, warningsTotal=200)

    drawn = _drawn(
        Progress(
            connector="C", summary=SUMMARY, partitions=(_row("t"),), companions=(CHECKPOINTS, heartbeats)
        )
    )

    assert "K: 3 groups, 12 checkpoints, 4 offsets committed to groups, 1 groups fail" in drawn
    assert "H: heartbeats to west" in drawn
    assert 5 == drawn.count(f"H: {DENIED}")
    assert "H: 195 more." in drawn


def test_plain_output_shows_other_connectors_when_they_change(capsys: pytest.CaptureFixture[str]) -> None:
    """Their problems are printed once, to stderr."""
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
