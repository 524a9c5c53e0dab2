"""Visitors of a cluster's console who have not signed in get the form, and nothing else."""

import urllib.request

from kubernetes import client

from mirrorflow_console.rendering import environment
from mirrorflow_console.sign_in import ClusterGate
from tests.unit.console.flow_readings import FixedFlows, healthy, reading
from tests.unit.console.served_console import served
from tests.unit.http.reports import partition


def test_every_page_redirects_to_the_sign_in_form():
    """The form needs no request to the API server."""
    gate = ClusterGate(client.ApiClient(), environment())
    with served(FixedFlows([reading(healthy(partition(0)))]), gate=gate, routes=gate.routes) as console:
        for path in ("/", "/history", "/flow?flow=f"):
            with urllib.request.urlopen(f"{console.url}{path}") as response:
                assert response.url == f"{console.url}/sign-in"
                body = response.read().decode()
            assert '<label for="token">Token</label>' in body
            assert "orders" not in body


def test_a_browser_may_name_the_origin_of_the_form():
    """With the policy no-referrer it sends the origin "null", and the console refuses its own form."""
    gate = ClusterGate(client.ApiClient(), environment())
    with (
        served(FixedFlows(), gate=gate, routes=gate.routes) as console,
        urllib.request.urlopen(f"{console.url}/sign-in") as response,
    ):
        assert response.headers["Referrer-Policy"] == "same-origin"
