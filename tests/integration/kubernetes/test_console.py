"""The console of a cluster on a real API server shows flows, their pods, and only what each visitor may read."""

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import uvicorn
from kubernetes import client, config

from mirrorflow_console.cluster_flows import HTTP_PORT, ClusterFlows
from mirrorflow_console.cluster_switchovers import ClusterSwitchovers
from mirrorflow_console.flow_views import flow_view
from mirrorflow_console.history import History
from mirrorflow_console.local_server import listening_socket, server_config
from mirrorflow_console.namespace_results import NamespaceResults
from mirrorflow_console.poller import SharedPoller
from mirrorflow_console.rendering import environment
from mirrorflow_console.server import Console
from mirrorflow_console.sign_in import COOKIE, ClusterGate
from mirrorflow_console.switched_flows import SwitchedFlows
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer, RequestKind
from tests.harness.kubernetes.kubectl import Kubectl
from tests.unit.console.flow_readings import STOPPED, healthy, table
from tests.unit.console.test_job_views import with_keys
from tests.unit.http.reports import partition

USER = "console"
# The permissions of the chart: list MirrorFlow's resources and pods, and create both reviews.
RIGHTS = [
    {
        "apiGroups": ["mirrorflow.io"],
        "resources": ["mirrorflows", "mirrorpairs", "switchovers"],
        "verbs": ["list"],
    },
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
    {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
]


@dataclass(kw_only=True)
class ClusterConsole:
    """A console that runs in a thread and has the permissions of the chart."""

    port: int

    def __call__(
        self, method: str, path: str, *, body: str = "", headers: dict[str, str] | None = None
    ) -> tuple[int, http.client.HTTPMessage, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body=body or None, headers=headers or {})
            response = connection.getresponse()
            return response.status, response.headers, response.read().decode()
        finally:
            connection.close()

    def sign_in(self, token: str, **headers: str) -> tuple[int, str]:
        """Signs in, and returns the status and the session cookie."""
        status, response_headers, _ = self(
            "POST", "/sign-in", body=urlencode({"token": token}), headers=headers
        )
        return status, (response_headers["Set-Cookie"] or "").split(";")[0]

    def shown(self, path: str, cookie: str) -> tuple[int, str]:
        status, _, body = self("GET", path, headers={"Cookie": cookie})
        return status, body

    @contextmanager
    def opened(self, path: str, cookie: str) -> Iterator[None]:
        """Keeps the stream of a page open inside the block."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", f"/events?{urlencode({'path': path})}", headers={"Cookie": cookie})
            assert connection.getresponse().status == 200
            yield
        finally:
            connection.close()


@contextmanager
def served(
    api: client.ApiClient, *, port: int = 1, job_port: int = 1, results: NamespaceResults | None = None
) -> Iterator[ClusterConsole]:
    """*port* is that of connectors, *job_port* that of the Jobs of Switchovers."""
    history = History(None)
    switchovers = ClusterSwitchovers(api, port=job_port)
    results = NamespaceResults({}) if results is None else results
    gate = ClusterGate(api, environment(), switchovers=switchovers, results=results.namespaces)
    poller = SharedPoller(SwitchedFlows(ClusterFlows(api, port=port), switchovers), history)
    console = Console(
        poller, history, gate=gate, place="this cluster", results=results, switchovers=switchovers
    )
    server = uvicorn.Server(server_config(console, hosts=("*",), routes=gate.routes))
    with listening_socket(0) as listener:
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
        thread.start()
        wait_until("the console serves", lambda: server.started)
        try:
            yield ClusterConsole(port=listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(20)


@pytest.fixture(scope="module")
def api(mirrorflows: ApiServer) -> client.ApiClient:
    """Returns the official client as the console's own user, who has the permissions of the chart."""
    return console_client(mirrorflows)


def console_client(server: ApiServer) -> client.ApiClient:
    """Grants the console's user the permissions of the chart, and returns its client."""
    administrator = server.kubectl
    meta = {"name": "mirrorflow-console"}
    rbac = "rbac.authorization.k8s.io"
    administrator.apply(
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": meta, "rules": RIGHTS}
    )
    administrator.apply(
        {
            "apiVersion": f"{rbac}/v1", "kind": "ClusterRoleBinding", "metadata": meta,
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "mirrorflow-console"},
            "subjects": [{"apiGroup": rbac, "kind": "User", "name": USER}],
        }
    )  # fmt: skip
    api_client: client.ApiClient = config.new_client_from_config(
        config_file=str(server.user(USER).kubeconfig)
    )
    return api_client


