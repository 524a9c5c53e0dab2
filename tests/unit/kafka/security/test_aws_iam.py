"""MSK's IAM access control uses the bytes of AWS's own signer.

Servers on loopback simulate STS, Pod Identity and instance metadata.
"""

import asyncio
import base64
import datetime as dt
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_core.errors import AuthenticationFailedError, InvalidSettingError, RefusedSettingError
from mirrorflow_kafka.security.aws_credentials import (
    CachedAwsCredentials,
    FixedCredentials,
    InstanceMetadata,
    StsClient,
    WebIdentity,
    credential_source,
)
from mirrorflow_kafka.security.aws_iam import AwsIamToken, msk_region
from mirrorflow_kafka.security.aws_signature import AwsCredentials, presigned_msk_url, signed_headers
from mirrorflow_kafka.security.client_security import build_security
from mirrorflow_kafka.security.identity_requests import RequestLimits, TokenError
from tests.unit.kafka.aws_signatures import (
    KEY,
    NOW,
    SECRET,
    STS_BODY,
    STS_HEADERS,
    STS_REGION,
    STS_URL,
    recorded,
)
from tests.unit.kafka.identity_server import IdentityServer, Received, Response

SESSION = "session/token+with=signs"
ROLE = "arn:aws:iam::123456789012:role/mirror"
QUICK = RequestLimits(retry_s=0.001, retry_total_s=0.2)
HANDLER = "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
STATIC = AwsCredentials(access_key_id=KEY, secret_access_key=SECRET, session_token=SESSION)


@pytest.fixture(autouse=True)
def no_secret_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Checks that neither credentials nor tokens are logged at any level.

    The base64 text of a token begins with that of the scheme of the presigned address.
    """
    caplog.set_level(logging.DEBUG)
    yield
    for secret in (SECRET, SESSION, "secret1", "token1", "X-Amz-Signature", "aHR0cHM6Ly9rYWZrYS"):
        assert secret not in caplog.text


def assumed(expires_in_s: float = 3600.0, *, number: int = 1) -> Response:
    """Returns the response of STS to an AssumeRole... request."""
    until = dt.datetime.fromtimestamp(NOW + expires_in_s, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Response(
        body=f"<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>ASIA{number}</AccessKeyId>"
        f"<SecretAccessKey>secret{number}</SecretAccessKey><SessionToken>token{number}&#43;</SessionToken>"
        f"<Expiration>{until}</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"
    )


def denied(code: str, message: str = "", status: int = 403, **headers: str) -> Response:
    text = f"<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error></ErrorResponse>"
    return Response(status=status, body=text, headers=headers)


def as_json(number: int, expires_in_s: float = 3600.0) -> Response:
    """Returns a response of instance metadata or of the Pod Identity agent."""
    until = dt.datetime.fromtimestamp(NOW + expires_in_s, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Response(
        body={"AccessKeyId": f"ASIA{number}", "SecretAccessKey": "s", "Token": "t", "Expiration": until}
    )


def with_server(respond: Callable[[Received], Response], use: Callable[[IdentityServer], Any]) -> Any:
    async def run() -> Any:
        async with IdentityServer(respond=respond).running() as server:
            return await use(server)

    return asyncio.run(run())


def url_of(token: str) -> str:
    return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()


def web_token(folder: Path, subject: str = "system:serviceaccount:kafka:mirror-source") -> Path:
    claims = {"sub": subject, "iss": "https://oidc.eks.example/id/A1", "aud": ["sts.amazonaws.com"]}
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    path = folder / "token"
    path.write_text(f"e30.{payload}.c2ln\n")
    return path


def web_identity(path: Path, server: IdentityServer, now: float = NOW) -> WebIdentity:
    sts = StsClient(region="eu-west-1", url=f"{server.url}/", limits=QUICK, now=lambda: now)
    return WebIdentity(role_arn=ROLE, token_file=str(path), session_name="mirrorflow", sts=sts)


@pytest.mark.parametrize(
    "case", recorded()["tokens"], ids=lambda case: f"{case['region']} {len(case['session'])}"
)
def test_a_token_equals_that_of_awss_own_signer(case: dict[str, str]) -> None:
    """Both are signed at the same time."""
    own = AwsCredentials(access_key_id=KEY, secret_access_key=SECRET, session_token=case["session"])
    source = AwsIamToken(
        region=case["region"],
        credentials=CachedAwsCredentials(FixedCredentials(credentials=own)),
        now=lambda: NOW,
    )
    token = asyncio.run(source.fetch())

    assert url_of(token.text) == url_of(case["token"])
    assert token.text == case["token"]
    assert token.expires_at == NOW + 900


@pytest.mark.parametrize("case", recorded()["headers"], ids=lambda case: str(len(case["session"])))
def test_a_request_to_sts_is_signed_as_botocore_does(case: dict[str, Any]) -> None:
    own = AwsCredentials(access_key_id=KEY, secret_access_key=SECRET, session_token=case["session"])
    signed = signed_headers(
        own, url=STS_URL, body=STS_BODY, headers=STS_HEADERS, region=STS_REGION, signed_s=NOW
    )

    assert signed == case["headers"]


def test_a_token_expires_with_the_credentials_that_signed_it() -> None:
    """MSK refuses a token of expired credentials, even within the token's own lifetime."""
    held = AwsCredentials(
        access_key_id=KEY, secret_access_key=SECRET, session_token=SESSION, expires_at=NOW + 400
    )
    source = AwsIamToken(
        region="us-east-1",
        credentials=CachedAwsCredentials(FixedCredentials(credentials=held), now=lambda: NOW),
        now=lambda: NOW,
    )

    assert asyncio.run(source.fetch()).expires_at == NOW + 400


