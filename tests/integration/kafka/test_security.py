"""Clients connect to a real broker with every kind of listener.

Valid clients connect, and others get the reason in one sentence.
"""

import asyncio
import base64
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from kafka.protocol.metadata import MetadataRequest

from mirrorflow_cli.__main__ import main
from mirrorflow_core.errors import AuthenticationFailedError, ClusterError, UnreachableError
from mirrorflow_core.settings import ClientSettings
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.providers import Resolver
from tests.harness.kafka.certificates import Certificates, with_password
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.installation import write_properties
from tests.harness.kafka.listeners import User, plain_users

# So short that a connection that is open for a second has re-authenticated.
REAUTHENTICATION_MS = 1500
CONNECT_WAIT_S = 20.0
COMMAND_WAIT_S = 240.0  # two seconds on an idle machine
WRONG = User(name="mirror", password="hunter2-wrong")
# Every printable character of ASCII, and some characters of two, three and four bytes.
SPECIAL_USER = User(name="odd", password="".join(map(chr, range(33, 127))) + " ü€😀")
# ASCII only, because keytool reads its arguments in the locale of the machine
ODD_STORE_PASSWORD = 'pa"ss\\ p" evil="1'
PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture(scope="module")
def secured() -> Iterator[KafkaCluster]:
    """Provides one broker with every kind of listener."""
    listeners = ("PLAINTEXT", "SSL", "MTLS", "SASL_PLAINTEXT", "SASL_SSL", "OAUTH")
    config = {
        # "kafka-storage format" does not accept such a password for SCRAM
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": plain_users((User(), SPECIAL_USER)),
    }
    with KafkaCluster(name="guarded", listeners=listeners, config=config) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def special_credentials(secured: KafkaCluster) -> KafkaCluster:
    """Provides the same broker with the credentials of `SPECIAL_USER` for each mechanism."""
    for kind in (
        ScramMechanism.SCRAM_SHA_256,
        ScramMechanism.SCRAM_SHA_512,
    ):  # one mechanism for each request
        change = UserScramCredentialUpsertion(
            SPECIAL_USER.name, ScramCredentialInfo(kind, 4_096), SPECIAL_USER.password.encode()
        )
        secured.admin.alter_user_scram_credentials([change])[SPECIAL_USER.name].result(CONNECT_WAIT_S)
    return secured


def client_settings(properties: Mapping[str, str]) -> ClientSettings:
    return ClientSettings(alias="east", client_id="test", properties=properties)


@asynccontextmanager
async def connected(properties: Mapping[str, str]) -> AsyncIterator[Cluster]:
    cluster = await Cluster.connect(
        client_settings(properties), resolve=lambda given: given, timeout_s=CONNECT_WAIT_S
    )
    try:
        yield cluster
    finally:
        await cluster.close()


def connect_once(properties: Mapping[str, str]) -> str | None:
    """Returns the cluster id that a client with *properties* gets."""

    async def run() -> str | None:
        async with connected(properties) as cluster:
            await cluster.connection(1)
            return cluster.cluster_id

    return asyncio.run(run())


def refusal(properties: Mapping[str, str], kind: type[ClusterError]) -> str:
    """Returns the message of the error with which a client with *properties* fails."""
    with pytest.raises(kind) as raised:
        connect_once(properties)
    return str(raised.value)


def certificates(cluster: KafkaCluster) -> Certificates:
    assert cluster.certificates is not None
    return cluster.certificates


@pytest.mark.parametrize("kind", ["PKCS12", "JKS", "PEM"])
@pytest.mark.parametrize("listener", ["SSL", "MTLS"])
def test_tls_connects_with_each_store_type(secured: KafkaCluster, listener: str, kind: str):
    """These are trust stores, and for mutual TLS also key stores, of each type that Java supports."""
    stores = certificates(secured)
    properties = {"bootstrap.servers": secured.bootstrap_for(listener), "security.protocol": "SSL"}
    properties |= stores.truststore_properties(kind)
    properties |= stores.keystore_properties(kind) if listener == "MTLS" else {}

    assert secured.cluster_id == connect_once(properties)


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", PASSWORD_MECHANISMS)
def test_a_correct_password_connects_and_a_wrong_one_is_refused_with_the_reason(
    secured: KafkaCluster, listener: str, mechanism: str
):
    """This holds for each mechanism, with and without TLS."""
    assert secured.cluster_id == connect_once(secured.java_client(listener, mechanism=mechanism))

    message = refusal(
        secured.java_client(listener, mechanism=mechanism, user=WRONG), AuthenticationFailedError
    )

    address = secured.bootstrap_for(listener)
    assert message.startswith(f"Cluster east at {address}: {mechanism} authentication failed: ")
    assert "hunter2" not in message


