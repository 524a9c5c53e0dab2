"""The cockpit of a rehearsal between real brokers in a real browser."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.harness.browser import opened_page, serious_violations
from tests.harness.demo.switched_pair import SwitchedPair, WaitingConsumer
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.integration.kafka.running import RunningCommand

SHOWN_MS = 10_000  # the documentation promises an update within ten seconds for an open page
START_MS = 90_000  # enough for a command to start on a busy machine
RECORDS = 200
Names = Callable[[], str]

# The time for which writes are refused is no longer *before*.
HAS_CHANGED = "before => document.querySelector('#refused').textContent !== before"


@pytest.fixture
def pair(east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path) -> SwitchedPair:
    topic = east.create_topic(unique_topic(), partitions=2)
    load(east, topic, RECORDS, keys=True)
    return SwitchedPair(east, west, tmp_path, topic)


@contextmanager
def copied(pair: SwitchedPair) -> Iterator[None]:
    """Runs the flow of *pair*, and waits until it has copied all records."""
    with RunningCommand(pair.flow_file, pair.folder):
        wait_until("the records are copied", lambda: pair.has_copied(RECORDS), timeout_s=START_MS / 1000)
        yield


def present_state(page: Page, name: str, *, within_ms: int) -> None:
    """Waits until the row of states shows *name* as the current one."""
    expect(page.locator(".states [aria-current=step]")).to_contain_text(name, timeout=within_ms)


@pytest.mark.more
@pytest.mark.usefixtures("state")
def test_rehearsal_is_shown_while_it_waits_and_its_outcome_within_ten_seconds(
    pair: SwitchedPair, tmp_path: Path, browser: Browser, console: str
):
    """The rehearsal waits for a consumer, which the pages of flows and the cockpit show.

    Afterwards, the reports are complete.
    """
    reports = [tmp_path / "rehearsal.json", tmp_path / "rehearsal.html"]
    with (
        copied(pair),
        WaitingConsumer(pair, RECORDS) as consumer,
        opened_page(browser) as page,
    ):
        page.goto(f"{console}/switchovers")
        expect(page.locator("main")).to_contain_text("No switchover yet")
        with pair.switching("--rehearse", "--report", reports[0], "--report", reports[1]) as command:
            present_state(page, "GroupsFinal", within_ms=START_MS)
            expect(page.locator("#waits")).to_contain_text(pair.group, timeout=SHOWN_MS)
            refused = page.locator("#refused").inner_text()
            assert refused.endswith(" s")
            page.wait_for_function(HAS_CHANGED, arg=refused, timeout=SHOWN_MS)
            expect(page.locator(".command code")).to_have_text(f"kill {command.pid}")
            assert serious_violations(page) == []

            page.get_by_role("link", name="Flows", exact=True).click()
            row = page.get_by_role("row").filter(has_text=pair.forward)
            expect(row).to_contain_text("is in state GroupsFinal", timeout=SHOWN_MS)
            expect(page.locator(".tag").filter(has_text="GroupsFinal")).to_be_visible()
            assert serious_violations(page) == []
            page.goto(f"{console}/switchovers")

            consumer.leave()
            assert command.wait(60) == 0, pair.output()
            present_state(page, "Rehearsed", within_ms=SHOWN_MS)
            expect(page.get_by_role("row").filter(has_text="succeeded")).to_contain_text(pair.name)
            assert serious_violations(page) == []

        page.goto(console)
        expect(row).not_to_contain_text("GroupsFinal", timeout=SHOWN_MS)
    check_report(browser, *reports)


def check_report(browser: Browser, data: Path, page_file: Path) -> None:
    """Checks that the page of a report has its outcome and its seal, and that it is accessible in light and dark, wide
    and narrow.
    """
    report = json.loads(data.read_text())
    for scheme in ("light", "dark"):
        for width in (1440, 390):
            with opened_page(browser, color_scheme=scheme, viewport={"width": width, "height": 844}) as page:
                assert requests_of(page, page_file.as_uri()) == [page_file.as_uri()]
                expect(page.get_by_role("heading", level=1)).to_have_text(report["sentence"])
                expect(page.locator("main")).to_contain_text(report["seal"]["sha256"])
                assert serious_violations(page) == []
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def requests_of(page: Page, url: str) -> list[str]:
    """Opens *url*, and returns the URLs that the page requests."""
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(url)
    return requests
