"""Sends requests to a Kubernetes API server by asyncio, each with one time limit for all of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client.rest import RESTClientObject

from mirrorflow_kubernetes.async_login import ApiServerLogin
from mirrorflow_kubernetes.credentials import KubernetesLoginError

CONNECT_TIMEOUT_S: Final = 10.0
# What `AsyncConnection.send` raises: a broken connection, the end of the time limit (an OSError), or credentials that are not renewed.
SEND_ERRORS: Final = (aiohttp.ClientError, KubernetesLoginError, OSError)


@dataclass(frozen=True, slots=True)
class ApiServerResponse:
    """The whole response to one request; *content* is what the server sent, JSON or not."""

    status: int
    headers: Mapping[str, str]
    content: bytes


@dataclass(frozen=True, slots=True)
class AsyncConnection:
    """A login to an API server, and the connections for its requests."""

    login: ApiServerLogin
    pool: RESTClientObject

    async def send(
        self,
        method: str,
        path: str,
        *,
        timeout_s: float,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> ApiServerResponse:
        """Sends one request; *timeout_s* is the limit until the last byte of the response. Raises SEND_ERRORS."""
        headers = {**await self.login.headers(), "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type
        # The package's calls for single kinds know no patches with dicts, and parse into models.
        response = await self.pool.request(  # type: ignore[no-untyped-call]
            method,
            f"{self.login.configuration.host}{path}" + (f"?{urlencode(params)}" if params else ""),
            headers=headers,
            body=body,
            _request_timeout=aiohttp.ClientTimeout(
                total=timeout_s, connect=min(CONNECT_TIMEOUT_S, timeout_s)
            ),
        )
        content = await response.read()
        return ApiServerResponse(response.status, response.headers, content)
