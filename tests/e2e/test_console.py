"""`mirrorflow ui --context` in a real browser reads the pods of a cluster through port-forwards of the API server and a kubelet."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.story import wait_for_records
from tests.harness.browser import ABSENT, chromium, opened_page, serious_violations, started_browser
from tests.harness.kafka.tools import load
from tests.harness.kubernetes.stage import FLOWS, WAIT_S, Stage
from tests.integration.console.conftest import served_console
from tests.integration.kafka.groups import put_group

WAIT_MS = 1000 * WAIT_S


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip(ABSENT)
    with started_browser() as browser_:
        yield browser_


def test_pages_of_a_context_show_what_the_pods_report_through_port_forwards(
    stage: Stage,
    make_flow: Callable[..., str],
    browser: Browser,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """The list has what the resource's status has; the pages of the flow have its partitions and groups.

    The console is a process of its own: a port-forward of the Kubernetes package may end its thread with an error.
    """
    topic = stage.east.create_topic("orders.console", partitions=2)
    put_group(stage.east, "readers", {(topic, 0): 0})
    flow = make_flow("console", [topic])
    stage.wait_for(flow, "Ready")
    load(stage.east, topic, 100)
    wait_for_records(stage, f"{flow}.{topic}", 100)
    kubeconfig = json.loads(stage.kubectl("config", "view", "--flatten", "--raw", "--output=json"))
    for context in kubeconfig["contexts"]:
        context["context"]["namespace"] = FLOWS
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    with (
        served_console(tmp_path, "--context", kubeconfig["current-context"]) as url,
        opened_page(browser) as page,
    ):
        page.goto(url)
        expect(page.get_by_role("link", name=flow, exact=True)).to_be_visible(timeout=WAIT_MS)
        assert serious_violations(page) == []
        key = f"{kubeconfig['current-context']}|{FLOWS}~{flow}"
        page.goto(f"{url}/partitions?{urlencode({'flow': key})}")
        for number in range(2):
            row = page.get_by_role("row").filter(has_text=f"{topic}-{number}")
            expect(row).to_contain_text("copying", timeout=WAIT_MS)
        page.goto(f"{url}/groups?{urlencode({'flow': key})}")
        expect(page.get_by_role("link", name="readers", exact=True)).to_be_visible(timeout=WAIT_MS)
        assert serious_violations(page) == []
