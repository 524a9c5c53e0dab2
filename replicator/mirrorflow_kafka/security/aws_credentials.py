"""Credentials of an AWS identity: from the environment, a web identity, EKS Pod Identity, a container or an EC2 instance.

`credential_source` chooses by the environment variables that AWS's SDKs read, in their order. EKS sets them in a pod whose
ServiceAccount has a role (IRSA) or an association (Pod Identity). A role may be assumed on top. Files with rotated tokens are read
at each use. `CachedAwsCredentials` keeps credentials while they are valid long enough.

Errors name what AWS refused and the permission that is missing; none holds a key or a token.
"""

import email.utils
import html
import ipaddress
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlencode, urlsplit

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.jaas import KEY as JAAS
from mirrorflow_kafka.security.aws_signature import MSK_TOKEN_S, AwsCredentials, signed_headers
from mirrorflow_kafka.security.identity_requests import (
    DEFAULT_LIMITS,
    FORM,
    TOKEN_BYTES_MAX,
    IdentityRequest,
    RequestLimits,
    TokenError,
    is_final,
    send,
    shown_url,
)
from mirrorflow_kafka.security.jwt_claims import json_object, jwt_claims

if TYPE_CHECKING:
    from mirrorflow_kafka.client.http_exchange import HttpResponse

_CONTAINER_HOST = "http://169.254.170.2"  # ECS
# Where the SDKs send a token without TLS: ECS, EKS Pod Identity, and this machine.
_CONTAINER_ADDRESSES = frozenset({"169.254.170.2", "169.254.170.23", "fd00:ec2::23"})
_INSTANCE_METADATA = "http://169.254.169.254"
_METADATA_TOKEN_S = 21_600
# Nothing answers outside EC2, and a pod two hops away gets no response: the SDKs wait for one second, twice.
_METADATA_LIMITS = RequestLimits(connect_timeout_s=1.0, read_timeout_s=2.0, retry_total_s=1.0)
# MSK's token is valid no longer than the credentials that signed it, so they are renewed while they outlive one.
RENEW_BEFORE_S = float(MSK_TOKEN_S)
# The principal of an assumed role contains the name, and brokers refuse a different one in re-authentication (KIP-368).
SESSION_NAME = "mirrorflow"
# Requests signed by a clock that is wrong by more are refused.
CLOCK_SKEW_MAX_S = 300.0
_THROTTLED = frozenset({"Throttling", "ThrottlingException", "RequestLimitExceeded", "IDPCommunicationError"})
_CODE = re.compile(r"[A-Za-z.]{1,60}")
_DENIED_MESSAGE_CHARS_MAX = 300


