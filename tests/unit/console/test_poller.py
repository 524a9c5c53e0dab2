"""The poller reads the flows once for all open pages, and keeps bounded samples."""

import asyncio
import json
from contextlib import ExitStack
from dataclasses import replace

import pytest

from mirrorflow_console import poller as module
from mirrorflow_console.documents import FlowReading, connector_document, parse_json
from mirrorflow_console.history import History
from mirrorflow_console.lag_forecast import Outlook
from mirrorflow_console.poller import RECENT_MAX, Interest, SharedPoller
from tests.unit.console.flow_readings import STOPPED, FixedFlows, healthy, reading, table
from tests.unit.http.reports import partition


def flow(lag: int, lag_s: float = 60.0):
    """A flow with a lag of *lag* records and *lag_s*, by default a minute."""
    flow_reading = reading(healthy(partition(0, source_offset=100_000 - lag, source_end_offset=100_000)))
    document = flow_reading.document
    assert document is not None
    return replace(flow_reading, document=replace(document, figures=document.figures._replace(lag_s=lag_s)))


def poll(poller: SharedPoller) -> None:
    asyncio.run(poller._poll())


def test_a_shrinking_lag_has_a_forecast_and_samples_are_bounded():
    now_s = [1_000_000.0]
    source = FixedFlows()
    poller = SharedPoller(source, History(None), clock=lambda: now_s[0])
    for step in range(400):
        now_s[0] += 5
        source.readings = [flow(50_000 - 100 * step)]
        poll(poller)

    (view,) = poller.snapshot.views
    assert view.outlook.outlook is Outlook.ESTIMATE
    assert view.outlook.least_s is not None
    assert abs(view.outlook.least_s - 10_100 / 20) < 30
    assert len(poller._lags["east-to-west"]) <= RECENT_MAX
    source.readings = []
    poll(poller)
    assert poller._lags == {}


def test_falling_behind_is_one_problem_while_the_lag_is_about_a_minute():
    """The lag grows all the time; its age goes up and down. The history has one event until the flow keeps up."""
    now_s = [1_000_000.0]
    source, history = FixedFlows(), History(None)
    poller = SharedPoller(source, history, clock=lambda: now_s[0])
    for step in range(90):
        now_s[0] += 5
        source.readings = [flow(1_000 * (step + 1), 55.0 + 10.0 * (step % 3))]
        poll(poller)
    kinds = [event.kind for event in history.events(0) if event.kind in {"trouble", "repaired"}]

    now_s[0] += 5
    source.readings = [flow(10, 0.1)]
    poll(poller)

    assert kinds == ["trouble"]
    assert poller.snapshot.views[0].troubles == ()


def test_only_open_pages_request_details():
    source = FixedFlows([flow(1)])
    poller = SharedPoller(source, History(None))

    async def run() -> None:
        await poller._poll()
        with poller.watching(Interest("east-to-west", partitions=True)), poller.watching(Interest()):
            await poller._poll()
        await poller._poll()

    asyncio.run(run())

    nothing: frozenset[str] = frozenset()
    assert source.requests == [
        (nothing, nothing, False),
        (frozenset({"east-to-west"}), nothing, True),
        (nothing, nothing, False),
    ]


def test_a_page_waits_for_a_new_poll_only_if_the_last_one_is_old():
    now_s = [1_000_000.0]
    source = FixedFlows([flow(1)])
    poller = SharedPoller(source, History(None), clock=lambda: now_s[0])

    async def run() -> list[int]:
        running = asyncio.create_task(poller.run())
        versions = [(await poller.fresh(Interest())).version, (await poller.fresh(Interest())).version]
        now_s[0] += module.FRESH_S + 1
        versions.append((await poller.fresh(Interest())).version)
        running.cancel()
        return versions

    first, second, third = asyncio.run(run())

    assert first == second
    assert third > second


def test_a_page_shows_the_known_partitions_while_others_are_being_read(monkeypatch):
    """With a thousand flows the next poll takes seconds. The page shows how many partitions have been read."""
    monkeypatch.setattr(module, "FRESH_WAIT_S", 600.0)
    partial = flow(1)
    assert partial.document is not None
    source = FixedFlows([replace(partial, document=replace(partial.document, partitions_total=10_000))])
    poller = SharedPoller(source, History(None))

    async def run() -> tuple[int, int]:
        await poller._poll()  # no other poll follows
        page = await poller.fresh(Interest("east-to-west", partitions=True))
        return page.version, len(page.views)

    assert asyncio.run(run()) == (1, 1)


