"""The pages of the console of a cluster in a real browser, on a real API server. A stub of a connector's pod reports what a test sets."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from kubernetes import client
from playwright.sync_api import Browser, Page, expect

from mirrorflow_core.reports import ConnectorReport
from tests.harness.browser import opened_page, serious_violations
from tests.harness.kubernetes.kubectl import Kubectl
from tests.integration.kubernetes.test_console import (
    api,  # noqa: F401 a fixture
    flow,
    reader,
    running_pod,
    served,
)
from tests.integration.kubernetes.test_console_switchovers import browser  # noqa: F401 a fixture
from tests.unit.console.flow_readings import UNREACHABLE, healthy, table
from tests.unit.http.reports import partition

POD_ADDRESS = "127.77.0.6"
FLOW = "east-to-west"
START_MS = 60_000  # for the first page of a console that has just begun, on a busy machine
SHOWN_MS = 10_000  # the documentation promises an update within ten seconds for an open page
WIDTHS = (1280, 390)


class ConnectorPod:
    """Serves the progress of a source connector and the offsets of one group, which a test sets."""

    def __init__(self) -> None:
        self.report: ConnectorReport = healthy(partition(0), partition(1))
        self.group_offset = 0
        pod = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                document = pod.offsets() if self.path.startswith("/offsets") else table(pod.report)
                body = json.dumps(document).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Keeps the test's output free of requests."""

        self._server = ThreadingHTTPServer((POD_ADDRESS, 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def source_end(self) -> int:
        end: int = table(self.report)["columns"]["sourceEndOffset"]  # both partitions have the same
        return end

    def offsets(self) -> dict[str, Any]:
        """Returns the offset of the group "billing" on the source, which is translated exactly."""
        where = {"group": "billing", "topic": "orders", "partition": 0, "targetTopic": "A.orders"}
        line = {
            **where, "sourceOffset": self.group_offset, "targetOffset": self.group_offset, "targetOffsetAtMost": None,
            "translation": "exact", "checkpointOffset": self.group_offset, "checkpointAgeSeconds": 1.0,
            "groupOffset": self.group_offset, "written": True, "why": None, "readAgainAtLeast": 0, "readAgainAtMost": 0,
            "hasMembersOnSource": True, "hasMembersOnTarget": False,
        }  # fmt: skip
        return {"offsets": [line], "truncated": False}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def pod(namespace: Kubectl) -> Iterator[ConnectorPod]:
    """Yields the pod of a MirrorFlow's source connector."""
    serving = ConnectorPod()
    namespace.apply(flow(FLOW))
    running_pod(namespace, "source", FLOW, POD_ADDRESS)
    yield serving
    serving.close()


@pytest.fixture
def page(
    api: client.ApiClient,  # noqa: F811
    namespace: Kubectl,
    pod: ConnectorPod,
    browser: Browser,  # noqa: F811
) -> Iterator[Page]:
    """Yields a page of a visitor who may get the flow, opened at the list of flows."""
    headers = {"Authorization": f"Bearer {reader(namespace)}"}
    with (
        served(api, port=pod.port) as console,
        opened_page(
            browser, extra_http_headers=headers, base_url=f"http://127.0.0.1:{console.port}"
        ) as opened,
    ):
        opened.goto("/")
        expect(opened.get_by_role("link", name=FLOW, exact=True)).to_be_visible(timeout=START_MS)
        yield opened


def of_flow(path: str, namespace: Kubectl) -> str:
    return f"{path}?flow={namespace.namespace}~{FLOW}"


@pytest.mark.more
def test_every_page_of_a_cluster_is_accessible_and_fits_the_window(page: Page, namespace: Kubectl):
    paths = [of_flow(path, namespace) for path in ("/flow", "/partitions", "/groups", "/history")]

    for path in ("/", *paths, "/jobs", "/history", "/switchovers"):
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 844})
            page.goto(path)
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            assert serious_violations(page) == [], path
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (path, width)


@pytest.mark.more
def test_group_lag_in_a_cluster_appears_and_returns_to_zero_within_ten_seconds(
    page: Page, namespace: Kubectl, pod: ConnectorPod
):
    pod.group_offset = pod.source_end
    page.goto(of_flow("/groups", namespace))
    lag = page.get_by_role("row").filter(has_text="billing").locator("[data-label^=Behind]")
    expect(lag).to_have_text("0", timeout=START_MS)

    pod.group_offset = pod.source_end - 7
    expect(lag).to_have_text("7", timeout=SHOWN_MS)

    pod.group_offset = pod.source_end
    expect(lag).to_have_text("0", timeout=SHOWN_MS)


def test_a_target_in_a_cluster_whose_disk_is_full_appears_and_goes_within_ten_seconds(
    page: Page, namespace: Kubectl, pod: ConnectorPod
):
    """A broker whose disk is full exits, so the pod reports that the target cannot be reached."""
    page.goto(of_flow("/flow", namespace))
    trouble = page.locator(".trouble").filter(has_text="west (target)")
    expect(page.get_by_role("row").filter(has_text="orders")).to_contain_text("copying", timeout=START_MS)
    expect(trouble).to_have_count(0)

    pod.report = healthy(partition(0), partition(1), target=UNREACHABLE)
    expect(trouble).to_contain_text("Unreachable", timeout=SHOWN_MS)

    pod.report = healthy(partition(0), partition(1))
    expect(trouble).to_have_count(0, timeout=SHOWN_MS)