def flow(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "mirrorflow.io/v1alpha1",
        "kind": "MirrorFlow",
        "metadata": {"name": name},
        "spec": {
            "source": {"alias": "east", "bootstrapServers": ["east:9092"]},
            "target": {"alias": "west", "bootstrapServers": ["west:9092"]},
        },
    }


def reader(namespace: Kubectl, name: str = "reader", *plurals: str) -> str:
    """Creates a ServiceAccount that may get MirrorFlows in the namespace, or objects of *plurals*; returns its token.

    One of *plurals* may have a subresource.
    """
    namespace("create", "serviceaccount", name)
    rule = {"apiGroups": ["mirrorflow.io"], "resources": [*plurals] or ["mirrorflows"], "verbs": ["get"]}
    namespace.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": name},
            "rules": [rule],
        }
    )
    namespace(
        "create", "rolebinding", name, f"--role={name}", f"--serviceaccount={namespace.namespace}:{name}"
    )
    return namespace("create", "token", name).strip()


@pytest.fixture
def other(api_server: ApiServer, namespace: Kubectl) -> Iterator[Kubectl]:
    """A second namespace."""
    name = f"{namespace.namespace[:50]}-other"
    api_server.kubectl("create", "namespace", name)
    yield api_server.kubectl.within(name)
    api_server.kubectl("delete", "namespace", name, "--wait=false")


def test_a_visitor_sees_only_flows_of_namespaces_that_they_may_read(
    api: client.ApiClient, namespace: Kubectl, other: Kubectl
):
    """A flow of a different namespace is in no list, page, filter or count."""
    namespace.apply(flow("mine"))
    other.apply(flow("theirs"))
    token = reader(namespace)

    with served(api) as console:
        status, cookie = console.sign_in(token)
        assert status == 303
        assert cookie.startswith(f"{COOKIE}=")
        status, body = console.shown("/", cookie)
        assert status == 200
        assert "mine" in body
        assert "theirs" not in body
        assert console.shown(f"/flow?flow={namespace.namespace}~mine", cookie)[0] == 200
        assert console.shown(f"/flow?flow={other.namespace}~theirs", cookie)[0] == 404
        for path in ("/jobs", "/history", "/?q=east"):
            assert "theirs" not in console.shown(path, cookie)[1]
        # The same request with the header that a proxy sends.
        status, _, body = console("GET", "/", headers={"Authorization": f"Bearer {token}"})
        assert (status, "theirs" in body) == (200, False)


@pytest.mark.parametrize(
    "token", ["", "foreign", "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhZG1pbiJ9.c2lnbmF0dXJl", "x" * 40_000]
)
def test_an_invalid_token_opens_no_page(api: client.ApiClient, namespace: Kubectl, token: str):
    namespace.apply(flow("covert"))
    with served(api) as console:
        status, cookie = console.sign_in(token)
        assert status in {403, 413}
        assert not cookie
        for headers in ({}, {"Authorization": f"Bearer {token[:4000]}"}, {"Cookie": f"{COOKIE}=guessed"}):
            for path in ("/", "/jobs", f"/flow?flow={namespace.namespace}~covert"):
                status, _, body = console("GET", path, headers=headers)
                assert status == 303
                assert "covert" not in body
            assert console("GET", "/events", headers=headers)[0] == 401


def test_a_token_without_permissions_shows_no_flow(api: client.ApiClient, namespace: Kubectl):
    namespace.apply(flow("covert"))
    namespace("create", "serviceaccount", "stranger")
    with served(api) as console:
        status, cookie = console.sign_in(namespace("create", "token", "stranger").strip())
        assert status == 303
        assert "covert" not in console.shown("/", cookie)[1]


