"""One poll for all pages: how often, for what, and what it keeps."""

import asyncio
from dataclasses import replace

from mirrorflow_console import poller as module
from mirrorflow_console.history import History
from mirrorflow_console.lag_forecast import Outlook
from mirrorflow_console.poller import RECENT_MAX, Interest, SharedPoller
from tests.unit.console.worlds import FixedFlows, healthy, reading
from tests.unit.http.reports import partition


def flow(lag: int):
    """A flow that is a minute behind, by *lag* records."""
    found = reading(healthy(partition(0, source_offset=100_000 - lag, source_end_offset=100_000)))
    document = found.document
    assert document is not None
    summary = {**document.progress.summary, "lagSeconds": 60.0}
    return replace(found, document=replace(document, progress=replace(document.progress, summary=summary)))


def polled(poller: SharedPoller) -> None:
    asyncio.run(poller._poll())


def test_lag_that_shrinks_becomes_a_forecast_and_memory_stays_bounded():
    now_s = [1_000_000.0]
    source = FixedFlows()
    poller = SharedPoller(source, History(None), clock=lambda: now_s[0])
    for step in range(400):
        now_s[0] += 5
        source.readings = [flow(50_000 - 100 * step)]
        polled(poller)

    (view,) = poller.snapshot.views
    assert view.outlook.outlook is Outlook.ESTIMATE
    assert view.outlook.least_s is not None
    assert abs(view.outlook.least_s - 10_100 / 20) < 30
    assert len(poller._recent["east-to-west"]) <= RECENT_MAX
    source.readings = []
    polled(poller)
    assert poller._recent == {}


def test_only_open_pages_ask_for_more_than_the_state():
    source = FixedFlows([flow(1)])
    poller = SharedPoller(source, History(None))

    async def story() -> None:
        await poller._poll()
        with poller.watching(Interest("east-to-west", partitions=True)), poller.watching(Interest()):
            await poller._poll()
        await poller._poll()

    asyncio.run(story())

    nothing: frozenset[str] = frozenset()
    assert source.asked == [
        (nothing, nothing, False),
        (frozenset({"east-to-west"}), nothing, True),
        (nothing, nothing, False),
    ]


def test_page_waits_for_a_poll_only_if_the_last_one_is_old():
    now_s = [1_000_000.0]
    source = FixedFlows([flow(1)])
    poller = SharedPoller(source, History(None), clock=lambda: now_s[0])

    async def story() -> list[int]:
        running = asyncio.create_task(poller.run())
        found = [(await poller.fresh(Interest())).version, (await poller.fresh(Interest())).version]
        now_s[0] += module.FRESH_S + 1
        found.append((await poller.fresh(Interest())).version)
        running.cancel()
        return found

    first, second, third = asyncio.run(story())

    assert first == second
    assert third > second
