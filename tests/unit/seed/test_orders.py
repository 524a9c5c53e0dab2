"""What the driver knows of its tasks, and what they are told; over real HTTP where it matters."""

import json

from mirrorflow_seed.outlet import Outlet
from mirrorflow_seed.report import SeedReport
from mirrorflow_seed.seed.task_messages import Desk, Orders, Word, ask


def test_the_rate_is_divided_among_those_at_work():
    """Who has ended leaves its part to the others."""
    desk = Desk(bytes_per_second=900)
    for attempt in "abc":
        desk.hear(Word(attempt=attempt))
    shared = desk.share
    desk.hear(Word(attempt="c", ended=True))

    assert (shared, desk.share) == (300, 450)


def test_an_attempt_counts_once_however_often_it_is_heard_of():
    """By its newest word, and again when the result of its task arrives."""
    desk = Desk(bytes_per_second=None)
    desk.hear(Word(attempt="a", records=5, bytes=50, seconds=1.0))
    desk.hear(Word(attempt="a", records=7, bytes=70, seconds=2.0, ended=True))
    desk.hear(Word(attempt="a", records=7, bytes=70, seconds=2.0, ended=True))
    desk.hear(Word(attempt="a", records=5, bytes=50, seconds=1.0))
    desk.hear(Word(attempt="b", records=1, bytes=10, seconds=1.0))

    assert desk.totals == (8, 80, 3.0)


def test_attempts_that_never_came_to_an_end_were_cut_off():
    """Who was killed says nothing any more; who is late with its end has one."""
    desk = Desk(bytes_per_second=None)
    for attempt in "abc":
        desk.hear(Word(attempt=attempt))
    desk.hear(Word(attempt="b", ended=True))
    desk.hear(Word(attempt="b"))

    assert desk.unended == 2


def test_a_task_is_told_to_stop_and_tells_where_it_is():
    """Over the driver's own server, at a path that only tasks know."""
    desk = Desk(bytes_per_second=1_000)
    outlet = Outlet(SeedReport(run_id="1"), orders=desk)
    try:
        at = f"http://127.0.0.1:{outlet.port}"
        first = ask(at + desk.path, Word(attempt="a", next_offsets={3: 17}, reason="R", message="m"))
        held_up = desk.troubles
        desk.stop = True
        second = ask(at + desk.path, Word(attempt="a", next_offsets={3: 9}))
        elsewhere = ask(at + "/orders/x", Word(attempt="a"))
    finally:
        outlet.close()

    assert first == Orders(stop=False, bytes_per_second=1_000)
    assert second == Orders(stop=True, bytes_per_second=1_000)
    assert elsewhere is None
    assert held_up == {"R": (1, "m")}
    assert desk.next_offsets == {3: 17}


def test_what_holds_tasks_up_is_known_by_reason_as_long_as_it_does():
    """With the sentence of one of them; who gets on, or has ended, is held up by nothing."""
    desk = Desk(bytes_per_second=None)
    for attempt in "abc":
        desk.hear(Word(attempt=attempt, reason="Unreachable", message=f"broker {attempt}"))
    desk.hear(Word(attempt="a"))
    desk.hear(Word(attempt="b", ended=True))

    assert desk.troubles == {"Unreachable": (1, "broker c")}


def test_a_driver_that_cannot_be_reached_changes_nothing():
    """The task goes on with what it was told last."""
    assert ask("http://127.0.0.1:9/orders/x", Word(attempt="a")) is None


def test_a_report_has_the_agreed_fields_and_no_names():
    """What the operator reads."""
    said = json.loads(json.dumps(SeedReport(run_id="7").as_json()))

    assert set(said) == {
        *("version", "job", "runId", "phase", "partitions", "records", "bytes", "remainingRecords"),
        *(
            "recordsPerSecond",
            "bytesPerSecond",
            "estimatedSeconds",
            "gapRecords",
            "guarantee",
            "cost",
            "message",
        ),
    }
    assert set(said["cost"]) == {"executorSeconds", "bytesRead", "bytesWritten"}
