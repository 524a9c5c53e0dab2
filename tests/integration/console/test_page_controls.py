"""Keyboard, filter, time zone and theme of the pages in a real browser; the flow has 10,000 partitions."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.harness.browser import opened_page
from tests.unit.console.flow_readings import STOPPED, FixedFlows, healthy, reading
from tests.unit.console.served_console import ServedConsole, served
from tests.unit.http.reports import partition

pytestmark = pytest.mark.more

PARTITIONS = 10_000


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
    """The heat map of 10,000 has one stop for the Tab key; arrow keys move in it, and Enter opens."""
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
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("no such flow")
    page.keyboard.press("Enter")
    expect(page.get_by_text("No flow matches.")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.press("Escape")
    expect(page.get_by_role("searchbox")).not_to_be_focused()


def test_times_and_colours_are_those_that_the_visitor_has_chosen_also_on_the_next_page(
    console: ServedConsole, page: Page
):
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
