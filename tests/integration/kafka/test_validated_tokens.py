"""A real broker validates tokens by their signature, issuer and audience, like a cloud's broker.

A server on loopback issues them.
"""

import asyncio
import base64
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from kafka.protocol.metadata import MetadataRequest

from mirrorflow_core.errors import AuthenticationFailedError
from mirrorflow_core.java.cloud_logins import AWS_HANDLER, AZURE_HANDLER, GCP_HANDLER, SCOPE_KEY
from mirrorflow_core.settings import ClientSettings
from mirrorflow_kafka.client.cluster import Cluster
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.installation import QUICK_JVM
from tests.unit.kafka.identity_server import IdentityServer, Received, Response

PACKAGE = "org.apache.kafka.common.security.oauthbearer"
MODULE = f"{PACKAGE}.OAuthBearerLoginModule"
ISSUER, AUDIENCE = "https://issuer.example", "kafka"
LIFETIME_S = 4
CONNECT_WAIT_S = 40.0
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@dataclass(slots=True, kw_only=True)
class Issuer:
    """Signs tokens with its key, which the broker trusts."""

    key: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))
    lifetime_s: float = 300
    audience: str = AUDIENCE
    tokens: list[str] = field(default_factory=list)

    def jwks(self) -> str:
        numbers = self.key.public_key().public_numbers()
        n, e = (
            encoded(value.to_bytes((value.bit_length() + 7) // 8, "big")) for value in (numbers.n, numbers.e)
        )
        return json.dumps(
            {"keys": [{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "one", "n": n, "e": e}]}
        )

    def token(self) -> str:
        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "aud": self.audience,
            "sub": "mirror",
            "iat": now,
            "exp": now + self.lifetime_s,
        }
        parts = ({"alg": "RS256", "kid": "one", "typ": "JWT"}, claims)
        content = ".".join(encoded(json.dumps(part).encode()) for part in parts)
        signature = self.key.sign(content.encode(), padding.PKCS1v15(), hashes.SHA256())
        self.tokens.append(f"{content}.{encoded(signature)}")
        return self.tokens[-1]

    def respond(self, _: Received) -> Response:
        return Response(body={"access_token": self.token(), "expires_in": self.lifetime_s})


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture(scope="module")
def validating(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A broker with the public key of *issuer*. It also limits a session to the lifetime of its token."""
    path = tmp_path_factory.mktemp("keys") / "jwks.json"
    path.write_text(issuer.jwks())
    own = {
        "oauthbearer.sasl.server.callback.handler.class": "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
        "oauthbearer.sasl.jaas.config": f"{MODULE} required;",
        "oauthbearer.connections.max.reauth.ms": "3600000",
        "sasl.oauthbearer.jwks.endpoint.url": path.as_uri(),
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
    }
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={path.as_uri()}"
    with KafkaCluster(
        name="validating",
        listeners=("OAUTH",),
        config={f"listener.name.oauth.{key}": value for key, value in own.items()},
        jvm_options=(*QUICK_JVM, allowed),
    ) as cluster:
        yield cluster


async def connect(properties: dict[str, str]) -> Cluster:
    settings = ClientSettings(alias="guarded", client_id="test", properties=properties)
    return await Cluster.connect(settings, resolve=lambda given: given, timeout_s=CONNECT_WAIT_S)


def properties(validating: KafkaCluster, url: str, **further: str) -> dict[str, str]:
    return {
        "bootstrap.servers": validating.bootstrap_for("OAUTH"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f'{MODULE} required clientId="mirror" clientSecret="s";',
        "sasl.oauthbearer.token.endpoint.url": f"{url}/token",
        **further,
    }


def test_a_validated_token_connects(validating: KafkaCluster, issuer: Issuer) -> None:
    async def run() -> str | None:
        async with IdentityServer(respond=issuer.respond).running() as server:
            cluster = await connect(properties(validating, server.url))
            await cluster.close()
            return cluster.cluster_id

    assert asyncio.run(run()) == validating.cluster_id


def test_a_token_for_a_different_audience_is_refused(validating: KafkaCluster, issuer: Issuer) -> None:
    other = Issuer(key=issuer.key, audience="elsewhere")

    async def run() -> None:
        async with IdentityServer(respond=other.respond).running() as server:
            await connect(properties(validating, server.url))

    with pytest.raises(AuthenticationFailedError, match="OAUTHBEARER authentication failed") as raised:
        asyncio.run(run())
    assert not any(token in str(raised.value) for token in other.tokens)


@pytest.mark.parametrize("login", ["client assertion", "JWT bearer", "Azure"])
def test_a_login_without_a_secret_connects(
    validating: KafkaCluster,
    issuer: Issuer,
    login: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The file has an assertion of the same issuer, like a projected token.

    Neither the assertion nor the token is logged at any level.
    """
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "token"
    file.write_text(issuer.token())

    async def run() -> str | None:
        async with IdentityServer(respond=issuer.respond).running() as server:
            own = properties(validating, server.url) | {
                "sasl.jaas.config": f'{MODULE} required clientId="mirror";',
                "sasl.oauthbearer.assertion.file": str(file),
            }
            if login == "JWT bearer":
                own["sasl.oauthbearer.jwt.retriever.class"] = f"{PACKAGE}.JwtBearerJwtRetriever"
            if login == "Azure":
                monkeypatch.setenv("AZURE_CLIENT_ID", "client")
                monkeypatch.setenv("AZURE_TENANT_ID", "tenant")
                monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(file))
                monkeypatch.setenv("AZURE_AUTHORITY_HOST", server.url)
                own |= {"sasl.login.callback.handler.class": AZURE_HANDLER, SCOPE_KEY: "kafka"}
            cluster = await connect(own)
            await cluster.close()
            (request,) = server.requests
            assert file.read_text() in {request.form.get("assertion"), request.form.get("client_assertion")}
            return cluster.cluster_id

    assert asyncio.run(run()) == validating.cluster_id
    assert not any(token in caplog.text for token in issuer.tokens)


AWS_ERROR = (
    "<ErrorResponse><Error><Code>AccessDenied</Code><Message>Not authorized</Message></Error></ErrorResponse>"
)
# The response of the cloud, and what `check` reports: the refusal, and the missing permission.
REFUSALS: dict[str, tuple[str, Response, tuple[str, ...]]] = {
    "AWS": (
        AWS_HANDLER,
        Response(status=403, body=AWS_ERROR),
        (
            "refused AssumeRoleWithWebIdentity with HTTP 403 AccessDenied",
            "the trust policy of arn:aws:iam::123456789012:role/mirror must allow sts:AssumeRoleWithWebIdentity",
            "system:serviceaccount:kafka:mirror-source",
        ),
    ),
    "Google": (GCP_HANDLER, Response(status=403), ("HTTP 403", "roles/iam.workloadIdentityUser")),
    "Azure": (
        AZURE_HANDLER,
        Response(status=401, body={"error": "invalid_client", "error_description": "AADSTS700213: No match"}),
        ("HTTP 401 invalid_client AADSTS700213", "system:serviceaccount:kafka:mirror-source"),
    ),
}


@pytest.mark.parametrize("cloud", REFUSALS)
def test_check_reports_what_a_cloud_refused_and_the_missing_permission(
    validating: KafkaCluster, east: KafkaCluster, cloud: str, tmp_path: Path
) -> None:
    handler, refusal, expected = REFUSALS[cloud]
    token = tmp_path / "token"
    claims = {"iss": ISSUER, "sub": "system:serviceaccount:kafka:mirror-source"}
    token.write_text(f"e30.{encoded(json.dumps(claims).encode())}.c2ln")
    client = tmp_path / "client.properties"

    async def run() -> dict[str, Any]:
        async with IdentityServer(respond=lambda _: refusal).running() as server:
            own = properties(validating, server.url) | {
                "sasl.jaas.config": f"{MODULE} required;",
                "sasl.login.callback.handler.class": handler,
                **({SCOPE_KEY: "kafka"} if cloud == "Azure" else {}),
            }
            client.write_text("".join(f"{key}={value}\n" for key, value in own.items()))
            check = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "mirrorflow_cli", "check", "--json", "--topics", "orders"),
                *("--from", east.bootstrap, "--to-config", str(client)),
                stdout=asyncio.subprocess.PIPE,
                env={"PATH": os.environ["PATH"], **cloud_environment(server.url, token)},
            )
            output, _ = await check.communicate()
            return dict(json.loads(output))

    report = asyncio.run(run())

    problems = "\n".join(report["problems"])
    assert [] == [text for text in expected if text not in problems], problems
    assert token.read_text() not in json.dumps(report)


