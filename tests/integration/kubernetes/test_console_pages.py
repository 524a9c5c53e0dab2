"""The console of a cluster in a real browser: a real flow between real brokers, its resource on a real API server."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from kubernetes import client
from playwright.sync_api import Browser, Page, expect

from mirrorflow_cli.run_process import running_flows
from mirrorflow_console.pages import PAGES
from tests.harness.browser import ABSENT, chromium, opened_page, serious_violations, started_browser
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.harness.kubernetes.kubectl import Kubectl
from tests.integration.console.test_pages import SHOWN_MS, START_MS, running
from tests.integration.kubernetes.test_console import (
    api,  # noqa: F401 a fixture
    flow,
    other,  # noqa: F401 a fixture
    reader,
    running_pod,
    served,
)

NAME = "east-to-west"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip(ABSENT)
    with started_browser() as browser_:
        yield browser_


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flow registers in a folder of this test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def served_port() -> int | None:
    """Returns the port on which the flow reports its progress; None until it does."""
    return next(
        (urlsplit(running_flow.url).port for running_flow in running_flows() if running_flow.url), None
    )


def sign_in(page: Page, url: str, token: str) -> None:
    page.goto(url)
    expect(page.get_by_label("Token")).to_be_focused()
    page.get_by_label("Token").fill("no such token")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_have_text("The cluster does not accept this token.")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("link", name=NAME, exact=True)).to_be_visible(timeout=START_MS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_visitor_signs_in_and_sees_a_flow_of_their_namespace_on_every_page(
    api: client.ApiClient,  # noqa: F811
    namespace: Kubectl,
    other: Kubectl,  # noqa: F811
    browser: Browser,
    east: KafkaCluster,
    west: KafkaCluster,
    unique_topic: Callable[[], str],
    tmp_path: Path,
    scheme: str,
):
    """A stopped partition appears within ten seconds, and goes after its repair; a flow of another namespace is on no page."""
    topic, alias = east.create_topic(unique_topic()), f"e{uuid.uuid4().hex[:6]}"
    west.create_topic(f"{alias}.{topic}", config={"max.message.bytes": "20000"})
    load(east, topic, 100, keys=True)
    namespace.apply(flow(NAME))
    other.apply(flow("theirs"))
    running_pod(namespace, f"{NAME}-source-0", NAME, "127.0.0.1")
    token = reader(namespace, "visitor", "mirrorflows", "switchovers")

    with running(east, west, tmp_path, topics=topic, alias=alias):
        port = wait_until("the flow reports its progress", served_port, timeout_s=START_MS / 1000)
        assert port is not None
        with (
            served(api, port=port) as console,
            opened_page(browser, expected_error="403", color_scheme=scheme) as page,
        ):
            url, key = f"http://127.0.0.1:{console.port}", f"{namespace.namespace}~{NAME}"
            sign_in(page, url, token)
            for path, kind in PAGES.items():
                page.goto(f"{url}{path}?flow={key}" if kind.of_flow else f"{url}{path}")
                expect(page.locator("main")).not_to_contain_text("theirs")
                if kind.of_flow:
                    expect(page.get_by_role("heading", level=1)).to_have_text(NAME)
                assert serious_violations(page) == []
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path

            page.goto(f"{url}/flow?flow={key}")
            expect(page.get_by_role("row").filter(has_text=topic)).to_contain_text(
                "copying", timeout=START_MS
            )
            load(east, topic, 1, size_bytes=50_000, content="random", first=100)
            trouble = page.locator(".trouble").filter(has_text=f"{topic}-0")
            expect(trouble).to_contain_text("RecordTooLarge", timeout=SHOWN_MS)
            west.alter_topic(f"{alias}.{topic}", {"max.message.bytes": "100000"})
            expect(trouble).to_have_count(0, timeout=START_MS)

            page.get_by_role("button", name="Sign out").click()
            expect(page.get_by_label("Token")).to_be_visible()