def test_a_session_ends_with_sign_out_and_no_other_site_can_start_one(
    api: client.ApiClient, namespace: Kubectl
):
    namespace.apply(flow("mine"))
    token = reader(namespace)
    with served(api) as console:
        assert console.sign_in(token, Origin="https://evil.example")[0] == 403
        _, cookie = console.sign_in(token)
        assert console.shown("/", cookie)[0] == 200
        assert console("POST", "/sign-out", headers={"Cookie": cookie})[0] == 303
        assert console.shown("/", cookie)[0] == 303


def test_the_session_cookie_is_hidden_from_scripts_and_other_sites(api: client.ApiClient, namespace: Kubectl):
    token = reader(namespace)
    with served(api) as console:
        headers = {"X-Forwarded-Proto": "https"}
        _, response_headers, _ = console(
            "POST", "/sign-in", body=urlencode({"token": token}), headers=headers
        )
        attributes = {attribute.strip().lower() for attribute in response_headers["Set-Cookie"].split(";")}

    assert {"httponly", "secure", "samesite=strict"} <= attributes
    assert token not in response_headers["Set-Cookie"]


class _Pod(BaseHTTPRequestHandler):
    """A connector's HTTP port."""

    document: dict[str, Any]

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(self.document).encode())

    def log_message(self, *_: Any) -> None:
        """Prints nothing, to keep the test's output readable."""


def running_pod(namespace: Kubectl, name: str, flow_name: str, address: str) -> None:
    """Creates a pod of the flow's source connector with the status that a kubelet would write."""
    labels = {"mirrorflow.io/flow": flow_name, "mirrorflow.io/connector": "source"}
    container = {"name": "replicator", "image": "replicator:1"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [container]},
    }
    namespace.apply(pod)
    status = {"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}}
    namespace("patch", "pod", name, "--subresource=status", "--type=merge", f"--patch={json.dumps(status)}")


def test_a_stopped_partition_of_one_pod_is_shown_with_its_flow(api: client.ApiClient, namespace: Kubectl):
    """Each of the two pods has some of the partitions."""
    namespace.apply(flow("east-to-west"))
    parts = (healthy(partition(0)), healthy(partition(1, **STOPPED)))
    handlers = [type("Handler", (_Pod,), {"document": table(partitions)}) for partitions in parts]
    first = ThreadingHTTPServer(("127.9.9.1", 0), handlers[0])
    second = ThreadingHTTPServer(("127.9.9.2", first.server_port), handlers[1])
    for server in (first, second):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    running_pod(namespace, "a", "east-to-west", "127.9.9.1")
    running_pod(namespace, "b", "east-to-west", "127.9.9.2")
    token = reader(namespace)
    try:
        with served(api, port=first.server_port) as console:
            _, cookie = console.sign_in(token)
            path = f"/flow?flow={namespace.namespace}~east-to-west"
            wait_until(
                "the stopped partition is shown", lambda: "RecordTooLarge" in console.shown(path, cookie)[1]
            )
            assert "orders-1" in console.shown(path, cookie)[1]
    finally:
        for server in (first, second):
            server.shutdown()
            server.server_close()


def test_pods_of_flows_on_an_open_page_are_polled_through_port_forwards(
    api: client.ApiClient, namespace: Kubectl
):
    """Outside the cluster, pods have no reachable address.

    Other flows are shown as in their status. A refused port forward is reported.
    """
    for name in ("shown", "other", "refused"):
        namespace.apply(flow(name))
        running_pod(namespace, f"{name}-source-0", name, "10.9.9.9")
    handler = type("Handler", (_Pod,), {"document": table(healthy(partition(1, **STOPPED)))})
    pod = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=pod.serve_forever, daemon=True).start()
    dialled: list[str] = []

    def forward(pod_namespace: str, name: str, port: int) -> socket.socket:
        assert (pod_namespace, port) == (namespace.namespace, HTTP_PORT)
        dialled.append(name)
        if name.startswith("refused"):
            raise client.ApiException(status=403, reason="Forbidden")
        return socket.create_connection(("127.0.0.1", pod.server_port))

    source = ClusterFlows(api, namespaces=(namespace.namespace,), forward=forward)
    nothing: frozenset[str] = frozenset()
    try:
        assert {flow.document for flow in source.read(nothing, nothing, is_watched=True)} == {None}
        keys = frozenset({f"{namespace.namespace}~shown", f"{namespace.namespace}~refused"})
        readings = {flow.name: flow for flow in source.read(keys, nothing, is_watched=True)}
    finally:
        pod.shutdown()
        pod.server_close()

    assert sorted(dialled) == ["refused-source-0", "shown-source-0"]
    assert readings["shown"].document is not None
    assert flow_view(readings["shown"]).troubles[0].reason == "RecordTooLarge"
    assert "HTTP status 403 Forbidden" in readings["refused"].problem
    assert readings["other"].document is None