def cloud_environment(url: str, token: Path) -> dict[str, str]:
    """Returns the variables of a pod with a projected token in each of the three clouds. All services are at *url*."""
    return {
        "AWS_REGION": "eu-west-1",
        "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/mirror",
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
        "AWS_ENDPOINT_URL_STS": url,
        "GCE_METADATA_HOST": url.removeprefix("http://"),
        "AZURE_CLIENT_ID": "client",
        "AZURE_TENANT_ID": "tenant",
        "AZURE_FEDERATED_TOKEN_FILE": str(token),
        "AZURE_AUTHORITY_HOST": url,
    }


@pytest.mark.timing
def test_a_connection_outlives_its_tokens(validating: KafkaCluster, issuer: Issuer) -> None:
    """The broker ends a session with its token. Each session is renewed before, on the same connection."""
    short = Issuer(key=issuer.key, lifetime_s=LIFETIME_S)

    async def run() -> float:
        async with IdentityServer(respond=short.respond).running() as server:
            cluster = await connect(properties(validating, server.url))
            connection = await cluster.connection(1)
            began = time.monotonic()
            while time.monotonic() - began < 4 * LIFETIME_S:
                await connection.call(MetadataRequest(topics=[]), timeout_s=5)
                await asyncio.sleep(0.05)  # limits the rate of requests; no condition depends on it
            assert connection is await cluster.connection(1)
            await cluster.close()
            return time.monotonic() - began

    assert asyncio.run(run()) > 3 * LIFETIME_S
    assert len(short.tokens) >= 4
