"""Keyboard, filter, time zone, theme and updates of the pages in a real browser. The flow has 10,000 partitions."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import starlette.routing
from playwright.sync_api import Browser, Page, Route, expect
from starlette.responses import PlainTextResponse

from mirrorflow_console.documents import FlowReading, connector_document
from mirrorflow_console.gate import Visitor
from mirrorflow_console.pages import PAGES
from tests.harness.browser import opened_page
from tests.harness.kafka.processes import wait_until
from tests.unit.console.flow_readings import STOPPED, FixedFlows, healthy, reading, table
from tests.unit.console.served_console import ServedConsole, served
from tests.unit.http.reports import partition

pytestmark = pytest.mark.more

PARTITIONS = 10_000
UPDATE_MS = 30_000  # an open page is updated every 5 s, or later on a busy machine

# The position and size (x, y, width and height) of everything on a page that has figures.
BOXES = """() => [...document.querySelectorAll("h1, h2, .figures > div, .figures b, .figures .sub, thead th, tbody td, tbody th")]
  .map((part) => { const box = part.getBoundingClientRect(); return [part.className, box.x, box.y, box.width, box.height]; })"""

# Chromium drops the keys that are pressed before a page is painted for the first time.
IS_PAINTED = "performance.getEntriesByName('first-contentful-paint').length > 0"


@pytest.fixture(scope="module")
def console() -> Iterator[ServedConsole]:
    parts = [partition(number, f"topic-{number // 100:02}") for number in range(PARTITIONS - 1)]
    stopped = partition(PARTITIONS - 1, "orders", **STOPPED)
    with served(FixedFlows([reading(healthy(*parts, stopped), name="a")])) as console_:
        yield console_


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with opened_page(browser, color_scheme="light") as page_:
        yield page_


def test_partitions_are_reached_and_opened_by_the_keyboard(console: ServedConsole, page: Page):
    """The heat map of 10,000 partitions has one tab stop. Arrow keys move inside it, and Enter opens a partition."""
    page.goto(f"{console.url}/partitions?flow=a")
    page.locator("#heat-canvas").focus()
    for key in ("Home", "ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    named = page.locator("#heat-tip").inner_text()
    page.keyboard.press("Enter")

    expect(page.locator("#chosen-title")).to_have_text(named)
    expect(page).to_have_url(re.compile("partition="))


def test_the_slash_key_moves_to_the_filter_and_escape_leaves_it(console: ServedConsole, page: Page):
    page.goto(console.url)
    page.wait_for_function(IS_PAINTED)
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("no such flow")
    page.keyboard.press("Enter")
    expect(page.get_by_text("No flow matches.")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.press("Escape")
    expect(page.get_by_role("searchbox")).not_to_be_focused()


def test_the_chosen_time_zone_and_colours_apply_also_on_the_next_page(console: ServedConsole, page: Page):
    page.goto(console.url)
    updated = page.locator(".updated time")
    expect(updated).to_have_text(re.compile("UTC$"))
    page.get_by_role("button", name="UTC").click()
    expect(updated).not_to_have_text(re.compile("UTC$"))
    page.get_by_role("button", name="Light or dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")

    page.goto(f"{console.url}/history")
    expect(page.get_by_role("button", name="Local")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def busy(lag: int, rate: float) -> FlowReading:
    """Returns a flow with the name "a" whose only topic has these figures."""
    part = partition(0, "orders", source_offset=5_000_000 - lag, source_end_offset=5_000_000)
    document = table(healthy(part))
    rates = {"recordsPerSecond": rate, "bytesPerSecond": 90 * rate}
    document["columns"] |= rates
    document["summary"] |= {**rates, "lagRecords": lag, "lagSeconds": 2.5}
    return FlowReading(key="a", name="a", source="A", target="B", document=connector_document(document))


def test_the_table_of_partitions_fits_beside_an_opened_one_and_wraps_no_name(browser: Browser):
    """Room for longer figures must not push the table out of its panel."""
    flow = reading(
        healthy(partition(0, "payments.settled", **STOPPED), partition(1, "inventory.changes")), name="a"
    )
    with served(FixedFlows([flow])) as console_, opened_page(browser) as page_:
        page_.goto(f"{console_.url}/partitions?flow=a&topic=payments.settled&partition=0")
        table = page_.locator("table.rows")
        expect(page_.locator("#chosen-title")).to_be_visible()
        heights: list[float] = table.evaluate(
            "(table) => [...table.querySelectorAll('tbody th')].map((name) => name.clientHeight)"
        )
        is_inside: bool = table.evaluate(
            "(table) => table.getBoundingClientRect().right <= table.closest('.panel').getBoundingClientRect().right - 16"
        )

    assert is_inside
    assert max(heights) < 50  # pixels: one line


@pytest.mark.parametrize("path", ["/", "/flow?flow=a", "/partitions?flow=a"])
@pytest.mark.parametrize("width", [1440, 390])
def test_new_figures_do_not_move_anything_on_an_open_page(browser: Browser, path: str, width: int):
    """All digits have the same width, and a figure has room for more digits."""
    flows = FixedFlows([busy(1_111, 11.0)])
    with (
        served(flows) as console_,
        opened_page(browser, viewport={"width": width, "height": 844}) as page_,
    ):
        page_.goto(f"{console_.url}{path}")
        expect(page_.locator("main")).to_contain_text("1,111")
        before: list[Any] = page_.evaluate(BOXES)

        flows.readings = [busy(8_888, 88.0)]
        expect(page_.locator("main")).to_contain_text("8,888", timeout=UPDATE_MS)

        assert page_.evaluate(BOXES) == before


def test_pages_request_nothing_from_other_hosts(console: ServedConsole, page: Page):
    """Therefore the console works offline."""
    hosts: set[str] = set()
    page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    for path, kind in PAGES.items():
        page.goto(f"{console.url}{path}?flow=a" if kind.of_flow else f"{console.url}{path}")
        expect(page.locator("main")).to_be_visible()
    assert hosts == {urlsplit(console.url).netloc}


class SwitchedGate:
    """A gate that a test closes: a console that was started again knows no session."""

    is_open = True

    async def visitor(self, *_: Any) -> Visitor | None:
        return Visitor() if self.is_open else None


def test_the_page_of_an_ended_flow_is_not_marked_as_updated(browser: Browser):
    """What it shows is the last thing that was known."""
    flows = FixedFlows([busy(1_111, 11.0)])
    with served(flows) as console_, opened_page(browser) as page_:
        page_.goto(f"{console_.url}/flow?flow=a")
        expect(page_.locator("#live-word")).to_have_text("live")
        flows.readings = []
        expect(page_.locator("#live-word")).to_have_text("this flow has ended", timeout=UPDATE_MS)
        page_.wait_for_timeout(2_500)  # the word is renewed every second
        assert page_.locator("#live-word").inner_text() == "this flow has ended"

        flows.readings = [busy(8_888, 88.0)]
        expect(page_.locator("#live-word")).to_have_text("live", timeout=UPDATE_MS)


def test_an_open_page_is_updated_again_after_a_proxy_has_refused_it(browser: Browser):
    """A browser does not repeat a stream after a response such as 502, which an ingress sends while the console is started again."""
    flows = FixedFlows([busy(1_111, 11.0)])
    with served(flows) as console_, opened_page(browser, expected_error="502") as page_:
        refused: list[str] = []

        def refuse(route: Route) -> None:
            refused.append(route.request.url)
            route.fulfill(status=502, body="Bad Gateway")

        page_.route("**/events?*", refuse)
        page_.goto(f"{console_.url}/flow?flow=a")
        expect(page_.locator("main")).to_contain_text("1,111")
        wait_until("the stream was refused", lambda: refused)
        page_.unroute("**/events?*")
        flows.readings = [busy(8_888, 88.0)]

        expect(page_.locator("main")).to_contain_text("8,888", timeout=UPDATE_MS)
        assert refused != []


def test_an_open_page_goes_to_the_sign_in_without_a_session(browser: Browser):
    """Sessions are in memory, and end with the console's process."""
    gate = SwitchedGate()
    form = starlette.routing.Route("/sign-in", lambda _: PlainTextResponse("the form"))
    with (
        served(FixedFlows([busy(1_111, 11.0)]), gate=gate, routes=[form]) as console_,
        opened_page(browser, expected_error="401") as page_,
    ):
        # As if the console had been started again between the page and its stream.
        page_.route("**/events?*", lambda route: route.fulfill(status=401, body="Sign in first."))
        page_.goto(f"{console_.url}/flow?flow=a")
        gate.is_open = False

        expect(page_.locator("body")).to_have_text("the form", timeout=UPDATE_MS)


