"""Sends single requests to an API server without a kubectl process.

They return the status, and send bodies unchanged.
"""

import base64
import json
import ssl
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes.client.api_client import ApiClient
from kubernetes.config import new_client_from_config

RESPONSE_WAIT_S = 30.0
READY_WAIT_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiResponse:
    """The HTTP status and the JSON body of a response."""

    status: int
    body: Any

    @property
    def message(self) -> str:
        """Returns the reason of a refusal, as worded by the server."""
        return str(self.body.get("message", ""))


class Requests:
    """Sends requests with the official client, as the user of *kubeconfig*."""

    def __init__(self, kubeconfig: Path) -> None:
        self._api: ApiClient = new_client_from_config(config_file=str(kubeconfig), persist_config=False)

    def __call__(
        self, method: str, path: str, body: object = None, *, content_type: str = "application/json"
    ) -> ApiResponse:
        """Sends a request to *path*, which begins with a slash. A string as *body* is sent unchanged.

        Raises urllib3's HTTPError.
        """
        data = None if body is None else (body if isinstance(body, str) else json.dumps(body)).encode()
        # No test closes the client. Therefore each response closes its connection.
        headers = {"Content-Type": content_type, "Connection": "close"}
        _, url, headers, *_ = self._api.param_serialize(
            method, path, header_params=headers, auth_settings=["BearerToken"]
        )
        # The package's own call would encode a string, and raise an exception instead of returning the status.
        response = self._api.rest_client.pool_manager.request(
            method, url, body=data, headers=headers, timeout=RESPONSE_WAIT_S, retries=False
        )
        return ApiResponse(status=response.status, body=response.json())


def tls_of(kubeconfig: Any) -> ssl.SSLContext | None:
    """Returns the TLS context with the server's CA and the user's certificate, or None for plain HTTP."""
    cluster, user = kubeconfig["clusters"][0]["cluster"], kubeconfig["users"][0]["user"]
    if "certificate-authority-data" not in cluster:
        return None
    context = ssl.create_default_context(cadata=_text(cluster["certificate-authority-data"]))
    if "client-certificate-data" in user:
        with tempfile.NamedTemporaryFile("w") as identity:  # ssl reads certificates only from files
            identity.write(_text(user["client-certificate-data"]) + _text(user["client-key-data"]))
            identity.flush()
            context.load_cert_chain(identity.name)
    return context


def is_ready(server: str, authority: Path) -> bool:
    """Returns whether the API server at the URL *server* reports that it is ready. Without a response, it is not."""
    opener = _opener(ssl.create_default_context(cafile=authority))
    try:
        with opener.open(f"{server}/readyz", timeout=READY_WAIT_S) as response:
            return bool(response.read() == b"ok")
    except OSError:  # includes the errors and timeouts of urllib
        return False


def _opener(context: ssl.SSLContext | None) -> urllib.request.OpenerDirector:
    """Returns an opener without a proxy, because the servers are on this machine."""
    return urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()