def test_a_failed_verification_is_shown_until_the_next_one(api: client.ApiClient, namespace: Kubectl):
    namespace.apply(flow("east-to-west"))
    token = reader(namespace)

    def verified(different: int) -> None:
        verify = {
            "phase": "Succeeded",
            "windows": {"total": 9, "equal": 9 - different, "different": different},
        }
        patch = json.dumps({"status": {"verify": verify}})
        namespace(
            "patch", "mirrorflow", "east-to-west", "--subresource=status", "--type=merge", f"--patch={patch}"
        )

    with served(api) as console:
        _, cookie = console.sign_in(token)
        verified(2)
        wait_until(
            "the difference is shown", lambda: "differs" in console.shown("/jobs", cookie)[1], timeout_s=20
        )
        verified(0)
        wait_until(
            "the difference is not shown any more",
            lambda: "differs" not in console.shown("/jobs", cookie)[1],
            timeout_s=20,
        )


def test_a_differing_record_opens_to_its_key_for_those_who_may_get_keys(
    api: client.ApiClient, namespace: Kubectl, other: Kubectl, tmp_path: Path
):
    """By a SubjectAccessReview for the subresource `mirrorflows/keys`, which the API server does not have.

    A flow of the same name in a different namespace shows neither the record nor its key, also to a visitor with both rights there.
    """
    flow_of(namespace, "verified")
    flow_of(other, "verified")
    folder = tmp_path / "verified" / "run-nightly"
    folder.mkdir(parents=True)
    result = {**with_keys("order-17"), "flow": "verified"}
    (folder / "verification.json").write_text(json.dumps(result))
    results = NamespaceResults({namespace.namespace: tmp_path}, rest_s=0.05)
    tokens = {
        "keys": reader(namespace, "keys", "mirrorflows", "mirrorflows/keys"),
        "flows": reader(namespace, "flows", "mirrorflows"),
        "only-keys": reader(namespace, "only-keys", "mirrorflows/keys"),
        "other": reader(other, "elsewhere", "mirrorflows", "mirrorflows/keys"),
    }
    wait_until("the result is read", results.read)

    with served(api, results=results) as console:
        cookies = {name: console.sign_in(token)[1] for name, token in tokens.items()}
        pages = {name: console.shown("/jobs", cookie)[1] for name, cookie in cookies.items()}

    assert {name: ("orders-3" in page, "order-17" in page) for name, page in pages.items()} == {
        "keys": (True, True),
        "flows": (True, False),
        "only-keys": (False, False),
        "other": (False, False),
    }
    assert "Verification of" in pages["other"]


def flow_of(namespace: Kubectl, name: str) -> None:
    """Creates a flow whose last verification has found differences."""
    namespace.apply(flow(name))
    verify = {"phase": "Succeeded", "runId": "nightly", "windows": {"total": 3, "equal": 2, "different": 1}}
    patch = json.dumps({"status": {"verify": verify}})
    namespace("patch", "mirrorflow", name, "--subresource=status", "--type=merge", f"--patch={patch}")


def test_the_console_uses_exactly_the_permissions_of_the_chart(
    mirrorflows: ApiServer, api: client.ApiClient, namespace: Kubectl
):
    """It uses each of them. None of them writes, or reads a Secret."""
    granted = {
        RequestKind(verb=verb, group=rule["apiGroups"][0], resource=resource)
        for rule in RIGHTS
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    token = reader(namespace)
    with served(api) as console:
        _, cookie = console.sign_in(token)
        # Pods are listed while a page is open: one that is only loaded may be answered from a poll before it.
        with console.opened("/", cookie):
            wait_until("all permissions are used", lambda: mirrorflows.allowed_requests(USER) == granted)
    assert not [request for request in mirrorflows.audit_log_of(USER) if not request.allowed]
