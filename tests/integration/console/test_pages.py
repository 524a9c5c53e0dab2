"""The console in a real browser shows a flow between real brokers."""

import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from mirrorflow_cli.run_process import running_flows
from mirrorflow_console.pages import PAGES
from tests.harness.browser import opened_page, serious_violations
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.mm2 import MirrorMaker
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.integration.console.conftest import served_console
from tests.integration.console.prometheus import ABSENT, Prometheus, is_installed
from tests.integration.kafka.disks import small_disk
from tests.integration.kafka.groups import put_group
from tests.integration.kafka.running import RunningCommand

SHOWN_MS = 10_000  # the documentation promises an update within ten seconds for an open page
VERIFY_WAIT_S = 200.0  # each verification starts a JVM
START_MS = 90_000  # enough for a flow to start on a busy machine

# The chart on the page has a sample, which is a time with a known lag.
HAS_POINTS = """() => {
  const [times, lags] = JSON.parse(document.querySelector("[data-chart]").dataset.chart);
  return times.length > 0 && lags.some((lag) => lag !== null);
}"""

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
    """An open page shows its name, the cause and the remedy without a reload."""
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
        expect(trouble).to_contain_text("RecordTooLarge", timeout=SHOWN_MS)
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
    """The broker exits. The open page shows the target and the remedy until the broker runs again."""
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
        expect(trouble).to_contain_text("Unreachable", timeout=SHOWN_MS)

        disk.grow()
        brim.broker(1).start()
        expect(trouble).to_have_count(0, timeout=START_MS)


@pytest.mark.more
@pytest.mark.usefixtures("state")
def test_failed_verification_appears_within_ten_seconds_and_disappears_after_repair(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path, browser: Browser
):
    """Another producer wrote into the copy.

    Once retention has deleted that record, a verification reports both sides as equal.
    """
    pytest.importorskip("pyspark")
    topic = east.create_topic(unique_topic())
    load(east, topic, 200, keys=True)
    results = tmp_path / "results"

    with (
        running(east, west, tmp_path, topics=topic) as name,
        served_console(tmp_path, "--results", str(results)) as url,
        opened_page(browser) as page,
    ):
        copy = f"{name.removesuffix('-to-west')}.{topic}"
        wait_until("all is copied", lambda: west.has_topic(copy) and west.total_end_offset(copy) == 200)
        load(west, copy, 1, keys=True, first=7)
        load(east, topic, 100, keys=True, first=200)
        wait_until("the rest is copied", lambda: west.total_end_offset(copy) == 301)
        page.goto(f"{url}/flow?flow={name}")
        trouble = page.locator(".trouble").filter(has_text="DifferencesFound")
        expect(trouble).to_have_count(0)

        assert verify(tmp_path, results, run_id="1") == 1
        expect(trouble).to_contain_text("1 window", timeout=SHOWN_MS)
        assert serious_violations(page) == []
        trouble.get_by_role("link", name="1", exact=True).click()
        page.get_by_text("Windows that are not equal").click()
        differing = page.get_by_role("row").filter(has_text="extra").last
        expect(differing).to_contain_text("200")
        expect(differing.locator("code.key")).to_have_text("7")

        page.goto(f"{url}/flow?flow={name}")
        expect(trouble).to_have_count(1)
        east.delete_records(topic, {0: 200})
        west.delete_records(copy, {0: 201})
        page.goto(f"{url}/jobs")
        with ThreadPoolExecutor() as executor:
            second = executor.submit(verify, tmp_path, results, run_id="2")
            running_job = page.locator(".job").filter(has_text=re.compile("preparing|running"))
            expect(running_job).to_contain_text(name, timeout=START_MS)
            assert second.result() == 0
        expect(running_job).to_have_count(0, timeout=SHOWN_MS)
        page.goto(f"{url}/flow?flow={name}")
        expect(trouble).to_have_count(0, timeout=SHOWN_MS)


def verify(folder: Path, results: Path, *, run_id: str) -> int:
    """Runs `mirrorflow verify` for the flow in *folder*, and returns its exit status."""
    program = Path(sys.executable).parent / "mirrorflow"
    finished = subprocess.run(
        [program, "verify", "-f", folder / "flow.yaml", "--out", results, "--run-id", run_id, "--keys"],
        check=False,
        capture_output=True,
        timeout=VERIFY_WAIT_S,
    )
    assert b"Traceback" not in finished.stderr, finished.stderr.decode()
    return finished.returncode