def test_a_view_is_reused_with_new_figures_while_its_state_is_unchanged(monkeypatch):
    """Creating a thousand views at each poll would take too long."""
    now_s = [1_000_000.0]
    steady = reading(healthy(partition(0)))
    assert steady.document is not None
    source = FixedFlows([steady])
    poller = SharedPoller(source, History(None), clock=lambda: now_s[0])
    poll(poller)
    (made,) = poller.snapshot.views

    now_s[0] += 5
    newer = steady.document.figures._replace(lag_records=7, lag_s=1.5, uptime_s=200.0)
    monkeypatch.setattr(FixedFlows, "figures", {"east-to-west": newer})
    poll(poller)

    assert poller.snapshot.views[0] is made
    shown = poller.snapshot.view("east-to-west")
    assert shown is not None
    assert (shown.lag, shown.lag_records, shown.lag_s) == ("7", 7, 1.5)


@pytest.mark.parametrize("changed", [{"uptime_s": 3.0}, {"lag_s": 90.0}, {"lag_s": None}])
def test_a_view_is_rebuilt_after_a_restart_and_while_the_flow_lags(monkeypatch, changed):
    steady = reading(healthy(partition(0)))
    assert steady.document is not None
    source, history = FixedFlows([steady]), History(None)
    poller = SharedPoller(source, history)
    poll(poller)
    (made,) = poller.snapshot.views

    monkeypatch.setattr(FixedFlows, "figures", {"east-to-west": steady.document.figures._replace(**changed)})
    poll(poller)

    assert poller.snapshot.views[0] is not made
    restarts = [event.kind for event in history.events(0)]
    assert ("restart" in restarts) == ("uptime_s" in changed)


def test_samples_of_flows_without_an_open_page_are_half_a_minute_apart():
    now_s = [1_000_000.0 // 30 * 30]
    history = History(None)
    poller = SharedPoller(FixedFlows([flow(1)]), history, clock=lambda: now_s[0])

    def samples_after(seconds: int, *interests: Interest) -> int:
        async def run() -> None:
            with ExitStack() as stack:
                for interest in interests:
                    stack.enter_context(poller.watching(interest))
                await poller._poll()

        for _ in range(seconds // 5):
            asyncio.run(run())
            now_s[0] += 5
        return len(history.samples("east-to-west", 0))

    assert samples_after(60, Interest()) == 2
    assert samples_after(60, Interest("east-to-west", partitions=True)) == 2 + 12


def test_a_message_with_half_a_surrogate_pair_does_not_end_the_poll_of_other_flows():
    """JSON can name half of a pair. UTF-8 has no bytes for it, so neither the history nor a page could hold it."""
    body = json.dumps(table(healthy(partition(0, **STOPPED)))).replace(
        "the target refuses", r"\udBFF refuses"
    )
    hostile = FlowReading(key="b", name="b", document=connector_document(parse_json(body.encode())))
    poller = SharedPoller(FixedFlows([reading(healthy(partition(0))), hostile]), History(None))

    poll(poller)
    poll(poller)

    assert {view.name for view in poller.snapshot.views} == {"east-to-west", "b"}
    (trouble,) = next(view.troubles for view in poller.snapshot.views if view.name == "b")
    assert "? refuses a record" in trouble.text


def test_a_lag_beyond_64_bits_does_not_end_the_poll_of_other_flows():
    """Each of two partitions may have a lag of 63 bits; SQLite has no room for the sum of their topic."""
    document = table(healthy(partition(0), partition(1)))
    document["columns"]["lagRecords"] = (1 << 63) - 1
    hostile = FlowReading(key="b", name="b", document=connector_document(document))
    poller = SharedPoller(FixedFlows([reading(healthy(partition(0))), hostile]), History(None))

    poll(poller)

    assert {view.name for view in poller.snapshot.views} == {"east-to-west", "b"}


def test_pages_that_wait_for_details_do_not_poll_without_a_pause(monkeypatch):
    """Someone may load the page of a flow without groups many times: each load requests a poll of all flows."""
    monkeypatch.setattr(module, "FRESH_WAIT_S", 0.02)
    source = FixedFlows([flow(1)])
    poller = SharedPoller(source, History(None))

    async def run() -> None:
        running = asyncio.create_task(poller.run())
        for _ in range(20):
            await poller.fresh(Interest("east-to-west", groups=True))
        running.cancel()

    asyncio.run(run())

    assert source.reads <= 2
