"""The console behind oauth2-proxy.

Users sign in at their issuer. The API server, which trusts the issuer, decides what they may read. The proxy runs with
the arguments of examples/console-oidc.
"""

import http.client
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest
from kubernetes import client

from tests.harness.kafka.processes import free_port
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.authority import Authority
from tests.harness.kubernetes.installation import require_oauth2_proxy
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.oauth2_proxy import CALLBACK, oauth2_proxy
from tests.harness.kubernetes.oidc_issuer import IssuedUser, OidcIssuer, new_key
from tests.harness.kubernetes.skipping import skip_without
from tests.integration.kubernetes.conftest import apply_definition
from tests.integration.kubernetes.test_console import console_client, flow, reader, served

ALICE = IssuedUser(email="alice@example.com", password="of-alice", groups=("team-a",))
BOB = IssuedUser(email="bob@example.com", password="of-bob", groups=("team-b",))


@dataclass(kw_only=True)
class Visitor:
    """A browser without scripts. It keeps cookies and sends them to the proxy."""

    proxy: str
    issuer_ca: Path
    cookies: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, **headers: str) -> tuple[int, str, str]:
        """Returns the status, the address of a redirect and the body."""
        connection = http.client.HTTPConnection(urlsplit(self.proxy).netloc, timeout=30)
        try:
            cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
            connection.request("GET", path, headers={"Cookie": cookie, **headers})
            response = connection.getresponse()
            for header in response.headers.get_all("Set-Cookie") or ():
                name, _, value = header.split(";")[0].partition("=")
                self.cookies[name] = value
            return response.status, response.headers.get("Location", ""), response.read().decode()
        finally:
            connection.close()

    def sign_in(self, user: IssuedUser) -> None:
        """Opens the console, follows the redirect to the issuer, signs in, and returns to the console."""
        status, form, _ = self.get("/")
        assert status == 302
        issuer = client_of_issuer(form, self.issuer_ca)
        body = urlencode({"email": user.email, "password": user.password})
        issuer.request("POST", form.removeprefix(f"https://{urlsplit(form).netloc}"), body=body)
        response = issuer.getresponse()
        response.read()
        issuer.close()
        assert response.status == 303
        back = urlsplit(response.headers["Location"])
        assert f"{back.scheme}://{back.netloc}" == self.proxy
        status, target, _ = self.get(f"{back.path}?{back.query}")
        assert (status, target) == (302, "/")

    def first_update(self, path: str) -> str:
        """Returns the first event with a page in the console's stream of *path*, as received through the proxy."""
        connection = http.client.HTTPConnection(urlsplit(self.proxy).netloc, timeout=30)
        try:
            cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
            connection.request("GET", f"/events?{urlencode({'path': path})}", headers={"Cookie": cookie})
            response = connection.getresponse()
            assert response.headers["Content-Type"].startswith("text/event-stream")
            while not (line := response.readline()).startswith(b"data: "):
                assert line
            return line.decode()
        finally:
            connection.close()


def client_of_issuer(url: str, ca: Path) -> http.client.HTTPSConnection:
    context = ssl.create_default_context(cafile=str(ca))
    return http.client.HTTPSConnection(urlsplit(url).netloc, timeout=30, context=context)


@dataclass(kw_only=True)
class TrustingCluster:
    """An API server that accepts the id tokens of `issuer`."""

    server: ApiServer
    api: client.ApiClient
    issuer: OidcIssuer
    issuer_ca: Path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, built: None) -> Iterator[TrustingCluster]:
    assert built is None
    skip_without(require_oauth2_proxy)
    folder = tmp_path_factory.mktemp("oidc")
    authority = Authority(folder / "issuer")
    issuer = OidcIssuer(client_id="kubernetes", client_secret="of-the-client", users=(ALICE, BOB))
    with issuer.running(authority):
        trust = (
            f"--oidc-issuer-url={issuer.url}",
            f"--oidc-client-id={issuer.client_id}",
            "--oidc-username-claim=email",
            "--oidc-groups-claim=groups",
            f"--oidc-ca-file={authority.own.certificate}",
        )
        with ApiServer(folder=folder / "cluster", api_arguments=trust) as server:
            apply_definition(server)
            yield TrustingCluster(
                server=server,
                api=console_client(server),
                issuer=issuer,
                issuer_ca=authority.own.certificate,
            )


