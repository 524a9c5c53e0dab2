"""Tokens for Google Cloud's Managed Service for Apache Kafka, by the identity of the pod.

As Google's own handler: an access token for the scope cloud-platform, wrapped into the form of a JWT with the account's name. It comes
from the metadata server (GKE's Workload Identity, or an instance's account), or from the file that GOOGLE_APPLICATION_CREDENTIALS
names: an account's key, or an external account with a projected token (workload identity federation).
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlencode

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_kafka.security.assertions import AssertionGrant, SignedAssertion, read_text
from mirrorflow_kafka.security.identity_requests import (
    FORM,
    IdentityRequest,
    RequestLimits,
    TokenError,
    is_final,
    send,
    shown_url,
)
from mirrorflow_kafka.security.jwt_claims import json_object, to_base64url
from mirrorflow_kafka.security.oauth import Token, read_token_response

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_METADATA_HOST = "metadata.google.internal"
_HEADER = {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
CREDENTIALS = "GOOGLE_APPLICATION_CREDENTIALS"
REFUSAL_HINT = "the account needs the role roles/managedkafka.client in the project of the cluster"
_TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 a name


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessToken:
    """An access token of Google Cloud, and the account that it is of."""

    token: Token
    account: str


class AccessTokenSource(Protocol):
    """A source of access tokens."""

    async def request(self) -> AccessToken:
        """Returns a new token. Raises TokenError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataServer:
    """The metadata server of an instance, or of GKE for the pod's ServiceAccount."""

    url: str
    limits: RequestLimits

    async def request(self) -> AccessToken:
        return await self.limits.retried(self._request)

    async def _request(self) -> AccessToken:
        account = (await self._get("email")).decode(errors="replace").strip()
        url = f"token?{urlencode({'scopes': _SCOPE})}"
        token = read_token_response(200, await self._get(url), endpoint=shown_url(self.url))
        return AccessToken(token=token, account=account)

    async def _get(self, name: str) -> bytes:
        url = f"{self.url}/computeMetadata/v1/instance/service-accounts/default/{name}"
        try:
            response = await send(
                IdentityRequest(url=url, headers={"Metadata-Flavor": "Google"}), self.limits
            )
        except TokenError as error:
            raise TokenError(
                f"no identity of Google Cloud was found: {CREDENTIALS} is not set, and the metadata server gave none: {error}",
                final=error.final,
            ) from None
        if response.status != 200:
            hint = ""
            if response.status == 403:
                hint = "; the Kubernetes ServiceAccount needs roles/iam.workloadIdentityUser on the account that its annotation names"
            elif response.status == 404:
                hint = "; the node has no account, or Workload Identity is not enabled in the node pool"
            raise TokenError(
                f"{shown_url(url)} returned HTTP {response.status}{hint}", final=is_final(response.status)
            )
        return response.body


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountKey:
    """A service account's key: its file exchanges a signed assertion for a token (JWT bearer grant)."""

    fields: Mapping[str, object] = field(repr=False)
    limits: RequestLimits

    async def request(self) -> AccessToken:
        account, url = str(self.fields.get("client_email", "")), str(self.fields.get("token_uri", ""))
        key = str(self.fields.get("private_key", "")).encode()
        # The scope is a claim here, and no parameter of the request.
        claims = {"iss": account, "sub": account, "aud": url, "scope": _SCOPE}
        assertion = SignedAssertion(
            algorithm="RS256",
            private_key=lambda: key,
            claims=claims,
            key_id=str(self.fields.get("private_key_id", "")) or None,
            expires_in_s=3600,
            not_before_s=0,
        )
        grant = AssertionGrant(url=url, assertion=assertion, is_bearer=True, limits=self.limits)
        return AccessToken(token=await grant.fetch(), account=account)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalAccount:
    """An identity of another provider, whose token is in a file: workload identity federation."""

    fields: Mapping[str, object] = field(repr=False)
    limits: RequestLimits

    async def request(self) -> AccessToken:
        return await self.limits.retried(self._request)

    async def _request(self) -> AccessToken:
        audience, url = str(self.fields.get("audience", "")), str(self.fields.get("token_url", ""))
        body = urlencode(
            {
                "grant_type": _TOKEN_EXCHANGE,
                "audience": audience,
                "scope": _SCOPE,
                "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
                "subject_token_type": str(self.fields.get("subject_token_type", "")),
                "subject_token": self._subject_token(),
            }
        )
        request = IdentityRequest(url=url, method="POST", headers={"Content-Type": FORM}, body=body.encode())
        response = await send(request, self.limits)
        token = read_token_response(response.status, response.body, endpoint=shown_url(url))
        if not (impersonation := str(self.fields.get("service_account_impersonation_url", ""))):
            return AccessToken(token=token, account=audience)
        return await self._impersonated(impersonation, token)

    def _subject_token(self) -> str:
        source = self.fields.get("credential_source")
        source = source if isinstance(source, dict) else {}
        text = read_text(str(source.get("file", "")), "the file of credential_source")
        form = source.get("format")
        if isinstance(form, dict) and form.get("type") == "json":
            return str(json_object(text.encode()).get(str(form.get("subject_token_field_name")), ""))
        return text

    async def _impersonated(self, url: str, token: Token) -> AccessToken:
        request = IdentityRequest(
            url=url,
            method="POST",
            headers={"Authorization": f"Bearer {token.text}", "Content-Type": "application/json"},
            body=json.dumps({"scope": [_SCOPE]}).encode(),
        )
        response = await send(request, self.limits)
        account = url.rpartition("/")[2].partition(":")[0]
        if response.status != 200:
            hint = (
                f"; the external identity needs roles/iam.workloadIdentityUser on {account}"
                if response.status == 403
                else ""
            )
            raise TokenError(
                f"{shown_url(url)} returned HTTP {response.status}{hint}", final=is_final(response.status)
            )
        members = json_object(response.body)
        body = json.dumps(
            {
                "access_token": members.get("accessToken"),
                "expires_in": _seconds_until(members.get("expireTime")),
            }
        )
        return AccessToken(
            token=read_token_response(200, body.encode(), endpoint=shown_url(url)), account=account
        )