@pytest.mark.parametrize("quote", ['"', "'", ""], ids=["double quotes", "single quotes", "no quotes"])
@pytest.mark.parametrize("provider", ["env", "file", "dir"])
def test_config_providers_resolve_a_password_of_any_characters(
    special_credentials: KafkaCluster,
    provider: str,
    quote: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """The password is in an environment variable, in a properties file, or in a mounted Secret file that ends with a
    newline.
    """
    monkeypatch.setenv("ODD_PASSWORD", SPECIAL_USER.password)
    write_properties(tmp_path / "secret.properties", {"password": SPECIAL_USER.password})
    (tmp_path / "password").write_text(SPECIAL_USER.password + "\n")
    reference = {
        "env": "${env:ODD_PASSWORD}",
        "file": f"${{file:{tmp_path}/secret.properties:password}}",
        "dir": f"${{dir:{tmp_path}:password}}",
    }[provider]
    resolver = Resolver(
        {
            "config.providers": "env,file,dir",
            "config.providers.env.class": "EnvVarConfigProvider",
            "config.providers.file.class": "FileConfigProvider",
            "config.providers.dir.class": "DirectoryConfigProvider",
        }
    )
    for mechanism in PASSWORD_MECHANISMS:
        properties = dict(special_credentials.java_client("SASL_PLAINTEXT", mechanism=mechanism))
        module = properties["sasl.jaas.config"].split()[0]
        properties["sasl.jaas.config"] = f"{module} required username=odd password={quote}{reference}{quote};"

        assert special_credentials.cluster_id == connect_once(resolver.resolve_client(properties))


def flow_file(folder: Path, topic: str, source: dict[str, Any], target: dict[str, Any]) -> Path:
    """Writes a MirrorFlow of *topic* between clusters that *source* and *target* describe."""
    spec = {
        "source": {"alias": topic.upper(), **source},
        "target": {"alias": "there", **target},
        "topics": {"include": [topic], "replicationFactor": 1},
    }
    metadata = {"name": "guarded"}
    document = {
        "apiVersion": "mirrorflow.io/v1alpha1",
        "kind": "MirrorFlow",
        "metadata": metadata,
        "spec": spec,
    }
    file = folder / "flow.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def run_check(flow: Path, secrets: Path) -> subprocess.CompletedProcess[str]:
    """Runs `mirrorflow check` until it ends."""
    return subprocess.run(
        [sys.executable, "-m", "mirrorflow_cli", "check", "-f", flow, "--secrets", secrets],
        capture_output=True,
        text=True,
        timeout=COMMAND_WAIT_S,
        check=False,
    )


def reaches_both(result: subprocess.CompletedProcess[str], cluster: KafkaCluster) -> bool:
    """Returns whether `check` found no problem and reached *cluster* as source and as target."""
    return (result.returncode, result.stderr) == (0, "") and result.stdout.count(
        f"is cluster {cluster.cluster_id}"
    ) == 2


def test_check_takes_a_password_of_any_characters_from_a_secret(
    special_credentials: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """The Secret's value ends with a newline, as `echo` writes it. The source uses PLAIN and the target SCRAM."""
    topic = special_credentials.create_topic(unique_topic())
    (tmp_path / "login").mkdir()
    (tmp_path / "login" / "password").write_text(SPECIAL_USER.password + "\n")

    def cluster(address: str, mechanism: str) -> dict[str, Any]:
        login = {
            "type": mechanism,
            "username": {"value": SPECIAL_USER.name},
            "password": {"secretName": "login", "key": "password"},
        }
        return {"bootstrapServers": [address], "authentication": login}

    address = special_credentials.bootstrap_for("SASL_PLAINTEXT")
    # Source and target are one cluster, and a flow refuses equal addresses.
    localhost_address = address.replace("127.0.0.1", "localhost")
    flow = flow_file(tmp_path, topic, cluster(address, "Plain"), cluster(localhost_address, "ScramSha512"))

    result = run_check(flow, tmp_path)

    assert reaches_both(result, special_credentials), result.stdout + result.stderr


def test_check_opens_stores_with_a_password_of_any_characters(
    secured: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """The source has PKCS12 key and trust stores, and the target JKS stores.

    The Secret's password ends with a newline.
    """
    topic = secured.create_topic(unique_topic())
    stores = with_password(certificates(secured), tmp_path / "stores", ODD_STORE_PASSWORD)
    (tmp_path / "stores" / "password").write_text(ODD_STORE_PASSWORD + "\n")

    def cluster(address: str, kind: str) -> dict[str, Any]:
        properties = stores.truststore_properties(kind) | stores.keystore_properties(kind)
        config = {
            key: f"${{dir:{tmp_path}/stores:password}}" if key.endswith("password") else value
            for key, value in properties.items()
        }
        login = {"type": "Custom", "sasl": False, "config": config}
        return {"bootstrapServers": [address], "tls": {}, "authentication": login}

    address = secured.bootstrap_for("MTLS")
    localhost_address = address.replace("127.0.0.1", "localhost")
    flow = flow_file(tmp_path, topic, cluster(address, "PKCS12"), cluster(localhost_address, "JKS"))

    result = run_check(flow, tmp_path)

    assert reaches_both(result, secured), result.stdout + result.stderr


def test_check_gets_a_token_with_a_client_secret_of_any_characters(
    secured: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """The token endpoint accepts only this client secret. The Secret's value ends with a newline."""
    topic = secured.create_topic(unique_topic())
    (tmp_path / "login").mkdir()
    (tmp_path / "login" / "secret").write_text(SPECIAL_USER.password + "\n")
    with token_endpoint(SPECIAL_USER) as endpoint:
        login = {
            "type": "OAuthBearer",
            "clientId": {"value": SPECIAL_USER.name},
            "clientSecret": {"secretName": "login", "key": "secret"},
            "tokenEndpoint": endpoint,
        }
        address = secured.bootstrap_for("OAUTH")
        localhost_address = address.replace("127.0.0.1", "localhost")
        source = {"bootstrapServers": [address], "authentication": login}
        flow = flow_file(tmp_path, topic, source, {**source, "bootstrapServers": [localhost_address]})

        result = run_check(flow, tmp_path)

    assert reaches_both(result, secured), result.stdout + result.stderr


@contextmanager
def token_endpoint(client: User) -> Iterator[str]:
    """Yields the address of an endpoint that issues tokens only to *client*."""
    login = base64.b64encode(f"{client.name}:{client.password}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            known = self.headers["Authorization"] == f"Basic {login}"
            body = json.dumps({"access_token": token(lasts_s=300)}).encode() if known else b""
            self.send_response(200 if known else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Prints nothing, to keep the test's output readable."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/token"
        finally:
            server.shutdown()


def test_check_reaches_brokers_whose_host_names_end_in_a_dot_with_tls(
    unique_topic: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """The certificate has the name without the dot, and not every machine resolves localhost with the dot.

    The source's bootstrap address ends in a dot, and so do the advertised names of both clusters.
    """
    resolve, names = socket.getaddrinfo, set()

    def resolve_without_dot(name: str, *more: Any, **named: Any) -> Any:
        names.add(name)
        return resolve(name.rstrip("."), *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_without_dot)
    with KafkaCluster(name="dotted", listeners=("SSL",), advertised_host="localhost.") as dotted:
        topic = dotted.create_topic(unique_topic())
        (tmp_path / "ca").mkdir()
        (tmp_path / "ca" / "ca.crt").write_bytes(certificates(dotted).ca_pem.read_bytes())
        trusted = {"trustedCertificates": [{"secretName": "ca", "key": "ca.crt"}]}
        address = dotted.bootstrap_for("SSL")
        dotted_address = address.replace("127.0.0.1", "localhost.")
        source, target = (
            {"bootstrapServers": [bootstrap], "tls": trusted} for bootstrap in (dotted_address, address)
        )
        flow = flow_file(tmp_path, topic, source, target)

        status = main(["check", "-f", str(flow), "--secrets", str(tmp_path)])
        cluster_id = dotted.cluster_id

    output = capsys.readouterr().out
    assert status == 0, output
    assert output.count(f"is cluster {cluster_id}") == 2
    assert "localhost." in names


def test_an_unsecured_token_connects(secured: KafkaCluster):
    """The client itself makes the OAUTHBEARER token, like Java's default handler."""
    assert secured.cluster_id == connect_once(secured.java_client("OAUTH"))


def test_client_credentials_connect_and_a_refusal_by_the_token_endpoint_is_reported(secured: KafkaCluster):
    assert secured.cluster_id == asyncio.run(_with_endpoint(secured, "200 OK", token(lasts_s=300)))
    with pytest.raises(AuthenticationFailedError, match=r"no token was obtained: .* returned HTTP 401"):
        asyncio.run(_with_endpoint(secured, "401 Unauthorized", ""))


def test_a_token_that_the_broker_refuses_fails_at_once(secured: KafkaCluster):
    """The broker's refusal is reported immediately instead of a timeout."""
    with pytest.raises(AuthenticationFailedError, match=r"OAUTHBEARER authentication failed"):
        asyncio.run(_with_endpoint(secured, "200 OK", "a.b.c"))


def token(*, lasts_s: float) -> str:
    now = int(time.time())
    parts = ({"alg": "none"}, {"sub": "mirror", "iat": now, "exp": now + lasts_s})
    return (
        ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
        + "."
    )


async def _with_endpoint(secured: KafkaCluster, status: str, text: str) -> str | None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"grant_type=client_credentials")
        body = json.dumps({"access_token": text}).encode()
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
        properties = secured.java_client("OAUTH") | {
            "sasl.jaas.config": f'{module} required clientId="me" clientSecret="hunter2";',
            "sasl.oauthbearer.token.endpoint.url": f"http://127.0.0.1:{port}/token",
        }
        async with connected(properties) as cluster:
            return cluster.cluster_id


def test_a_missing_client_certificate_is_reported(secured: KafkaCluster):
    """A client without a key store on a listener with mutual TLS gets a message that names ssl.keystore."""
    properties = secured.java_client("SSL") | {"bootstrap.servers": secured.bootstrap_for("MTLS")}

    assert "ssl.keystore" in refusal(properties, AuthenticationFailedError)


def test_an_unknown_certificate_authority_is_reported(secured: KafkaCluster):
    """Without a trust store, the system's authorities apply. None of them has signed the broker's certificate."""
    properties = {"bootstrap.servers": secured.bootstrap_for("SSL"), "security.protocol": "SSL"}

    assert "ssl.truststore" in refusal(properties, AuthenticationFailedError)


def test_plaintext_client_on_a_tls_listener_gets_the_reason(secured: KafkaCluster):
    """This is the most common mistake. The message has security.protocol and the address."""
    address = secured.bootstrap_for("SSL")

    message = refusal({"bootstrap.servers": address}, UnreachableError)

    assert "security.protocol" in message
    assert address in message


def test_tls_client_on_a_plaintext_listener_gets_the_reason(secured: KafkaCluster):
    properties = secured.java_client("SSL") | {"bootstrap.servers": secured.bootstrap_for("PLAINTEXT")}

    assert "plaintext" in refusal(properties, ClusterError)


def test_a_mechanism_that_the_listener_lacks_is_reported(secured: KafkaCluster):
    """The message has the mechanisms that the listener offers."""
    properties = secured.java_client("SASL_PLAINTEXT") | {"bootstrap.servers": secured.bootstrap_for("OAUTH")}

    assert "the listener offers OAUTHBEARER" in refusal(properties, AuthenticationFailedError)


@pytest.fixture(scope="module")
def short_sessions() -> Iterator[KafkaCluster]:
    """A broker that closes a connection that has not re-authenticated in time."""
    config = {"connections.max.reauth.ms": str(REAUTHENTICATION_MS)}
    listeners = ("SASL_PLAINTEXT", "SASL_SSL", "OAUTH")
    with KafkaCluster(name="short", listeners=listeners, config=config) as cluster:
        yield cluster


@pytest.mark.timing
@pytest.mark.parametrize(
    ("listener", "mechanism"),
    [("SASL_PLAINTEXT", "PLAIN"), ("SASL_SSL", "SCRAM-SHA-512"), ("OAUTH", "OAUTHBEARER")],
)
def test_a_connection_outlives_its_authentication_session(
    short_sessions: KafkaCluster, listener: str, mechanism: str
):
    """By KIP-368, a broker closes a connection that is used after its session has ended.

    A working connection has therefore re-authenticated.
    """

    async def run() -> float:
        async with connected(short_sessions.java_client(listener, mechanism=mechanism)) as cluster:
            connection = await cluster.connection(1)
            began = time.monotonic()
            async with asyncio.timeout(CONNECT_WAIT_S):
                while time.monotonic() - began < 3 * REAUTHENTICATION_MS / 1000:
                    await connection.call(MetadataRequest(topics=[]), timeout_s=5)
                    await asyncio.sleep(0.02)  # limits the rate of requests; no condition depends on it
            assert connection is await cluster.connection(1)
            return time.monotonic() - began

    assert asyncio.run(run()) > 2 * REAUTHENTICATION_MS / 1000