def test_a_web_identity_becomes_credentials_of_its_role(tmp_path: Path) -> None:
    """With IRSA, the request is not signed.

    The kubelet's current token is read at each use, and the session keeps its name.
    """
    path = web_token(tmp_path)

    async def use(server: IdentityServer) -> list[AwsCredentials]:
        source = web_identity(path, server)
        first = await source.load()
        web_token(tmp_path, "system:serviceaccount:kafka:rotated")
        return [first, await source.load()]

    requests: list[Received] = []

    def respond(request: Received) -> Response:
        requests.append(request)
        return assumed(number=len(requests))

    first, second = with_server(respond, use)

    assert (first.access_key_id, first.session_token) == ("ASIA1", "token1+")
    assert first.expires_at == NOW + 3600
    assert second.access_key_id == "ASIA2"
    forms = [request.form for request in requests]
    assert [form["Action"] for form in forms] == ["AssumeRoleWithWebIdentity"] * 2
    assert {form["RoleSessionName"] for form in forms} == {"mirrorflow"}
    assert forms[0]["WebIdentityToken"] != forms[1]["WebIdentityToken"]
    assert "authorization" not in requests[0].headers


def test_the_error_of_a_denied_web_identity_names_the_trust_policy_and_the_subject(tmp_path: Path) -> None:
    path = web_token(tmp_path)
    message = "Not authorized to perform sts:AssumeRoleWithWebIdentity"

    async def use(server: IdentityServer) -> None:
        await web_identity(path, server).load()

    with pytest.raises(TokenError) as caught:
        with_server(lambda _: denied("AccessDenied", message), use)

    text = str(caught.value)
    assert "refused AssumeRoleWithWebIdentity with HTTP 403 AccessDenied" in text
    assert message in text
    assert f"the trust policy of {ROLE} must allow sts:AssumeRoleWithWebIdentity" in text
    assert "system:serviceaccount:kafka:mirror-source of https://oidc.eks.example/id/A1" in text
    assert path.read_text().strip() not in text


def test_an_unknown_identity_provider_is_reported_with_the_remedy(tmp_path: Path) -> None:
    async def use(server: IdentityServer) -> None:
        await web_identity(web_token(tmp_path), server).load()

    with pytest.raises(TokenError, match="create an IAM OIDC provider for the Kubernetes cluster"):
        with_server(lambda _: denied("InvalidIdentityToken", "No OpenIDConnect provider", 400), use)


@pytest.mark.parametrize(
    "refusal",
    [
        denied("Throttling", status=400),
        denied("", status=429),
        denied("InternalFailure", status=500),
        denied("ServiceUnavailable", status=503),
    ],
)
def test_throttled_and_failed_requests_are_repeated(tmp_path: Path, refusal: Response) -> None:
    responses = [refusal, refusal, assumed()]

    async def use(server: IdentityServer) -> AwsCredentials:
        return await web_identity(web_token(tmp_path), server).load()

    assert with_server(lambda _: responses.pop(0), use).access_key_id == "ASIA1"