def _seconds_until(text: object) -> float | None:
    from datetime import datetime  # noqa: PLC0415 only for this kind of identity

    try:
        return datetime.fromisoformat(str(text)).timestamp() - time.time()
    except ValueError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class GcpToken:
    """Wraps access tokens of `source` as Managed Kafka reads them."""

    source: AccessTokenSource
    now: Callable[[], float] = time.time

    async def fetch(self) -> Token:
        """Returns a new token. Raises TokenError."""
        access = await self.source.request()
        now = int(self.now())
        expires_at = access.token.expires_at
        claims: dict[str, object] = {} if expires_at is None else {"exp": int(expires_at)}
        claims |= {"iat": now, "scope": "kafka", "sub": access.account}
        parts = [json.dumps(part, separators=(",", ":")) for part in (_HEADER, claims)]
        text = ".".join(to_base64url(part.encode()) for part in (*parts, access.token.text))
        return Token(text=text, begins_at=now, expires_at=expires_at)


def gcp_token(environment: Mapping[str, str], limits: RequestLimits) -> GcpToken:
    """Returns the source that *environment* chooses, as Google's libraries do. Raises InvalidSettingError."""
    path = environment.get(CREDENTIALS, "")
    if not path:
        host = environment.get("GCE_METADATA_HOST") or _METADATA_HOST
        return GcpToken(source=MetadataServer(url=f"http://{host}", limits=limits))
    try:
        fields = json_object(read_text(path, CREDENTIALS).encode())
    except TokenError as error:
        raise InvalidSettingError(key=CREDENTIALS, problem=str(error)) from None
    if fields.get("type") == "service_account":
        return GcpToken(source=AccountKey(fields=fields, limits=limits))
    if fields.get("type") == "external_account":
        return GcpToken(source=ExternalAccount(fields=fields, limits=limits))
    raise InvalidSettingError(
        key=CREDENTIALS,
        problem="its type is not supported",
        action="use service_account or external_account, or the identity of the pod without this variable",
    )
