"""The cockpit of a cluster in a real browser: a Switchover on a real API server, with what the pod of its Job reports."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from kubernetes import client
from playwright.sync_api import Browser, Page, expect

from mirrorflow_cli.switchover_job_progress import SwitchoverProgress
from mirrorflow_core.switchover.record import StateEntry, SwitchoverRecord
from mirrorflow_core.switchover.states import SwitchoverState, SwitchoverType
from tests.harness.browser import ABSENT, chromium, opened_page, serious_violations, started_browser
from tests.harness.kubernetes.kubectl import Kubectl
from tests.integration.kubernetes.test_console import (
    ClusterConsole,
    api,  # noqa: F401 a fixture
    flow,
    reader,
    served,
)

POD_ADDRESS = "127.77.0.5"
SHOWN_MS = 15_000
LABEL = "mirrorflow.io/switchover"
_S = SwitchoverState


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip(ABSENT)
    with started_browser() as browser_:
        yield browser_


class ReportingPod:
    """Serves the report of a Job's process, which a test sets."""

    def __init__(self) -> None:
        self.body = b""
        pod = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(pod.body)))
                self.end_headers()
                self.wfile.write(pod.body)

            def log_message(self, *_: object) -> None:
                """Keeps the test's output free of requests."""

        self._server = ThreadingHTTPServer((POD_ADDRESS, 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def enters(self, *states: SwitchoverState, waits_for: str = "") -> None:
        """Reports a switchover that has entered *states* one after the other, now."""
        times = [1_796_000_000_000 + 700 * number for number in range(len(states))]
        record = SwitchoverRecord(
            id="east-west/move",
            pair="east-west",
            type=SwitchoverType.PLANNED,
            source="east",
            to="west",
            created_ms=times[0],
            state=states[-1],
            fenced_ms=times[0] if _S.FENCING in states else 0,
            history=tuple(map(StateEntry, states, times)),
        )
        self.body = SwitchoverProgress(id=record.id, record=record, waits_for=waits_for).body()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def pod() -> Iterator[ReportingPod]:
    serving = ReportingPod()
    yield serving
    serving.close()


def requested(namespace: Kubectl) -> None:
    """Creates the pair with its flows, the Switchover, and the pod of its Job as a kubelet would report it."""
    namespace.apply(flow("east-to-west"))
    head = {"apiVersion": "mirrorflow.io/v1alpha1"}
    members = {"east": {"flow": "east-to-west"}, "west": {"flow": "west-to-east"}}
    pair = {"members": members, "fence": {"method": "DenyAcl"}, "deadlineSeconds": 600}
    namespace.apply({**head, "kind": "MirrorPair", "metadata": {"name": "east-west"}, "spec": pair})
    wanted = {"pair": "east-west", "to": "west", "type": "Planned"}
    namespace.apply({**head, "kind": "Switchover", "metadata": {"name": "move"}, "spec": wanted})
    container = {"name": "switchover", "image": "replicator:1"}
    meta = {"name": "move-switchover-abcde", "labels": {LABEL: "move"}}
    namespace.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}}
    )
    status = {"phase": "Running", "podIP": POD_ADDRESS, "podIPs": [{"ip": POD_ADDRESS}]}
    _patch(namespace, "pod", "move-switchover-abcde", status)


def _patch(namespace: Kubectl, kind: str, name: str, status: dict[str, Any]) -> None:
    body = json.dumps({"status": status})
    namespace("patch", kind, name, "--subresource=status", "--type=merge", f"--patch={body}")


@contextmanager
def signed_in(browser: Browser, console: ClusterConsole, token: str) -> Iterator[Page]:
    """A page of a visitor whose token a proxy sends."""
    with opened_page(browser, extra_http_headers={"Authorization": f"Bearer {token}"}) as page:
        page.goto(f"http://127.0.0.1:{console.port}/switchovers")
        yield page


def test_the_cockpit_follows_the_job_and_keeps_the_outcome_that_the_operator_records(
    api: client.ApiClient,  # noqa: F811
    namespace: Kubectl,
    browser: Browser,
    pod: ReportingPod,
):
    """It shows the state, the fence, the wait, and the command that rolls back. A visitor without permission sees none of it."""
    requested(namespace)
    pod.enters(_S.CHECKING, _S.FENCING, _S.DRAINING, waits_for="Waits for the copy of 7 offsets.")
    may = reader(namespace, "watcher", "mirrorflows", "switchovers")
    may_not = reader(namespace, "flows-only")

    with served(api, job_port=pod.port) as console, signed_in(browser, console, may) as page:
        present = page.locator(".states [aria-current=step]")
        expect(present).to_contain_text("Draining", timeout=SHOWN_MS)
        expect(page.locator("#waits")).to_contain_text("Waits for the copy of 7 offsets.")
        expect(page.locator("main")).to_contain_text("DenyAcl")
        expect(page.locator(".command code")).to_have_text(
            f"kubectl delete pod --namespace {namespace.namespace} -l {LABEL}=move"
        )
        assert serious_violations(page) == []
        page.get_by_role("link", name="Flows", exact=True).click()
        row = page.get_by_role("row").filter(has_text="east-to-west")
        expect(row).to_contain_text("is in state Draining", timeout=SHOWN_MS)

        with signed_in(browser, console, may_not) as other:
            expect(other.locator("main")).to_contain_text("No switchover yet")

        pod.enters(_S.CHECKING, _S.FENCING, _S.PROMOTING, waits_for="Waits until clients are led to west.")
        page.goto(f"http://127.0.0.1:{console.port}/switchovers")
        expect(present).to_contain_text("Promoting", timeout=SHOWN_MS)
        expect(page.locator(".command")).to_have_count(0)
        condition = {
            "type": "Succeeded",
            "status": "True",
            "reason": "Moved",
            "message": "west has become the active member of east-west.",
            "lastTransitionTime": "2026-11-30T10:00:00Z",
        }
        done = {
            "state": "Done",
            "source": "east",
            "since": "2026-11-30T10:00:00Z",
            "states": [{"state": "Done", "entered": "2026-11-30T10:00:00Z"}],
            "conditions": [condition],
        }
        _patch(namespace, "switchover", "move", done)
        expect(page.locator(".cockpit-head")).to_contain_text("succeeded", timeout=SHOWN_MS)
        expect(page.locator("#waits")).to_contain_text("west has become the active member of east-west.")
        assert serious_violations(page) == []