def test_a_row_keeps_the_focus_of_the_keyboard_when_it_moves(browser: Browser):
    """Trouble moves a flow to the top while someone is about to open it."""
    names = ("a", "b", "c")
    flows = FixedFlows([reading(healthy(partition(0)), name=name) for name in names])
    with served(flows) as console_, opened_page(browser) as page_:
        page_.goto(console_.url)
        link = page_.locator("table.flows").get_by_role("link", name="c", exact=True)
        link.focus()
        flows.readings[2] = reading(healthy(partition(3, **STOPPED)), name="c")
        expect(page_.locator("table.flows tbody tr").first).to_contain_text(
            "RecordTooLarge", timeout=UPDATE_MS
        )

        expect(link).to_be_focused()


def test_the_keyboard_opens_the_partition_that_it_has_named(browser: Browser):
    """A topic in trouble moves to the front of the heat map, and each cell to a new place."""
    parts = [partition(0, topic) for topic in ("alpha", "beta", "gamma")]
    flows = FixedFlows([reading(healthy(*parts), name="a")])
    with served(flows) as console_, opened_page(browser) as page_:
        page_.goto(f"{console_.url}/partitions?flow=a")
        page_.locator("#heat-canvas").focus()
        page_.keyboard.press("Home")
        expect(page_.locator("#heat-tip")).to_have_text("alpha-0")
        stopped = partition(0, "gamma", **STOPPED)
        flows.readings = [reading(healthy(*parts[:2], stopped), name="a")]
        expect(page_.locator(".legend .k0 b")).to_have_text("1", timeout=UPDATE_MS)
        page_.keyboard.press("Enter")

        expect(page_.locator("#chosen-title")).to_have_text("alpha-0")


@pytest.mark.parametrize("width", [1280, 1366, 1440])
def test_the_table_of_partitions_fits_into_a_window(browser: Browser, width: int):
    flow = reading(
        healthy(
            partition(0, "payments.settled", **STOPPED),
            partition(1, "inventory.changes", source_offset=5_000_000, source_end_offset=5_012_345),
        ),
        name="a",
    )
    with (
        served(FixedFlows([flow])) as console_,
        opened_page(browser, viewport={"width": width, "height": 800}) as page_,
    ):
        page_.goto(f"{console_.url}/partitions?flow=a&topic=payments.settled&partition=0")
        expect(page_.locator("#chosen-title")).to_be_visible()
        excess: float = page_.locator(".listed table.rows").evaluate(
            "(table) => table.getBoundingClientRect().right - table.closest('.panel').getBoundingClientRect().right + 16"
        )
        assert excess <= 1  # pixel
        assert page_.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
