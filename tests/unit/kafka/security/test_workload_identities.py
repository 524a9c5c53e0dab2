"""Identities of Google Cloud and Azure, client assertions and the JWT bearer grant work against servers on loopback."""

import asyncio
import base64
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils

from mirrorflow_core.errors import AuthenticationFailedError, InvalidSettingError, RefusedSettingError
from mirrorflow_kafka.security.client_security import ClientSecurity, build_security
from tests.unit.kafka.identity_server import IdentityServer, Received, Response

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
GCP = "com.google.cloud.hosted.kafka.auth.GcpLoginCallbackHandler"
AZURE = "com.azure.spring.cloud.service.implementation.kafka.KafkaOAuth2AuthenticateCallbackHandler"
STRIMZI = "io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())


@pytest.fixture(autouse=True)
def no_token_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Checks that neither tokens, assertions nor keys are logged at any level."""
    caplog.set_level(logging.DEBUG)
    yield
    for secret in ("ya29", "managed", "PRIVATE KEY", "c2ln", JWT_BEARER):
        assert secret not in caplog.text


def part(data: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(data).encode()).decode().rstrip("=")


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def projected(folder: Path, subject: str = "system:serviceaccount:kafka:mirror") -> Path:
    path = folder / "token"
    path.write_text(
        f"{part({'alg': 'RS256'})}.{part({'iss': 'https://oidc.example', 'sub': subject})}.c2ln\n"
    )
    return path


def pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, password: str = "") -> bytes:
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password:
        encryption = serialization.BestAvailableEncryption(password.encode())
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def security(
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    handler: str = "",
    options: str = "",
    **own: str,
) -> ClientSecurity:
    """Returns the security of a client with *environment*. No variable of a cloud is inherited."""
    for name in [name for name in os.environ if name.startswith(("AZURE_", "GOOGLE_", "GCE_"))]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    properties = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": handler,
        "sasl.jaas.config": f"{MODULE} required {options};",
        "sasl.login.retry.backoff.ms": "1",
        "sasl.login.retry.backoff.max.ms": "200",
        "bootstrap.servers": "demo.servicebus.windows.net:9093",
    }
    return build_security(properties | own, cluster="east")


def sent(client_security: ClientSecurity) -> Any:
    """Returns the token that a client sends. The function is a coroutine."""

    async def run() -> str:
        client = client_security.sasl_client("b:9093")
        assert client is not None
        message = (await client.first()).decode()
        return message.removeprefix("n,,\x01auth=Bearer ").rstrip("\x01")

    return run()


def with_server(respond: Callable[[Received], Response], use: Callable[[IdentityServer], Any]) -> Any:
    async def run() -> Any:
        async with IdentityServer(respond=respond).running() as server:
            return await use(server)

    return asyncio.run(run())


def issued(text: str = "access", seconds: int = 3600) -> Response:
    return Response(body={"access_token": text, "expires_in": seconds, "token_type": "Bearer"})


# Google Cloud


def metadata(request: Received) -> Response:
    assert request.headers["metadata-flavor"] == "Google"
    if request.path.endswith("/email"):
        return Response(body="mirror@project.iam.gserviceaccount.com")
    return issued("ya29.access")


def test_a_google_token_has_the_form_of_googles_own_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """It consists of the header, the claims and the access token, each as base64url.

    The token is from the metadata server of GKE.
    """

    async def use(server: IdentityServer) -> str:
        environment = {"GCE_METADATA_HOST": server.url.removeprefix("http://")}
        return str(await sent(security(monkeypatch, environment, GCP)))

    header, claims, access = with_server(metadata, use).split(".")

    assert decoded(header) == b'{"typ":"JWT","alg":"GOOG_OAUTH2_TOKEN"}'
    payload = json.loads(decoded(claims))
    assert list(payload) == ["exp", "iat", "scope", "sub"]
    assert (payload["scope"], payload["sub"]) == ("kafka", "mirror@project.iam.gserviceaccount.com")
    assert payload["exp"] == pytest.approx(time.time() + 3600, abs=60)
    assert decoded(access) == b"ya29.access"


def test_the_error_for_a_service_account_without_permission_names_the_role(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def respond(request: Received) -> Response:
        return metadata(request) if request.path.endswith("/email") else Response(status=403)

    async def use(server: IdentityServer) -> None:
        environment = {"GCE_METADATA_HOST": server.url.removeprefix("http://")}
        await sent(security(monkeypatch, environment, GCP))

    with pytest.raises(AuthenticationFailedError, match=r"HTTP 403; .*roles/iam\.workloadIdentityUser"):
        with_server(respond, use)


def test_the_error_for_a_missing_google_identity_has_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    client_security = security(monkeypatch, {"GCE_METADATA_HOST": "127.0.0.1:1"}, GCP)
    with pytest.raises(AuthenticationFailedError, match="no identity of Google Cloud was found"):
        asyncio.run(sent(client_security))


def test_a_service_account_key_is_exchanged_for_a_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """GOOGLE_APPLICATION_CREDENTIALS on a laptop uses the JWT bearer grant, with the key's id and the scope as a claim."""
    path = tmp_path / "key.json"

    async def use(server: IdentityServer) -> dict[str, Any]:
        account = {
            "type": "service_account",
            "client_email": "m@p.iam.gserviceaccount.com",
            "private_key_id": "k1",
            "private_key": pem(RSA_KEY).decode(),
            "token_uri": f"{server.url}/token",
        }
        path.write_text(json.dumps(account))
        client_security = security(monkeypatch, {"GOOGLE_APPLICATION_CREDENTIALS": str(path)}, GCP)
        claims = json.loads(decoded((await sent(client_security)).split(".")[1]))
        assert claims["sub"] == account["client_email"]
        assert server.requests[0].form["grant_type"] == JWT_BEARER
        return verified(server.requests[0].form["assertion"], account["token_uri"])

    header, claims = with_server(lambda _: issued(), use).values()
    assert header["kid"] == "k1"
    assert claims["scope"] == "https://www.googleapis.com/auth/cloud-platform"


