"""`make screenshots` takes the console's pictures for the documentation, of real flows between real brokers.

Of three flows between two clusters, one has a stopped partition, one lags because it is limited, and one has no
problem. Then a rehearsal of a switchover waits for a consumer. Each picture is taken in light and in dark, and written
into docs/images.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, Page

from tests.harness.browser import ABSENT, chromium, opened_page, started_browser
from tests.harness.demo.producer import SteadyProducer
from tests.harness.demo.switched_pair import SwitchedPair, WaitingConsumer
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load

IMAGES: Final = Path(__file__).parents[3] / "docs" / "images"
SIZE: Final = {"width": 1440, "height": 900}
# Number of partitions of each topic.
EAST: Final = {
    "orders": 12,
    "payments.settled": 6,
    "payments.refunds": 6,
    "inventory.changes": 16,
    "customers": 8,
    "sessions": 12,
}
EDGE: Final = {"telemetry": 16}
WEST: Final = {"orders.eu": 12, "prices": 4}
SWITCHED: Final = 20_000  # records of the pair's topic
LARGE: Final = "payments.settled"  # has a record that the target refuses
WATCH_S: Final = 75.0  # long enough for the charts to have a line
START_S: Final = 180.0

FLOW: Final = """\
apiVersion: mirrorflow.io/v1alpha1
kind: MirrorFlow
metadata: {{name: {name}}}
spec:
  source: {{alias: {source}, bootstrapServers: ["{bootstrap}"]}}
  target: {{alias: {target}, bootstrapServers: ["{to}"]}}
  topics: {{include: [{topics}], configs: {{sync: "Off"}}}}
{more}
"""


def main() -> int:
    """Takes all pictures. Returns exit status 1 if there is no browser."""
    if chromium() is None:
        print(ABSENT, file=sys.stderr)
        return 1
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mirrorflow-screenshots-") as folder, ExitStack() as stack:
        os.environ["XDG_STATE_HOME"] = folder
        os.environ["KUBECONFIG"] = os.devnull
        east = stack.enter_context(KafkaCluster(name="east"))
        west = stack.enter_context(KafkaCluster(name="west"))
        _start_flows(stack, east, west, Path(folder))
        url = stack.enter_context(_console(Path(folder)))
        browser = stack.enter_context(started_browser())
        _wait_for_trouble(browser, url)
        time.sleep(WATCH_S)
        for scheme in ("light", "dark"):
            with opened_page(browser, viewport=SIZE, color_scheme=scheme, device_scale_factor=1) as page:
                _take_pictures(page, url, scheme)
        _start_switchover(stack, east, west, Path(folder) / "pair")
        _take_cockpit(browser, url)
    return 0


def _start_switchover(stack: ExitStack, east: KafkaCluster, west: KafkaCluster, folder: Path) -> None:
    """Starts a rehearsal that waits for a consumer."""
    folder.mkdir()
    load(east, east.create_topic("ledger", partitions=12), SWITCHED, keys=True)
    pair = SwitchedPair(east, west, folder, "ledger", source="paris", to="dublin")
    log = folder / "replicator.log"
    stack.enter_context(_process(["run", "-f", str(pair.flow_file), "--log", str(log)], folder / "run.out"))
    wait_until("the topic of the pair is copied", lambda: pair.has_copied(SWITCHED), timeout_s=START_S)
    stack.enter_context(WaitingConsumer(pair, SWITCHED))
    stack.enter_context(pair.switching("--rehearse"))


def _take_cockpit(browser: Browser, url: str) -> None:
    for scheme in ("light", "dark"):
        with opened_page(browser, viewport=SIZE, color_scheme=scheme, device_scale_factor=1) as page:
            page.goto(f"{url}/switchovers")
            page.locator("#waits").get_by_text("Waits until the consumers").wait_for(timeout=1000 * START_S)
            page.wait_for_timeout(600)
            page.screenshot(path=IMAGES / f"console-switchover-{scheme}.png")


def _start_flows(stack: ExitStack, east: KafkaCluster, west: KafkaCluster, folder: Path) -> None:
    for cluster, topics in ((east, {**EAST, **EDGE}), (west, WEST)):
        for topic, partitions in topics.items():
            cluster.create_topic(topic, partitions=partitions)
    west.create_topic(f"east.{LARGE}", partitions=EAST[LARGE], config={"max.message.bytes": "20000"})
    load(east, LARGE, 1, partition=3, size_bytes=50_000, content="random")
    for cluster, topics, backlog, rate in (
        (east, EAST, 20_000, 300),
        (west, WEST, 2_000, 80),
        (east, EDGE, 400_000, 900),
    ):
        stack.enter_context(
            SteadyProducer(bootstrap=cluster.bootstrap, topics=tuple(topics), backlog=backlog, rate=rate)
        )
    groups = "  groups: {include: []}"
    limited = "  groups: {include: []}\n  limits: {bytesPerSecond: 20Ki}"
    for source, target, begin, end, topics, more in (
        ("east", "west", east, west, EAST, groups),
        ("west", "east", west, east, WEST, groups),
        ("edge", "west", east, west, EDGE, limited),
    ):
        name = f"{source}-to-{target}"
        file = folder / f"{name}.yaml"
        names = ", ".join(f'"{topic}"' for topic in topics)
        file.write_text(
            FLOW.format(
                name=name,
                source=source,
                target=target,
                bootstrap=begin.bootstrap,
                to=end.bootstrap,
                topics=names,
                more=more,
            )
        )
        stack.enter_context(
            _process(["run", "-f", str(file), "--log", str(folder / f"{name}.log")], folder / f"{name}.out")
        )


@contextmanager
def _process(arguments: list[str], out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs the command, and ends its processes at the end of the block."""
    program = str(Path(sys.executable).parent / "mirrorflow")
    with out.open("wb") as file:
        process = subprocess.Popen(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def _console(folder: Path) -> Iterator[str]:
    log = folder / "console.out"
    with _process(["ui", "--port", "0"], log):
        address = wait_until("the console serves", lambda: re.search(r"http://[\d.:]+", log.read_text()))
        assert address is not None
        yield address[0]


def _wait_for_trouble(browser: Browser, url: str) -> None:
    """Opens a page and waits until it shows the stopped partition."""
    with opened_page(browser) as page:
        page.goto(url)
        page.get_by_text("RecordTooLarge").first.wait_for(timeout=1000 * START_S)


def _take_pictures(page: Page, url: str, scheme: str) -> None:
    pages = {
        "flows": "/",
        "flow": "/flow?flow=east-to-west",
        "partitions": f"/partitions?flow=east-to-west&topic={LARGE}&partition=3",
    }
    for name, path in pages.items():
        page.goto(f"{url}{path}")
        if name == "flow":
            page.get_by_text("What to do").first.click()
        page.wait_for_timeout(600)
        page.screenshot(path=IMAGES / f"console-{name}-{scheme}.png")


if __name__ == "__main__":
    sys.exit(main())
