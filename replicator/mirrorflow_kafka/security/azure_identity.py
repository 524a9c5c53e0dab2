"""Tokens of Microsoft Entra for Event Hubs and others, by the identity of the pod.

AKS's Workload Identity projects a ServiceAccount token, which Entra accepts as a client assertion. Without it, the managed identity
of the node is asked for at the metadata service.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.cloud_logins import SCOPE_KEY
from mirrorflow_kafka.security.assertions import AssertionGrant, FileAssertion
from mirrorflow_kafka.security.identity_requests import (
    IdentityRequest,
    RequestLimits,
    TokenError,
    send,
    shown_url,
)
from mirrorflow_kafka.security.oauth import Token, TokenSource, read_token_response

_AUTHORITY = "https://login.microsoftonline.com/"
_METADATA = "http://169.254.169.254"
_METADATA_VERSION = "2018-02-01"
_EVENT_HUBS = re.compile(r"(?:^|,)\s*(?:[A-Za-z_]+://)?([A-Za-z0-9-]+[.]servicebus[.][a-z0-9.-]+?):\d+")
REFUSAL_HINT = "the identity needs the role Azure Event Hubs Data Receiver on a source, and Data Owner on a target namespace"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedIdentity:
    """The managed identity of a virtual machine or node; `client_id` chooses one of several."""

    url: str
    resource: str
    client_id: str
    limits: RequestLimits

    async def fetch(self) -> Token:
        """Returns a new token. Raises TokenError."""
        return await self.limits.retried(self._request)

    async def _request(self) -> Token:
        query = {"api-version": _METADATA_VERSION, "resource": self.resource}
        if self.client_id:
            query["client_id"] = self.client_id
        url = f"{self.url}/metadata/identity/oauth2/token?{urlencode(query)}"
        try:
            response = await send(IdentityRequest(url=url, headers={"Metadata": "true"}), self.limits)
        except TokenError as error:
            raise TokenError(
                "no identity of Azure was found: AZURE_FEDERATED_TOKEN_FILE is not set, which the label azure.workload.identity/use does, "
                f"and the metadata service gave none: {error}",
                final=error.final,
            ) from None
        # It throttles, and is slow to know a new identity: both pass.
        if response.status in {404, 410, 429} or response.status >= 500:
            raise TokenError(f"{shown_url(url)} returned HTTP {response.status}", final=False)
        return read_token_response(response.status, _with_numbers(response.body), endpoint=shown_url(url))


def _with_numbers(body: bytes) -> bytes:
    """Returns *body* with `expires_in` as a number: this service writes a string."""
    return re.sub(rb'"expires_in"\s*:\s*"(\d+)"', rb'"expires_in":\1', body)


def azure_token(
    properties: Mapping[str, str],
    options: Mapping[str, str],
    environment: Mapping[str, str],
    limits: RequestLimits,
) -> TokenSource:
    """Returns the source that *environment* chooses. Raises InvalidSettingError."""
    scope = azure_scope(properties, options)
    client_id = environment.get("AZURE_CLIENT_ID", "")
    path = environment.get("AZURE_FEDERATED_TOKEN_FILE", "")
    if not path:
        return ManagedIdentity(
            url=environment.get("AZURE_POD_IDENTITY_AUTHORITY_HOST", "").rstrip("/") or _METADATA,
            resource=scope.removesuffix("/.default"),
            client_id=client_id,
            limits=limits,
        )
    tenant = environment.get("AZURE_TENANT_ID", "")
    if not client_id or not tenant:
        raise InvalidSettingError(
            key="AZURE_CLIENT_ID" if tenant else "AZURE_TENANT_ID",
            problem="is missing in the environment",
            action="annotate the ServiceAccount with azure.workload.identity/client-id",
        )
    authority = environment.get("AZURE_AUTHORITY_HOST", "") or _AUTHORITY
    return AssertionGrant(
        url=f"{authority.rstrip('/')}/{tenant}/oauth2/v2.0/token",
        assertion=FileAssertion(path=path),
        client_id=client_id,
        scope=scope,
        limits=limits,
    )


def azure_scope(properties: Mapping[str, str], options: Mapping[str, str]) -> str:
    """Returns the scope: that of the settings, or that of the Event Hubs namespace in the addresses.

    Raises InvalidSettingError if there is neither.
    """
    match = _EVENT_HUBS.search(properties.get("bootstrap.servers", ""))
    scope = properties.get(SCOPE_KEY) or options.get("scope")
    scope = scope or (f"https://{match[1]}/.default" if match else "")
    if not scope:
        raise InvalidSettingError(
            key=SCOPE_KEY,
            problem="is missing, and the addresses are none of Event Hubs",
            action="set authentication.scope, such as api://<application>/.default",
        )
    return scope