@pytest.mark.more
@pytest.mark.usefixtures("state")
@pytest.mark.skipif(not is_installed(), reason=ABSENT)
def test_charts_use_the_consoles_own_history_while_prometheus_does_not_respond(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path, browser: Browser
):
    topic = east.create_topic(unique_topic())
    load(east, topic, 500)

    def scraped_address() -> str | None:
        return next(
            (urlsplit(running_flow.url).netloc for running_flow in running_flows() if running_flow.url), None
        )

    with running(east, west, tmp_path, topics=topic) as name:
        address = wait_until("the flow serves metrics", scraped_address, timeout_s=START_MS / 1000)
        assert address is not None
        with (
            Prometheus(tmp_path / "prometheus", address) as prometheus,
            served_console(tmp_path, "--no-history", "--prometheus", prometheus.url) as url,
            opened_page(browser) as page,
        ):
            page.goto(url)
            expect(page.get_by_role("link", name=name, exact=True)).to_be_visible(timeout=START_MS)
            page.goto(f"{url}/flow?flow={name}")
            wait_for(page, "From Prometheus.", within_ms=START_MS)
            page.wait_for_function(HAS_POINTS, timeout=START_MS)
            page.get_by_role("link", name="week", exact=True).click()
            wait_for(page, "Last week", within_ms=SHOWN_MS)
            wait_for(page, "From Prometheus.", within_ms=START_MS)
            assert serious_violations(page) == []

            prometheus.stop()
            page.get_by_role("link", name="day", exact=True).click()
            wait_for(page, "Prometheus at 127.0.0.1 does not answer", within_ms=START_MS)
            page.wait_for_function(HAS_POINTS, timeout=START_MS)


@pytest.mark.more
@pytest.mark.usefixtures("state")
def test_group_lag_appears_and_returns_to_zero_within_ten_seconds(
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
        expect(lag).to_have_text("250", timeout=SHOWN_MS)
        assert serious_violations(page) == []

        put_group(east, group, {(topic, 0): 750})
        expect(lag).to_have_text("0", timeout=SHOWN_MS)


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
    """The console has the flow's file. The page of each kind of topic shows its records."""
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


@pytest.mark.more
@pytest.mark.usefixtures("state")
def test_internal_topics_of_a_flow_that_java_runs_are_decoded(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path, browser: Browser
):
    """The file describes the flow like Java's mm2.properties. Offset syncs are on the source."""
    topic, group = east.create_topic(unique_topic()), f"g{uuid.uuid4().hex[:8]}"
    load(east, topic, 300)
    put_group(east, group, {(topic, 0): 200})
    quick = {
        "groups": group,
        f"{east.name}->{west.name}.emit.checkpoints.interval.seconds": "1",
        f"{west.name}.offset.flush.interval.ms": "1000",
    }
    flow = FLOW.format(
        name="java", alias=east.name, east=east.bootstrap, west=west.bootstrap, topics=topic, groups=group
    )
    (tmp_path / "flow.yaml").write_text(f"{flow}  offsetSyncs: {{location: Source}}\n")

    with (
        MirrorMaker(source=east, target=west, topics=topic, properties=quick) as java,
        served_console(tmp_path, "-f", str(tmp_path / "flow.yaml")) as url,
        opened_page(browser) as page,
    ):
        java.wait_until_replicated(topic, 300)
        for kind, text in (
            ("offset-syncs", topic),
            ("positions", topic),
            ("checkpoints", group),
            ("heartbeats", east.name),
        ):
            until_shown(page, f"{url}/topics?kind={kind}", text)
        assert serious_violations(page) == []
        page.goto(f"{url}/topics?kind=checkpoints&q=group%3D{group}")
        expect(page.get_by_role("row").filter(has_text=group).first).to_be_visible()


def until_shown(page: Page, url: str, text: str) -> None:
    """Reloads *url* until it shows *text*. The console reads the topic at each request."""

    def shown() -> bool:
        page.goto(url)
        return text in page.locator("main").inner_text()

    wait_until(f"{url} shows {text}", shown, timeout_s=START_MS / 1000, poll_s=1)
