"""Pages without a flow in a real browser: the form of a cluster's console, and the page for an unknown address."""

import pytest
from kubernetes import client
from playwright.sync_api import Browser, expect

from mirrorflow_console.rendering import environment
from mirrorflow_console.sign_in import ClusterGate
from tests.harness.browser import opened_page, serious_violations
from tests.unit.console.flow_readings import FixedFlows
from tests.unit.console.served_console import served

pytestmark = pytest.mark.more


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_pages_without_a_flow_are_accessible_and_fit_the_window(browser: Browser, scheme: str, width: int):
    configuration = client.Configuration()
    configuration.host, configuration.retries = "http://127.0.0.1:1", 0  # no API server listens there
    gate = ClusterGate(client.ApiClient(configuration), environment())
    with (
        served(FixedFlows(), gate=gate, routes=gate.routes) as console,
        opened_page(
            browser, expected_error="503", color_scheme=scheme, viewport={"width": width, "height": 844}
        ) as page,
    ):
        page.goto(console.url)
        expect(page.get_by_label("Token")).to_be_focused()
        expect(page.get_by_role("status")).to_be_hidden()
        assert serious_violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")

        page.get_by_label("Token").fill("no such token")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("The token cannot be checked now")
        assert serious_violations(page) == []

        missing = page.request.get(f"{console.url}/missing")
        assert missing.status == 404
        page.evaluate("html => { document.documentElement.innerHTML = html; }", missing.text())
        expect(page.get_by_text("There is no such page.")).to_be_visible()
        assert serious_violations(page) == []