class CredentialSource(Protocol):
    """A source of credentials."""

    async def load(self) -> AwsCredentials:
        """Returns current credentials. Raises TokenError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedCredentials:
    """Credentials that were given: environment variables or options."""

    credentials: AwsCredentials

    async def load(self) -> AwsCredentials:
        return self.credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class StsClient:
    """Requests temporary credentials from AWS's Security Token Service in `region`."""

    region: str
    url: str
    limits: RequestLimits = DEFAULT_LIMITS
    now: Callable[[], float] = time.time

    async def assume_role(
        self, parameters: Mapping[str, str], *, signer: AwsCredentials | None = None, hint: str
    ) -> AwsCredentials:
        """Returns the credentials of one AssumeRole... action, signed with *signer*'s if given.

        *hint* names the permission if STS denies access. Raises TokenError.
        """
        body = urlencode({**parameters, "Version": "2011-06-15"}).encode()
        headers = {"Content-Type": FORM}

        async def attempt() -> AwsCredentials:
            signed = headers
            if signer is not None:
                signed = signed_headers(
                    signer, url=self.url, body=body, headers=headers, region=self.region, signed_s=self.now()
                )
            request = IdentityRequest(url=self.url, method="POST", headers=signed, body=body)
            response = await send(request, self.limits)
            if response.status == 200:
                return _sts_credentials(response.body.decode(errors="replace"), shown_url(self.url))
            raise self._refused(response, parameters["Action"], hint)

        return await self.limits.retried(attempt)

    def _refused(self, response: "HttpResponse", action: str, hint: str) -> TokenError:
        text = response.body.decode(errors="replace")
        code = _element(text, "Code")
        code = code if _CODE.fullmatch(code) else ""
        problem = f"{shown_url(self.url)} refused {action} with HTTP {response.status} {code}".rstrip()
        if code == "AccessDenied":
            # AWS's own sentence has who was denied what, and no secret.
            message = _element(text, "Message")[:_DENIED_MESSAGE_CHARS_MAX]
            problem += f" ({message})" if message.isprintable() and message else ""
            problem += f"; {hint}"
        elif code == "InvalidIdentityToken":
            problem += (
                f"; {hint}, and create an IAM OIDC provider for the Kubernetes cluster in the role's account"
            )
        problem += _clock_problem(response, self.now())
        throttled = code in _THROTTLED or response.status == 429
        return TokenError(problem, final=is_final(response.status) and not throttled)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebIdentity:
    """A role by a projected token of a ServiceAccount: EKS's IAM roles for service accounts."""

    role_arn: str
    token_file: str
    session_name: str
    sts: StsClient

    async def load(self) -> AwsCredentials:
        """Returns credentials for the token that the file has now. Raises TokenError."""
        token = _token_in(self.token_file, "AWS_WEB_IDENTITY_TOKEN_FILE")
        claims = jwt_claims(token)
        hint = (
            f"the trust policy of {self.role_arn} must allow sts:AssumeRoleWithWebIdentity to the subject "
            f"{claims.get('sub', 'of the token')} of {claims.get('iss', 'its issuer')}, with audience {claims.get('aud', 'sts.amazonaws.com')}"
        )
        parameters = {
            "Action": "AssumeRoleWithWebIdentity",
            "RoleArn": self.role_arn,
            "RoleSessionName": self.session_name,
            "WebIdentityToken": token,
        }
        return await self.sts.assume_role(parameters, hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedRole:
    """A role that the credentials of `base` assume, for example one of another account."""

    base: CredentialSource
    role_arn: str
    session_name: str
    external_id: str
    sts: StsClient

    async def load(self) -> AwsCredentials:
        parameters = {"Action": "AssumeRole", "RoleArn": self.role_arn, "RoleSessionName": self.session_name}
        if self.external_id:
            parameters["ExternalId"] = self.external_id
        hint = (
            f"the pod's identity needs sts:AssumeRole on {self.role_arn}, and the role's trust policy must "
            "allow it to that identity"
        )
        return await self.sts.assume_role(parameters, signer=await self.base.load(), hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerCredentials:
    """Credentials of EKS Pod Identity or an ECS task, from an agent on the node."""

    url: str
    token_file: str | None = None
    token: str = field(default="", repr=False)
    limits: RequestLimits = DEFAULT_LIMITS

    async def load(self) -> AwsCredentials:
        return await self.limits.retried(self._request)

    async def _request(self) -> AwsCredentials:
        token = self.token
        if self.token_file is not None:
            token = _token_in(self.token_file, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
        headers = {"Accept": "application/json"} | ({"Authorization": token} if token else {})
        response = await send(IdentityRequest(url=self.url, headers=headers), self.limits)
        if response.status != 200:
            hint = ""
            if is_final(response.status):
                hint = "; create a Pod Identity association for the pod's ServiceAccount, with a role that pods.eks.amazonaws.com may assume"
            raise TokenError(
                f"{shown_url(self.url)} returned HTTP {response.status}{hint}",
                final=is_final(response.status),
            )
        return _json_credentials(response.body, shown_url(self.url))


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceMetadata:
    """Credentials of an EC2 instance's role, by version 2 of its metadata service."""

    url: str = _INSTANCE_METADATA
    limits: RequestLimits = _METADATA_LIMITS

    async def load(self) -> AwsCredentials:
        return await self.limits.retried(self._request)

    async def _request(self) -> AwsCredentials:
        session = IdentityRequest(
            url=f"{self.url}/latest/api/token",
            method="PUT",
            headers={"X-aws-ec2-metadata-token-ttl-seconds": str(_METADATA_TOKEN_S)},
        )
        try:
            token = (await self._body(session, "a session token")).decode(errors="replace")
        except TokenError as error:
            raise TokenError(
                f"no AWS credentials were found: the environment has none, and instance metadata gave none: {error}; in a pod, give "
                "the ServiceAccount a role, or raise the instance's metadata hop limit to 2",
                final=error.final,
            ) from None
        headers = {"X-aws-ec2-metadata-token": token.strip()}
        roles = f"{self.url}/latest/meta-data/iam/security-credentials/"
        role = (
            (await self._body(IdentityRequest(url=roles, headers=headers), "a role"))
            .decode(errors="replace")
            .split("\n")[0]
        )
        url = roles + role.strip()
        body = await self._body(IdentityRequest(url=url, headers=headers), "credentials")
        return _json_credentials(body, shown_url(url))

    async def _body(self, request: IdentityRequest, purpose: str) -> bytes:
        response = await send(request, self.limits)
        if response.status != 200:
            hint = "; the instance has no role" if response.status == 404 else ""
            raise TokenError(
                f"{shown_url(request.url)} returned HTTP {response.status} instead of {purpose}{hint}",
                final=is_final(response.status),
            )
        return response.body


class CachedAwsCredentials:
    """Credentials of *source*, renewed before they are too old to sign a token; old ones serve while renewal fails."""

    def __init__(self, source: CredentialSource, *, now: Callable[[], float] = time.time) -> None:
        self._source = source
        self._now = now
        self._held: AwsCredentials | None = None

    def __repr__(self) -> str:
        return f"CachedAwsCredentials({self._source!r})"

    async def load(self) -> AwsCredentials:
        """Returns credentials that have not expired. Raises TokenError."""
        held = self._held
        if held is not None and (held.expires_at is None or self._now() < held.expires_at - RENEW_BEFORE_S):
            return held
        try:
            self._held = await self._source.load()
        except TokenError:
            if held is None or held.expires_at is None or self._now() >= held.expires_at:
                raise
            return held
        return self._held


def credential_source(
    environment: Mapping[str, str], options: Mapping[str, str], *, region: str, limits: RequestLimits
) -> CredentialSource:
    """Returns the source that *environment* and the JAAS *options* choose. Raises InvalidSettingError."""
    sts = sts_client(environment, options, region=region, limits=limits)
    session_name = (
        options.get("awsRoleSessionName") or environment.get("AWS_ROLE_SESSION_NAME") or SESSION_NAME
    )
    base = _given_keys(options) or _source_of(environment, sts, session_name, limits)
    if not (role := options.get("awsRoleArn", "")):
        return base
    return AssumedRole(
        base=CachedAwsCredentials(base),
        role_arn=role,
        session_name=session_name,
        external_id=options.get("awsRoleExternalId", ""),
        sts=sts,
    )


def sts_client(
    environment: Mapping[str, str], options: Mapping[str, str], *, region: str, limits: RequestLimits
) -> StsClient:
    """Returns the client of STS, in the region of the pod if EKS has set it: its private endpoint is there."""
    own = (
        options.get("awsStsRegion") or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    )
    own = own or region
    suffix = "amazonaws.com.cn" if own.startswith("cn-") else "amazonaws.com"
    url = environment.get("AWS_ENDPOINT_URL_STS") or f"https://sts.{own}.{suffix}"
    return StsClient(region=own, url=url.rstrip("/") + "/", limits=limits)


def _given_keys(options: Mapping[str, str]) -> CredentialSource | None:
    if not options.get("awsRoleAccessKeyId"):
        return None
    return FixedCredentials(
        credentials=AwsCredentials(
            access_key_id=options["awsRoleAccessKeyId"],
            secret_access_key=options.get("awsRoleSecretAccessKey", ""),
            session_token=options.get("awsRoleSessionToken", ""),
        )
    )


def _source_of(
    environment: Mapping[str, str], sts: StsClient, session_name: str, limits: RequestLimits
) -> CredentialSource:
    """Returns the first source of the SDKs' order that *environment* names; the instance's role if none."""
    if environment.get("AWS_ACCESS_KEY_ID") and environment.get("AWS_SECRET_ACCESS_KEY"):
        return FixedCredentials(
            credentials=AwsCredentials(
                access_key_id=environment["AWS_ACCESS_KEY_ID"],
                secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
                session_token=environment.get("AWS_SESSION_TOKEN", ""),
            )
        )
    if environment.get("AWS_WEB_IDENTITY_TOKEN_FILE") and environment.get("AWS_ROLE_ARN"):
        return WebIdentity(
            role_arn=environment["AWS_ROLE_ARN"],
            token_file=environment["AWS_WEB_IDENTITY_TOKEN_FILE"],
            session_name=session_name,
            sts=sts,
        )
    url = environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI", "")
    if path := environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", ""):
        url = _CONTAINER_HOST + path
    if url:
        _check_container_url(url)
        return ContainerCredentials(
            url=url,
            token_file=environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE") or None,
            token=environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", ""),
            limits=limits,
        )
    if environment.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        raise InvalidSettingError(
            key=JAAS,
            problem="the environment has no AWS credentials, and AWS_EC2_METADATA_DISABLED is true",
            action="give the pod's ServiceAccount a role, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )
    return InstanceMetadata(
        url=environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "").rstrip("/") or _INSTANCE_METADATA
    )


def _check_container_url(url: str) -> None:
    """Raises InvalidSettingError for a URL to which the SDKs would not send the authorization token."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = host == "localhost"
    if parts.scheme != "https" and not (is_loopback or host in _CONTAINER_ADDRESSES):
        raise InvalidSettingError(
            key="AWS_CONTAINER_CREDENTIALS_FULL_URI",
            problem="only https, this machine, and the agents of EKS and ECS are allowed",
        )


def _token_in(path: str, variable: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return file.read(TOKEN_BYTES_MAX).decode("ascii", "replace").strip()
    except OSError as error:
        raise TokenError(
            f"{variable} names {path}, which cannot be read ({error.strerror})", final=False
        ) from None


def _json_credentials(body: bytes, origin: str) -> AwsCredentials:
    members = json_object(body)
    return _credentials(
        {
            name: str(members.get(name, ""))
            for name in ("AccessKeyId", "SecretAccessKey", "Token", "Expiration")
        },
        origin,
    )


def _sts_credentials(text: str, origin: str) -> AwsCredentials:
    elements = {name: _element(text, name) for name in ("AccessKeyId", "SecretAccessKey", "Expiration")}
    return _credentials({**elements, "Token": _element(text, "SessionToken")}, origin)


def _credentials(fields: Mapping[str, str], origin: str) -> AwsCredentials:
    if not fields["AccessKeyId"] or not fields["SecretAccessKey"]:
        raise TokenError(f"{origin} returned a response without credentials")
    expires_at = None
    if fields["Expiration"]:
        try:
            expires_at = datetime.fromisoformat(fields["Expiration"]).timestamp()
        except ValueError:
            raise TokenError(f"{origin} returned credentials with an invalid expiration") from None
    return AwsCredentials(
        access_key_id=fields["AccessKeyId"],
        secret_access_key=fields["SecretAccessKey"],
        session_token=fields["Token"],
        expires_at=expires_at,
    )


def _element(text: str, name: str) -> str:
    """Returns the content of the first XML element *name*; STS nests no element of these names."""
    match = re.search(rf"<{name}>([^<]*)</{name}>", text)
    return html.unescape(match[1]).strip() if match else ""


def _clock_problem(response: "HttpResponse", now: float) -> str:
    """Returns what is wrong with this machine's clock by the Date of *response*; "" if AWS would accept it."""
    for name, value in response.headers:
        if name == b"date":
            try:
                theirs = email.utils.parsedate_to_datetime(value.decode("ascii")).timestamp()
            except ValueError:
                return ""
            skew = now - theirs
            if abs(skew) > CLOCK_SKEW_MAX_S:
                direction = "ahead of" if skew > 0 else "behind"
                return f"; the clock of this machine is {abs(skew):.0f} s {direction} AWS's"
    return ""