def verified(assertion: str, audience: str) -> dict[str, Any]:
    """Returns the header and the claims of an *assertion* signed with RSA_KEY."""
    header, claims, signature = assertion.split(".")
    RSA_KEY.public_key().verify(
        decoded(signature), f"{header}.{claims}".encode(), padding.PKCS1v15(), hashes.SHA256()
    )
    payload = json.loads(decoded(claims))
    assert payload["aud"] == audience
    return {"header": json.loads(decoded(header)), "claims": payload}


def test_the_token_of_an_external_account_is_exchanged_and_impersonates_a_service_account(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Workload identity federation outside Google Cloud reads the projected token at each use."""
    token, path = projected(tmp_path), tmp_path / "account.json"

    def respond(request: Received) -> Response:
        if request.path == "/v1/token":
            return issued("federated")
        assert request.headers["authorization"] == "Bearer federated"
        until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
        return Response(body={"accessToken": "impersonated", "expireTime": until})

    async def use(server: IdentityServer) -> str:
        account = {
            "type": "external_account",
            "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/k",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": f"{server.url}/v1/token",
            "service_account_impersonation_url": f"{server.url}/v1/projects/-/serviceAccounts/m@p.iam.gserviceaccount.com:generateAccessToken",
            "credential_source": {"file": str(token)},
        }
        path.write_text(json.dumps(account))
        client_security = security(monkeypatch, {"GOOGLE_APPLICATION_CREDENTIALS": str(path)}, GCP)
        text = str(await sent(client_security))
        assert server.requests[0].form["subject_token"] == token.read_text().strip()
        return text

    _, claims, access = with_server(respond, use).split(".")
    assert json.loads(decoded(claims))["sub"] == "m@p.iam.gserviceaccount.com"
    assert decoded(access) == b"impersonated"


def test_other_credentials_of_google_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "user.json"
    path.write_text('{"type": "authorized_user"}')
    with pytest.raises(InvalidSettingError, match="service_account or external_account"):
        security(monkeypatch, {"GOOGLE_APPLICATION_CREDENTIALS": str(path)}, GCP)


# Azure


def aks(server: IdentityServer, token: Path) -> dict[str, str]:
    return {
        "AZURE_CLIENT_ID": "client",
        "AZURE_TENANT_ID": "tenant",
        "AZURE_FEDERATED_TOKEN_FILE": str(token),
        "AZURE_AUTHORITY_HOST": f"{server.url}/",
    }


def test_the_token_of_an_aks_pod_is_exchanged_at_entra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    token = projected(tmp_path)

    async def use(server: IdentityServer) -> Received:
        assert await sent(security(monkeypatch, aks(server, token), AZURE)) == "access"
        return server.requests[0]

    request = with_server(lambda _: issued(), use)

    assert request.path == "/tenant/oauth2/v2.0/token"
    assert request.form == {
        "grant_type": "client_credentials",
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
        "client_assertion": token.read_text().strip(),
        "client_id": "client",
        "scope": "https://demo.servicebus.windows.net/.default",
    }
    assert "authorization" not in request.headers


def test_the_error_of_entra_names_its_code_and_the_subject(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The federated credential must name the subject. Entra's text is not shown, because it may repeat the assertion."""
    token = projected(tmp_path)
    refusal = {
        "error": "invalid_client",
        "error_description": f"AADSTS700213: No match for {token.read_text()}",
    }

    async def use(server: IdentityServer) -> None:
        await sent(security(monkeypatch, aks(server, token), AZURE))

    with pytest.raises(AuthenticationFailedError) as caught:
        with_server(lambda _: Response(status=401, body=refusal), use)
    text = str(caught.value)
    assert "HTTP 401 invalid_client AADSTS700213" in text
    assert "iss https://oidc.example, sub system:serviceaccount:kafka:mirror" in text
    assert token.read_text().strip() not in text


def test_a_managed_identity_is_used_without_a_projected_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata service of the node throttles requests and writes numbers as strings."""
    responses = [
        Response(status=429),
        Response(body={"access_token": "managed", "expires_in": "3599", "token_type": "Bearer"}),
    ]

    async def use(server: IdentityServer) -> tuple[str, Received]:
        environment = {"AZURE_POD_IDENTITY_AUTHORITY_HOST": server.url, "AZURE_CLIENT_ID": "client"}
        return str(await sent(security(monkeypatch, environment, AZURE))), server.requests[-1]

    text, request = with_server(lambda _: responses.pop(0), use)
    assert text == "managed"
    assert request.headers["metadata"] == "true"
    assert "resource=https%3A%2F%2Fdemo.servicebus.windows.net&client_id=client" in request.path


def test_a_scope_is_needed_outside_event_hubs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidSettingError, match=r"authentication\.scope"):
        security(monkeypatch, {}, AZURE, **{"bootstrap.servers": "kafka.example:9093"})


# Client assertions and the JWT bearer grant, with Java's keys


ASSERTION = "sasl.oauthbearer.assertion."


def signed_properties(key_file: Path, url: str, **further: str) -> dict[str, str]:
    return {
        "sasl.oauthbearer.token.endpoint.url": f"{url}/token",
        f"{ASSERTION}private.key.file": str(key_file),
        f"{ASSERTION}claim.iss": "mirror",
        f"{ASSERTION}claim.sub": "mirror",
        f"{ASSERTION}claim.aud": "https://issuer.example",
        f"{ASSERTION}claim.jti.include": "true",
        **further,
    }


@pytest.mark.parametrize("form", ["base64", "DER", "PEM", "encrypted PEM"])
def test_a_client_authenticates_with_a_signed_assertion(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, form: str
) -> None:
    """By KIP-1258, no secret leaves the pod. Keys are PKCS #8, which Java reads, or PEM."""
    der = RSA_KEY.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    content = {
        "base64": base64.b64encode(der),
        "DER": der,
        "PEM": pem(RSA_KEY),
        "encrypted PEM": pem(RSA_KEY, "hunter2"),
    }[form]
    path = tmp_path / "key"
    path.write_bytes(content)
    passphrase = {f"{ASSERTION}private.key.passphrase": "hunter2"} if "encrypted" in form else {}

    async def use(server: IdentityServer) -> dict[str, str]:
        own = signed_properties(path, server.url, **passphrase)
        assert await sent(security(monkeypatch, {}, "", 'clientId="me" scope="kafka"', **own)) == "access"
        return server.requests[0].form

    sent_form = with_server(lambda _: issued(), use)
    assertion = verified(sent_form.pop("client_assertion"), "https://issuer.example")
    assert sent_form == {
        "grant_type": "client_credentials",
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
        "client_id": "me",
        "scope": "kafka",
    }
    claims = assertion["claims"]
    assert assertion["header"] == {"alg": "RS256", "typ": "JWT"}
    assert (claims["iss"], claims["sub"]) == ("mirror", "mirror")
    assert (claims["exp"] - claims["iat"], claims["iat"] - claims["nbf"]) == (300, 60)
    assert claims["jti"]


def test_an_assertion_signed_with_an_elliptic_curve_has_the_form_of_rfc_7518(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(pem(EC_KEY))

    async def use(server: IdentityServer) -> str:
        own = signed_properties(path, server.url, **{f"{ASSERTION}algorithm": "ES256"})
        await sent(security(monkeypatch, {}, "", 'clientId="me"', **own))
        return server.requests[0].form["client_assertion"]

    header, claims, signature = with_server(lambda _: issued(), use).split(".")
    raw = decoded(signature)
    assert len(raw) == 64
    r, s = int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big")
    EC_KEY.public_key().verify(
        utils.encode_dss_signature(r, s), f"{header}.{claims}".encode(), ec.ECDSA(hashes.SHA256())
    )


def test_the_jwt_bearer_grant_sends_the_assertion_of_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By KIP-1139, the file is read again for each token, so that its rotation takes effect."""
    token = projected(tmp_path)

    async def use(server: IdentityServer) -> list[dict[str, str]]:
        own = {
            "sasl.oauthbearer.token.endpoint.url": f"{server.url}/token",
            "sasl.oauthbearer.jwt.retriever.class": "org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever",
            f"{ASSERTION}file": str(token),
            "sasl.oauthbearer.scope": "kafka",
        }
        client_security = security(monkeypatch, {}, **own)
        await sent(client_security)
        projected(tmp_path, "rotated")
        client_security.sasl.tokens.forget()  # type: ignore[union-attr]
        await sent(client_security)
        return [request.form for request in server.requests]

    first, second = with_server(lambda _: issued(), use)
    assert set(first) == {"grant_type", "assertion", "scope"}
    assert first["grant_type"] == JWT_BEARER
    assert first["assertion"] != second["assertion"]


def test_a_template_file_adds_claims_and_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The timestamps are always those of the request."""
    key, template = tmp_path / "key.pem", tmp_path / "template.json"
    key.write_bytes(pem(RSA_KEY))
    template.write_text('{"header": {"kid": "k9"}, "payload": {"sub": "other", "tenant": 3, "exp": 1}}')

    async def use(server: IdentityServer) -> str:
        own = signed_properties(key, server.url, **{f"{ASSERTION}template.file": str(template)})
        await sent(security(monkeypatch, {}, "", 'clientId="me"', **own))
        return server.requests[0].form["client_assertion"]

    assertion = verified(with_server(lambda _: issued(), use), "https://issuer.example")
    assert assertion["header"] == {"kid": "k9", "alg": "RS256", "typ": "JWT"}
    assert (assertion["claims"]["sub"], assertion["claims"]["tenant"]) == ("other", 3)
    assert assertion["claims"]["exp"] > time.time()


@pytest.mark.parametrize(
    ("content", "algorithm", "expected"),
    [(b"no key", "RS256", "cannot be read"), (pem(EC_KEY), "RS256", "is not for RS256")],
)
def test_the_error_for_an_invalid_key_does_not_show_the_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes, algorithm: str, expected: str
) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    own = signed_properties(path, "http://127.0.0.1:1", **{f"{ASSERTION}algorithm": algorithm})
    with pytest.raises(AuthenticationFailedError, match=expected) as caught:
        asyncio.run(sent(security(monkeypatch, {}, "", 'clientId="me"', **own)))
    assert content.decode() not in str(caught.value)


def test_the_bearer_grant_without_an_assertion_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {
        "sasl.oauthbearer.token.endpoint.url": "https://issuer.example/token",
        "sasl.oauthbearer.jwt.retriever.class": "org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever",
    }
    with pytest.raises(InvalidSettingError, match="needs an assertion"):
        security(monkeypatch, {}, **own)


# Strimzi's OAuth client


def test_strimzis_login_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The options of its module become those of Kafka's own handler."""

    async def use(server: IdentityServer) -> Received:
        options = (
            f'oauth.client.id="me" oauth.client.secret="s" oauth.token.endpoint.uri="{server.url}/t" '
            'oauth.scope="kafka" oauth.connect.timeout.seconds="5"'
        )
        assert await sent(security(monkeypatch, {}, STRIMZI, options)) == "access"
        return server.requests[0]

    request = with_server(lambda _: issued(), use)
    assert request.headers["authorization"] == "Basic " + base64.b64encode(b"me:s").decode()
    assert request.form == {"grant_type": "client_credentials", "scope": "kafka"}


def test_strimzis_other_grants_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RefusedSettingError, match=r"oauth\.refresh\.token") as caught:
        security(monkeypatch, {}, STRIMZI, 'oauth.refresh.token="hidden"')
    assert "hidden" not in str(caught.value)
