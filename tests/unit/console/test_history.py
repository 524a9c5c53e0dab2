"""The history of flows has bounded samples, and an event for each change."""

import asyncio
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from mirrorflow_console import history as module
from mirrorflow_console.documents import FlowReading
from mirrorflow_console.flow_changes import changes
from mirrorflow_console.flow_views import flow_view
from mirrorflow_console.gate import Visitor
from mirrorflow_console.history import FINE_S, KEPT_S, History, HistoryEvent
from mirrorflow_console.lag_forecast import LagSample
from mirrorflow_console.pages import PAGES
from mirrorflow_console.poller import SharedPoller
from mirrorflow_console.time_line import MARK_PIXELS, WIDTH, time_line
from tests.unit.console.flow_readings import STOPPED, FixedFlows, conditions, healthy, reading
from tests.unit.http.reports import NOW_S, partition


def sample(at_s: float, lag: int | None = 5) -> LagSample:
    return LagSample(at_s, lag, 1.0, 2.0, 3.0)


def test_samples_are_returned_oldest_first():
    history = History(None)
    for at_s in (1_000, 1_005, 1_010):
        history.add({"f": sample(at_s), "g": sample(at_s)}, {"f": [("t", at_s)]}, [], at_s)

    assert [lag_sample.at_s for lag_sample in history.samples("f", 1_005)] == [1_005, 1_010]
    assert history.topic_lags("f", 0) == {"t": [(990, 1_000)]}


def test_a_damaged_file_is_replaced(tmp_path: Path):
    """No write waits for the disk, so a node that loses power may damage the file. It is on the node after a restart, too."""
    file = tmp_path / "console.sqlite"
    file.write_bytes(b"no database" * 1_000)

    history = History(file)
    history.add({"f": sample(10)}, {}, [], 10)
    history.close()

    assert len(History(file).samples("f", 0)) == 1


def test_a_file_that_is_damaged_while_it_is_open_costs_the_history_alone(tmp_path: Path):
    file = tmp_path / "console.sqlite"
    history = History(file)
    history.add({"f": sample(10)}, {}, [], 10)
    history._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    history._connection.execute("PRAGMA shrink_memory")
    file.write_bytes(file.read_bytes()[:4_096] + b"\xff" * 40_000)

    history.events(0)
    history.add({"f": sample(20)}, {}, [], 20)

    assert "malformed" in history.problem
    assert [lag_sample.at_s for lag_sample in history.samples("f", 0)] == [20]


def test_a_full_disk_loses_no_sample_but_the_new_ones(tmp_path: Path):
    """The poller adds to the history before it shows what it has read: an error here would stop the pages."""
    history = History(tmp_path / "console.sqlite")
    history.add({"f": sample(10)}, {}, [], 10)
    (pages,) = history._connection.execute("PRAGMA page_count").fetchone()
    history._connection.execute(f"PRAGMA max_page_count = {pages}")
    events = [HistoryEvent(at_s=20, flow="f", kind="k", level=4, text=f"{n:0400}") for n in range(99)]

    history.add({"f": sample(20)}, {}, events, 20)

    assert "full" in history.problem
    history.events(0)
    assert "full" in history.problem
    assert [lag_sample.at_s for lag_sample in history.samples("f", 0)] == [10]
    history._connection.execute("PRAGMA max_page_count = 10000")
    history.add({"f": sample(30)}, {}, [], 30)
    assert history.problem == ""
    assert [lag_sample.at_s for lag_sample in history.samples("f", 0)] == [10, 30]


def test_a_folder_that_cannot_be_written_costs_the_file_alone(tmp_path: Path):
    (tmp_path / "file").write_text("")

    history = History(tmp_path / "file" / "console.sqlite")
    history.add({"f": sample(10)}, {}, [], 10)

    assert len(history.samples("f", 0)) == 1
    assert "in memory" in history.problem


def test_samples_in_a_file_survive_a_restart(tmp_path: Path):
    first = History(tmp_path / "deep" / "console.sqlite")
    first.add({"f": sample(10)}, {}, [], 10)
    first.close()

    assert len(History(tmp_path / "deep" / "console.sqlite").samples("f", 0)) == 1


def test_old_samples_are_thinned_and_then_dropped():
    history, now_s = History(None), 10_000_000
    for age_s in (KEPT_S + 60, FINE_S + 65, FINE_S + 60, FINE_S + 55, 50):
        history.add({"f": sample(now_s - age_s - (now_s - age_s) % 5)}, {}, [], 0)

    history.add({"f": sample(now_s)}, {}, [], now_s)

    times = [lag_sample.at_s for lag_sample in history.samples("f", 0)]
    assert all(at_s % 60 == 0 for at_s in times if at_s < now_s - FINE_S)
    assert min(times) >= now_s - KEPT_S
    assert len(times) <= 3


def test_the_number_of_rows_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "SAMPLES_MAX", 10)
    monkeypatch.setattr(module, "EVENTS_MAX", 3)
    history = History(None)
    events = [HistoryEvent(at_s=at_s, flow="f", kind="x", level=4, text="x" * 9_000) for at_s in range(10)]
    history.add({f"f{number}": sample(number * 5) for number in range(50)}, {}, events, 300)

    kept = sum(len(history.samples(f"f{number}", 0)) for number in range(50))
    assert kept <= 10
    assert len(history.events(0)) <= 3
    assert len(history.events(0)[0].text) == module.EVENT_TEXT_MAX


