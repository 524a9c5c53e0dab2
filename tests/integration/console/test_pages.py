"""The console in a real browser shows a flow between real brokers."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from mirrorflow_console.pages import PAGES
from tests.harness.browser import opened_page, serious_violations
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.integration.console.conftest import served_console
from tests.integration.kafka.disks import small_disk
from tests.integration.kafka.groups import put_group
from tests.integration.kafka.running import RunningCommand

SHOWN_MS = 10_000  # the documentation promises ten seconds for an open page
START_MS = 90_000  # enough for a flow to start on a busy machine

FLOW = """\
apiVersion: mirrorflow.io/v1alpha1
kind: MirrorFlow
metadata: {{name: {name}}}
spec:
  source: {{alias: {alias}, bootstrapServers: ["{east}"]}}
  target: {{alias: west, bootstrapServers: ["{west}"]}}
  topics: {{include: ["{topics}"], configs: {{sync: "Off"}}}}
  groups: {{include: ["{groups}"]}}
"""
Names = Callable[[], str]


@contextmanager
def running(
    east: KafkaCluster,
    west: KafkaCluster,
    folder: Path,
    *,
    topics: str,
    groups: str = "none",
    alias: str = "",
) -> Iterator[str]:
    """Runs a flow under a unique alias, and yields its name."""
    alias = alias or f"e{uuid.uuid4().hex[:6]}"
    name = f"{alias}-to-west"
    file = folder / "flow.yaml"
    file.write_text(
        FLOW.format(
            name=name, alias=alias, east=east.bootstrap, west=west.bootstrap, topics=topics, groups=groups
        )
    )
    with RunningCommand(file, folder):
        yield name


def wait_for(page: Page, text: str, *, within_ms: int) -> None:
    expect(page.locator("main")).to_contain_text(text, timeout=within_ms)


@pytest.mark.usefixtures("state")
def test_stopped_partition_appears_within_ten_seconds_and_disappears_after_repair(
    east: KafkaCluster,
    west: KafkaCluster,
    unique_topic: Names,
    tmp_path: Path,
    browser: Browser,
    console: str,
):
    """An open page shows its name, its cause and the remedy without a reload."""
    topic = east.create_topic(unique_topic(), partitions=2)
    alias = f"e{uuid.uuid4().hex[:6]}"
    west.create_topic(f"{alias}.{topic}", partitions=2, config={"max.message.bytes": "20000"})
    load(east, topic, 100, partition=0, keys=True)
    load(east, topic, 100, partition=1, keys=True)

    with running(east, west, tmp_path, topics=topic, alias=alias) as name, opened_page(browser) as page:
        page.goto(console)
        expect(page.get_by_role("link", name=name, exact=True)).to_be_visible(timeout=START_MS)
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("row").filter(has_text=topic)).to_contain_text("copying", timeout=START_MS)
        assert serious_violations(page) == []

        load(east, topic, 1, partition=0, size_bytes=50_000, content="random", first=100)
        trouble = page.locator(".trouble").filter(has_text=f"{topic}-0")
        expect(trouble).to_contain_text("RecordTooLarge", timeout=SHOWN_MS + START_MS)
        trouble.get_by_text("What to do").click()
        expect(trouble).to_contain_text("max.message.bytes")
        page.goto(f"{console}/partitions?flow={name}")
        state = page.get_by_role("row").filter(has_text=f"{topic}-0").locator("[data-label=State]")
        expect(state).to_have_text("stopped")
        assert serious_violations(page) == []

        west.alter_topic(f"{alias}.{topic}", {"max.message.bytes": "100000"})
        expect(state).to_have_text("copying", timeout=START_MS)
        page.goto(f"{console}/history")
        wait_for(page, f"Resolved: {topic}-0", within_ms=SHOWN_MS)


@pytest.mark.faults
@pytest.mark.usefixtures("state")
def test_full_disk_of_the_target_appears_within_ten_seconds_and_disappears_after_repair(
    east: KafkaCluster, unique_topic: Names, tmp_path: Path, browser: Browser, console: str
):
    """Its broker ends itself; the open page names the target and what to do, until the broker runs again."""
    topic = east.create_topic(unique_topic(), partitions=2)
    load(east, topic, 100, size_bytes=1000, keys=True, content="random")

    with (
        small_disk(tmp_path / "disk", 24) as disk,
        KafkaCluster(name="brim", config=disk.config) as brim,
        running(east, brim, tmp_path, topics=topic) as name,
        opened_page(browser) as page,
    ):
        page.goto(console)
        expect(page.get_by_role("link", name=name, exact=True)).to_be_visible(timeout=START_MS)
        page.goto(f"{console}/flow?flow={name}")
        expect(page.get_by_role("row").filter(has_text=topic)).to_contain_text("copying", timeout=START_MS)

        load(east, topic, 50_000, size_bytes=1000, keys=True, content="random")
        wait_until("the disk is full and the broker has ended", lambda: not brim.broker(1).running)
        trouble = page.locator(".trouble").filter(has_text="west (target)")
        expect(trouble).to_contain_text("Unreachable", timeout=SHOWN_MS + START_MS)

        disk.grow()
        brim.broker(1).start()
        expect(trouble).to_have_count(0, timeout=START_MS)


@pytest.mark.more
@pytest.mark.usefixtures("state")
def test_group_lag_appears_and_returns_to_zero(
    east: KafkaCluster,
    west: KafkaCluster,
    unique_topic: Names,
    tmp_path: Path,
    browser: Browser,
    console: str,
):
    topic, group = east.create_topic(unique_topic()), f"g{uuid.uuid4().hex[:8]}"
    load(east, topic, 500)
    put_group(east, group, {(topic, 0): 500})

    with running(east, west, tmp_path, topics=topic, groups=group) as name, opened_page(browser) as page:
        page.goto(console)
        expect(page.get_by_role("link", name=name, exact=True)).to_be_visible(timeout=START_MS)
        page.goto(f"{console}/groups?flow={name}")
        lag = page.get_by_role("row").filter(has_text=group).locator("[data-label^=Behind]")
        expect(lag).to_have_text("0", timeout=START_MS)

        load(east, topic, 250)
        expect(lag).to_have_text("250", timeout=SHOWN_MS + START_MS)
        assert serious_violations(page) == []

        put_group(east, group, {(topic, 0): 750})
        expect(lag).to_have_text("0", timeout=START_MS)


@pytest.mark.more
@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_every_page_is_accessible_and_fits_the_window(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path, browser: Browser, console: str,
    scheme: str, width: int,
):  # fmt: skip
    topic = east.create_topic(unique_topic(), partitions=3)
    load(east, topic, 100)
    with (
        running(east, west, tmp_path, topics=topic) as name,
        opened_page(browser, color_scheme=scheme, viewport={"width": width, "height": 844}) as page,
    ):
        page.goto(console)
        expect(page.get_by_role("link", name=name, exact=True)).to_be_visible(timeout=START_MS)
        for path, kind in PAGES.items():
            page.goto(f"{console}{path}?flow={name}" if kind.of_flow else f"{console}{path}")
            assert serious_violations(page) == []
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path


@pytest.mark.more
@pytest.mark.usefixtures("state")
def test_flow_appears_on_an_open_page_and_disappears_when_it_stops(
    east: KafkaCluster,
    west: KafkaCluster,
    unique_topic: Names,
    tmp_path: Path,
    browser: Browser,
    console: str,
):
    """The page updates without a reload."""
    topic = east.create_topic(unique_topic())
    load(east, topic, 10)
    with opened_page(browser) as page:
        page.goto(console)
        wait_for(page, "No flow yet", within_ms=SHOWN_MS)
        with running(east, west, tmp_path, topics=topic) as name:
            expect(page.get_by_role("link", name=name, exact=True)).to_be_visible(timeout=START_MS)
        wait_for(page, "No flow yet", within_ms=SHOWN_MS + START_MS)


@pytest.mark.more
@pytest.mark.usefixtures("state")
def test_internal_topics_are_decoded(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path, browser: Browser
):
    """The console has the flow's file; the page of each kind shows its records."""
    topic, group = east.create_topic(unique_topic()), f"g{uuid.uuid4().hex[:8]}"
    load(east, topic, 300)
    put_group(east, group, {(topic, 0): 200})

    with (
        running(east, west, tmp_path, topics=topic, groups=group) as name,
        served_console(tmp_path, "-f", str(tmp_path / "flow.yaml")) as url,
        opened_page(browser) as page,
    ):
        page.goto(url)
        expect(page.get_by_role("link", name=name, exact=True)).to_be_visible(timeout=START_MS)
        for kind, text in (
            ("offset-syncs", topic),
            ("claims", name.split("-")[0]),
            ("checkpoints", group),
        ):
            until_shown(page, f"{url}/topics?kind={kind}", text)
        assert serious_violations(page) == []
        page.goto(f"{url}/topics?kind=checkpoints&q=no-such-group")
        wait_for(page, "No record matches", within_ms=SHOWN_MS)


def until_shown(page: Page, url: str, text: str) -> None:
    """Reloads *url* until it shows *text*; the console reads the topic at each request."""

    def shown() -> bool:
        page.goto(url)
        return text in page.locator("main").inner_text()

    wait_until(f"{url} shows {text}", shown, timeout_s=START_MS / 1000, poll_s=1)
