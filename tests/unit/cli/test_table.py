"""The live table, drawn on a terminal that is only remembered."""

import io
from typing import Any

from rich.console import Console

from mirrorflow_cli.progress import Progress
from mirrorflow_cli.table import TableDisplay

SUMMARY: dict[str, Any] = {
    "replicating": "Advancing",
    "partitions": {"total": 3},
    "lagRecords": 1_234,
    "lagSeconds": 1.5,
    "recordsPerSecond": 10_000.0,
    "bytesPerSecond": 2_500_000.0,
    "records": 99,
}


def _row(topic: str, **more: object) -> dict[str, object]:
    plain = {"targetTopic": f"east.{topic}", "phase": "copying", "guarantee": "exactly-once", "reason": ""}
    figures = {"lagRecords": 600, "recordsPerSecond": 5_000.0, "bytesPerSecond": 1_000_000.0}
    return {"topic": topic, **plain, **figures, **more}


def test_table_has_a_line_for_each_topic_and_names_what_is_wrong() -> None:
    """Lag and rates are summed over partitions; the worst phase is shown; the sentence of an error stands below."""
    out = io.StringIO()
    display = TableDisplay("east → west", Console(file=out, force_terminal=True, width=160))
    stopped = _row(
        "big", phase="stopped", reason="RecordTooLarge", message="big-0: too large [x].", lagRecords=None
    )

    display.progress(
        [Progress(connector="C", summary=SUMMARY, partitions=(_row("orders"), _row("orders"), stopped))]
    )
    display.close()

    lines = [line for line in out.getvalue().splitlines() if "orders" in line or "big" in line]
    assert [word for word in lines[0].replace("│", " ").split() if word != "\x1b[2K"] == [
        "orders", "east.orders", "2", "1,200", "10,000", "2.0", "copying", "exactly-once",
    ]  # fmt: skip
    assert all(word in lines[1] for word in ("?", "stopped", "RecordTooLarge"))
    assert "big-0: too large [x]." in lines[2]
    assert "lag 1,234 records (1.5 s), 10,000 records/s, 2.5 MB/s, 99 copied" in out.getvalue()