def test_a_problem_that_appears_and_ends_is_two_events():
    healthy_view = flow_view(reading(healthy(partition(3))))
    broken_view = flow_view(reading(healthy(partition(3, **STOPPED), partition(4))))

    assert next(event.kind for event in changes(healthy_view, broken_view, 1.0)) == "trouble"
    assert next(event.kind for event in changes(broken_view, healthy_view, 2.0)) == "repaired"
    assert [*changes(healthy_view, healthy_view, 3.0)] == []


def test_a_restart_and_a_loss_are_events():
    before = flow_view(reading(healthy(partition(0))))
    after = flow_view(reading(healthy(partition(0, losses=1), started_at_s=NOW_S - 2)))

    kinds = [event.kind for event in changes(before, after, 1.0)]

    assert kinds[:2] == ["restart", "loss"]
    assert "1 loss " in next(event.text for event in changes(before, after, 1.0) if event.kind == "loss")


def test_a_changed_condition_is_an_event():
    def view(status: str, reason: str):
        return flow_view(
            FlowReading(key="f", name="f", status=conditions(("SourceReachable", status, reason, "")))
        )

    texts = [event.text for event in changes(view("True", "Reachable"), view("False", "Unreachable"), 1.0)]

    assert "SourceReachable is False (Unreachable)." in texts


def test_opening_or_closing_the_page_of_a_resource_is_no_event():
    """Without a page, a flow has what its status has; with one, its pods report each partition."""
    status = conditions(
        ("Ready", "False", "Degraded", ""), ("Replicating", "False", "Stuck", "Nothing advances.")
    )
    closed = FlowReading(key="f", name="f", namespace="n", status=status)
    stopped = reading(healthy(partition(3, **STOPPED)))
    views = flow_view(closed), flow_view(replace(stopped, key="f", status=status))

    assert [*changes(views[0], views[1], 1.0)] == []
    assert [*changes(views[1], views[0], 2.0)] == []
    recovered = conditions(("Ready", "True", "Replicating", ""), ("Replicating", "True", "Advancing", ""))
    events = [*changes(flow_view(replace(closed, status=recovered)), views[1], 3.0)]
    assert {event.kind for event in events} == {"condition"}
    assert len(events) == 2


def test_the_timeline_shows_the_worst_of_several_events_at_one_position():
    now_s = 1_700_000_000.0
    events = [
        HistoryEvent(at_s=now_s - 100, flow="f", kind="x", level=4, text="fine"),
        HistoryEvent(at_s=now_s - 101, flow="f", kind="x", level=0, text="broken"),
        HistoryEvent(at_s=now_s - 3 * 86_400, flow="g", kind="x", level=4, text="old"),
    ]

    timeline = time_line(events, now_s)

    assert [line.flow for line in timeline.lines] == ["f", "g"]
    assert [(mark.text, mark.events) for mark in timeline.lines[0].marks] == [("broken", 2)]
    assert all(0 <= mark.x <= WIDTH for line in timeline.lines for mark in line.marks)
    assert len(timeline.days) in {6, 7}


def test_no_two_marks_of_a_line_overlap():
    """Wherever their events are in the week."""
    now_s = 1_700_000_000.0
    events = [
        HistoryEvent(at_s=now_s - 900.0 * number, flow="f", kind="x", level=number % 5, text="")
        for number in range(600)
    ]

    (line,) = time_line(events, now_s).lines

    assert min(after.x - before.x for before, after in pairwise(line.marks)) >= MARK_PIXELS
    assert sum(mark.events for mark in line.marks) == len(events)


def poll(poller: SharedPoller) -> None:
    asyncio.run(poller._poll())


def test_the_events_of_one_flow_do_not_hide_those_of_others():
    """A flow whose state changes all the time fills thousands of rows; a visitor may not even see that flow."""
    history = History(None)
    poller = SharedPoller(
        FixedFlows([reading(healthy(partition(0)), name=name) for name in ("quiet", "noisy")]), history
    )
    poll(poller)
    at_s = poller.snapshot.at_s
    noise = [
        HistoryEvent(at_s=at_s - n, flow="noisy", kind="k", level=4, text=f"Noise {n}.") for n in range(3_000)
    ]
    quiet = HistoryEvent(at_s=at_s - 9_000, flow="quiet", kind="k", level=4, text="Quiet.")
    history.add({}, {}, [*noise, quiet], at_s)

    shown = PAGES["/history"].values(poller.snapshot, {}, history)

    assert {line.flow for line in shown["lines"].lines} == {"quiet", "noisy"}


def test_an_ended_flow_stays_in_the_history_for_those_who_see_all_flows():
    history = History(None)
    flows = FixedFlows([reading(healthy(partition(0)), name=name) for name in ("a", "b")])
    poller = SharedPoller(flows, history)
    poll(poller)
    flows.readings.pop()
    poll(poller)

    shown = PAGES["/history"].values(poller.snapshot, {}, history)
    restricted = Visitor(namespaces=frozenset({""})).visible(poller.snapshot)

    assert [row.text for row in shown["events"]] == ["It no longer runs here."]
    assert PAGES["/history"].values(restricted, {}, history)["events"] == []