def test_a_denial_is_not_repeated(tmp_path: Path) -> None:
    async def use(server: IdentityServer) -> int:
        with pytest.raises(TokenError):
            await web_identity(web_token(tmp_path), server).load()
        return len(server.requests)

    assert with_server(lambda _: denied("AccessDenied"), use) == 1


@pytest.mark.parametrize(("skew_s", "expected"), [(900, "900 s ahead of"), (-7200, "7200 s behind")])
def test_a_refused_signature_with_a_wrong_clock_names_the_difference(
    tmp_path: Path, skew_s: int, expected: str
) -> None:
    """The Date header of the response has the time of AWS."""
    date = dt.datetime.fromtimestamp(NOW, dt.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")

    async def use(server: IdentityServer) -> None:
        await web_identity(web_token(tmp_path), server, NOW + skew_s).load()

    with pytest.raises(TokenError, match=f"the clock of this machine is {expected} AWS's"):
        with_server(lambda _: denied("SignatureDoesNotMatch", "signature material", Date=date), use)


def test_the_text_of_a_signature_error_is_not_shown(tmp_path: Path) -> None:
    """In that text, AWS repeats the signed request, which contains the session token."""

    async def use(server: IdentityServer) -> None:
        await web_identity(web_token(tmp_path), server).load()

    with pytest.raises(TokenError) as caught:
        with_server(lambda _: denied("SignatureDoesNotMatch", "x-amz-security-token:hidden"), use)
    assert "hidden" not in str(caught.value)


def test_a_role_is_assumed_with_signed_requests() -> None:
    """This is `awsRoleArn` of a second account, with credentials from the environment."""

    async def use(server: IdentityServer) -> AwsCredentials:
        environment = {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_SESSION_TOKEN": SESSION,
            "AWS_ENDPOINT_URL_STS": server.url,
            "AWS_REGION": "eu-north-1",
        }
        options = {"awsRoleArn": ROLE, "awsRoleExternalId": "ext", "awsRoleSessionName": "copy"}
        credentials = await credential_source(environment, options, region="us-east-1", limits=QUICK).load()
        (request,) = server.requests
        assert request.form == {
            "Action": "AssumeRole",
            "ExternalId": "ext",
            "RoleArn": ROLE,
            "RoleSessionName": "copy",
            "Version": "2011-06-15",
        }
        assert f"Credential={KEY}/" in request.headers["authorization"]
        assert "/eu-north-1/sts/aws4_request" in request.headers["authorization"]
        assert request.headers["x-amz-security-token"] == SESSION
        return credentials

    assert with_server(lambda _: assumed(), use).access_key_id == "ASIA1"


def test_the_error_of_a_denied_role_names_the_missing_permission() -> None:
    message = f"User: arn:aws:sts::1:assumed-role/a/b is not authorized to perform: sts:AssumeRole on resource: {ROLE}"

    async def use(server: IdentityServer) -> None:
        environment = {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL_STS": server.url,
        }
        await credential_source(environment, {"awsRoleArn": ROLE}, region="us-east-1", limits=QUICK).load()

    with pytest.raises(TokenError) as caught:
        with_server(lambda _: denied("AccessDenied", message), use)
    assert message in str(caught.value)
    assert f"needs sts:AssumeRole on {ROLE}" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_pod_identity_sends_the_rotated_token(tmp_path: Path) -> None:
    path = tmp_path / "eks-pod-identity-token"

    async def use(server: IdentityServer) -> list[str]:
        environment = {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{server.url}/v1/credentials",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(path),
        }
        source = credential_source(environment, {}, region="us-east-1", limits=QUICK)
        for text in ("one", "two"):
            path.write_text(text + "\n")
            await source.load()
        return [request.headers["authorization"] for request in server.requests]

    assert with_server(lambda _: as_json(1), use) == ["one", "two"]


def test_the_error_of_the_pod_identity_agent_names_the_missing_association(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("projected")

    async def use(server: IdentityServer) -> None:
        environment = {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{server.url}/v1/credentials",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(path),
        }
        await credential_source(environment, {}, region="us-east-1", limits=QUICK).load()

    with pytest.raises(TokenError, match="HTTP 400; create a Pod Identity association") as caught:
        with_server(lambda _: Response(status=400, body="projected"), use)
    assert "projected" not in str(caught.value)


def test_the_authorization_token_is_not_sent_to_a_remote_host() -> None:
    environment = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://credentials.example/v1"}
    with pytest.raises(InvalidSettingError, match="AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        credential_source(environment, {}, region="us-east-1", limits=QUICK)


def test_instance_metadata_is_read_with_version_2_of_its_service() -> None:
    def respond(request: Received) -> Response:
        if request.method == "PUT":
            assert request.headers["x-aws-ec2-metadata-token-ttl-seconds"] == "21600"
            return Response(body="session")
        assert request.headers["x-aws-ec2-metadata-token"] == "session"
        return Response(body="mirror-role") if request.path.endswith("/") else as_json(7)

    async def use(server: IdentityServer) -> AwsCredentials:
        credentials = await InstanceMetadata(url=server.url, limits=QUICK).load()
        assert server.requests[-1].path == "/latest/meta-data/iam/security-credentials/mirror-role"
        return credentials

    assert with_server(respond, use).access_key_id == "ASIA7"


def test_an_instance_without_a_role_is_an_error() -> None:
    def respond(request: Received) -> Response:
        return Response(body="session") if request.method == "PUT" else Response(status=404)

    async def use(server: IdentityServer) -> None:
        await InstanceMetadata(url=server.url, limits=QUICK).load()

    with pytest.raises(TokenError, match="the instance has no role"):
        with_server(respond, use)


def test_the_error_for_missing_credentials_has_the_remedies() -> None:
    """There are neither variables nor a metadata service, as in a pod whose ServiceAccount has no role."""
    source = InstanceMetadata(url="http://127.0.0.1:1", limits=RequestLimits(retry_total_s=0))
    with pytest.raises(
        TokenError, match=r"no AWS credentials were found.*ServiceAccount a role.*hop limit to 2"
    ):
        asyncio.run(source.load())


class Counting:
    """Credentials that expire after `lifetime_s`. Each load returns new ones, or fails."""

    def __init__(self, lifetime_s: float) -> None:
        self.lifetime_s = lifetime_s
        self.loads = 0
        self.fails = False
        self.now = NOW

    async def load(self) -> AwsCredentials:
        if self.fails:
            raise TokenError("STS is away", final=False)
        self.loads += 1
        return AwsCredentials(
            access_key_id=str(self.loads), secret_access_key="s", expires_at=self.now + self.lifetime_s
        )


def test_credentials_are_renewed_while_they_outlive_a_new_token() -> None:
    source = Counting(3600)
    cache = CachedAwsCredentials(source, now=lambda: source.now)

    async def use() -> list[str]:
        key_ids = []
        for source.now in (NOW, NOW + 2699, NOW + 2701, NOW + 2702):
            key_ids.append((await cache.load()).access_key_id)
        return key_ids

    assert asyncio.run(use()) == ["1", "1", "2", "2"]


def test_old_credentials_are_used_while_their_renewal_fails() -> None:
    source = Counting(3600)
    cache = CachedAwsCredentials(source, now=lambda: source.now)

    async def use() -> None:
        await cache.load()
        source.fails, source.now = True, NOW + 3500
        assert (await cache.load()).access_key_id == "1"
        source.now = NOW + 3601
        with pytest.raises(TokenError, match="STS is away"):
            await cache.load()

    asyncio.run(use())


def security(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], **properties: str) -> Any:
    """Returns the security of a client with *environment*. No variable of AWS is inherited."""
    import os

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    own = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": HANDLER,
        "sasl.jaas.config": f"{OAUTH} required;",
        "bootstrap.servers": "b-1.demo.a1b2.c3.kafka.eu-west-1.amazonaws.com:9098",
    }
    return build_security(own | properties, cluster="east")


KEYS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": SESSION}
MSK_IAM = {
    "sasl.mechanism": "AWS_MSK_IAM",
    "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
    "sasl.login.callback.handler.class": "",
    "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
}


@pytest.mark.parametrize(
    "properties",
    [{}, {"sasl.client.callback.handler.class": HANDLER}, MSK_IAM],
    ids=["login", "both", "AWS_MSK_IAM"],
)
def test_javas_properties_for_msk_send_a_token_by_oauthbearer(
    monkeypatch: pytest.MonkeyPatch, properties: dict[str, str]
) -> None:
    """The handlers and the module of aws-msk-iam-auth are named as in its README.

    The region is derived from the brokers' names.
    """
    client_security = security(monkeypatch, KEYS, **properties)
    client = client_security.sasl_client("b-1:9098")

    message = asyncio.run(client.first()).decode()

    assert client.mechanism == "OAUTHBEARER"
    assert message.startswith("n,,\x01auth=Bearer ")
    url = url_of(message.removeprefix("n,,\x01auth=Bearer ").rstrip("\x01"))
    assert url.startswith("https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect&")
    assert not client_security.warnings
    assert SECRET not in repr(client_security) + repr(client)
    assert SESSION not in repr(client_security.sasl.tokens)


def test_the_error_of_a_refused_token_names_the_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    client = security(monkeypatch, KEYS).sasl_client("b-1:9098")
    text = client.refused("Access denied")
    assert text.startswith("Access denied; the identity's policy must allow kafka-cluster:Connect")
    assert "eu-west-1" in text


def test_the_error_of_a_connection_has_the_action_that_aws_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`check` and the status show this error."""

    async def use(server: IdentityServer) -> None:
        environment = {
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(web_token(tmp_path)),
            "AWS_ROLE_ARN": ROLE,
            "AWS_ENDPOINT_URL_STS": server.url,
        }
        client_security = security(monkeypatch, environment)
        await client_security.sasl_client("b-1:9098").first()

    with pytest.raises(AuthenticationFailedError) as caught:
        with_server(lambda _: denied("AccessDenied", "Not authorized"), use)
    assert "Cluster east at b-1:9098" in str(caught.value)
    assert "sts:AssumeRoleWithWebIdentity" in str(caught.value)


def test_a_profile_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RefusedSettingError, match="export-credentials"):
        security(monkeypatch, KEYS, **{"sasl.jaas.config": f'{OAUTH} required awsProfileName="x";'})


def test_options_without_effect_cause_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    client_security = security(
        monkeypatch, KEYS, **{"sasl.jaas.config": f'{OAUTH} required awsDebugCreds="true";'}
    )
    assert "awsDebugCreds has no effect" in " ".join(client_security.warnings)


def test_an_unknown_handler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RefusedSettingError, match="Java class"):
        security(monkeypatch, KEYS, **{"sasl.client.callback.handler.class": "com.example.Handler"})


@pytest.mark.parametrize(
    ("servers", "options", "environment", "region"),
    [
        ("b-1.x.y1.c2.kafka.us-east-2.amazonaws.com:9098,b-2.x:9098", {}, {"AWS_REGION": "eu-west-1"}, "us-east-2"),
        ("boot-a.c1.kafka-serverless.ap-south-1.amazonaws.com:9098", {}, {}, "ap-south-1"),
        ("b-1.x.y.kafka.cn-north-1.amazonaws.com.cn:9098", {}, {}, "cn-north-1"),
        ("b-1.x.y.kafka.us-east-2.amazonaws.com:9098", {"awsRegion": "us-west-1"}, {}, "us-west-1"),
        ("kafka.example:9098", {}, {"AWS_DEFAULT_REGION": "eu-west-3"}, "eu-west-3"),
    ],
)  # fmt: skip
def test_the_region_comes_from_options_variables_or_broker_names(
    servers: str, options: dict[str, str], environment: dict[str, str], region: str
) -> None:
    assert msk_region({"bootstrap.servers": servers}, options, environment) == region


def test_an_unknown_region_is_an_error() -> None:
    with pytest.raises(InvalidSettingError, match="awsRegion"):
        msk_region({"bootstrap.servers": "kafka.example:9098"}, {}, {})


def test_a_token_has_the_time_of_its_signature() -> None:
    url = presigned_msk_url(STATIC, region="us-east-1", signed_s=NOW)
    assert f"X-Amz-Date={time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(NOW))}" in url