@pytest.fixture
def administrator(cluster: TrustingCluster) -> Kubectl:
    """Creates two namespaces with a flow each. team-a may get the flow of the first one."""
    kubectl = cluster.server.kubectl
    for name in ("team-a", "team-b"):
        kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        kubectl.within(name).apply(flow(f"of-{name}"))
    mine = kubectl.within("team-a")
    rules = [{"apiGroups": ["mirrorflow.io"], "resources": ["mirrorflows"], "verbs": ["get"]}]
    rbac = "rbac.authorization.k8s.io"
    meta = {"name": "see-flows"}
    mine.apply({"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": meta, "rules": rules})
    mine.apply(
        {
            "apiVersion": f"{rbac}/v1", "kind": "RoleBinding", "metadata": meta,
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "see-flows"},
            "subjects": [{"apiGroup": rbac, "kind": "Group", "name": "team-a"}],
        }
    )  # fmt: skip
    return kubectl


@pytest.fixture
def proxy(cluster: TrustingCluster, administrator: Kubectl, tmp_path: Path) -> Iterator[str]:
    """Yields the address of a proxy before a console of the cluster."""
    assert administrator is cluster.server.kubectl
    port = free_port()
    cluster.issuer.redirects.add(f"http://127.0.0.1:{port}{CALLBACK}")
    with (
        served(cluster.api) as console,
        oauth2_proxy(
            tmp_path / "proxy",
            port=port,
            issuer=cluster.issuer.url,
            issuer_ca=cluster.issuer_ca,
            console=f"http://127.0.0.1:{console.port}",
            client_secret=cluster.issuer.client_secret,
        ) as url,
    ):
        yield url


def test_users_who_sign_in_through_the_proxy_see_what_their_groups_may_get(
    cluster: TrustingCluster, proxy: str
):
    """No user types a token. A page, its stream and the address of a flow have the same content."""
    alice, bob = (Visitor(proxy=proxy, issuer_ca=cluster.issuer_ca) for _ in range(2))
    alice.sign_in(ALICE)
    bob.sign_in(BOB)

    _, _, page = alice.get("/")
    assert ALICE.email in page
    assert "of-team-a" in page
    assert "of-team-b" not in page
    assert alice.get("/flow?flow=team-a~of-team-a")[0] == 200
    assert alice.get("/flow?flow=team-b~of-team-b")[0] == 404
    update = alice.first_update("/")
    assert "of-team-a" in update
    assert "of-team-b" not in update

    status, _, page = bob.get("/")
    assert status == 200
    assert BOB.email in page
    assert "of-team" not in page.replace(BOB.email, "")


def test_a_visitor_who_has_not_signed_in_sees_nothing(proxy: str, cluster: TrustingCluster):
    visitor = Visitor(proxy=proxy, issuer_ca=cluster.issuer_ca)

    for path in ("/", "/history", "/flow?flow=team-a", "/events?path=/"):
        status, target, body = visitor.get(path)
        assert status == 302
        assert target.startswith(cluster.issuer.url)
        assert "of-team" not in body


def test_the_proxy_replaces_a_token_that_the_visitor_sends(
    cluster: TrustingCluster, administrator: Kubectl, proxy: str
):
    """The token of a ServiceAccount may get both flows. Behind the proxy, only the signed-in user counts."""
    team_b = administrator.within("team-b")
    header = f"Bearer {reader(team_b)}"
    visitor = Visitor(proxy=proxy, issuer_ca=cluster.issuer_ca)
    assert visitor.get("/", Authorization=header)[0] == 302

    visitor.sign_in(ALICE)
    _, _, page = visitor.get("/", Authorization=header)
    assert ALICE.email in page
    assert "of-team-b" not in page


def test_an_id_token_of_a_different_client_or_key_opens_no_page(
    cluster: TrustingCluster, administrator: Kubectl
):
    """The API server verifies each token that the console receives."""
    assert administrator is cluster.server.kubectl
    issuer = cluster.issuer
    with served(cluster.api) as console:
        for token, status in (
            (issuer.id_token(ALICE), 200),
            (issuer.id_token(ALICE, audience="grafana"), 303),
            (issuer.id_token(ALICE, key=new_key()), 303),
        ):
            assert console("GET", "/", headers={"Authorization": f"Bearer {token}"})[0] == status
